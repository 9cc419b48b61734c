"""Batches: messages that are sent together, and their outcomes.

A producer that creates objects for each message spends most of its time on that. So the batch holds the state, and a
message is a row of it: taking one appends to a list, and an acknowledgement settles all rows at once. The result of a
row is created when a caller asks for it (``Outcomes``).
"""

from __future__ import annotations

import os
import threading
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from metaq.errors import MetaqError

P = TypeVar("P")
"""A message in the form in which it is sent: a frame, or a row of RocketMQ."""
S = TypeVar("S")
"""The result of an acknowledged message: ``Sent``, ``RocketSent``."""
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)

# The states of ``concurrent.futures.Future``.
PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"

NO_FAILURES: Final[Mapping[int, BaseException]] = {}

_STATES: Final = threading.RLock()
"""Guards the outcomes of all batches and their lists of futures. Never held while waiting, nor taken for each message.
Held by the thread that forks: in the child, no other thread could release it.
"""
os.register_at_fork(before=_STATES.acquire, after_in_parent=_STATES.release, after_in_child=_STATES.release)


class Outcomes(Protocol[S_co]):
    """The result of each row; ``None`` if it was not acknowledged."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> S_co | None: ...
    def __iter__(self) -> Iterator[S_co | None]: ...


class Watcher(Protocol[S_contra]):
    """A future that a caller waits for, with the methods of ``concurrent.futures.Future``."""

    row: int

    def start(self, state: str, result: S_contra | None, exception: BaseException | None, /) -> bool:
        """Set the first state; return ``False`` if the future already has one."""

    def set_running_or_notify_cancel(self) -> bool: ...
    def set_result(self, result: S_contra, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class SubmitterLoop(Protocol):
    """The event loop that submits the batches of an asyncio producer."""

    @property
    def loop(self) -> AbstractEventLoop: ...

    def settled(self, batch: MessageBatch[Any, Any], /) -> object:
        """Called when a batch is settled, in the thread that settles it."""


class MessageBatch(Generic[P, S]):
    """Messages of one topic, and of one ``queue`` if the producer sends each queue separately.

    ``messages`` grows until ``begin`` and is empty after ``settle``. ``awaited`` lists the futures of an asyncio
    producer with their rows; ``submitter_loop`` settles them when it is notified that the batch is settled. Futures of
    threads read the batch when they are asked.
    """

    __slots__ = (
        *("_dropped", "_failures", "_watchers", "awaited", "byte_count", "failure", "messages", "outcomes", "queue"),
        *("since_s", "state", "submitter_loop", "topic"),
    )

    def __init__(self, topic: str, queue: Hashable, since_s: float = 0.0) -> None:
        self.topic, self.queue, self.since_s = topic, queue, since_s
        self.messages: list[P] = []
        self.awaited: list[tuple[int, Future[S]]] = []
        self.submitter_loop: SubmitterLoop | None = None
        self.byte_count = 0
        self.state = PENDING
        self.outcomes: Outcomes[S] | None = None
        self.failure: BaseException | None = None
        self._watchers: list[Watcher[S]] = []
        self._dropped: frozenset[int] = frozenset()
        self._failures: Mapping[int, BaseException] = {}

    def watch(self, future: Watcher[S]) -> None:
        """Start a future with the state of its row, and notify it of later changes."""
        with _STATES:
            if self.outcomes is not None:
                found = self.outcomes[future.row]
                future.start(FINISHED, found, self.failure_of(future.row) if found is None else None)
            elif future.start(self.state, None, None):
                self._watchers.append(future)

    def begin(self) -> None:
        """Mark the batch as being sent. Messages with a cancelled future are left out; later, none can be cancelled."""
        with _STATES:
            self.state = RUNNING
            watchers = list(self._watchers)
        dropped = {one.row for one in watchers if not one.set_running_or_notify_cancel()}
        dropped.update(row for row, future in list(self.awaited) if future.cancelled())
        if dropped:
            with _STATES:
                self._watchers = [one for one in self._watchers if one.row not in dropped]
            self._dropped = frozenset(dropped)
            self.messages = [one for row, one in enumerate(self.messages) if row not in dropped]

    def failure_of(self, row: int) -> BaseException:
        """Return why a row of a settled batch was not acknowledged."""
        assert self.failure is not None
        return self._failures.get(row, self.failure)

    def settle(
        self,
        outcomes: Outcomes[S],
        failure: BaseException | None = None,
        failures: Mapping[int, BaseException] = NO_FAILURES,
    ) -> None:
        """Set the results of the messages that ``begin`` kept, and why those with ``None`` were not acknowledged:
        because of ``failure``, unless ``failures`` has the row's own.

        Only the first call has an effect.
        """
        if self.outcomes is not None:
            return
        if self._dropped:
            failures = self._of_kept(failures)
            outcomes = self._with_dropped(outcomes)
        with _STATES:
            self.failure, self._failures = failure or MetaqError("not acknowledged"), failures
            self.outcomes, self.messages = outcomes, []
            watchers, self._watchers = self._watchers, []
        for one in watchers:
            found = outcomes[one.row]
            if found is None:
                one.set_exception(self.failure_of(one.row))
            else:
                one.set_result(found)
        if self.submitter_loop is not None:
            self.submitter_loop.settled(self)

    def _with_dropped(self, outcomes: Outcomes[S]) -> Sequence[S | None]:
        """Return ``outcomes`` with ``None`` for the messages that were left out."""
        rest = iter(outcomes)
        return [None if row in self._dropped else next(rest) for row in range(len(outcomes) + len(self._dropped))]

    def _of_kept(self, failures: Mapping[int, BaseException]) -> Mapping[int, BaseException]:
        """Return ``failures`` of the rows that were sent under their numbers among all."""
        kept = [row for row in range(len(self.messages) + len(self._dropped)) if row not in self._dropped]
        return {kept[number]: failure for number, failure in failures.items()}


class OpenBatches(Generic[P, S]):
    """Batches that are being filled, one for each queue at a time; ``waiting`` lists all, oldest first.

    A batch has at most ``messages_max`` messages and ``bytes_max`` bytes; a longer message gets a batch of its own.
    """

    def __init__(self, messages_max: int, bytes_max: int, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self._messages_max, self._bytes_max, self._now_s = messages_max, bytes_max, now_s
        self._open: dict[tuple[str, Hashable], MessageBatch[P, S]] = {}
        self.waiting: deque[MessageBatch[P, S]] = deque()
        self.submitter_loop: SubmitterLoop | None = None
        """Set in every new batch."""

    def add(self, topic: str, queue: Hashable, message: P, byte_count: int) -> tuple[MessageBatch[P, S], int]:
        """Add a message; return its batch and its row there."""
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

    def _begin(self, topic: str, queue: Hashable) -> MessageBatch[P, S]:
        batch: MessageBatch[P, S] = MessageBatch(topic, queue, self._now_s())
        batch.submitter_loop = self.submitter_loop
        self._open[topic, queue] = batch
        self.waiting.append(batch)
        return batch

    def close_all(self) -> None:
        """Have every later message begin a new batch."""
        self._open.clear()

    def take(self, bytes_max: int) -> list[MessageBatch[P, S]]:
        """Take the oldest batches until they have ``bytes_max`` bytes together; they are closed to further messages."""
        taken: list[MessageBatch[P, S]] = []
        size = 0
        while self.waiting and size < bytes_max:
            batch = self.waiting.popleft()
            size += batch.byte_count
            taken.append(batch)
            where = batch.topic, batch.queue
            if self._open.get(where) is batch:
                del self._open[where]
        return taken
