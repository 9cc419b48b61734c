"""Every sentence that docs/troubleshooting.md explains is one that the code says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from examples import in_one_test
from metaq_harness import ADDRESSES, Harness, SinkHarness
from pyspark.sql.types import LongType, StructField, StructType

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import BrokerError, ConnectionFailed, DeadlineExceeded, MetaqError
from metaq.model import Address, Xid
from metaq.protocols.text.commands import Stats
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq.testing.rocketmq_server import ScriptedCluster
from metaq_spark.backends.metaq.exactly_once import coordinator
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.participants import require_extensions
from metaq_spark.backends.metaq.exactly_once.plan import BATCH_ID, TransactionPlan, batch_of_task
from metaq_spark.backends.metaq.options import parse_sink_options, parse_source_options
from metaq_spark.backends.metaq.sink import SINK_COLUMNS
from metaq_spark.errors import (
    BatchConflict,
    BatchesMissing,
    BatchSuperseded,
    BranchLost,
    FullRefreshRefused,
    MalformedValue,
    ParticipantMissing,
    ReadFailed,
    WriteFailed,
)
from metaq_spark.options.table import Use
from metaq_spark.sink.columns import find_sink_columns

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
OF_SPARK = (
    "[DATA_SOURCE_NOT_FOUND]",
    "ModuleNotFoundError",
    "[JAVA_GATEWAY_EXITED]",
    "JAVA_HOME is not set",
    "Cannot run program",
    "Missing Python executable",
    "... does not support Update mode",
)


def explained() -> list[str]:
    """The sentences in the first column, as regular expressions."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    sentences = [sentence for row in rows for sentence in re.findall(r"`([^`]+)`", row.split("|")[1])]
    return [s for s in sentences if not s.startswith(OF_SPARK)]


def matcher(sentence: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, sentence.split("..."))), re.DOTALL)


def stream_of(harness: Harness, position: dict[str, object], **options: str) -> None:
    harness.micro_batch(harness.stream(**options), position)


def options(**given: str) -> None:
    parse_source_options({"brokers": "a:1", "subscribe": "orders"} | given, Use.STREAM_READ)


def filled() -> Harness:
    harness = Harness(segment_bytes_max=40)
    for index in (0, 1):
        harness.put("orders", 0, index, b"a message", b"another", at_ms=1_000_000)
    return harness


def no_such_broker() -> None:
    with SessionPool(transport=MemoryTransport({})).lease(Address("nobody", 1)):
        pass


def wrong_port() -> None:
    with ScriptedCluster() as cluster:
        Session.connect(cluster.name_servers[0]).ask(Stats("", 0))


def one_broker_twice() -> None:
    broker = MemoryBroker({"orders": 1})
    transport = MemoryTransport(dict.fromkeys(ADDRESSES, broker))
    FixedDirectory(ADDRESSES, SessionPool(transport=transport)).brokers()


def not_ours() -> None:
    address = Address("java", 1)
    transport = MemoryTransport({address: MemoryBroker({}, extensions=frozenset())})
    require_extensions(Session.connect(address, transport=transport))


def retention() -> None:
    harness = filled()
    harness.brokers[0].partition("orders", 0).drop_segments(1)
    stream_of(harness, {"v": 1, "topics": {"orders": {"0-0": 0}}})


def made_again() -> None:
    harness = filled()
    start = harness.stream(startingOffsets="latest").initialOffset()
    harness.brokers[0].recreate("orders", 0)
    harness.put("orders", 0, 0, b"of the new one", b"and more of it", b"and more")
    stream_of(harness, start)


def end_lost() -> None:
    harness = filled()
    reader = harness.stream(startingOffsets="latest")
    start = reader.initialOffset()
    start["topics"]["orders"]["0-0"] += 1000
    harness.micro_batch(reader, start)
    harness.clock.advance(60)
    harness.micro_batch(reader, start)


def not_named() -> None:
    harness = filled()
    start = {"v": 1, "topics": {"orders": {"9-0": 0}}}
    harness.stream().partitions(start, {"v": 1, "topics": {"orders": {"9-0": 50}}})


def damaged() -> None:
    harness = filled()
    segment = harness.brokers[0].partition("orders", 0).segment_at(0)[1]
    segment[-1] ^= 1
    harness.batch()


def not_listed() -> None:
    java = Harness(extensions=frozenset())
    java.put("orders", 0, 0, b"a message")
    java.batch(assign='{"orders": ["0-1"]}')


def superseded() -> None:
    raise BatchSuperseded("batch 3 of query q", "batch 3 of query q comes too late: batch 4 has been decided")


def conflict() -> None:
    raise BatchConflict("batch 3 of query q", "1 rows for topic t", "", "2 rows for topic t", True)


def put_back() -> None:
    harness = Harness(orders=1)
    harness.put("orders", 0, 0, b"read")
    position, _ = harness.drain(harness.stream(startingOffsets="earliest"))
    harness.brokers[0].clear()
    harness.put("orders", 0, 0, b"anew")
    harness.brokers[0].partition("orders", 0).incarnation = position["incarnations"]["orders"]["0-0"]
    stream_of(harness, position)


def branches_gone() -> None:
    raise coordinator._nothing_decided(BatchName("q", 3), 7, "XID:1:0:0:q")


def branches_missing() -> None:
    raise coordinator._missing(BatchName("q", 3), {7: [Xid(1, b"g", b"b", "q")]}, "{}")


def branch_lost() -> None:
    raise BranchLost("b:1", "XA transaction 'XID:1:0:0:q' has not been started.")


def read_failed() -> None:
    raise ReadFailed("orders/0-0", 20, "broker b:1: connect failed", "Check that the broker is running")


def write_failed() -> None:
    error = ConnectionFailed(ADDRESSES[0], "connect", "refused")
    sink = parse_sink_options({"brokers": "b0:1", "brokerWaitMs": "1m"}, Use.STREAM_WRITE)
    raise WriteFailed(str(error), sink.advice_after(error, ""))


def in_foreach_batch() -> None:
    plan = TransactionPlan({0: ADDRESSES[0]}, None, written=False, timeout_s_max=60, single=True)
    batch_of_task(plan, {BATCH_ID: "3"}.get)


def write(columns: dict[str, list[object]], **options: str) -> Callable[[], object]:
    return lambda: SinkHarness().write(pa.RecordBatch.from_pydict(columns), topic="orders", **options)


def raised(error: MetaqError) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


SCENARIOS: dict[str, Callable[[], object]] = {
    "misspelt": lambda: options(subscrib="x"),
    "misplaced": lambda: options(topic="x"),
    "nothing to read": lambda: parse_source_options({"brokers": "a:1"}, Use.BATCH_READ),
    "no broker": no_such_broker,
    "wrong port": wrong_port,
    "no topic": lambda: Harness().batch(subscribe="ordres"),
    "one broker twice": one_broker_twice,
    "column": lambda: find_sink_columns(StructType([StructField("x", LongType())]), "orders", SINK_COLUMNS),
    "not ours": not_ours,
    "in foreachBatch": in_foreach_batch,
    "inside a message": lambda: filled().batch(startingOffsets='{"orders": {"0-0": 5, "0-1": 0}}'),
    "partition left out": lambda: filled().batch(startingOffsets='{"orders": {"0-0": 0}}'),
    "too new": lambda: filled().batch(startingTimestamp="2030-01-01T00:00:00Z"),
    "group": lambda: filled().batch(startingOffsets="group", group="g"),
    "another source": lambda: stream_of(Harness(), {"sources": 1}),
    "newer": lambda: stream_of(Harness(), {"v": 99, "topics": {}}),
    "retention": retention,
    "made again": made_again,
    "end lost": end_lost,
    "not named": not_named,
    "task failed": read_failed,
    "required": lambda: Harness().batch(requireBrokers="7"),
    "not selected": lambda: stream_of(Harness(), {"v": 1, "topics": {"carts": {"0-0": 0}}}),
    "write failed": write_failed,
    "participant": raised(ParticipantMissing(7, "the option brokers (b0:1)")),
    "no answer": raised(DeadlineExceeded(ADDRESSES[0], "get", 30.0)),
    "damage": damaged,
    "full refresh": raised(FullRefreshRefused("file:/data/_checkpoints/sink/flow/1")),
    "malformed": raised(MalformedValue("orders/0-0", 20, 'its field id is "x", which is no int')),
    "row": write({"value": [b"a", None]}),
    "wrong clock": raised(BrokerError(ADDRESSES[0], "put", 500, "put message failed.Detail:the clock shows 2099")),
    "clock that jumped": raised(BrokerError(ADDRESSES[0], "put", 500, "x, the clock has jumped to 2099-01-01")),
    "files gone": raised(BrokerError(ADDRESSES[0], "put", 500, "/d was removed or replaced while the broker runs: x")),
    "not listed": not_listed,
    "refused": raised(BrokerError(ADDRESSES[0], "put to orders partition 0", 500, "too long")),
    "ordered": write({"value": [b"a"]}, orderedPartitions="9:2"),
    "rolled back": branch_lost,
    "superseded": superseded,
    "written before": conflict,
    "batches missing": raised(BatchesMissing("batch 6 of query q", "broker 0 (a:1)", 2, (3, 5))),
    "put back": put_back,
    "branches gone": branches_gone,
    "branches missing": branches_missing,
}


@in_one_test("scenario", SCENARIOS)
def test_what_the_code_says_is_explained(scenario: str) -> None:
    with pytest.raises(MetaqError) as caught:
        SCENARIOS[scenario]()
    assert any(matcher(sentence).search(str(caught.value)) for sentence in explained()), str(caught.value)


def test_what_is_explained_is_said() -> None:
    said = []
    for scenario in SCENARIOS.values():
        with pytest.raises(MetaqError) as caught:
            scenario()
        said.append(str(caught.value))
    assert [s for s in explained() if not any(matcher(s).search(text) for text in said)] == []
