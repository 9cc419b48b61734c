"""Moves several messages to their target queues, all messages for a queue as one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.moves.log import Queue
from metaq_broker.rocketmq.moves.mover import Mover, MoveReceipt

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Movable(Protocol[M_co]):
    """A message that waits; ``target`` is ``None`` if it can go nowhere."""

    @property
    def origin(self) -> int: ...
    @property
    def target(self) -> Queue | None: ...
    @property
    def message(self) -> M_co: ...


def move_all(
    mover: Mover[M], waiting: Sequence[Movable[M]], moved: Callable[[Sequence[MoveReceipt] | Refusal], None]
) -> None:
    """Move messages; ``moved`` is called once, when all of them are durable or some are not.

    After a refusal, messages for other queues may have been moved. They count as moved (``was_moved``), so that the
    next attempt moves only the rest.
    """
    queues: dict[Queue, list[Movable[M]]] = {}
    for each in waiting:
        if each.target is not None and not mover.was_moved(each.origin):
            queues.setdefault(each.target, []).append(each)
    left = len(queues)
    done: dict[Queue, MoveReceipt] = {}
    refusals: list[Refusal] = []

    def one(queue: Queue, outcome: MoveReceipt | Refusal) -> None:
        nonlocal left
        left -= 1
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
        else:
            done[queue] = outcome
        if left == 0:
            all_done()

    def all_done() -> None:
        if not refusals:
            moved([*done.values(), *mover.forget(each.origin for each in waiting)])
            return
        for queue, receipt in done.items():
            mover.remember((each.origin for each in queues[queue]), receipt)
        moved(refusals[0])

    if not queues:
        all_done()
    for queue, those in queues.items():
        mover.move(queue, [each.message for each in those], partial(one, queue))
