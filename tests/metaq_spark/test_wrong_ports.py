"""A query at a port of another protocol ends within seconds and says what is there; it is not waited for."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from fix_tls import Certificates
from listeners import Relay
from pyspark.sql.types import BinaryType, StructField, StructType
from rocketmq_harness import stream_task
from servers_of_kinds import Serve, servers_of_kinds

from metaq import MetaQ
from metaq.errors import MetaqError
from metaq.model import Address, Partition
from metaq.testing.rocketmq_server import ScriptedCluster
from metaq_spark.datasource import MetaQDataSource, QueueDataSource, RocketMQDataSource
from metaq_spark.sink.backend import WriteTask

SOON_S = 60.0
"""Much less than the ten minutes of ``brokerWaitMs``."""

VALUES = StructType([StructField("value", BinaryType())])
ROWS = pa.RecordBatch.from_pydict({"value": pa.array([b"one tea"], pa.binary())})


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Serve]:
    with servers_of_kinds(tmp_path_factory, certificates) as serve:
        yield serve


@pytest.fixture(autouse=True)
def later_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of streaming writes are of batch 1: batch 0 waits for no broker."""
    monkeypatch.setattr(WriteTask, "current", lambda: stream_task(batch=1))


@dataclass(frozen=True)
class Format:
    source: type[QueueDataSource]
    option: str
    expected: str

    def at(self, address: Address, **more: str) -> QueueDataSource:
        """With many retries: a busy machine's server may answer too late to be identified the first time."""
        return self.source({self.option: str(address), "brokerWaitMs": "10m", "retries": "99"} | more)


FORMATS = {
    "metaq": Format(MetaQDataSource, "brokers", "not a MetaQ broker"),
    "rocketmq": Format(RocketMQDataSource, "nameServers", "not a RocketMQ server"),
}
KINDS = {
    "MetaQ": "is a MetaQ broker",
    "RocketMQ": "is a RocketMQ server",
    "HTTP": "is an HTTP server",
    "MetaQ with TLS": "is a server that requires TLS",
}
CASES = [(name, kind) for name in FORMATS for kind in KINDS if kind.lower() != name]


def batch_read(source: QueueDataSource) -> None:
    source.reader(VALUES).partitions()


def stream_start(source: QueueDataSource) -> None:
    source.streamReader(VALUES).initialOffset()


def stream_that_goes_on(source: QueueDataSource) -> None:
    reader: Any = source.streamReader(VALUES)
    queue = "0-0" if isinstance(source, MetaQDataSource) else "broker-a:0"
    start = {"v": 2, "topics": {"orders": {queue: 0}}, "incarnations": {}}
    reader.latestOffset(start, reader.getDefaultReadLimit())


def batch_write(source: QueueDataSource) -> None:
    source.writer(VALUES, overwrite=False).write(iter([ROWS]))


def stream_write(source: QueueDataSource) -> None:
    writer: Any = pickle.loads(pickle.dumps(source.streamWriter(VALUES, overwrite=False)))
    writer.write(iter([ROWS]))


READS = {"batch": batch_read, "stream": stream_start, "stream that goes on": stream_that_goes_on}
WRITES = {"batch": batch_write, "stream": stream_write}


@contextmanager
def named_soon(address: Address, kind: str, expected: str) -> Iterator[None]:
    began_s = time.monotonic()
    with pytest.raises(MetaqError) as caught:
        yield
    assert time.monotonic() - began_s < SOON_S
    assert f"{address} {KINDS[kind]}, {expected}" in str(caught.value)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_read(name: str, kind: str, read: str, serve: Serve) -> None:
    address, made = serve(kind), FORMATS[name]
    with named_soon(address, kind, made.expected):
        READS[read](made.at(address, subscribe="orders", columns="value"))


DELIVERIES = [("batch", "at_least_once"), ("stream", "at_least_once"), ("stream", "exactly_once")]


@pytest.mark.parametrize(("write", "delivery"), DELIVERIES)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_write(name: str, kind: str, write: str, delivery: str, serve: Serve) -> None:
    address, made = serve(kind), FORMATS[name]
    with named_soon(address, kind, made.expected):
        WRITES[write](made.at(address, topic="orders", delivery=delivery))


class Moving:
    """A cluster with two messages of ``orders`` at one broker, whose address another server may take."""

    def __init__(self, name: str, serve: Serve, opened: ExitStack) -> None:
        self._name = name
        if name == "metaq":
            self._relay = opened.enter_context(Relay(serve("MetaQ")))
            self.address = self._relay.address
            with MetaQ(str(self.address)) as mq:
                mq.producer().send_many("orders", ["1", "2"], partition=Partition(0, 0))
        else:
            self._cluster = opened.enter_context(ScriptedCluster())
            self.address = self._cluster.name_servers[0]
            self._cluster.create_topic("orders")
            self._cluster.append("orders", Partition("broker-a", 0), [b"1", b"2"])

    def becomes(self, other: Address) -> Address:
        """End the broker's connections, and have ``other`` in its place; return where tasks find that."""
        if self._name == "metaq":
            self._relay.target = other
            self._relay.end_connections()
            return self.address
        self._cluster.stop_broker(is_in_route=True)
        self._cluster.broker().servers[0].port = other.port
        return other


@pytest.fixture(params=FORMATS)
def moving(request: pytest.FixtureRequest, serve: Serve) -> Iterator[tuple[Format, Moving]]:
    with ExitStack() as opened:
        yield FORMATS[request.param], Moving(request.param, serve, opened)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("kind", ["HTTP", "MetaQ with TLS"])
def test_tasks_of_a_read(kind: str, is_stream: bool, moving: tuple[Format, Moving], serve: Serve) -> None:
    made, cluster = moving
    source = made.at(cluster.address, subscribe="orders", columns="value", startingOffsets="earliest")
    if is_stream:
        reader: Any = source.streamReader(VALUES)
        start = reader.initialOffset()
        tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    else:
        reader = source.reader(VALUES)
        tasks = reader.partitions()
    address = cluster.becomes(serve(kind))
    with named_soon(address, kind, made.expected):
        [list(reader.read(task)) for task in tasks]


@pytest.mark.parametrize(("write", "delivery"), DELIVERIES)
@pytest.mark.parametrize("kind", ["HTTP", "MetaQ with TLS"])
def test_tasks_of_a_write(kind: str, write: str, delivery: str, moving: tuple[Format, Moving], serve: Serve) -> None:
    made, cluster = moving
    if made.source is RocketMQDataSource and delivery == "exactly_once":
        pytest.skip("needs the bundled broker")
    source = made.at(cluster.address, topic="orders", delivery=delivery)
    writer: Any = (source.streamWriter if write == "stream" else source.writer)(VALUES, False)
    address = cluster.becomes(serve(kind))
    with named_soon(address, kind, made.expected):
        writer.write(iter([ROWS]))
