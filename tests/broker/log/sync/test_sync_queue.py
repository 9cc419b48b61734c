"""What partitions and the journal share: one sync at a time, callbacks in order, a failure that ends all waits."""

from __future__ import annotations

import asyncio

import pytest
from metaq_broker.log.sync.sync_queue import SyncQueue


class Appended:
    """Something of which ``end`` bytes were appended; a job is the end that it makes durable."""

    def __init__(self) -> None:
        self.end, self.durable = 0, 0
        self.failure: OSError | None = None

    def pending_sync(self) -> int | None:
        return self.end if self.failure is None and self.end > self.durable else None

    def complete_sync(self, job: int, error: OSError | None) -> int | Exception:
        self.durable, self.failure = (job, None) if error is None else (self.durable, error)
        return self.durable if self.failure is None else self.failure


class Bench:
    """A queue whose jobs end when they are told."""

    def __init__(self) -> None:
        self.appended, self.jobs, self.called = Appended(), list[int](), list[tuple[str, Exception | None]]()
        self.queue = SyncQueue(self.appended, lambda _queue, job: self.jobs.append(job))

    def append(self, size: int, name: str) -> None:
        self.appended.end += size
        self.queue.waiters.append((self.appended.end, lambda error: self.called.append((name, error))))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_sync_at_a_time_and_later_writes_wait_for_the_next(bench: Bench) -> None:
    bench.append(10, "a")
    bench.append(10, "b")
    assert bench.queue.start()
    bench.append(10, "c")
    assert bench.queue.start()
    assert bench.jobs == [20]
    bench.queue.finish(20, None)
    assert bench.called == [("a", None), ("b", None)]
    assert bench.queue.start()
    bench.queue.finish(30, None)
    assert bench.jobs == [20, 30]
    assert bench.called[2:] == [("c", None)]
    assert not bench.queue.start()


def test_a_failed_sync_ends_all_waits_those_of_later_appends_too(bench: Bench) -> None:
    bench.append(10, "a")
    bench.queue.start()
    bench.append(10, "b")
    failure = OSError("the disk is gone")
    bench.queue.finish(10, failure)
    assert bench.called == [("a", failure), ("b", failure)]
    assert not bench.queue.start()


def test_a_callback_may_append_and_start_the_next_sync(bench: Bench) -> None:
    def go_on(error: Exception | None) -> None:
        bench.called.append(("first", error))
        bench.append(5, "second")
        bench.queue.start()

    bench.appended.end = 10
    bench.queue.waiters.append((10, go_on))
    bench.queue.start()
    bench.queue.finish(10, None)
    assert bench.jobs == [10, 15]
    assert bench.called == [("first", None)]
    bench.queue.finish(15, None)
    assert bench.called == [("first", None), ("second", None)]


def test_a_callback_that_fails_is_reported_and_the_others_are_called(bench: Bench) -> None:
    reported: list[object] = []

    def fail(_error: Exception | None) -> None:
        raise ValueError("a bug")

    async def finish() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
        bench.queue.finish(10, None)

    bench.append(5, "first")
    bench.queue.waiters.append((5, fail))
    bench.append(5, "last")
    bench.queue.start()
    asyncio.run(finish())
    assert bench.called == [("first", None), ("last", None)]
    assert [str(each) for each in reported] == ["a bug"]
