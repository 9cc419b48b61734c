"""Calls of an offset storage that hangs end: a frozen database says nothing, and its driver waits for ever.

Each call runs in a thread of its own and is waited for. One that takes longer than ``SLOW_S`` is reported; one that
takes longer than ``ANSWER_S`` fails as one of a storage that is away. It may still be done, any time later, so no other
call begins before it has returned; until then they all fail. A save that is done late is like one whose answer was
lost: the next save compares.

Source: docs/client.md, "Where offsets are stored".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from metaq.client.offsets import ConditionalStorage, GroupOffset, IncarnationStorage, OffsetStorage
from metaq.errors import StoreFailed
from metaq.model import TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock

SLOW_S: Final = 5.0
"""A call that takes longer is reported."""

ANSWER_S: Final = 30.0
"""A call that takes longer has failed."""

R = TypeVar("R")


class _Call:
    """One call of the storage."""

    def __init__(self, work: Callable[[], Any], began_s: float) -> None:
        self.work, self.began_s = work, began_s
        self.is_done = self.is_said = False
        self.result: Any = None
        self.error: BaseException | None = None


class BoundedStorage:
    """A storage whose calls are waited for only so long; see the module and ``bounded``."""

    def __init__(self, storage: OffsetStorage, clock: Clock = SYSTEM_CLOCK) -> None:
        self._storage, self._clock = storage, clock
        self._changed = threading.Condition()
        self._running: _Call | None = None
        self._end_s = inf
        self._closes_late = False
        self.on_slow: Callable[[str], None] = lambda text: None
        """Called with what is the matter while a call is waited for."""

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        return self._call(partial(self._storage.load, group, partitions))

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        self._call(partial(self._storage.save, group, offsets))

    def hurry(self, seconds: float) -> None:
        """The consumer ends: wait for all calls together for ``seconds`` from now, also for one that hangs already."""
        with self._changed:
            self._end_s = self._clock.monotonic() + seconds
            self._changed.notify_all()

    def close(self) -> None:
        """What hangs is closed when it has returned."""
        with self._changed:
            if self._running is not None:
                self._closes_late = True
                return
        with suppress(StoreFailed):  # it hangs; it goes on in its thread
            self._call(self._storage.close)

    def _call(self, work: Callable[[], R]) -> R:
        with self._changed:
            while self._running is not None:
                self._wait(self._running)
            call = self._running = _Call(work, self._clock.monotonic())
        thread = threading.Thread(target=self._work, args=(call,), name="metaq-offsets", daemon=True)
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:
                self._end(call)
            raise
        with self._changed:
            self._wait(call)
        if call.error is not None:
            raise call.error
        result: R = call.result
        return result

    def _work(self, call: _Call) -> None:
        try:
            call.result = call.work()
        except BaseException as error:  # who waits raises it
            call.error = error
        self._end(call)
        if self._closes_late:
            self._storage.close()

    def _end(self, call: _Call) -> None:
        with self._changed:
            call.is_done, self._running = True, None
            self._changed.notify_all()

    def _wait(self, call: _Call) -> None:
        """Wait until a call is done; the caller has the lock. Raises ``StoreFailed`` if that takes too long."""
        failure = StoreFailed(f"the offset storage {type(self._storage).__name__}", "it does not answer")
        while not call.is_done:
            now_s = self._clock.monotonic()
            slow_s = call.began_s + SLOW_S
            end_s = call.began_s + ANSWER_S if self._end_s == inf else self._end_s
            if now_s >= end_s:
                raise failure
            if now_s >= slow_s and not call.is_said:
                call.is_said = True
                self.on_slow(str(failure))
            self._changed.wait((end_s if call.is_said else min(slow_s, end_s)) - now_s)


class _Compares(BoundedStorage):
    _storage: ConditionalStorage

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        return self._call(partial(self._storage.save_if_unchanged, group, offsets, expected))


class _KnowsIncarnations(BoundedStorage):
    _storage: IncarnationStorage

    def incarnations(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        return self._call(partial(self._storage.incarnations, group, partitions))

    def save_incarnations(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        incarnations: Mapping[TopicPartition, str | None],
    ) -> None:
        self._call(partial(self._storage.save_incarnations, group, offsets, incarnations))


class _ComparesAndKnowsIncarnations(_Compares, _KnowsIncarnations):
    _storage: Any


def bounded(storage: OffsetStorage) -> BoundedStorage:
    """Return a storage that can do what ``storage`` can."""
    if isinstance(storage, ConditionalStorage):
        both = isinstance(storage, IncarnationStorage)
        return _ComparesAndKnowsIncarnations(storage) if both else _Compares(storage)
    return _KnowsIncarnations(storage) if isinstance(storage, IncarnationStorage) else BoundedStorage(storage)
