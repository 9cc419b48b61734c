"""Stories of one task: another life of its partition, brokers that are slow, gone or talk nonsense, and its memory."""

from __future__ import annotations

import pickle
import tracemalloc

import pyarrow as pa
import pytest
from metaq_harness import ADDRESSES, NO_EXTENSIONS, Harness
from outages import when_waited_for

from metaq.backends.metaq.pair_members import PairFacts
from metaq.backends.metaq.pool import SessionPool
from metaq.formats.frames import encode_body, encode_frame
from metaq.model import Message, OffsetRange, Partition, TopicPartition
from metaq.net.transport import Timeouts
from metaq.protocols.text.commands import Command, Filled, Get, GetFiltered, GetOffset
from metaq.testing.scripted import Disconnect, Expect, Refuse, Say, ScriptedTransport
from metaq_spark.backends.metaq.partition_reader import RangePartition, read_partition
from metaq_spark.columns.decode import BYTES_MAX
from metaq_spark.errors import DataLoss, ReadFailed
from metaq_spark.options.table import Use

SOURCE = TopicPartition("orders", Partition(0, 0))
ASK = b"get orders metaq-spark 0 0 21 1\r\n"


def frame(payload: bytes, attribute: str | None = None) -> bytes:
    return encode_frame(1, *encode_body(Message(payload, attribute)))


def read(pool: SessionPool, end: int, incarnation: str | None = None, **options: str) -> list[bytes]:
    given = Harness().options(Use.BATCH_READ, **options)
    task = pickle.loads(pickle.dumps(RangePartition(SOURCE, ADDRESSES[0], OffsetRange(0, end), incarnation)))
    return [value for batch in read_partition(task, given, pool) for value in batch["value"].to_pylist()]


def test_a_task_reads_the_incarnation_that_it_was_planned_for() -> None:
    harness = Harness()
    end = harness.put("orders", 0, 0, b"old", b"old too")
    life = harness.brokers[0].partition("orders", 0).incarnation
    assert read(harness.pool, end, life) == [b"old", b"old too"]
    harness.brokers[0].recreate("orders", 0)
    harness.put("orders", 0, 0, b"new", b"new too", b"and more than before")
    with pytest.raises(DataLoss, match=rf"orders/0-0: the partition was deleted and recreated.*{life}.*failOnDataLoss"):
        read(harness.pool, end, life)
    assert read(harness.pool, end, life, failOnDataLoss="false") == []
    assert read(harness.pool, end, None) == [b"new", b"new too"]


def test_a_partition_that_is_deleted_and_not_there_again() -> None:
    harness = Harness()
    end = harness.put("orders", 0, 0, b"old")
    life = harness.brokers[0].partition("orders", 0).incarnation
    del harness.brokers[0].partitions["orders", 0]
    with pytest.raises(DataLoss, match=r"orders/0-0.*is not exists"):
        read(harness.pool, end, life)
    assert read(harness.pool, end, life, failOnDataLoss="false") == []


@pytest.mark.parametrize("loss", ["end", "incarnation", "damage"])
def test_what_a_member_of_a_pair_lacks_is_read_from_the_master(loss: str) -> None:
    """A master that was frozen answers for a moment, although the other member was elected meanwhile."""
    harness = Harness()
    frozen, elected = harness.brokers
    for number, each in enumerate(harness.brokers):
        each.broker_id, each.pair = 0, PairFacts(ADDRESSES[1 - number], True, 1 + number)
    end = harness.put("orders", 1, 0, b"one", b"two")
    harness.put("orders", 0, 0, b"one", *([b"two"] if loss != "end" else []))
    if loss == "damage":
        frozen.partition("orders", 0).segments[0][1][-1] ^= 1  # of the second message
    life = elected.partition("orders", 0).incarnation
    frozen.partition("orders", 0).incarnation = life if loss != "incarnation" else "f" * 32
    assert read(harness.pool, end, life) == [b"one", b"two"]


def test_a_broker_that_does_not_report_incarnations_is_trusted() -> None:
    harness = Harness(extensions=NO_EXTENSIONS)
    end = harness.put("orders", 0, 0, b"x")
    assert read(harness.pool, end, "0" * 32) == [b"x"]


def test_a_partition_made_again_while_read_is_loss_not_damage() -> None:
    harness = Harness()
    payloads = [bytes([n]) * 50 for n in range(40)]
    end = harness.put("orders", 0, 0, *payloads)
    broker = harness.brokers[0]
    life = broker.partition("orders", 0).incarnation
    gets = []

    def recreate(command: Command) -> None:
        if isinstance(command, Get):
            gets.append(command)
            if len(gets) == 4:
                broker.recreate("orders", 0)
                harness.put("orders", 0, 0, *[b"anew" * 9] * 80)

    broker.before_command = recreate
    with pytest.raises(DataLoss, match="deleted and recreated"):
        read(harness.pool, end, life, fetchBytes="500", onCorrupt="skip")


def test_the_question_for_the_incarnation_is_asked_again_after_a_restart() -> None:
    harness = Harness()
    end = harness.put("orders", 0, 0, b"x")
    broker, cut = harness.brokers[0], iter([True, True])

    def restart(command: Command) -> None:
        if isinstance(command, GetOffset) and next(cut, False):
            broker.kill()
            broker.start()

    broker.before_command = restart
    assert read(harness.pool, end, broker.partition("orders", 0).incarnation) == [b"x"]


def test_connecting_is_tried_again() -> None:
    harness = Harness()
    end = harness.put("orders", 0, 0, b"x")
    broker, slept = harness.brokers[0], harness.clock.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        broker.start()

    harness.clock.sleep = sleep  # type: ignore[method-assign]
    broker.kill()
    assert read(harness.pool, end) == [b"x"]


def test_a_broker_that_is_gone_is_reported_with_place_and_advice() -> None:
    harness = Harness()
    end = harness.put("orders", 0, 0, *[b"x" * 80] * 10)
    broker, gets = harness.brokers[0], []

    def die(command: Command) -> None:
        if isinstance(command, Get):
            gets.append(command)
            if len(gets) == 4:
                broker.kill()

    broker.before_command = die
    with pytest.raises(ReadFailed) as caught:
        read(harness.pool, end, fetchBytes="250", retries="2", retryIntervalMs="50")
    reported = str(caught.value)
    assert "orders/0-0 could not be read from offset 500 on: broker b0:1: " in reported
    assert "tried 3 times in a row" in reported
    assert "brokers are found by the option brokers (b0:1" in reported
    assert "raise the option brokerWaitMs" in reported
    assert harness.clock.slept_s == [0.05, 0.1]
    assert str(pickle.loads(pickle.dumps(caught.value))) == reported

    with pytest.raises(ReadFailed, match=r"offset 0 on: broker b0:1: connect failed.*check that a broker listens"):
        read(harness.pool, end, retries="0")


@pytest.mark.parametrize("types", ["", "hot"])
def test_a_broker_that_restarts_while_a_task_reads_is_waited_for(types: str) -> None:
    harness = Harness()
    end = harness.put("orders", 0, 0, *[b"x" * 80] * 10)
    broker, gets = harness.brokers[0], []

    def die(command: Command) -> None:
        if isinstance(command, Get | GetFiltered):
            gets.append(command)
            if len(gets) == 4:
                broker.kill()

    broker.before_command = die
    options = {"messageTypes": types} if types else {}
    with when_waited_for(broker.start) as said:
        rows = read(harness.pool, end, fetchBytes="250", retries="1", brokerWaitMs="10m", **options)
    assert rows == ([] if types else [b"x" * 80] * 10)
    (sentence,) = said
    assert sentence.startswith("broker b0:1: ")
    with when_waited_for(broker.start) as said:  # nor one that is away when the task begins
        broker.kill()
        assert read(harness.pool, end, retries="1", brokerWaitMs="10m") == [b"x" * 80] * 10
    assert said
    broker.kill()
    with pytest.raises(ReadFailed, match=r"waited for up to 600 s \(brokerWaitMs\); brokers are found by"):
        read(harness.pool, end, retries="1", brokerWaitMs="10m")


def script(*connections: list[object]) -> tuple[SessionPool, ScriptedTransport]:
    transport = ScriptedTransport(connections)
    return SessionPool(Timeouts(5.0, 0.7), transport, clock=transport.clock), transport


def test_a_slow_broker_is_reported_with_its_deadline() -> None:
    other_is_asked_for_a_pair = [Refuse()]
    pool, transport = script([Expect(ASK)], other_is_asked_for_a_pair, [Expect(b"get orders metaq-spark 0 0 21 2\r\n")])
    with pytest.raises(ReadFailed) as caught:
        read(pool, 21, retries="1", requestTimeoutMs="700", fetchBytes="21")
    assert str(caught.value) == (
        "orders/0-0 could not be read from offset 0 on: broker b0:1: no answer to get of orders partition 0 at offset "
        "0 within 0.7 s. It was tried 2 times in a row; brokers are found by the option brokers (b0:1, b1:1). If the "
        "broker is only slow, raise the option requestTimeoutMs (700)"
    )
    assert transport.finished


@pytest.mark.parametrize(
    "protocol_error",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"value -1 1\r\n",
        b"value 99999999999 1\r\n",
        b"value 22 1\r\n" + bytes(22),
        b"result 301 4 1\r\nsoon",
        b"result 200 2 1\r\nok",
        b"value 3 77\r\nabc",
    ],
)
def test_a_malformed_answer_is_reported_at_once_and_not_asked_for_again(protocol_error: bytes) -> None:
    pool, transport = script([Expect(ASK), Say(protocol_error), Disconnect()])
    with pytest.raises(
        ReadFailed, match=r"orders/0-0 could not be read from offset 0 on: broker b0:1: .*Check that the"
    ):
        read(pool, 21, fetchBytes="21")
    assert transport.clock.slept_s == []


def test_a_reply_cut_in_the_middle_is_asked_for_again() -> None:
    whole = b"value 21 2\r\n" + frame(b"x")
    pool, transport = script(
        [Expect(ASK), Say(b"value 21 1\r\n" + frame(b"x")[:9]), Disconnect()],
        [Refuse()],
        [Expect(b"get orders metaq-spark 0 0 21 2\r\n"), Say(whole, chunk_bytes=1)],
    )
    assert read(pool, 21, fetchBytes="21") == [b"x"]
    assert transport.finished


def test_a_refusal_names_the_broker_s_words() -> None:
    pool, _ = script([Expect(ASK), Say(b"result 403 6 1\r\nclosed")])
    with pytest.raises(
        ReadFailed, match=r"broker b0:1 refused get of orders partition 0 at offset 0 with 403: closed\."
    ):
        read(pool, 21, fetchBytes="21")


def test_a_task_holds_a_few_fetches_however_long_its_range_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages made as they are asked for; what is held at a time, by Python and by Arrow, once it runs."""
    payload_bytes, count = (16 << 10) - 20, 64
    chunk = frame(b"v" * payload_bytes) * count
    chunks, warm = 200, 40
    posted: list[tuple[Get, memoryview]] = []

    def post(session: object, command: Get, timeout_s: float | None = None, buffer: memoryview | None = None) -> int:
        assert buffer is not None
        posted.append((command, buffer))
        return len(posted) - 1

    def collect(session: object, opaque: int, timeout_s: float | None = None) -> Filled:
        command, buffer = posted[opaque]
        buffer[:] = chunk[: command.max_bytes]
        return Filled(len(buffer), opaque)

    monkeypatch.setattr("metaq.backends.metaq.session.Session.post", post)
    monkeypatch.setattr("metaq.backends.metaq.session.Session.collect", collect)
    harness = Harness(extensions=NO_EXTENSIONS)
    options = harness.options(Use.BATCH_READ, columns="value", fetchBytes=str(len(chunk)))
    task = RangePartition(SOURCE, ADDRESSES[0], OffsetRange(0, chunks * len(chunk)))
    rows = arrow_peak = 0
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for batch in read_partition(task, options, harness.pool):
            rows += batch.num_rows
            if rows <= warm * count:
                tracemalloc.reset_peak()
            arrow_peak = max(arrow_peak, pa.total_allocated_bytes() - before)
        python_now, python_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == chunks * count
    assert python_peak - python_now < 8 * len(chunk)
    assert arrow_peak < 4 * BYTES_MAX
