"""Groups of RocketMQ whose broker, or name server, comes back without what it knew: nothing is skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import rarely
from fix_broker import wait_until

from metaq.client.groups.ownership.coordinator import MemberCoordinator
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.group_consumer import RocketGroupConsumer
from metaq.client.rocketmq.groups import offsets
from metaq.discovery.zk_layout import GroupOffset
from metaq.model import Partition, TopicPartition
from metaq.net.transport import Timeouts
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process

QUEUE = Partition("metaq", 0)
WHERE = TopicPartition("orders", QUEUE)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, partitions=1) as made:
        yield made


@pytest.fixture
def mq(broker: BrokerProcess) -> Iterator[RocketMQ]:
    with RocketMQ(broker.name_servers, timeouts=Timeouts(20.0, 20.0)) as made:
        yield made


def read(consumer: RocketGroupConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [one.data for one in consumer.fetch(count - len(found), timeout=5)]
    return found


@pytest.mark.parametrize(
    ("start", "ordered"), [("earliest", False), ("latest", True), *rarely(("earliest", True), ("latest", False))]
)
def test_messages_of_an_emptied_broker_are_read_from_the_first(
    mq: RocketMQ, broker: BrokerProcess, start: str, ordered: bool
) -> None:
    mq.topics.create("orders", queues=1)
    if start == "latest":
        mq.producer().send("orders", b"before", partition=QUEUE)
    with mq.consumer("g", ["orders"], start=start, ordered=ordered) as consumer:  # type: ignore[arg-type]
        wait_until(lambda: not consumer.fetch(timeout=0.1) and WHERE in consumer.assignment, "it has begun", 60)
        mq.producer().send_many("orders", [b"%d" % number for number in range(10)], partition=QUEUE)
        assert read(consumer, 10) == [b"%d" % number for number in range(10)]
        consumer.commit()
        broker.kill()
        shutil.rmtree(broker.folder / "data")
        broker.start()
        new = [b"new %d" % number for number in range(5)]
        wait_until(lambda: _is_sent(mq, new), "they are sent", 60)
        assert read(consumer, 5) == new
        consumer.commit()
        assert consumer.position(WHERE) == 5


def _is_sent(mq: RocketMQ, new: list[bytes]) -> bool:
    try:
        mq.topics.create("orders", queues=1)
        mq.producer().send_many("orders", new, partition=QUEUE)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("ordered", [False, True])
def test_a_broker_that_has_lost_the_offsets_of_a_group_gets_them_back(
    mq: RocketMQ, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """Long after the last save, with a group that begins at the end: only the member knows where it is."""
    monkeypatch.setattr(offsets, "OWN_S", 0.0)
    mq.producer().send("orders", b"before", partition=QUEUE)
    with mq.consumer("g", ["orders"], start="latest", ordered=ordered) as consumer:
        wait_until(lambda: not consumer.fetch(timeout=0.1) and WHERE in consumer.assignment, "it has begun", 60)
        mq.producer().send("orders", b"read", partition=QUEUE)
        assert read(consumer, 1) == [b"read"]
        consumer.commit()
        coordinator: MemberCoordinator = consumer._core.coordinator
        broker.kill()
        for path in (broker.folder / "data").rglob("*"):
            if path.is_file() and "offsets" in path.name.lower():
                path.unlink()
        broker.start()
        mq.producer().send("orders", b"unread", partition=QUEUE)
        assert read(consumer, 1) == [b"unread"]
        coordinator.save()
        assert consumer._rocketmq._offsets.committed("g", [WHERE]) == {WHERE: consumer.position(WHERE)}


def test_where_a_group_begins_at_the_end_is_saved_at_once(mq: RocketMQ) -> None:
    """What comes after that is the group's, whoever of it reads next."""
    mq.producer().send_many("orders", [b"a", b"b"], partition=QUEUE)
    consumer = mq.consumer("g", ["orders"], start="latest", save_s=1000)
    with consumer:
        wait_until(lambda: not consumer.fetch(timeout=0.1) and WHERE in consumer.assignment, "it has begun", 60)
        stored = consumer._rocketmq._offsets.committed("g", [WHERE])
        assert stored == {WHERE: 2}
        assert consumer._state.partitions[WHERE].saved == GroupOffset(2)
