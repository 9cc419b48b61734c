"""Consumers that are interrupted anywhere: nothing that a program has not seen is settled."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from fix_broker import wait_until
from fix_client import P0, Setting, end_of, read, texts
from forked import in_child
from leaks import threads_end

from metaq.client.groups.deliveries import Delivery
from metaq.errors import CorruptFrame, PartitionLost, StoreFailed
from metaq.formats.frames import HEADER_BYTES


def raises_at(data: bytes, error: BaseException) -> Callable[[Delivery], bool]:
    """A filter that raises once."""
    errors = [error]

    def where(message: Delivery) -> bool:
        if message.data == data and errors:
            raise errors.pop()
        return True

    return where


def test_a_batch_before_an_error_is_returned_and_the_next_call_raises(setting: Setting) -> None:
    setting.send("a", "b", "c", "d")
    with setting.consumer(where=raises_at(b"c", KeyError("filter"))) as consumer:
        assert texts(consumer.fetch(timeout=60)) == ["a", "b"]
        with pytest.raises(KeyError, match="filter"):
            consumer.fetch(timeout=60)
        assert texts(consumer.fetch(1, timeout=60)) == ["c"]


def test_a_batch_before_damage_is_settled_by_the_next_call_only(setting: Setting) -> None:
    setting.send("aa", "bb", "cc")
    setting.broker.partition("orders", 0).segments[0][1][end_of(2, 2) + HEADER_BYTES] ^= 1
    with setting.consumer() as consumer:
        assert texts(consumer.fetch(timeout=60)) == ["aa", "bb"]
        assert consumer.position(P0) == 0
        with pytest.raises(CorruptFrame):
            consumer.fetch(timeout=60)
    assert setting.stored() == end_of(2, 2)


def test_ctrl_c_in_a_fetch_keeps_what_it_had_taken_for_the_next_one(setting: Setting) -> None:
    setting.send("a", "b", "c", "d")
    with setting.consumer(where=raises_at(b"c", KeyboardInterrupt())) as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.fetch(timeout=60)
        assert consumer.position(P0) == 0
        found: list[Delivery] = []
        while len(found) < 4:
            found += consumer.fetch(timeout=60)
    assert texts(found) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_interrupted_fetch_had_taken_is_handled(setting: Setting, workers: int) -> None:
    setting.send("a", "b", "c")
    seen: list[str] = []

    def handle(message: Delivery) -> None:
        seen.append(message.data.decode())
        if message.data == b"c":
            consumer.stop()

    with setting.consumer(where=raises_at(b"c", KeyboardInterrupt())) as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.fetch(timeout=60)
        consumer.run(handle, workers)
    assert seen == ["a", "b", "c"]


def test_a_message_that_cannot_be_parked_comes_again(setting: Setting) -> None:
    setting.send("bad", "good")
    setting.parking.symlink_to("/dev/full")
    with setting.consumer(max_attempts=1, auto_ack=False) as consumer:
        assert texts(consumer.fetch(1, timeout=60)) == ["bad"]
        consumer.rollback()
        with pytest.raises(StoreFailed, match="parked"):
            consumer.fetch(timeout=60)
        setting.parking.unlink()
        assert texts(read(consumer, 1)) == ["good"]
        assert [one.message.data for one in consumer.parked] == [b"bad"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_handler_that_ends_its_thread_ends_the_run(setting: Setting, error: BaseException) -> None:
    setting.send("a", "b")

    def handle(message: Delivery) -> None:
        raise error

    with pytest.raises(type(error)), setting.consumer() as consumer:
        consumer.run(handle, workers=2)
    assert setting.stored() == 0


def test_closing_does_not_settle_what_another_thread_is_dealing_with(setting: Setting) -> None:
    setting.send("a", "b")
    consumer, has_it, go_on = setting.consumer(), threading.Event(), threading.Event()
    seen: list[bytes] = []

    def work() -> None:
        for message in consumer:
            has_it.set()
            go_on.wait(60)
            seen.append(message.data)

    thread = threading.Thread(target=work)
    thread.start()
    assert has_it.wait(60)
    consumer.close()
    consumer.close()
    go_on.set()
    thread.join(60)
    assert (seen, setting.stored()) == ([b"a"], 0)
    with setting.consumer() as again:
        assert texts(again.fetch(timeout=60)) == ["a", "b"]


def test_closing_settles_what_a_thread_has_dealt_with_that_has_ended(setting: Setting) -> None:
    setting.send("a", "b")
    with setting.consumer() as consumer:
        thread = threading.Thread(target=lambda: consumer.fetch(timeout=60))
        thread.start()
        thread.join(60)
    assert setting.stored() == end_of(2, 1)


def test_closing_ends_a_fetch_of_another_thread(setting: Setting) -> None:
    consumer, found = setting.consumer(), list[list[Delivery]]()
    thread = threading.Thread(target=lambda: found.append(consumer.fetch(timeout=60)))
    thread.start()
    wait_until(lambda: bool(consumer.assignment), "it reads")
    consumer.close()
    thread.join(60)
    assert found == [[]]
    with pytest.raises(ValueError, match="the consumer is closed"):
        consumer.fetch()


def test_an_iteration_that_is_left_goes_on_behind_what_it_gave(setting: Setting) -> None:
    setting.send("a", "b", "c")
    with setting.consumer() as consumer:
        half = iter(consumer)
        assert next(half).data == b"a"
        half.close()  # type: ignore[attr-defined]
        assert consumer.position(P0) == 0
        assert next(iter(consumer)).data == b"b"
        assert consumer.position(P0) == end_of(1, 1)


def test_a_forked_process_is_notified_and_harms_nobody(setting: Setting) -> None:
    setting.send("a", "b")
    with setting.consumer() as consumer:
        (message,) = consumer.fetch(1, timeout=60)
        assert message.data == b"a"

        def in_vain() -> bool:
            calls: list[Callable[[], object]] = [consumer.fetch, consumer.commit, consumer.rollback, consumer.lag]
            for call in (*calls, lambda: next(iter(consumer)), lambda: consumer.seek(P0, 0)):
                with pytest.raises(ValueError, match=r"the consumer belongs to the process .*, the parent of this one"):
                    call()
            with pytest.raises(PartitionLost):
                message.ack()
            consumer.close()
            return setting.stored() == 0

        held, forked = threading.Event(), threading.Event()

        def hold() -> None:
            with consumer._state.lock:
                held.set()
                forked.wait(60)

        holding = threading.Thread(target=hold)
        holding.start()
        assert held.wait(60)
        assert in_child(in_vain), "a lock that a thread of the parent had is not waited for"
        forked.set()
        holding.join()

        assert texts(consumer.fetch(1, timeout=60)) == ["b"]


def test_a_hundred_consumers_leave_nothing_behind(setting: Setting) -> None:
    setting.send("a")
    with setting.consumer() as consumer:
        consumer.fetch(timeout=60)
    with threads_end():
        for _ in range(100):
            with setting.consumer() as consumer:
                consumer.fetch(timeout=0)
