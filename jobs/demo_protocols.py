"""What the demo does differently with MetaQ's protocol and with RocketMQ's; the broker and its log are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from demo_stage import Addresses

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.rocketmq.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool as RocketMQPool
from metaq.backends.rocketmq.topics import create_topic
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.name_server import NameServerDirectory
from metaq.formats.frames import HEADER_BYTES
from metaq.model import TopicPartition

BROKER_NAME = "metaq"
"""What `metaq-broker dev` is called by RocketMQ's clients."""


class DemoProtocol(Protocol):
    """How Spark gets the address of the broker, and how topics are made and looked at.

    ``system`` names the format and its options. ``argument`` is that of a job. ``column`` is the number of a partition
    in what is read, ``number`` in what is written; ``time`` is the column of the time at which it was stored.
    """

    system: str
    options: dict[str, str]
    argument: tuple[str, str]
    column: str
    number: str
    time: str

    def make(self, topics: Iterable[str], partitions: int) -> None:
        """Make the topics, where they do not appear with their first message."""

    def share_in(self, topic: str, lines: int, byte_count: int) -> float:
        """How much of so many lines, of so many bytes in all, the topic has: 0..1."""


class MetaqProtocol:
    """MetaQ's."""

    system, column, number, time = "metaq", "partition", "partition", "timestamp"

    def __init__(self, addresses: Addresses) -> None:
        self.options = {"brokers": str(addresses.metaq)}
        self.argument = ("--brokers", str(addresses.metaq))
        self._directory = FixedDirectory([addresses.metaq], shared_pool())

    def make(self, topics: Iterable[str], partitions: int) -> None:
        """Nothing: the broker accepts every topic."""

    def share_in(self, topic: str, lines: int, byte_count: int) -> float:
        """As ``DemoProtocol``. A message is stored behind a header."""
        stored = sum(len(there) for there in self._directory.ends([topic]).values())
        expected = byte_count + HEADER_BYTES * lines
        return stored / expected if expected else 1.0


class RocketmqProtocol:
    """RocketMQ's: name server and broker at one address."""

    system, column, number, time = "rocketmq", "queue_id", "queue", "store_timestamp"

    def __init__(self, addresses: Addresses) -> None:
        self.options = {"nameServers": str(addresses.rocketmq)}
        self.argument = ("--rocketmq", str(addresses.rocketmq))
        self._address, self._pool = addresses.rocketmq, RocketMQPool()
        self._directory = NameServerDirectory([addresses.rocketmq], self._pool)
        self._offsets = Offsets(self._pool, self._directory)

    def make(self, topics: Iterable[str], partitions: int) -> None:
        """With so many queues each."""
        for topic in topics:
            create_topic(self._pool, BROKER_NAME, self._address, topic, partitions)

    def share_in(self, topic: str, lines: int, byte_count: int) -> float:
        """As ``DemoProtocol``. Queue offsets count messages."""
        queues = [TopicPartition(topic, queue) for queue in self._directory.queues(topic)]
        return sum(map(len, self._offsets.ranges(queues).values())) / lines if lines else 1.0


PROTOCOLS: Mapping[str, Callable[[Addresses], DemoProtocol]] = {"metaq": MetaqProtocol, "rocketmq": RocketmqProtocol}
