"""A partition of which nobody knows now where its group is waits by itself; the others are read meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from fix_broker import wait_until
from rocketmq_clients import Member

from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.groups.offsets import RocketStarts
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import ConnectionFailed
from metaq.model import Address, Partition, TopicPartition
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process


def test_a_new_member_reads_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, is_known = RocketStarts.resolve, False

    def resolved(starts: RocketStarts, where: TopicPartition, since_ms: int | None = None) -> GroupOffset:
        if where.partition.index == 1 and not is_known:
            raise ConnectionFailed(Address("127.0.0.1", 1), "ask", "the master is away")
        return resolve(starts, where, since_ms)

    monkeypatch.setattr(RocketStarts, "resolve", resolved)
    with BrokerProcess(tmp_path) as broker, RocketMQ(broker.name_servers) as mq:
        mq.topics.create("orders", queues=2)
        for queue in mq.cluster.partitions("orders"):
            mq.producer().send("orders", str(queue.index), partition=queue)
        with mq.consumer("g", ["orders"], start=datetime(2020, 1, 1, tzinfo=UTC)) as consumer:
            member = Member(consumer)
            assert member.read(1) == ["0"]
            assert [where.partition.index for where in member.queues()] == [0]
            is_known = True
            wait_until(lambda: member.fetch()[:1] != [], "the other queue is read, too")
            assert [where.partition for where in sorted(member.queues())] == [
                Partition("metaq", 0),
                Partition("metaq", 1),
            ]
