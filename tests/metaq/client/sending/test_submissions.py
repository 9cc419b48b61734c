"""``Producer.submit``: futures, the window and its overflow, lingering, failures. Brokers are in memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Self

import pytest
from fix_client import TIMEOUTS
from forked import in_child
from waiting import in_loop

from metaq.backends.metaq.pool import SessionPool
from metaq.client.async_producer import AsyncProducer
from metaq.client.producer import Producer
from metaq.client.records import Sent
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import SendFailed, TopicNotFound, WindowFull
from metaq.formats.frames import walk
from metaq.model import Address, Message, Partition
from metaq.protocols.text.commands import Command, Put, PutBatch
from metaq.testing.memory import MemoryBroker, MemoryTransport


class Setting:
    """A broker in memory with two partitions; puts wait while ``gate`` is closed."""

    def __init__(self) -> None:
        self.broker = MemoryBroker({"orders": 2})
        self.gate = threading.Event()
        self.gate.set()
        self.broker.before_command = self._wait
        address = Address("127.0.0.1", 8123)
        self.pool = SessionPool(TIMEOUTS, MemoryTransport({address: self.broker}))
        self.directory = FixedDirectory([address], self.pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self.pool.close()

    def _wait(self, command: Command) -> None:
        if isinstance(command, Put | PutBatch):
            assert self.gate.wait(60)

    def producer(self, **options: Any) -> Producer:
        return Producer(self.directory, self.pool, **options)

    def stored(self, index: int) -> list[bytes]:
        return [frame.message.payload for frame in walk(self.broker.partition("orders", index).content())]

    @property
    def puts(self) -> int:
        return sum(isinstance(command, Put | PutBatch) for command in self.broker.commands)


@pytest.fixture
def setting() -> Iterator[Setting]:
    with Setting() as made:
        yield made


def test_a_future_is_settled_by_the_acknowledgement_and_by_nothing_else(setting: Setting) -> None:
    with setting.producer() as producer:
        sent = producer.submit("orders", "tea", attribute="paid", partition=Partition(0, 1)).result(60)
        assert isinstance(sent, Sent)
        assert (sent.partition, sent.offset) == (Partition(0, 1), 0)
        (frame,) = walk(setting.broker.partition("orders", 1).content())
        assert frame.message == Message(b"tea", "paid")
        assert frame.message_id == sent.message_id


def test_later_submissions_share_blocks_and_keep_their_order(setting: Setting) -> None:
    with setting.producer() as producer:
        setting.gate.clear()
        futures = [producer.submit("orders", b"%d" % number, key=b"%d" % (number % 7)) for number in range(500)]
        assert not any(future.done() for future in futures)
        setting.gate.set()
        offsets = [future.result(60) for future in futures]
    assert setting.puts < 10
    for index in (0, 1):
        numbers = [int(text) for text in setting.stored(index)]
        assert numbers == sorted(numbers)
        assert numbers == [n for n, one in enumerate(offsets) if one.partition.index == index]


def test_lingering_gathers_messages_and_sends_them_by_itself(setting: Setting) -> None:
    for linger_s in (0.2, 5.0):  # a busy machine may be too slow for the first
        before = setting.puts
        with setting.producer(linger_s=linger_s) as producer:
            futures = [producer.submit("orders", "x", partition=Partition(0, 0)) for _ in range(20)]
            for future in futures:
                future.result(60)
            puts = setting.puts - before
        if puts == 1:
            break
    assert puts == 1


def test_a_flush_does_not_wait_for_the_lingering(setting: Setting) -> None:
    with setting.producer(linger_s=60) as producer:
        future = producer.submit("orders", "x")
        assert producer.flush(timeout=math.inf)
        assert future.done()
        assert producer.flush(timeout=0)


def test_closing_sends_what_is_left(setting: Setting) -> None:
    producer = setting.producer(linger_s=60)
    future = producer.submit("orders", "x")
    producer.close()
    assert future.result(0).offset == 0
    with pytest.raises(ValueError, match="the producer is closed"):
        producer.submit("orders", "y")
    producer.close()


def test_a_full_window_blocks_until_something_is_acknowledged(setting: Setting) -> None:
    with setting.producer(window=1000) as producer:
        setting.gate.clear()
        first = producer.submit("orders", b"x" * 900)
        taken: list[Future[Sent]] = []
        waits = threading.Thread(target=lambda: taken.append(producer.submit("orders", b"y" * 900)))
        waits.start()
        waits.join(0.1)
        assert (waits.is_alive(), taken) == (True, [])
        setting.gate.set()
        waits.join(60)
        assert first.result(60).offset == 0
        assert taken[0].result(60) is not None


def test_a_full_window_raises_or_gives_the_message_away(setting: Setting) -> None:
    given: list[tuple[str, Message]] = []
    options: list[Any] = ["raise", lambda topic, message: given.append((topic, message))]
    for on_overflow in options:
        setting.gate.clear()
        with setting.producer(window="1 kB", on_overflow=on_overflow) as producer:
            first = producer.submit("orders", b"x" * 5000)  # alone it goes, however long it is
            if on_overflow == "raise":
                with pytest.raises(WindowFull, match="the window of 1024 unacknowledged bytes is full") as full:
                    producer.submit("orders", b"y")
                assert full.value.retryable
            else:
                second = producer.submit("orders", b"y", attribute="a")
                assert isinstance(second.exception(1), WindowFull)
            setting.gate.set()
            first.result(60)
    assert given == [("orders", Message(b"y", "a"))]


def test_a_flush_ends_though_ctrl_c_came_between_a_message_and_its_bytes(setting: Setting) -> None:
    with setting.producer() as producer:
        producer.submissions._bytes = -100  # or above what waits: it is counted anew
        future = producer.submit("orders", b"x" * 300)
        assert producer.flush(timeout=60)
        assert future.done()


def test_a_message_that_waits_for_space_ends_the_lingering(setting: Setting) -> None:
    with setting.producer(window=1000, linger_s=60) as producer:
        futures = [producer.submit("orders", b"x" * 900) for _ in range(3)]
        assert [future.result(60).offset >= 0 for future in futures[:2]] == [True, True]


def test_a_function_that_gets_a_message_may_use_the_producer(setting: Setting) -> None:
    flushed: list[bool] = []
    producer = setting.producer(window=1000, on_overflow=lambda topic, one: flushed.append(producer.flush(timeout=0)))
    with producer:
        setting.gate.clear()
        for _ in range(2):
            producer.submit("orders", b"x" * 900)
        setting.gate.set()
    assert flushed == [False]


def test_an_attribute_that_cannot_be_written_is_refused_and_harms_no_other(setting: Setting) -> None:
    with setting.producer(linger_s=60) as producer:
        future = producer.submit("orders", "x")
        with pytest.raises(ValueError, match="attribute: the text cannot be written as UTF-8"):
            producer.submit("orders", "y", attribute="\ud800")
        with pytest.raises(TypeError, match="attribute of a message: expected a string, got int"):
            producer.submit("orders", "y", attribute=5)  # type: ignore[arg-type]
        producer.flush(60)
        assert future.result(0)


def test_any_number_of_threads_submit(setting: Setting) -> None:
    with setting.producer(window="8 KiB") as producer:
        taken: list[list[Future[Sent]]] = [[] for _ in range(4)]

        def submit(name: int) -> None:
            for number in range(500):
                taken[name].append(producer.submit("orders", b"%d-%d" % (name, number), key=b"%d" % name))

        threads = [threading.Thread(target=submit, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        offsets = [[future.result(60).offset for future in some] for some in taken]
    assert all(some == sorted(some) and len(some) == 500 for some in offsets)
    assert len(setting.stored(0)) + len(setting.stored(1)) == 2000


def test_a_failure_settles_each_future_with_what_is_known(setting: Setting) -> None:
    def refuse(command: Command) -> None:
        if isinstance(command, PutBatch) and command.partition == 1:
            setting.broker.topics["orders"] = 1  # wrong partition from now on

    with setting.producer(linger_s=0.2) as producer:
        futures = [producer.submit("orders", "x", partition=Partition(0, index)) for index in (0, 1)]
        setting.broker.before_command = refuse
        assert futures[0].result(60).partition == Partition(0, 0)
        error = futures[1].exception(10)
        assert isinstance(error, SendFailed)
        assert str(error).startswith("topic 'orders': 0 of 1 messages were acknowledged: ")
        assert "wrong partition 1" in str(error)
        assert not error.retryable


def test_nothing_is_dropped_while_a_broker_restarts(setting: Setting) -> None:
    killed = [True]

    def kill_once(command: Command) -> None:
        if isinstance(command, PutBatch) and killed:
            killed.clear()
            setting.broker.kill()
            threading.Timer(0.2, setting.broker.start).start()

    setting.broker.before_command = kill_once
    with setting.producer() as producer:
        futures = [producer.submit("orders", b"%d" % number) for number in range(100)]
        for future in futures:
            future.result(60)
    assert {int(text) for index in (0, 1) for text in setting.stored(index)} == set(range(100))


def test_a_cancelled_message_is_not_sent(setting: Setting) -> None:
    with setting.producer(linger_s=60) as producer:
        first, second = producer.submit("orders", "a"), producer.submit("orders", "b")
        assert first.cancel()
        producer.flush(60)
        assert second.result(0)
    assert setting.stored(0) + setting.stored(1) == [b"b"]


def test_wrong_values_are_refused_at_once(setting: Setting) -> None:
    with setting.producer() as producer:
        with pytest.raises(TypeError, match="data: expected bytes or a text, got int"):
            producer.submit("orders", 5)  # type: ignore[arg-type]
        with pytest.raises(TopicNotFound):
            producer.submit("nothing", "x")
        with pytest.raises(TopicNotFound):
            producer.publish("orders", "nothing")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"linger_s": -1}, "linger_s -1: expected seconds"),
        ({"window": 0}, "window 0: expected bytes"),
        ({"window": "big"}, "'big': expected a number of bytes"),
        ({"on_overflow": "drop"}, "on_overflow 'drop': expected 'block', 'raise' or a function"),
    ],
)
def test_wrong_options_are_named(setting: Setting, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        setting.producer(**options)


def test_a_forked_process_sends_its_own_messages_only(setting: Setting) -> None:
    with setting.producer() as producer:
        setting.gate.clear()
        mine = producer.submit("orders", "parent", partition=Partition(0, 0))

        def sends() -> bool:
            setting.gate = threading.Event()
            setting.gate.set()
            sent = producer.submit("orders", "child", partition=Partition(0, 1)).result(60)
            return sent.partition == Partition(0, 1) and setting.stored(1) == [b"child"]

        assert in_child(sends)
        setting.gate.set()
        assert mine.result(60).partition == Partition(0, 0)
    assert (setting.stored(0), setting.stored(1)) == ([b"parent"], [])


def test_a_full_window_is_waited_for_as_long_as_the_program_allows(setting: Setting) -> None:
    setting.gate.clear()
    with setting.producer(window=100, max_block_s=0.05) as producer:
        producer.submit("orders", b"x" * 100)
        with pytest.raises(WindowFull, match="the window of 100 unacknowledged bytes is full"):
            producer.submit("orders", b"another")
        setting.gate.set()


@in_loop
async def test_a_loop_waits_for_it_likewise(setting: Setting) -> None:
    setting.gate.clear()
    made = setting.producer(window=100, max_block_s=0.05, on_overflow="raise")
    async with AsyncProducer(made, wait_for_window=True) as producer:
        await producer.submit("orders", b"x" * 100)
        with pytest.raises(WindowFull, match="the window of 100 unacknowledged bytes is full"):
            await producer.submit("orders", b"another")
        setting.gate.set()
