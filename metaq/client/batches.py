"""Messages that are sent together, and what becomes of them.

A producer that makes objects for each message spends most of its time on them. Here the batch has the state, and a
message is a row of it: taking one is an append to a list, and an acknowledgement settles all rows at once. What a row
became is made when somebody asks (``Outcomes``).
"""

from __future__ import annotations

import logging
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeVar

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

_LOG: Final = logging.getLogger(__name__)
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


class Awaited(Protocol):
    """A future of an event loop that somebody waits for."""

    row: int

    def cancelled(self) -> bool: ...
    def settle(self, batch: Batch[Any, Any], /) -> None: ...


class SubmitterLoop(Protocol):
    """The event loop of who submits, for batches of a producer for asyncio."""

    @property
    def loop(self) -> AbstractEventLoop: ...

    def settled(self, batch: Batch[Any, Any], /) -> object:
        """Take notice of a batch that is settled. Called in the thread that does it."""


class Batch(Generic[P, S]):
    """Messages of one topic, and of one ``queue`` where the producer sends each queue's alone.

    ``messages`` is filled until ``begin`` and empty from ``settle`` on. ``awaited`` has the futures of event loops that
    are waited for, by their loop; the others look at the batch. ``submitter_loop`` is notified when it is settled.
    """

    __slots__ = (
        *("_dropped", "_has_failed", "_watchers", "awaited", "byte_count", "failure", "is_asked", "messages"),
        *("outcomes", "queue", "since_s", "state", "submitter_loop", "topic"),
    )

    def __init__(self, topic: str, queue: Hashable, since_s: float = 0.0) -> None:
        self.topic, self.queue, self.since_s = topic, queue, since_s
        self.messages: list[P] = []
        self.awaited: dict[AbstractEventLoop, list[Awaited]] = {}
        self.submitter_loop: SubmitterLoop | None = None
        self.is_asked = False
        """Whether a future of an event loop was asked what became of its message."""
        self._has_failed = False
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

    def add_awaited(self, loop: AbstractEventLoop, future: Awaited) -> bool:
        """Have a future settled in its loop, by who is notified, once the batch is; false: the batch is settled."""
        with _STATES:
            if self.outcomes is not None:
                return False
            self.awaited.setdefault(loop, []).append(future)
            return True

    def begin(self) -> None:
        """Messages are about to be sent. Those whose future was cancelled are left out; no other can be from now on."""
        with _STATES:
            self.state = RUNNING
            watchers = list(self._watchers)
            awaited = list(chain.from_iterable(self.awaited.values()))
        dropped = {one.row for one in watchers if not one.set_running_or_notify_cancel()}
        dropped.update(one.row for one in awaited if one.cancelled())
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
            self.failure, self._has_failed = failure or MetaqError("not acknowledged"), failure is not None
            self.outcomes, self.messages = outcomes, []
            watchers, self._watchers = self._watchers, []
        for one in watchers:
            found = outcomes[one.row]
            if found is None:
                one.set_exception(self.failure)
            else:
                one.set_result(found)
        if self.submitter_loop is not None:
            self.submitter_loop.settled(self)

    def __del__(self) -> None:
        """Say what nobody will ask for any more, as asyncio does for each future."""
        if self._has_failed and self.submitter_loop is not None and not self.is_asked:
            count = sum(one is None for one in self.outcomes or ())
            if count:
                text = "%d messages to %s were not acknowledged, and nobody asked for their futures: %s"
                _LOG.error(text, count, self.topic, self.failure)

    def _with_dropped(self, outcomes: Outcomes[S]) -> Sequence[S | None]:
        """Return ``outcomes`` with ``None`` for the messages that were left out."""
        rest = iter(outcomes)
        return [None if row in self._dropped else next(rest) for row in range(len(outcomes) + len(self._dropped))]


class OpenBatches(Generic[P, S]):
    """Batches that are filled, each queue's one after the other; ``waiting`` has all, in the order of their beginning.

    A batch has at most ``messages_max`` messages and ``bytes_max`` bytes; a longer message has one for itself.
    """

    def __init__(self, messages_max: int, bytes_max: int, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self._messages_max, self._bytes_max, self._now_s = messages_max, bytes_max, now_s
        self._open: dict[tuple[str, Hashable], Batch[P, S]] = {}
        self.waiting: deque[Batch[P, S]] = deque()
        self.submitter_loop: SubmitterLoop | None = None
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
        batch.submitter_loop = self.submitter_loop
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
