"""A task of an exactly-once write that begins at a member of a pair that is not the master any more.

A task is a process of its own: its pool knows nothing but the options and the address that the driver planned with.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from exactly_once_harness import LIMITS, QUERY, TOPIC
from fix_client import MemoryCluster

from metaq.backends.metaq.pair_members import PairFacts
from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.client.consumer import Run, fetch
from metaq.errors import ZooKeeperAway
from metaq.formats.frames import walk
from metaq.model import Address, Message, Partition, TopicPartition
from metaq.testing.memory import MemoryBroker
from metaq_spark.backends.metaq import cluster as cluster_module
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.participants import NEEDED
from metaq_spark.backends.metaq.exactly_once.plan import plan_transaction
from metaq_spark.backends.metaq.exactly_once.task import TaskAttempt, TransactionalPuts
from metaq_spark.backends.metaq.options import SinkOptions, parse_sink_options
from metaq_spark.columns.blocks import EncodedBlock, of_block
from metaq_spark.options.table import Use

ONE, TWO = Address("127.0.0.1", 8123), Address("127.0.0.1", 8124)
TARGET = TopicPartition(TOPIC, Partition(7, 0))
BATCH = BatchName(QUERY, 0)


class ElectedPair:
    """Two members in memory with one store. The driver has planned with the first one; the second one was elected."""

    def __init__(self) -> None:
        self.brokers = [MemoryBroker({TOPIC: 1}, broker_id=7), MemoryBroker({TOPIC: 1}, broker_id=7)]
        self.brokers[1].partitions, self.brokers[1].transactions = (
            self.brokers[0].partitions,
            self.brokers[0].transactions,
        )
        self.registered = ONE
        for number, other in ((0, TWO), (1, ONE)):
            self.brokers[number].pair = PairFacts(other, number == 1, 2)

    def sessions(self, options: SinkOptions) -> RetryingSessions:
        """Those of another process: with a pool of its own."""
        made = MemoryCluster(*self.brokers)
        return RetryingSessions(options, made.pool, made.transport.clock)

    def kill(self) -> None:
        self.brokers[0].kill()

    def freeze(self) -> None:
        self.brokers[0].shuffle = lambda replies: replies.clear()

    def readable(self) -> list[bytes]:
        with MemoryCluster(*self.brokers).pool.lease(TWO) as session:
            run = fetch(session, TOPIC, 0, 0, 1 << 20)
        return [frame.body for frame in walk(run.data)] if isinstance(run, Run) else []


class Registry:
    """ZooKeeper, at which the new master registers while the task looks for it the second time."""

    def __init__(self, pair: ElectedPair) -> None:
        self._pair, self._looks = pair, 0

    def moved_to(self, broker_id: int, address: Address, *, to_write: bool) -> Address:
        assert (broker_id, to_write) == (7, True)
        self._looks += 1
        return TWO if self._looks > 1 else ONE


def write(pair: ElectedPair, options: SinkOptions) -> None:
    block, count = encode_block([Message(b"row")])
    task = TransactionalPuts(TaskAttempt(BATCH, 0, 0), LIMITS, pair.sessions(options))
    task.put(TARGET, ONE, EncodedBlock(block, count, of_block(block)))
    (branch,) = task.finish()
    with pair.sessions(options).pool.lease(TWO) as session:
        TransactionSteps(session).commit(branch)


def options_of(**servers: str) -> SinkOptions:
    raw = {"topic": TOPIC, "delivery": "exactly_once", "retryIntervalMs": "100", **servers}
    return parse_sink_options(raw, Use.BATCH_WRITE)


@pytest.mark.parametrize("lose", [ElectedPair.kill, ElectedPair.freeze, lambda pair: None])
def test_named_by_both_addresses(lose: Callable[[ElectedPair], None]) -> None:
    """It is away, it is silent, or it refuses the task's very first request."""
    pair = ElectedPair()
    lose(pair)
    write(pair, options_of(brokers=f"{ONE},{TWO}"))
    assert pair.readable() == [b"row"]


@pytest.mark.parametrize("lose", [ElectedPair.kill, lambda pair: None])
def test_found_in_zookeeper(lose: Callable[[ElectedPair], None], monkeypatch: pytest.MonkeyPatch) -> None:
    pair = ElectedPair()
    lose(pair)
    monkeypatch.setattr(cluster_module, "_in_zookeeper", lambda options, pool: Registry(pair))
    write(pair, options_of(zookeeper="127.0.0.1:2181/meta"))
    assert pair.readable() == [b"row"]


class AwayAtFirst:
    """ZooKeeper, which refuses nine connections."""

    def __init__(self) -> None:
        self._left = 9

    def masters(self) -> dict[int, Address]:
        if self._left:
            self._left -= 1
            raise ZooKeeperAway("127.0.0.1:2181", "the connection was refused")
        return {7: TWO}


def test_a_zookeeper_that_is_away_is_waited_for_by_the_plan_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, zookeeper = ElectedPair(), AwayAtFirst()
    pair.brokers[1].extensions = frozenset(NEEDED)
    monkeypatch.setattr(cluster_module, "_in_zookeeper", lambda options, pool: zookeeper)
    options = options_of(zookeeper="127.0.0.1:2181/meta", retries="1", brokerWaitMs="600000")
    plan = plan_transaction(options, True, pair.sessions(options))
    assert plan.participants == {7: TWO}
