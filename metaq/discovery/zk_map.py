"""Reads brokers and topics from MetaQ's tree in ZooKeeper, in bulk, with one session.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from metaq.discovery.stats import covers
from metaq.discovery.survey import Hidden
from metaq.discovery.zk_client import Node, ZooKeeperClient
from metaq.discovery.zk_layout import (
    ANY_TOPIC,
    RegisteredPair,
    Registrant,
    ZooKeeperAddress,
    ZooKeeperLayout,
    parse_address,
    parse_broker_id,
    parse_member_topics,
    parse_pair_record,
    parse_partition_count,
    parse_slave,
)
from metaq.errors import ZooKeeperRefused
from metaq.model import Address


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """The addresses of a broker id. ``last`` is the last known address of its master.

    ``last`` stays in the tree after a crash. After a clean stop it stays for brokers of this project, not for Java
    brokers. ``topics``: topics that the broker may have, including patterns; ``None`` if it did not register them.
    ``pair``: of a broker id that belongs to a pair that elects its master.
    """

    master: Address | None = None
    slaves: Mapping[int, Address] = field(default_factory=dict)
    last: Address | None = None
    topics: tuple[str, ...] | None = None
    pair: RegisteredPair | None = None

    @property
    def readable(self) -> Address | None:
        """The master, else a slave, else the master's last address, where connecting will fail."""
        return self.readable_without(())

    def may_have(self, topics: Collection[str] | None) -> bool:
        """Return whether the broker may have some of ``topics`` (``None``: any).

        Always true for a running broker, which can be asked.
        """
        if self.master is not None or self.slaves or topics is None or self.topics is None:
            return True
        return any(covers(name, topic) for name in self.topics for topic in topics)

    def lacks(self, topic: str, *, is_listed: bool) -> bool:
        """Return whether the broker may have ``topic``, and nobody is registered for it now, or the registration of a
        master is under way: ``is_listed`` tells whether it has registered the topic.
        """
        if self.slaves or (self.master is not None and (is_listed or self.topics == ANY_TOPIC)):
            return False
        if self.topics is None:
            return self.pair is not None
        return any(covers(name, topic) for name in self.topics)

    @property
    def places(self) -> str:
        """Where its master was last, or is one of the two, for messages."""
        return f"{self.pair.master} or {self.pair.other}" if self.pair is not None else str(self.last)

    def readable_without(self, avoided: Collection[Address]) -> Address | None:
        """Like ``readable``, but prefer a slave to a master that is ``avoided``."""
        slave = self.slaves[min(self.slaves)] if self.slaves else None
        if slave is not None and self.master in avoided:
            return slave
        return self.master or slave or self.last


@dataclass(frozen=True, slots=True)
class Offers:
    """The brokers that accept messages of a topic: broker id -> number of partitions.

    ``maybe``: brokers that have registered a matching pattern, but not the topic itself, because it has no message
    there yet. ``known``: the topics that any broker offers.
    """

    counts: Mapping[int, int]
    maybe: frozenset[int]
    known: tuple[str, ...]


class TreeReader:
    """Reads the tree at ``address`` over a connected ``client``.

    All methods raise ``ZooKeeperAway``, and ``ZooKeeperRefused`` if a node cannot be parsed.
    """

    def __init__(self, client: ZooKeeperClient, address: ZooKeeperAddress) -> None:
        self._client, self._address = client, address
        self._layout = ZooKeeperLayout(address.root)

    def brokers(self) -> dict[int, RegisteredBroker]:
        """Return every broker id that has an address, sorted."""
        names = {*self._children(self._layout.ids), *self._children(self._layout.members)}
        ids = sorted(broker_id for name in names if (broker_id := parse_broker_id(name)) is not None)
        parents = [self._layout.broker(broker_id) for broker_id in ids]
        members = [
            f"{parent}/{name}"
            for parent, names in zip(parents, self._client.children(parents), strict=True)
            for name in names or ()
            if name == "master" or parse_slave(name) is not None
        ]
        addresses = dict(self._addresses([*parents, *map(self._layout.member, ids), *members]))
        lists = dict(self._texts([self._layout.member_topics(broker_id) for broker_id in ids]))
        pairs = dict(self._texts([self._layout.pair(broker_id) for broker_id in ids]))
        found = {broker_id: self._broker(broker_id, addresses, lists, pairs) for broker_id in ids}
        return {broker_id: broker for broker_id, broker in found.items() if broker.readable is not None}

    def _broker(
        self,
        broker_id: int,
        addresses: Mapping[str, Address],
        lists: Mapping[str, Node],
        pairs: Mapping[str, Node],
    ) -> RegisteredBroker:
        parent = self._layout.broker(broker_id)
        slaves = {
            number: address
            for path, address in addresses.items()
            if path.startswith(f"{parent}/") and (number := parse_slave(path.rpartition("/")[2])) is not None
        }
        last = addresses.get(parent) or addresses.get(self._layout.member(broker_id))
        node = lists.get(self._layout.member_topics(broker_id))
        topics = None if node is None else parse_member_topics(node.text)
        record = pairs.get(self._layout.pair(broker_id))
        pair = None if record is None else parse_pair_record(record.text)
        return RegisteredBroker(addresses.get(self._layout.master(broker_id)), slaves, last, topics, pair)

    def _addresses(self, paths: list[str]) -> Iterator[tuple[str, Address]]:
        for path, node in self._texts(paths):
            try:
                address = parse_address(node.text)
            except ValueError as error:
                raise self._wrong(path, error) from None
            if address is not None:
                yield path, address

    def hidden(self) -> Hidden:
        """Return topics that brokers have registered, but not for readers."""
        # In this order: a bundled broker registers for readers first, so it is never seen between the two steps.
        everything = self._registered(self._layout.topics)
        return frozenset(everything - self._registered(self._layout.topics_sub))

    def registered(self) -> frozenset[tuple[int, str]]:
        """Return (broker id, topic) of all registrations, in any of the three trees."""
        layout = self._layout
        return frozenset().union(*map(self._registered, (layout.topics, layout.topics_pub, layout.topics_sub)))

    def _registered(self, parent: str) -> set[tuple[int, str]]:
        topics = self._children(parent)
        children = self._client.children(f"{parent}/{topic}" for topic in topics)
        return {
            (registrant.broker_id, topic)
            for topic, names in zip(topics, children, strict=True)
            for name in names or ()
            if (registrant := Registrant.parse(name)) is not None
        }

    def offers(self, topic: str) -> Offers:
        """Return which masters accept messages of ``topic``."""
        parent = self._layout.topics_pub
        known = self._children(parent)
        patterns = [name for name in known if "*" in name and covers(name, topic)]
        own, *others = self._client.children(f"{parent}/{name}" for name in [topic, *patterns])
        masters = {master: f"{parent}/{topic}/{name}" for name, master in _masters(own or ())}
        texts = dict(self._texts(list(masters.values())))
        counts = {master: self._count(path, texts[path]) for master, path in masters.items() if path in texts}
        maybe = {master for names in others for _, master in _masters(names or ())}
        return Offers(counts, frozenset(maybe - counts.keys()), tuple(name for name in known if "*" not in name))

    def listed(self, topic: str) -> frozenset[int]:
        """Return which masters have registered ``topic``, or a pattern for it, whether they accept messages or not."""
        parent = self._layout.topics
        names = [name for name in self._children(parent) if covers(name, topic)]
        children = self._client.children(f"{parent}/{name}" for name in names)
        return frozenset(master for found in children for _, master in _masters(found or ()))

    def _count(self, path: str, node: Node) -> int:
        try:
            return parse_partition_count(node.text)
        except ValueError as error:
            raise self._wrong(path, error) from None

    def _children(self, path: str) -> list[str]:
        return self._client.children([path])[0] or []

    def _texts(self, paths: list[str]) -> Iterator[tuple[str, Node]]:
        """Yield the nodes that exist."""
        for path, node in zip(paths, self._client.read(paths), strict=True):
            if node is not None:
                yield path, node

    def _wrong(self, path: str, error: ValueError) -> ZooKeeperRefused:
        return ZooKeeperRefused(self._address.hosts, path, str(error))


def _masters(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        registrant = Registrant.parse(name)
        if registrant is not None and registrant.slave is None:
            yield name, registrant.broker_id
