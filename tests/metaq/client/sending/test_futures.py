"""The light future of a message behaves as that of the standard library, whoever comes first."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from concurrent.futures import CancelledError, Future
from typing import Protocol

import pytest

from metaq.client.sending.batches import MessageBatch
from metaq.client.sending.futures import future_of


class Sender(Protocol):
    """A future, and who sends its message."""

    future: Future[int]

    def begin(self) -> bool: ...
    def succeed(self, result: int) -> None: ...
    def fail(self, error: Exception) -> None: ...


class Ordinary:
    """That of the standard library."""

    def __init__(self) -> None:
        self.future: Future[int] = Future()
        self.begin = self.future.set_running_or_notify_cancel
        self.succeed = self.future.set_result
        self.fail = self.future.set_exception


class Row:
    """That of a message in a batch."""

    def __init__(self) -> None:
        self.batch: MessageBatch[str, int] = MessageBatch("orders", 0)
        self.batch.messages = ["before", "it", "behind"]
        self.future = future_of((self.batch, 1))

    def begin(self) -> bool:
        self.batch.begin()
        return "it" in self.batch.messages

    def succeed(self, result: int) -> None:
        self.batch.settle([-1, result, -2])

    def fail(self, error: Exception) -> None:
        self.batch.settle([-1, None, -2], error)


KINDS = pytest.mark.parametrize("kind", [Ordinary, Row])


@KINDS
def test_a_result_is_there_for_all_who_ask_later(kind: type[Sender]) -> None:
    sender = kind()
    future = sender.future
    assert not future.done()
    assert sender.begin()
    assert future.running()
    assert "state=running" in repr(future)
    sender.succeed(7)
    called: list[int] = []
    future.add_done_callback(lambda one: called.append(one.result()))
    assert (future.done(), future.result(), future.exception(), called) == (True, 7, None, [7])
    assert concurrent.futures.wait([future], 0).done == {future}


@KINDS
def test_a_result_that_nobody_waited_for(kind: type[Sender]) -> None:
    sender = kind()
    assert sender.begin()
    sender.succeed(7)
    assert (sender.future.done(), sender.future.result(0), sender.future.result()) == (True, 7, 7)
    assert not sender.future.cancel()
    assert not sender.future.cancelled()


@KINDS
def test_who_waits_is_woken_by_the_result(kind: type[Sender]) -> None:
    sender = kind()
    future = sender.future
    found: list[int] = []
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    threads = [threading.Thread(target=lambda: found.append(future.result(60))) for _ in range(4)]
    threads.append(
        threading.Thread(target=lambda: found.extend(f.result() for f in concurrent.futures.as_completed([future], 30)))
    )
    for thread in threads:
        thread.start()
    assert sender.begin()
    sender.succeed(7)
    for thread in threads:
        thread.join(60)
    assert found == [7] * 5
    assert called.is_set()


@KINDS
def test_a_loop_can_await_it(kind: type[Sender]) -> None:
    async def main() -> int:
        sender = kind()
        waiting = asyncio.wrap_future(sender.future)
        assert sender.begin()
        threading.Thread(target=sender.succeed, args=(7,)).start()
        return await asyncio.wait_for(waiting, 30)

    assert asyncio.run(main()) == 7


@KINDS
@pytest.mark.parametrize("is_watched", [False, True])
def test_an_exception_is_raised_and_time_ends(kind: type[Sender], is_watched: bool) -> None:
    sender = kind()
    future = sender.future
    if is_watched:
        with pytest.raises(TimeoutError):
            future.result(0)
    sender.fail(KeyError("gone"))
    with pytest.raises(KeyError, match="gone"):
        future.result()
    assert isinstance(future.exception(), KeyError)


@KINDS
def test_a_cancelled_one_is_not_sent_and_a_running_one_cannot_be_cancelled(kind: type[Sender]) -> None:
    sender = kind()
    future = sender.future
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert not sender.begin()
    with pytest.raises(CancelledError):
        future.result()
    running = kind()
    assert running.begin()
    assert not running.future.cancel()


def test_those_beside_a_cancelled_one_get_their_own_results() -> None:
    row = Row()
    others = [future_of((row.batch, number)) for number in (0, 2)]
    assert row.future.cancel()
    row.batch.begin()
    assert row.batch.messages == ["before", "behind"]
    row.batch.settle([10, 30])
    assert [other.result(0) for other in others] == [10, 30]
    assert row.future.cancelled()


def test_a_batch_is_settled_once() -> None:
    row = Row()
    row.succeed(1)
    row.fail(KeyError("too late"))
    assert row.future.result() == 1


def test_waiters_that_come_while_results_are_set_miss_none() -> None:
    rows = [Row() for _ in range(2000)]

    def settle() -> None:
        for number, row in enumerate(rows):
            assert row.begin()
            row.succeed(number)

    thread = threading.Thread(target=settle)
    thread.start()
    assert [row.future.result(60) for row in rows] == list(range(2000))
    thread.join(60)


def test_many_threads_wait_for_one_that_nobody_has_looked_at() -> None:
    row = Row()
    start, found = threading.Barrier(9), []

    def wait() -> None:
        start.wait(60)
        found.append(row.future.result(60))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    start.wait(60)
    row.begin()
    row.succeed(5)
    for thread in threads:
        thread.join(60)
    assert found == [5] * 8


def test_a_future_that_nobody_keeps_is_gone_before_its_message_is_sent() -> None:
    row = Row()
    kept = weakref.ref(row.future)
    del row.future
    gc.collect()
    assert kept() is None
    row.begin()
    row.succeed(1)
