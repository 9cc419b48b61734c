"""Fixture for consumers of a group on a broker in memory, and what their tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_client import TIMEOUTS

from metaq.backends.metaq.pool import SessionPool
from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.metaq_group import Cluster
from metaq.client.groups.options import ConsumerOptions
from metaq.client.offsets import GroupOffset, MemoryOffsets
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.formats.frames import HEADER_BYTES
from metaq.model import Address, Partition, TopicPartition
from metaq.testing.memory import MemoryBroker, MemoryTransport

P0, P1 = (TopicPartition("orders", Partition(0, index)) for index in (0, 1))


class Setting:
    """A broker in memory with two partitions, and what is needed to read it."""

    def __init__(self, folder: Path) -> None:
        self.broker = MemoryBroker({"orders": 2, "dead": 1})
        address = Address("127.0.0.1", 8123)
        self.pool = SessionPool(TIMEOUTS, MemoryTransport({address: self.broker}))
        self.directory = FixedDirectory([address], self.pool)
        self.producer = Producer(self.directory, self.pool)
        self.offsets = MemoryOffsets()
        self.cluster = Cluster("memory", self.directory, self.pool, None)
        self.parking = folder / "parked.sqlite"

    def consumer(self, **options: Any) -> GroupConsumer:
        given = {"group": "g", "topics": ["orders"], "offsets": self.offsets, "poll_max_s": 0.05, "retry_max_s": 0.01}
        return GroupConsumer(self.cluster, ConsumerOptions(**given | {"parking": self.parking} | options))

    def send(self, *texts: str, partition: int = 0) -> None:
        self.producer.send_many("orders", list(texts), partition=Partition(0, partition))

    def stored(self, where: TopicPartition = P0) -> int:
        return self.offsets.load("g", [where]).get(where, GroupOffset(0)).offset


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Setting(tmp_path)
    yield made
    made.pool.close()


def texts(deliveries: list[Delivery]) -> list[str]:
    return [one.data.decode() for one in deliveries]


def read(consumer: GroupConsumer, count: int) -> list[Delivery]:
    """Take messages one by one."""
    found: list[Delivery] = []
    for message in consumer:
        found.append(message)
        if len(found) == count:
            break
    return found


def fail_at(data: bytes, consumer: GroupConsumer) -> None:
    for message in consumer:
        if message.data == data:
            raise ZeroDivisionError


def end_of(count: int, size: int) -> int:
    return count * (HEADER_BYTES + size)
