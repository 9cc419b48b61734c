"""Exactly-once writes of ``format("rocketmq")`` to two bundled brokers, in processes of their own that are killed."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_broker import RunningBroker, StartBroker, wait_until, write_ini
from outages import when_waited_for
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType
from rocketmq_harness import stream_task

from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.backends.rocketmq.errors import NameServersAway
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketReceived
from metaq.errors import ConnectionFailed
from metaq.model import Address
from metaq.testing.ports import free_port
from metaq_spark.backends.metaq.exactly_once.coordinator import Conversation
from metaq_spark.backends.rocketmq.connections import connections_of
from metaq_spark.backends.rocketmq.exactly_once import BundledTransaction, to_frames
from metaq_spark.backends.rocketmq.options import parse_sink_options
from metaq_spark.backends.rocketmq.sink import RocketMQSink
from metaq_spark.columns.blocks import OpenBlock
from metaq_spark.columns.rocketmq.encode import ElementEncoder, RowColumns
from metaq_spark.errors import BatchConflict, BatchesMissing, ParticipantMissing, WriteFailed
from metaq_spark.options.table import Use
from metaq_spark.sink.backend import WriteTask
from metaq_spark.sink.task import write_batches
from metaq_spark.sink.writers import StreamWriter

TOPIC = "orders"
SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("tags", StringType()),
        StructField("properties", MapType(StringType(), StringType())),
    ]
)
ARROW = pa.schema([("value", pa.binary()), ("tags", pa.string()), ("properties", pa.map_(pa.string(), pa.string()))])
NAMES = {4: "broker-a", 7: "broker-b"}


class Brokers:
    """``broker-a``, which is name server too, and ``broker-b``, with one queue of ``orders`` each."""

    def __init__(self, start: StartBroker, folder: Path) -> None:
        self._start, self._folder = start, folder
        self.ports = {broker_id: (free_port(), free_port()) for broker_id in NAMES}
        self.running: dict[int, RunningBroker] = {}
        self.name_server = f"127.0.0.1:{self.ports[4][1]}"
        self.start(*NAMES)
        with RocketMQ(self.name_server) as mq:
            wait_until(lambda: set(mq.cluster.brokers()) == {"broker-a", "broker-b"}, "both brokers are registered")

    def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self._run(broker_id)

    def stop(self, broker_id: int, *, orderly: bool = True) -> None:
        """Orderly, it leaves the route."""
        running = self.running[broker_id]
        if orderly:
            running.stop()
            running.end()
            self.forget()
            with RocketMQ(self.name_server) as mq:
                wait_until(
                    lambda: set(mq.cluster.brokers()) == {"broker-a", "broker-b"} - {NAMES[broker_id]}, "it left"
                )
        else:
            running.kill()

    def forget(self) -> None:
        """This process forgets what it knew of the servers, as another one would not know it."""
        connections_of.__globals__["_directory"].cache_clear()

    def _run(self, broker_id: int) -> None:
        port, for_rocketmq = self.ports[broker_id]
        registers = "" if broker_id == 4 else f"namesrvAddr={self.name_server}\n"
        rest = (
            f"[zookeeper]\nzk.zkEnable=false\n[topic={TOPIC}]\n[rocketmq]\nenabled=true\nport={for_rocketmq}\n"
            f"brokerName={NAMES[broker_id]}\n{registers}registerNameServerPeriod=1000\n"
        )
        keys = {"brokerId": broker_id, "hostName": "127.0.0.1", "serverPort": port}
        self.running[broker_id] = self._start("start", "-f", write_ini(self._folder / str(broker_id), rest, **keys))

    def restart(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.running[broker_id].kill()
            self.start(broker_id)
        with RocketMQ(self.name_server) as mq:
            wait_until(lambda: set(mq.cluster.brokers()) == {"broker-a", "broker-b"}, "both are registered again")

    def stored(self) -> list[RocketReceived]:
        with RocketMQ(self.name_server) as mq:
            return list(mq.browse(TOPIC))

    def prepared(self) -> int:
        """How many branches of transactions the brokers keep."""
        count = 0
        for port, _ in self.ports.values():
            with closing(Session.connect(Address("127.0.0.1", port))) as session:
                count += len(TransactionSteps(session).recover())
        return count

    def values(self) -> list[bytes]:
        return sorted(message.data for message in self.stored())


@pytest.fixture
def brokers(start_broker: StartBroker, tmp_path: Path) -> Iterator[Brokers]:
    brokers = Brokers(start_broker, tmp_path)
    yield brokers
    brokers.forget()


class Query:
    """One run of a streaming query that writes to the brokers."""

    def __init__(self, brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
        self._brokers, self._monkeypatch = brokers, monkeypatch
        self.run: str | None = None

    def sink(self, **more: str) -> RocketMQSink:
        raw = {"nameServers": self._brokers.name_server, "topic": TOPIC, "delivery": "exactly_once"}
        options = parse_sink_options(raw | {"retryIntervalMs": "20", "retries": "1"} | more, Use.STREAM_WRITE)
        return RocketMQSink(options, SCHEMA, streaming=True)

    def task(
        self,
        sink: RocketMQSink,
        batch: int,
        number: int,
        *values: Sequence[bytes],
        between: Callable[[], None] = lambda: None,
    ) -> WriterCommitMessage:
        """A task gets ``values`` in one record batch each; ``between`` two of them something happens."""
        task = stream_task(number, batch=batch, run=self.run)
        self._monkeypatch.setattr(WriteTask, "current", lambda: task)
        there: RocketMQSink = pickle.loads(pickle.dumps(sink))

        def batches() -> Iterator[pa.RecordBatch]:
            for number, some in enumerate(values):
                if number:
                    between()
                rows = [{"value": value, "tags": "hot", "properties": [("price", "3")]} for value in some]
                yield pa.RecordBatch.from_pylist(rows, schema=ARROW)

        return write_batches(batches(), there)

    def write(
        self, batch: int, *tasks: Sequence[bytes], before_commit: Callable[[], None] = lambda: None
    ) -> RocketMQSink:
        """All tasks of a batch, and its commit by another sink, as Spark's driver makes one."""
        messages = self.tasks(batch, *tasks)
        before_commit()
        return self.commit(messages, batch)

    def tasks(self, batch: int, *tasks: Sequence[bytes]) -> list[WriterCommitMessage]:
        """Task 0 begins at the first broker's queue, task 1 at the other's."""
        sink = self.sink()
        return [self.task(sink, batch, number, values) for number, values in enumerate(tasks)]

    def commit(self, messages: Sequence[WriterCommitMessage], batch: int) -> RocketMQSink:
        driver = self.sink()
        assert driver.transaction is not None
        driver.transaction.commit(messages, batch)
        return driver


@pytest.fixture
def query(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(brokers, monkeypatch)


@pytest.mark.process
def test_a_batch_is_readable_as_a_whole_and_once(brokers: Brokers, query: Query) -> None:
    seen: list[list[bytes]] = []
    one, other = [b"%d" % number for number in range(100)], [b"%d" % number for number in range(100, 200)]
    query.write(0, one, other, before_commit=lambda: seen.append(brokers.values()))
    assert seen == [[]]
    assert brokers.values() == sorted(one + other)
    message = brokers.stored()[0]
    assert (message.tag, message.properties["price"]) == ("hot", "3")
    assert len({each.message_id for each in brokers.stored()}) == 200
    assert {each.partition.broker for each in brokers.stored()} == {"broker-a", "broker-b"}
    query.write(0, other[::-1], one)  # the same rows in other tasks and another order
    assert brokers.values() == sorted(one + other)
    with pytest.raises(BatchConflict):
        query.write(0, [b"something else"])
    query.write(1, [b"next"])
    assert brokers.values() == sorted([*one, *other, b"next"])


@pytest.mark.process
def test_brokers_that_are_killed_between_tasks_and_commit(brokers: Brokers, query: Query) -> None:
    rows = [b"%d" % number for number in range(50)]
    query.write(0, rows, before_commit=lambda: brokers.restart(4, 7))
    assert brokers.values() == sorted(rows)
    brokers.restart(7)
    assert brokers.values() == sorted(rows)
    offsets: dict[Any, list[int]] = {}
    for message in brokers.stored():
        offsets.setdefault(message.partition, []).append(message.offset)
    assert all(found == list(range(len(found))) for found in offsets.values()), "dense"


@pytest.mark.process
@pytest.mark.parametrize("orderly", [True, False])
def test_a_broker_that_is_away_when_a_batch_begins_is_waited_for(brokers: Brokers, query: Query, orderly: bool) -> None:
    query.write(0, [b"0"])
    brokers.stop(7, orderly=orderly)
    with when_waited_for(lambda: brokers.start(7)) as said:
        sink, rows = query.sink(), [b"%d" % number for number in range(1, 40)]
        messages = [query.task(sink, 1, 0, rows)]
        query.commit(messages, 1)
    assert brokers.values() == sorted([b"0", *rows])
    assert bool(said) is not orderly  # one that has left the route is not needed: rows go to the queues that are there


@pytest.mark.process
@pytest.mark.parametrize("orderly", [True, False])
def test_a_broker_that_is_away_when_a_batch_is_committed_is_waited_for(
    brokers: Brokers, query: Query, orderly: bool
) -> None:
    rows = [b"%d" % number for number in range(50)]
    messages = query.tasks(0, rows[:25], rows[25:])
    brokers.stop(7, orderly=orderly)
    with when_waited_for(lambda: brokers.start(7)) as said:
        query.commit(messages, 0)
    assert brokers.values() == sorted(rows)
    (sentence,) = said
    if orderly:
        assert "messages on broker 7, which is none of the brokers found by the name servers 127.0.0.1:" in sentence


@pytest.mark.process
def test_a_task_begins_again_what_brokers_that_restart_roll_back(brokers: Brokers, query: Query) -> None:
    rows = [b"%d" % number for number in range(60)]
    sink = query.sink(blockMessages="2")
    message = query.task(sink, 0, 0, rows[:30], rows[30:], between=lambda: brokers.restart(4, 7))
    assert brokers.values() == []
    query.commit([message], 0)
    assert brokers.values() == sorted(rows)


@pytest.mark.process
def test_a_new_run_waits_for_a_broker_that_may_have_decided(brokers: Brokers, query: Query) -> None:
    query.run = "first"
    query.write(0, [b"0"])
    brokers.stop(7)
    with when_waited_for(lambda: None) as said:
        query.write(1, [b"1"])
    assert said == []
    brokers.start(7)
    brokers.restart()
    brokers.forget()
    query.write(2, [b"2"])
    brokers.stop(7)
    query.run = "second"
    with when_waited_for(lambda: brokers.start(7)) as said:
        query.write(3, [b"3"])
    assert "an earlier run of the query may have written the batch on broker 7, which is none of" in said[0]
    assert brokers.values() == [b"0", b"1", b"2", b"3"]


def batch_write(brokers: Brokers) -> RocketMQSink:
    """A batch write whose rows name their topic, made while broker 7 is not in the route; then it comes."""
    brokers.stop(7)
    raw = {"nameServers": brokers.name_server, "delivery": "exactly_once", "retryIntervalMs": "20", "retries": "1"}
    schema = StructType([*SCHEMA, StructField("topic", StringType())])
    sink = RocketMQSink(parse_sink_options(raw, Use.BATCH_WRITE), schema, streaming=False)
    brokers.start(7)
    brokers.restart()
    brokers.forget()
    return sink


def batch_tasks(sink: RocketMQSink, *values: bytes) -> list[WriterCommitMessage]:
    """A task for each value; one after the other begins at the next queue."""
    rows = [{"value": value, "tags": None, "properties": None, "topic": TOPIC} for value in values]
    schema = pa.schema([*ARROW, ("topic", pa.string())])
    messages = []
    for number, row in enumerate(rows):
        task = WriteTask(number, number, lambda name: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WriteTask, "current", lambda task=task: task)
            batches = iter([pa.RecordBatch.from_pylist([row], schema=schema)])
            messages.append(write_batches(batches, pickle.loads(pickle.dumps(sink))))
    return messages


def end_of(sink: RocketMQSink) -> BundledTransaction:
    """The driver's part, in a process of its own as in Spark."""
    there: RocketMQSink = pickle.loads(pickle.dumps(sink))
    assert there.transaction is not None
    return there.transaction


@pytest.mark.process
def test_a_batch_write_keeps_its_name_when_a_broker_has_come(brokers: Brokers) -> None:
    sink = batch_write(brokers)
    batch_tasks(sink, b"of an attempt that failed", b"of another")
    end_of(sink).commit(batch_tasks(sink, b"0", b"1"), None)
    assert brokers.values() == [b"0", b"1"]
    assert brokers.prepared() == 0


@pytest.mark.process
def test_a_decided_batch_write_is_finished_at_a_broker_that_has_come(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver loses its connections behind the decision; Spark then aborts the write."""
    sink = batch_write(brokers)
    messages = batch_tasks(sink, b"0", b"1")

    def lost(*_: object) -> None:
        raise ConnectionFailed("broker-a", "commit", "a test")

    with monkeypatch.context() as patch:
        patch.setattr(Conversation, "commit", lost)
        with pytest.raises(ConnectionFailed, match="a test"):
            end_of(sink).commit(messages, None)
    end_of(sink).abort()
    assert brokers.values() == [b"0", b"1"]


@pytest.mark.process
def test_name_server_and_brokers_that_are_away_when_a_batch_begins(brokers: Brokers, query: Query) -> None:
    query.write(0, [b"0"])
    for broker_id in (7, 4):
        brokers.stop(broker_id, orderly=False)
    brokers.forget()
    with pytest.raises(NameServersAway):
        query.task(query.sink(), 0, 0, [b"not begun"])
    with when_waited_for(lambda: brokers.start(4, 7)) as said:
        query.write(1, [b"1"])
    assert brokers.values() == [b"0", b"1"]
    assert said[0].startswith("no name server answers, of 127.0.0.1:")


@pytest.mark.process
def test_a_broker_that_stays_away_is_named_with_its_name_server(brokers: Brokers, query: Query) -> None:
    messages = query.tasks(0, [b"0"], [b"1"])
    writer = StreamWriter(query.sink(brokerWaitMs="1"))
    brokers.stop(7, orderly=False)
    words = r"broker 127.*brokerWaitMs.* by the name servers .*\(broker-a = broker 4 .*, broker-b = broker 7 at 127"
    with pytest.raises(WriteFailed, match=words):
        writer._commit(messages, 0)
    brokers.start(7)
    brokers.stop(7)
    words = r"messages on broker 7, .* found by the name servers .*\(broker-a = broker 4 at 127"
    with pytest.raises(ParticipantMissing, match=words):
        StreamWriter(query.sink(brokerWaitMs="1"))._commit(messages, 0)


def test_frames_have_one_fingerprint_whatever_their_keys() -> None:
    def frames(first_row: int, rows: list[dict[str, Any]]) -> Any:
        batch = pa.RecordBatch.from_pylist(rows, schema=ARROW)
        columns = RowColumns(batch.column(0), batch.column(1), None, batch.column(2))
        encoder, block = ElementEncoder(columns, b"p" * 12, first_row, "a test"), OpenBlock(1 << 20, 1000)
        indexes = pa.array(range(len(rows)), pa.int64()).to_numpy()
        assert list(encoder.append(indexes, block)) == []
        return to_frames(block.take(), first_row)

    rows: list[dict[str, Any]] = [
        {"value": b"a", "tags": "t", "properties": [("n", "1")]},
        {"value": b"b", "tags": None, "properties": None},
    ]
    first = frames(0, rows)
    assert first.count == 2
    assert frames(70_000, rows[::-1]).fingerprint == first.fingerprint
    for change in ({"value": b"c"}, {"tags": "u"}, {"properties": [("n", "2")]}):
        assert frames(0, [rows[0] | change, rows[1]]).fingerprint != first.fingerprint


def test_rows_under_the_number_of_a_batch_that_was_decided_without_rows(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(brokers, monkeypatch)
    query.write(0, [])
    query.write(0, [])
    with pytest.raises(BatchConflict, match=r"batch 0 of query .* written before.* with no rows; now it has 1 rows"):
        query.write(0, [b"a"])
    query.write(1, [b"b"])
    assert brokers.values() == [b"b"]


def test_brokers_that_are_put_back_to_an_older_copy(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    query, no_sockets = Query(brokers, monkeypatch), shutil.ignore_patterns("*.sock")
    query.write(0, [b"0"], [b"0"])
    for broker_id in NAMES:
        brokers.running[broker_id].kill()
        shutil.copytree(tmp_path / str(broker_id) / "data", tmp_path / "copy" / str(broker_id), ignore=no_sockets)
    brokers.restart(*NAMES)
    for number in (1, 2):
        query.write(number, [b"%d" % number], [b"%d" % number])
    for put_back, words in (((7,), "batch 0, but other brokers know batch 2"), ((4,), r"batch 0\.")):
        for broker_id in put_back:
            brokers.running[broker_id].kill()
            shutil.rmtree(tmp_path / str(broker_id) / "data")
            shutil.copytree(tmp_path / "copy" / str(broker_id), tmp_path / str(broker_id) / "data")
        brokers.restart(*put_back)
        with pytest.raises(BatchesMissing, match=rf"batch 3 of query .* knows is {words}.*missingBatches to 1-2"):
            query.write(3, [b"3"])
    assert brokers.values() == [b"0", b"0"]
