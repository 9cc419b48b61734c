"""The light future of a message behaves as that of the standard library, whoever comes first."""

from __future__ import annotations

import concurrent.futures
import threading
from concurrent.futures import CancelledError, Future

import pytest

from metaq.client.futures import MessageFuture

KINDS = pytest.mark.parametrize("kind", [Future, MessageFuture])


@KINDS
def test_a_result_is_there_for_all_who_ask_later(kind: type[Future[int]]) -> None:
    future = kind()
    assert not future.done()
    assert future.set_running_or_notify_cancel()
    assert future.running()
    future.set_result(7)
    called: list[int] = []
    future.add_done_callback(lambda one: called.append(one.result()))
    assert (future.done(), future.result(), future.exception(), called) == (True, 7, None, [7])
    assert concurrent.futures.wait([future], 0).done == {future}


@KINDS
def test_who_waits_is_woken_by_the_result(kind: type[Future[int]]) -> None:
    future = kind()
    found: list[int] = []
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    threads = [threading.Thread(target=lambda: found.append(future.result(30))) for _ in range(4)]
    threads.append(
        threading.Thread(target=lambda: found.extend(f.result() for f in concurrent.futures.as_completed([future], 30)))
    )
    for thread in threads:
        thread.start()
    assert future.set_running_or_notify_cancel()
    future.set_result(7)
    for thread in threads:
        thread.join(30)
    assert found == [7] * 5
    assert called.is_set()


@KINDS
def test_an_exception_is_raised_and_time_ends(kind: type[Future[int]]) -> None:
    future = kind()
    with pytest.raises(TimeoutError):
        future.result(0)
    future.set_exception(KeyError("gone"))
    with pytest.raises(KeyError, match="gone"):
        future.result()
    assert isinstance(future.exception(), KeyError)


@KINDS
def test_a_cancelled_one_is_not_sent_and_a_running_one_cannot_be_cancelled(kind: type[Future[int]]) -> None:
    future = kind()
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert not future.set_running_or_notify_cancel()
    with pytest.raises(CancelledError):
        future.result()
    running = kind()
    assert running.set_running_or_notify_cancel()
    assert not running.cancel()


@KINDS
def test_a_result_is_set_once(kind: type[Future[int]]) -> None:
    future = kind()
    future.set_result(1)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(2)
    assert future.result() == 1


def test_waiters_that_come_while_results_are_set_miss_none() -> None:
    futures: list[MessageFuture[int]] = [MessageFuture() for _ in range(2000)]

    def settle() -> None:
        for number, future in enumerate(futures):
            assert future.set_running_or_notify_cancel()
            future.set_result(number)

    thread = threading.Thread(target=settle)
    thread.start()
    assert [future.result(30) for future in futures] == list(range(2000))
    thread.join(30)
