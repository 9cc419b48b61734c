"""Consumers, prepared branches and decisions of a real broker, as the console lists them; and searches in Chinese."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from metaq_console.cluster.connect import open_cluster
from metaq_console.cluster.metaq import batch_of
from metaq_console.cluster.scans import Scan, ScanRequest
from metaq_console.cluster.system import QueueSystem
from metaq_console.cluster.values import DecisionRow, LagRow, by_topic
from metaq_console.errors import RequestFailed

from metaq.backends.metaq.transactions import TransactionSteps
from metaq.client.profile import Profile
from metaq.model import Xid
from metaq.testing.broker_process import BrokerProcess
from metaq.testing.memory_server import MemoryServer

QUERY = "0f2c6a52-7f0c-4a7e-9d43-3d6b1f4f9b11"


@pytest.fixture
def system(metaq_broker: BrokerProcess) -> Iterator[QueueSystem]:
    found = open_cluster(Profile(metaq_broker.cluster))
    yield found
    found.close()


@pytest.mark.process
def test_prepared_branches_and_decisions(metaq_broker: BrokerProcess, system: QueueSystem) -> None:
    mq = metaq_broker.client()
    with mq.xa(b"transfer", b"orders", unique="bank") as branch:
        branch.send("orders", "one tea")
        branch.prepare()
    found = system.transactions([QUERY])
    assert [(row.resource, row.global_id, row.decided) for row in found.prepared] == [("bank", "transfer", None)]
    assert found.decisions == ()
    with mq.consumers.pool.lease(metaq_broker.address) as session:
        TransactionSteps(session).decide_contents(QUERY, 7, [], [], "nothing")
    assert [(one.query_id, one.batch_id) for one in mq.last_decided([QUERY])] == [(QUERY, 7)]
    assert system.transactions([QUERY]).decisions == (DecisionRow(query_id=QUERY, broker="0", batch_id=7),)
    mq.rollback(branch.xid)


@pytest.mark.parametrize(
    ("global_id", "unique", "batch"),
    [
        (f"{QUERY}/12", QUERY, (QUERY, 12)),
        (f"{QUERY}/x", QUERY, None),
        ("transfer", "bank", None),
        (f"{QUERY}/12", "bank", None),
    ],
)
def test_branches_of_queries_are_recognized(global_id: str, unique: str, batch: tuple[str, int] | None) -> None:
    assert batch_of(Xid(1, global_id.encode(), b"b", unique)) == batch


@pytest.mark.process
def test_consumers_of_rocketmq_have_an_address_and_a_language(metaq_broker: BrokerProcess) -> None:
    client = metaq_broker.rocketmq()
    client.topics.create("orders")
    system = open_cluster(Profile(f"rocketmq://{metaq_broker.name_servers}"))
    with client.consumer("billing", ["orders"]) as consumer:
        client.producer().send("orders", "one tea")
        assert consumer.fetch(timeout=60)
        (row,) = system.clients("billing")
    assert (row.group, row.language, (row.address or "").partition(":")[0]) == ("billing", "PYTHON", "127.0.0.1")
    assert system.clients("nobody") == []
    with pytest.raises(RequestFailed, match="no question about transactions"):
        system.transactions([])
    system.close()


def test_lag_is_summed_by_topic_without_partitions_that_nobody_reads() -> None:
    def row(topic: str, partition: str, position: int | None, lag: int) -> LagRow:
        return LagRow(group="g", topic=topic, partition=partition, position=position, end=9, lag=lag, unit="bytes")

    sums = by_topic([row("a", "0-0", 1, 3), row("a", "0-1", 2, 4), row("a", "0-2", None, 9), row("b", "0-0", None, 9)])
    assert [(one.topic, one.lag) for one in sums] == [("a", 7)]


def test_a_text_is_found_in_chinese_encodings(metaq_memory: MemoryServer) -> None:
    metaq_memory.client().producer().send_many("orders", ["订单".encode("gbk"), "订单".encode(), b"none"])
    system = open_cluster(Profile(metaq_memory.cluster))
    scan = Scan(system, ScanRequest(topic="orders", text="订单"))
    scan.run()
    assert len(scan.messages()) == 2
    system.close()
