"""Messages that are sent together, and what becomes of them.

A producer that makes objects for each message spends most of its time on them. Here the batch has the state, and a
message is a row of it: taking one is an append to a list, and an acknowledgement settles all rows at once. What a row
became is made when somebody asks (``Outcomes``).
"""

from __future__ import annotations

import threading
from asyncio import Future as LoopFuture
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import methodcaller
from typing import Final, Generic, Protocol, TypeVar

from metaq.errors import MetaqError

P = TypeVar("P")
"""A message as its producer sends it: a frame, or a row of RocketMQ."""
S = TypeVar("S")
"""What an acknowledged message becomes: ``Sent``, ``RocketSent``."""
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)

# The states of ``concurrent.futures.Future``.
PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"

_IS_CANCELLED: Final = methodcaller("cancelled")
_STATES: Final = threading.RLock()
"""Guards what becomes of batches and who is notified of it. Nobody waits under it, or takes it for each message."""


class Outcomes(Protocol[S_co]):
    """What became of each row; ``None``: it was not acknowledged."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> S_co | None: ...
    def __iter__(self) -> Iterator[S_co | None]: ...


class Watcher(Protocol[S_contra]):
    """A future that somebody waits for, in the words of ``concurrent.futures.Future``."""

    row: int

    def start(self, state: str, result: S_contra | None, exception: BaseException | None, /) -> bool:
        """Take the first state; return whether there was none."""

    def set_running_or_notify_cancel(self) -> bool: ...
    def set_result(self, result: S_contra, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Batch(Generic[P, S]):
    """Messages of one topic, and of one ``queue`` where the producer sends each queue's alone.

    ``messages`` is filled until ``begin`` and empty from ``settle`` on. ``awaited`` has a future of an event loop for
    each row, or nothing. ``listener`` is called when such a batch is settled, in the thread that does it.
    """

    __slots__ = (
        *("_dropped", "_watchers", "awaited", "byte_count", "failure", "listener", "messages", "outcomes", "queue"),
        *("since_s", "state", "topic"),
    )

    def __init__(self, topic: str, queue: Hashable, since_s: float = 0.0) -> None:
        self.topic, self.queue, self.since_s = topic, queue, since_s
        self.messages: list[P] = []
        self.awaited: list[LoopFuture[S]] = []
        self.listener: Callable[[Batch[P, S]], object] | None = None
        self.byte_count = 0
        self.state = PENDING
        self.outcomes: Outcomes[S] | None = None
        self.failure: BaseException | None = None
        self._watchers: list[Watcher[S]] = []
        self._dropped: frozenset[int] = frozenset()

    def watch(self, future: Watcher[S]) -> None:
        """Start a future with what is known of its row, and tell it of all that happens from then on."""
        with _STATES:
            if self.outcomes is not None:
                found = self.outcomes[future.row]
                future.start(FINISHED, found, self.failure if found is None else None)
            elif future.start(self.state, None, None):
                self._watchers.append(future)

    def begin(self) -> None:
        """Messages are about to be sent. Those whose future was cancelled are left out; no other can be from now on."""
        with _STATES:
            self.state = RUNNING
            watchers = list(self._watchers)
        dropped = {one.row for one in watchers if not one.set_running_or_notify_cancel()}
        if any(map(_IS_CANCELLED, self.awaited)):
            dropped.update(row for row, future in enumerate(self.awaited) if future.cancelled())
        if dropped:
            with _STATES:
                self._watchers = [one for one in self._watchers if one.row not in dropped]
            self._dropped = frozenset(dropped)
            self.messages = [one for row, one in enumerate(self.messages) if row not in dropped]

    def settle(self, outcomes: Outcomes[S], failure: BaseException | None = None) -> None:
        """Say what became of the messages that ``begin`` has left, and why those with ``None`` were not acknowledged.

        Only the first call counts.
        """
        if self.outcomes is not None:
            return
        if self._dropped:
            outcomes = self._with_dropped(outcomes)
        with _STATES:
            self.failure = failure or MetaqError("not acknowledged")
            self.outcomes, self.messages = outcomes, []
            watchers, self._watchers = self._watchers, []
        for one in watchers:
            found = outcomes[one.row]
            if found is None:
                one.set_exception(self.failure)
            else:
                one.set_result(found)
        if self.awaited and self.listener is not None:
            self.listener(self)

    def _with_dropped(self, outcomes: Outcomes[S]) -> Sequence[S | None]:
        """Return ``outcomes`` with ``None`` for the messages that were left out."""
        rest = iter(outcomes)
        return [None if row in self._dropped else next(rest) for row in range(len(outcomes) + len(self._dropped))]


class Gathering(Generic[P, S]):
    """Batches that are filled, each queue's one after the other; ``waiting`` has all, in the order of their beginning.

    A batch has at most ``messages_max`` messages and ``bytes_max`` bytes; a longer message has one for itself.
    """

    def __init__(self, messages_max: int, bytes_max: int, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self._messages_max, self._bytes_max, self._now_s = messages_max, bytes_max, now_s
        self._open: dict[tuple[str, Hashable], Batch[P, S]] = {}
        self.waiting: deque[Batch[P, S]] = deque()
        self.listener: Callable[[Batch[P, S]], object] | None = None
        """That of all batches that begin."""

    def add(self, topic: str, queue: Hashable, message: P, byte_count: int) -> tuple[Batch[P, S], int]:
        """Return the batch that the message is in now, and its row."""
        batch = self._open.get((topic, queue))
        if batch is None or batch.byte_count + byte_count > self._bytes_max:
            batch = self._begin(topic, queue)
        messages = batch.messages
        row = len(messages)
        if row == self._messages_max:
            batch, row = self._begin(topic, queue), 0
            messages = batch.messages
        messages.append(message)
        batch.byte_count += byte_count
        return batch, row

    def _begin(self, topic: str, queue: Hashable) -> Batch[P, S]:
        batch: Batch[P, S] = Batch(topic, queue, self._now_s())
        batch.listener = self.listener
        self._open[topic, queue] = batch
        self.waiting.append(batch)
        return batch

    def close_all(self) -> None:
        """Add nothing to the batches that are there."""
        self._open.clear()

    def take(self, bytes_max: int) -> list[Batch[P, S]]:
        """Return the oldest batches, up to the one that makes it ``bytes_max``; nothing is added to them."""
        taken: list[Batch[P, S]] = []
        size = 0
        while self.waiting and size < bytes_max:
            batch = self.waiting.popleft()
            size += batch.byte_count
            taken.append(batch)
            where = batch.topic, batch.queue
            if self._open.get(where) is batch:
                del self._open[where]
        return taken
