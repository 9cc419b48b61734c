"""A task of an exactly-once write whose broker's disk is full for a while."""

from __future__ import annotations

import pytest
from exactly_once_harness import LIMITS, QUERY, TOPIC
from fix_client import MemoryCluster

from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.client.consumer import Run, fetch
from metaq.errors import BrokerError
from metaq.formats.frames import walk
from metaq.model import Address, Message, Partition, TopicPartition
from metaq.protocols.text.commands import Command, Put, PutBatch, Result, TransactionCommand
from metaq.protocols.text.encode import encode
from metaq.testing.memory import MemoryBroker
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.task import TaskAttempt, TransactionalPuts
from metaq_spark.backends.metaq.options import SinkOptions, parse_sink_options
from metaq_spark.columns.blocks import EncodedBlock, of_block
from metaq_spark.options.table import Use

ADDRESS = Address("127.0.0.1", 8123)
TARGET = TopicPartition(TOPIC, Partition(7, 0))
FULL = "disk is nearly full: 0 bytes are free in /data; puts are refused below 100 (diskFreeMinBytes)"


class FullDisk(MemoryBroker):
    """Refuses puts, or PREPARE, so many times."""

    def __init__(self, times: int, what: str) -> None:
        super().__init__({TOPIC: 1}, broker_id=7)
        self._left, self._what = times, what

    def handle(self, command: Command, connection: object) -> bytes | None:
        is_put = isinstance(command, Put | PutBatch) and self._what == "put"
        is_step = isinstance(command, TransactionCommand) and command.type == self._what
        if (is_put or is_step) and self._left:
            self._left -= 1
            return encode(Result(500, FULL, command.opaque))  # type: ignore[union-attr]
        return super().handle(command, connection)


def options(**more: str) -> SinkOptions:
    raw = {"topic": TOPIC, "delivery": "exactly_once", "brokers": str(ADDRESS), "retries": "1", **more}
    return parse_sink_options(raw, Use.BATCH_WRITE)


def write(cluster: MemoryCluster, chosen: SinkOptions) -> list[bytes]:
    """Write two blocks and commit; return what is readable."""
    sessions = RetryingSessions(chosen, cluster.pool, cluster.transport.clock)
    task = TransactionalPuts(TaskAttempt(BatchName(QUERY, 0), 0, 0), LIMITS, sessions)
    for text in (b"one", b"two"):
        block, count = encode_block([Message(text)])
        task.put(TARGET, ADDRESS, EncodedBlock(block, count, of_block(block)))
    branches = task.finish()
    with cluster.pool.lease(ADDRESS) as session:
        for branch in branches:
            TransactionSteps(session).commit(branch)
        run = fetch(session, TOPIC, 0, 0, 1 << 20)
    assert isinstance(run, Run)
    return [frame.body for frame in walk(run.data)]


@pytest.mark.parametrize("what", ["put", "BEGIN", "PREPARE"])
def test_a_task_waits_for_space_and_writes_once(what: str) -> None:
    assert write(MemoryCluster(FullDisk(9, what)), options(brokerWaitMs="600000")) == [b"one", b"two"]


@pytest.mark.parametrize("what", ["put", "PREPARE"])
def test_a_task_that_waits_no_longer_says_why(what: str) -> None:
    with pytest.raises(BrokerError, match="disk is nearly full"):
        write(MemoryCluster(FullDisk(9, what)), options(brokerWaitMs="0"))
