"""What users of connectors for RocketMQ meet, with real servers: groups, topics and brokers that come and go, filters,
brokers that take no messages, and what is refused.

The reader and the sink are driven as Spark drives them, without Spark's processes around them. The same against a
scripted cluster, and the rest of the table in docs/rocketmq.md: tests/metaq_spark/backends/rocketmq. What needs Spark
itself: test_rocketmq_changes.py, test_rocketmq_fields.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from fix_broker import wait_until
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from rocketmq_spark import Run, options_for

from metaq import RocketMQ
from metaq.backends.rocketmq.errors import BatchNotStored
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError
from metaq.model import Address, Partition
from metaq.net.clock import SystemClock
from metaq_spark.backends.rocketmq.options import parse_sink_options, parse_source_options
from metaq_spark.backends.rocketmq.sink import RocketMQSink
from metaq_spark.backends.rocketmq.source import RocketMQSource
from metaq_spark.errors import ExactlyOnceError
from metaq_spark.options.table import Use
from metaq_spark.sink.task import write_batches
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.spark_version import arrow_type
from peers.jvm import JavaServer
from peers.rocketmq.admin import Admin
from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

pytestmark = pytest.mark.slow

MakeTopic = Callable[..., str]
Dumped = Callable[..., list[Mapping[str, Any]]]

UPDATE_TOPIC, UPDATE_BROKER_CONFIG, PUT_KV_CONFIG = 17, 25, 100
READ_ONLY, READ_WRITE = 4, 6
COLUMNS: Final = {"value": BinaryType(), "queue": IntegerType(), "delay_level": IntegerType()}


def numbers(values: Sequence[bytes]) -> list[int]:
    """The numbers of messages that the Java client wrote, in order."""
    return sorted(int(value[:8]) for value in values)


# ---- the source


def test_a_group_goes_on_in_java_where_a_query_was_and_the_other_way_round(
    rocketmq: Cluster, rocketmq_programs: Programs, rocketmq_topic: MakeTopic
) -> None:
    topic = rocketmq_topic(queues=2)
    group = f"group-{topic}"
    rocketmq_programs.write(topic, 100)
    run = Run(rocketmq, topic, group=group, commitGroupOffsets="true")
    run.wait_for(100)
    run.drain()  # what was completed is written with the next plan
    rocketmq_programs.write(topic, 50, first=100)
    got = rocketmq_programs.push(topic, group, 50)
    assert sorted(int(line[4][:8]) for line in got) == list(range(100, 150))
    rocketmq_programs.write(topic, 30, first=150)
    next_run = Run(rocketmq, topic, group=group, startingOffsets="group")
    next_run.wait_for(30)
    assert numbers(next_run.values) == list(range(150, 180))


def test_a_topic_that_is_created_after_the_query(rocketmq_cluster: Cluster) -> None:
    rocketmq_cluster.start_name_server()
    rocketmq_cluster.start_broker()
    rocketmq_cluster.create_topic("other", queues=1)
    run = Run(rocketmq_cluster, "later", waitForTopic="true", startingOffsets="latest")
    assert run.drain() == []
    assert run.reader._source.cluster.topics() == ["other"]  # what a pattern is compared with: users' topics only
    rocketmq_cluster.create_topic("later", queues=2)
    Programs(rocketmq_cluster.release, rocketmq_cluster.name_servers).write("later", 20)
    run.wait_for(20)


def test_a_broker_that_leaves_and_returns(rocketmq_cluster: Cluster) -> None:
    cluster = rocketmq_cluster
    cluster.start_name_server()
    cluster.start_broker("broker-a")
    other = cluster.start_broker("broker-b")
    cluster.create_topic("orders", queues=2)
    programs = Programs(cluster.release, cluster.name_servers)
    programs.write("orders", 100)
    run = Run(cluster, "orders")
    run.wait_for(100)
    assert run.offsets() == dict.fromkeys(("broker-a:0", "broker-a:1", "broker-b:0", "broker-b:1"), 25)
    other.kill()
    wait_until(lambda: cluster.route_of("orders") == {"broker-a"}, "the route without the broker", 60)
    programs.write("orders", 50, first=100)
    run.wait_for(150)
    assert run.offsets() == {"broker-a:0": 50, "broker-a:1": 50, "broker-b:0": 25, "broker-b:1": 25}
    began_without = Run(cluster, "orders", run.position)  # the query is restarted meanwhile
    assert began_without.drain() == []
    assert began_without.position == run.position
    other.start()
    wait_until(lambda: cluster.route_of("orders") == {"broker-a", "broker-b"}, "the route with the broker", 60)
    programs.write("orders", 50, first=150)
    run.wait_for(200)
    began_without.wait_for(50)
    assert numbers(began_without.values) == list(range(150, 200))


def test_a_filter_that_matches_nothing_still_moves_on(
    rocketmq: Cluster, rocketmq_programs: Programs, rocketmq_topic: MakeTopic
) -> None:
    topic = rocketmq_topic(queues=2)
    rocketmq_programs.write(topic, 1000, tags=3, batch=50)
    runs = [Run(rocketmq, topic, **filtered) for filtered in ({"tags": "tag7 || tag8"}, {"sql": "TAGS = 'tag7'"})]
    for run in runs:
        wait_until(lambda: run.drain() is not None and sum(run.offsets().values()) == 1000, "the end")  # noqa: B023
        assert run.values == []
    rocketmq_programs.write(topic, 10, first=1000, tags=10)
    for run, count in zip(runs, (2, 1), strict=True):
        run.wait_for(count)
    assert [numbers(run.values) for run in runs] == [[1007, 1008], [1007]]


def test_an_idle_queue_among_busy_ones(rocketmq: Cluster, rocketmq_topic: MakeTopic) -> None:
    topic = rocketmq_topic(queues=3)
    run = Run(rocketmq, topic, maxOffsetsPerTrigger="7")
    with RocketMQ(rocketmq.name_servers) as mq:
        producer = mq.producer()
        for queue in (0, 2):
            texts = [f"{queue}-{number:03}" for number in range(30)]
            producer.send_many(topic, texts, partition=Partition("broker-a", queue))
    run.wait_for(60)
    assert run.offsets() == {"broker-a:0": 30, "broker-a:1": 0, "broker-a:2": 30}


def test_a_read_from_one_time_to_another(
    rocketmq: Cluster, rocketmq_programs: Programs, rocketmq_topic: MakeTopic
) -> None:
    topic = rocketmq_topic(queues=2)
    for first in (0, 100, 200):
        rocketmq_programs.write(topic, 100, first=first, batch=20)
    everything = Run(rocketmq, topic)
    everything.wait_for(300)
    rows = read(rocketmq, topic)
    stored_ms = {int(row["value"][:8]): round(row["store_timestamp"].timestamp() * 1000) for row in rows}
    start, end = (min(at for number, at in stored_ms.items() if number // 100 == hundred) for hundred in (1, 2))
    assert max(at for number, at in stored_ms.items() if number < 100) < start < end
    found = read(rocketmq, topic, startingTimestamp=str(start), endingTimestamp=str(end))
    assert numbers([row["value"] for row in found]) == list(range(100, 200))


@pytest.mark.rocketmq_only("5.5.0")
def test_a_static_topic_is_refused_with_a_sentence(rocketmq: Cluster, tmp_path: Path) -> None:
    admin = Admin(rocketmq.release, tmp_path, rocketmq.name_servers)
    admin.run("updateStaticTopic", "-t", "static", "-qn", "2", "-c", "DefaultCluster")
    source = RocketMQSource(parse_source_options(options_for(rocketmq, "static", retries="0"), Use.BATCH_READ))
    with pytest.raises(MetaqError, match=r"topic 'static': it is a static topic, whose queues move between brokers"):
        BatchReader(source).partitions()


# ---- the sink


class FirstPause(SystemClock):
    """A clock that calls ``react`` before its first pause: something was refused, and will be tried again."""

    def __init__(self, react: Callable[[], None]) -> None:
        self._react, self.pauses = react, 0

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        if self.pauses == 1:
            self._react()
        super().sleep(seconds)


def sink_of(cluster: Cluster, pool: SessionPool, topic: str, *columns: str, **more: str) -> RocketMQSink:
    """A batch write of these columns."""
    options = parse_sink_options({"nameServers": cluster.name_servers, "topic": topic} | more, Use.BATCH_WRITE)
    directory = NameServerDirectory([Address.parse(each) for each in cluster.name_servers.split(";")], pool)
    schema = StructType([StructField(name, COLUMNS[name]) for name in columns])
    return RocketMQSink(options, schema, streaming=False, pool=pool, directory=directory)


def rows_of(**columns: list[Any]) -> list[pa.RecordBatch]:
    """One batch of rows, as Spark hands it to a writer."""
    types = pa.schema([(name, arrow_type(COLUMNS[name])) for name in columns])
    return [pa.RecordBatch.from_pydict(columns, schema=types)]


def permit(cluster: Cluster, broker: JavaServer, permission: int) -> None:
    """Have a broker take messages, or not."""
    cluster.ask(broker, UPDATE_BROKER_CONFIG, body=b"brokerPermission=%d" % permission).checked()


def make_ordered(cluster: Cluster, broker: JavaServer, topic: str) -> None:
    """Make a topic one of those for which a broker without write permission refuses messages: 5.x is told so with the
    topic, 4.x by its name servers, the next time that it registers something."""
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic, "value": "broker-a:2"}
    cluster.ask(cluster.names[0], PUT_KV_CONFIG, order).checked()
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": READ_WRITE}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "true"}
    cluster.ask(broker, UPDATE_TOPIC, fields | more).checked()


@pytest.fixture
def orders_broker(rocketmq_cluster: Cluster) -> tuple[Cluster, JavaServer]:
    """A cluster of one broker, which has the topic ``orders``."""
    rocketmq_cluster.start_name_server()
    broker = rocketmq_cluster.start_broker()
    rocketmq_cluster.create_topic("orders", queues=2)
    return rocketmq_cluster, broker


def test_a_broker_that_refuses_is_tried_again_then_the_task_fails(
    orders_broker: tuple[Cluster, JavaServer],
) -> None:
    cluster, broker = orders_broker
    make_ordered(cluster, broker, "orders")
    values = [b"%08d" % number for number in range(200)]
    rows = rows_of(value=values, queue=[number % 2 for number in range(200)])
    clock = FirstPause(lambda: permit(cluster, broker, READ_WRITE))
    with closing(SessionPool()) as pool, closing(SessionPool(clock=clock)) as patient:
        sinks = [
            sink_of(cluster, pool, "orders", "value", "queue", retries="2", retryIntervalMs="20"),
            sink_of(cluster, patient, "orders", "value", "queue", retries="3"),
        ]
        permit(cluster, broker, READ_ONLY)
        with pytest.raises(BatchNotStored, match=r"orders/broker-a:\d were not sent: .*NO_PERMISSION \(16\)"):
            write_batches(rows, sinks[0])
        assert clock.pauses == 0
        write_batches(rows, sinks[1])
    assert clock.pauses >= 1
    run = Run(cluster, "orders")
    run.wait_for(200)
    assert sorted(run.values) == values


def test_a_broker_that_is_killed_under_a_write_gets_everything(orders_broker: tuple[Cluster, JavaServer]) -> None:
    cluster, broker = orders_broker
    values = [b"%08d" % number for number in range(20_000)]

    tried_again = threading.Event()
    with closing(SessionPool(clock=FirstPause(tried_again.set))) as pool:
        sink = sink_of(cluster, pool, "orders", "value", "queue", retries="30", blockMessages="500")
        batches = [rows_of(value=values[at : at + 500], queue=[0] * 500)[0] for at in range(0, len(values), 500)]

        def killed_in_the_middle() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches):
                if number == len(batches) // 2:
                    broker.kill()
                elif number == len(batches) // 2 + 1:
                    assert tried_again.wait(60)
                    broker.start()  # in this thread: a server ends with the thread that has started it
                yield batch

        write_batches(killed_in_the_middle(), sink)
    rows: list[Any] = []

    def all_are_there() -> bool:
        rows[:] = read(cluster, "orders", columns="value,message_id,queue_offset")
        return len({row["value"] for row in rows}) == len(values)

    wait_until(all_are_there, "the broker has what it stored in the queue, which it does later", 60)
    assert sorted({row["value"] for row in rows}) == values
    assert len({row["message_id"] for row in rows}) == len(values)  # what is there twice has one id
    first = [row["value"] for row in read(cluster, "orders", dropRepeatedWithin="20000")]
    assert first == values  # in the order of the rows


def read(cluster: Cluster, topic: str, **more: str) -> list[dict[str, Any]]:
    """The rows of a batch read, of one queue after the other."""
    reader = BatchReader(RocketMQSource(parse_source_options(options_for(cluster, topic, **more), Use.BATCH_READ)))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_delayed_message_comes_later(rocketmq: Cluster, rocketmq_topic: MakeTopic, dumped: Dumped) -> None:
    topic = rocketmq_topic(queues=1)
    with closing(SessionPool()) as pool:
        sink = sink_of(rocketmq, pool, topic, "value", "queue", "delay_level")
        write_batches(rows_of(value=[b"at once", b"later"], queue=[0, 0], delay_level=[None, 2]), sink)  # 2 = 5 s
    wait_until(lambda: len(read(rocketmq, topic)) == 2, "both messages", 60)
    at_once, later = dumped(topic)
    assert [later["properties"].get("DELAY"), at_once["properties"].get("DELAY")] == ["2", None]
    assert at_once["store_timestamp"] - at_once["born_timestamp"] < 4000
    assert later["store_timestamp"] - later["born_timestamp"] >= 5000


def test_a_write_that_has_to_be_exactly_once_is_refused(rocketmq: Cluster, rocketmq_topic: MakeTopic) -> None:
    topic = rocketmq_topic(queues=1)
    refused = r"broker 'broker-a' at 127.0.0.1:\d+ is not a metaq-broker.*no transactions over several messages"
    with closing(SessionPool()) as pool, pytest.raises(ExactlyOnceError, match=refused):
        sink_of(rocketmq, pool, topic, "value", delivery="exactly_once")
