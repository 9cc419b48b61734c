"""The differences of the demo between MetaQ's protocol and RocketMQ's; the broker and its log are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from demo_stage import Addresses

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool as RocketMQPool
from metaq.backends.rocketmq.topics import create_topic
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.name_server import NameServerDirectory
from metaq.formats.frames import HEADER_BYTES
from metaq.model import TopicPartition

BROKER_NAME = "metaq"
"""The broker's name for RocketMQ's clients, in `metaq-broker dev`."""


class DemoProtocol(Protocol):
    """How Spark finds the broker, and how topics are created and measured.

    ``system`` names the format and its options. ``argument`` is for jobs. ``column`` is the column of the partition's
    number in a read, ``number`` in a write; ``time`` is the column of the time at which a message was stored.
    """

    system: str
    options: dict[str, str]
    argument: tuple[str, str]
    column: str
    number: str
    time: str

    def make(self, topics: Iterable[str], partitions: int) -> None:
        """Create the topics, if their first message does not create them."""

    def share_in(self, topic: str, lines: int, byte_count: int) -> float:
        """Return how much of the lines (``lines`` in number, ``byte_count`` bytes in all) the topic has: 0..1."""


class MetaqProtocol:
    system, column, number, time = "metaq", "partition", "partition", "timestamp"

    def __init__(self, addresses: Addresses) -> None:
        self.options = {"brokers": str(addresses.metaq)}
        self.argument = ("--brokers", str(addresses.metaq))
        self._directory = FixedDirectory([addresses.metaq], shared_pool())

    def make(self, topics: Iterable[str], partitions: int) -> None:
        """Do nothing: the broker accepts every topic."""

    def share_in(self, topic: str, lines: int, byte_count: int) -> float:
        """A message is stored after a header, which counts."""
        stored = sum(len(there) for there in self._directory.ends([topic]).values())
        expected = byte_count + HEADER_BYTES * lines
        return stored / expected if expected else 1.0


class RocketmqProtocol:
    """Name server and broker have one address."""

    system, column, number, time = "rocketmq", "queue_id", "queue", "store_timestamp"

    def __init__(self, addresses: Addresses) -> None:
        self.options = {"nameServers": str(addresses.rocketmq)}
        self.argument = ("--rocketmq", str(addresses.rocketmq))
        self._address, self._pool = addresses.rocketmq, RocketMQPool()
        self._directory = NameServerDirectory([addresses.rocketmq], self._pool)
        self._offsets = Offsets(self._pool, self._directory)

    def make(self, topics: Iterable[str], partitions: int) -> None:
        """Create the topics with ``partitions`` queues each."""
        for topic in topics:
            create_topic(self._pool, BROKER_NAME, self._address, topic, partitions)

    def share_in(self, topic: str, lines: int, byte_count: int) -> float:
        """Queue offsets count messages."""
        queues = [TopicPartition(topic, queue) for queue in self._directory.queues(topic)]
        return sum(map(len, self._offsets.ranges(queues).values())) / lines if lines else 1.0


PROTOCOLS: Mapping[str, Callable[[Addresses], DemoProtocol]] = {"metaq": MetaqProtocol, "rocketmq": RocketmqProtocol}
