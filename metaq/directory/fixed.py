"""A directory from a list of addresses: every broker is asked who it is and what it has. Needs no ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from metaq.client.pool import SessionPool
from metaq.directory.base import Directory
from metaq.directory.stats import BrokerInfo, TopicSettings, parse_broker, parse_offsets, parse_topics
from metaq.errors import DirectoryConflict, ProtocolError, TopicNotFound
from metaq.model import Address, OffsetRange, Partition, TopicPartition
from metaq.wire.text.commands import Stats

_Parsed = TypeVar("_Parsed")


class FixedDirectory(Directory):
    """The brokers at ``addresses`` (at least one), asked over connections of ``pool``."""

    def __init__(self, addresses: Sequence[Address], pool: SessionPool) -> None:
        if not addresses:
            raise ValueError("addresses: expected at least one broker, for example 127.0.0.1:8123")
        self._addresses = list(dict.fromkeys(addresses))
        self._pool = pool

    def brokers(self) -> dict[int, Address]:
        """See ``Directory``.

        Raises:
            DirectoryConflict: Two addresses are the same broker, or a broker and its slave.
        """
        return {broker.info.broker_id: broker.address for broker in self._survey()}

    def topics(self) -> dict[str, list[Partition]]:
        found: dict[str, list[Partition]] = {}
        for broker in self._survey("topics", "offsets"):
            for topic in broker.read("topics", parse_topics):
                found.setdefault(topic, [])
            for topic, index in broker.read("offsets", parse_offsets):
                found.setdefault(topic, []).append(Partition(broker.info.broker_id, index))
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    def partitions(self, topic: str) -> dict[Partition, Address]:
        found = {
            Partition(broker.info.broker_id, index): broker.address
            for broker in self._survey("offsets")
            for stored, index in broker.read("offsets", parse_offsets)
            if stored == topic
        }
        return dict(sorted(found.items()))

    def writable(self, topic: str) -> dict[Partition, Address]:
        """See ``Directory``; slaves take no messages, and a broker with ``acceptPublish=false`` is left alone."""
        found = {
            Partition(broker.info.broker_id, index): broker.address
            for broker in self._survey("config")
            if not broker.info.slave
            for index in range(broker.read("config", TopicSettings).partition_count(topic))
        }
        if not found:
            raise TopicNotFound(topic, [str(address) for address in self._addresses], list(self.topics()))
        return dict(sorted(found.items()))

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetRange]:
        wanted = set(topics)
        return {
            TopicPartition(topic, Partition(broker.info.broker_id, index)): readable
            for broker in self._survey("offsets")
            for (topic, index), readable in broker.read("offsets", parse_offsets).items()
            if topic in wanted
        }

    def _survey(self, *items: str) -> list[_Answers]:
        """Ask each broker who it is and for ``items``, in one round trip each."""
        found = [_ask(self._pool, address, items) for address in self._addresses]
        seen: dict[int, Address] = {}
        for broker in found:
            if (other := seen.setdefault(broker.info.broker_id, broker.address)) != broker.address:
                raise DirectoryConflict(broker.info.broker_id, [str(other), str(broker.address)])
        return found


class _Answers:
    """What one broker answered: who it is, and a text per item."""

    def __init__(self, address: Address, texts: dict[str, str]) -> None:
        self.address, self._texts = address, texts
        self.info: BrokerInfo = self.read("", parse_broker)

    def read(self, item: str, parse: Callable[[str], _Parsed]) -> _Parsed:
        """Parse the text of ``item``; a ``ProtocolError`` gets the broker's address."""
        try:
            return parse(self._texts[item])
        except ProtocolError as error:
            raise ProtocolError(error.what, error.line, self.address) from error


def _ask(pool: SessionPool, address: Address, items: Iterable[str]) -> _Answers:
    commands = {item: Stats(item, 0) for item in ("", *items)}
    with pool.lease(address) as session:
        opaques = {item: session.post(command) for item, command in commands.items()}
        texts = {item: session.text_of(session.wait(opaques[item]), command) for item, command in commands.items()}
    return _Answers(address, texts)
