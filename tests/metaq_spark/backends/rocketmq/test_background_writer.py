"""The thread of a sink's writer against a scripted cluster: it goes on by itself, waits when it must, and ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from fix_broker import wait_until
from rocketmq_harness import RocketMQHarness

from metaq.backends.rocketmq.batch_writer import BatchWriter
from metaq.backends.rocketmq.errors import BatchNotStored
from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.net.retry import RetryPolicy
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SendMessage
from metaq_spark.backends.rocketmq.background import BackgroundWriter

SEND = SEND_BATCH_MESSAGE
Make = Callable[..., BackgroundWriter]


@pytest.fixture
def harness() -> Iterator[RocketMQHarness]:
    with RocketMQHarness() as harness:
        yield harness


@pytest.fixture
def make(harness: RocketMQHarness) -> Iterator[Make]:
    made: list[BackgroundWriter] = []

    def make(retries: int = 2, **options: int) -> BackgroundWriter:
        policy = RetryPolicy(retries, retry_interval_s=0.01)
        writer = BatchWriter(harness.pool, harness.directory, "broker-a", policy=policy, receipts=False)
        made.append(BackgroundWriter(writer, **options))
        return made[-1]

    yield make
    for writer in made:
        writer.give_up()
    wait_until(lambda: not threads(), "the threads ended")


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "metaq-sink"]


def put(writer: BackgroundWriter, body: bytes, queue: int = 0) -> None:
    batch = encode_batch([BatchElement(body, b"")])

    def send(to: BatchWriter) -> None:
        to.write("out", queue, batch, 1)

    writer.put(send, len(batch))


def stored(harness: RocketMQHarness) -> list[bytes]:
    return [row["value"] for row in harness.stored().get("broker-a:0", [])]


def test_batches_of_a_queue_follow_each_other_without_another_call(harness: RocketMQHarness, make: Make) -> None:
    harness.cluster.broker("broker-a").latency_s = lambda command: 0.02 if command.code == SEND else 0.0
    writer = make()
    for number in range(5):
        put(writer, b"%d" % number)
    wait_until(lambda: len(stored(harness)) == 5, "all are stored")
    writer.finish()
    assert stored(harness) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_is_not_acknowledged_is_limited(harness: RocketMQHarness, make: Make) -> None:
    harness.cluster.broker("broker-a").latency_s = lambda command: 0.5 if command.code == SEND else 0.0
    writer = make(bytes_max=3000)
    put(writer, bytes(5000))  # alone it goes, however long it is
    waiting = threading.Thread(target=partial(put, writer, bytes(2000)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    waiting.join(60)
    writer.finish()
    assert [len(body) for body in stored(harness)] == [5000, 2000]


def test_a_refusal_is_raised_by_the_next_call_and_by_the_last(harness: RocketMQHarness, make: Make) -> None:
    harness.cluster.broker("broker-a").refuse(SEND, ResponseCode.MESSAGE_ILLEGAL, "too big")
    writer = make()
    put(writer, b"x")
    wait_until(lambda: not threads(), "the thread ended")
    for call in (partial(put, writer, b"y"), writer.finish):
        with pytest.raises(BatchNotStored, match="too big"):
            call()
    assert stored(harness) == []


def test_the_answer_to_an_empty_message_is_waited_for(harness: RocketMQHarness, make: Make) -> None:
    broker = harness.cluster.broker("broker-a")
    broker.latency_s = lambda command: 0.1 if command.code == SendMessage.CODE else 0.0
    broker.refuse(SendMessage.CODE, ResponseCode.MESSAGE_ILLEGAL, "not empty, please")
    writer = make()
    writer.put(lambda to: to.send("out", 0, b"", "DELAY\x011\x02"), 0)
    with pytest.raises(BatchNotStored, match="not empty, please"):
        writer.finish()


def test_empty_messages_that_wait_are_limited(harness: RocketMQHarness, make: Make) -> None:
    writer, gate, puts = make(bytes_max=1000), threading.Event(), list[int]()

    def put_all() -> None:
        writer.put(lambda _: gate.wait(60), 0)  # the thread of the writer is in this one
        for number in range(8):
            writer.put(lambda to: to.send("out", 0, b""), 0)
            puts.append(number)

    waiting = threading.Thread(target=put_all)
    waiting.start()
    wait_until(lambda: len(puts) >= 2, "some wait, of 256 bytes each; three at most")
    assert waiting.is_alive()
    gate.set()
    waiting.join(60)
    writer.finish()
    assert stored(harness) == [b""] * 8


def test_one_that_is_given_up_sends_no_more_and_waits_for_nobody(harness: RocketMQHarness, make: Make) -> None:
    harness.cluster.broker("broker-a").latency_s = lambda command: 0.5 if command.code == SEND else 0.0
    writer = make()
    put(writer, b"first")
    put(writer, b"second", queue=0)
    writer.give_up()
    wait_until(lambda: not threads(), "the thread ended")
    assert stored(harness) in ([b"first"], [])


def test_one_that_is_given_up_tries_nothing_again(harness: RocketMQHarness, make: Make) -> None:
    broker = harness.cluster.broker("broker-a")
    broker.refuse(SEND, ResponseCode.SYSTEM_BUSY, times=1_000_000)
    writer = make(retries=1_000_000)
    put(writer, b"x")
    wait_until(lambda: broker.counts()[SEND] > 2, "it is tried again")
    writer.give_up()
    wait_until(lambda: not threads(), "the thread ended")
