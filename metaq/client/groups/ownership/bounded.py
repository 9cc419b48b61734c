"""Time limits for the calls of an offset storage: a frozen database never answers, and its driver waits forever.

Each call runs in a separate thread. A call that takes longer than ``SLOW_S`` is logged; after ``ANSWER_S`` it fails as
if the storage were unreachable. It may still complete later, so no other call starts before it has returned; until then
all calls fail. A late save is like one whose answer was lost: the next save compares.

Source: docs/client-internals.md, "How positions are kept".
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
"""Calls that take longer are logged."""

ANSWER_S: Final = 30.0
"""Calls that take longer fail."""

R = TypeVar("R")


class _Call:
    def __init__(self, work: Callable[[], Any], began_s: float) -> None:
        self.work, self.began_s = work, began_s
        self.is_done = self.is_said = False
        self.result: Any = None
        self.error: BaseException | None = None


class BoundedStorage:
    """A storage whose calls have a time limit. Made by ``bounded``."""

    def __init__(self, storage: OffsetStorage, clock: Clock = SYSTEM_CLOCK) -> None:
        self._storage, self._clock = storage, clock
        self._changed = threading.Condition()
        self._running: _Call | None = None
        self._end_s = inf
        self._closes_late = False
        self.on_slow: Callable[[str], None] = lambda text: None
        """Called with a description while a call takes long."""

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        return self._call(partial(self._storage.load, group, partitions))

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        self._call(partial(self._storage.save, group, offsets))

    def hurry(self, seconds: float) -> None:
        """The consumer ends: limit the wait for all calls together to ``seconds`` from now, also for a call that hangs
        already.
        """
        with self._changed:
            self._end_s = self._clock.monotonic() + seconds
            self._changed.notify_all()

    def close(self) -> None:
        """Close the storage. One that hangs is closed when its call returns."""
        with self._changed:
            if self._running is not None:
                self._closes_late = True
                return
        with suppress(StoreFailed):  # the storage hangs; closing continues in its thread
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
        except BaseException as error:  # raised by the caller
            call.error = error
        self._end(call)
        if self._closes_late:
            self._storage.close()

    def _end(self, call: _Call) -> None:
        with self._changed:
            call.is_done, self._running = True, None
            self._changed.notify_all()

    def _wait(self, call: _Call) -> None:
        """Wait until a call is done. The caller has the lock. Raises ``StoreFailed`` after the time limit."""
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
    """Return a bounded storage with the same optional interfaces as ``storage``."""
    if isinstance(storage, ConditionalStorage):
        both = isinstance(storage, IncarnationStorage)
        return _ComparesAndKnowsIncarnations(storage) if both else _Compares(storage)
    return _KnowsIncarnations(storage) if isinstance(storage, IncarnationStorage) else BoundedStorage(storage)
