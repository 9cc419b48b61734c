"""Checks whether ZooKeeper and the brokers agree: ids, addresses, topics, and entries of stopped brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metaq.client.checkup.findings import Finding, ok, warn
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.model import Address

if TYPE_CHECKING:
    from metaq.discovery.zk_map import RegisteredBroker

NAMES_SHOWN: Final = 10
"""Limit on topics named in one line."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """A broker's own report: its id, whether it is a slave, and its topics.

    ``topics``: topic -> whether it has partitions there that are offered to producers or consumers.
    """

    broker_id: int
    slave: bool
    topics: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Registered:
    """The content of ZooKeeper: the brokers by id, and the topics registered by each (broker id, topic)."""

    brokers: Mapping[int, RegisteredBroker]
    topics: frozenset[tuple[int, str]]

    @classmethod
    def read(cls, address: ZooKeeperAddress, timeout_s: float) -> Registered:
        """Read the registrations from ZooKeeper.

        Raises:
            ZooKeeperAway: There is no connection, or no answer, within ``timeout_s``.
            ZooKeeperRefused: A node cannot be read.
        """
        from metaq.discovery.zk_client import connected  # imports kazoo, which only users of ZooKeeper need
        from metaq.discovery.zk_map import TreeReader

        with connected(address.hosts, timeout_s) as client:
            tree = TreeReader(client, address)
            return cls(tree.brokers(), tree.registered())

    def addresses(self) -> dict[Address, int]:
        """Return the address of each registered master and slave, with its broker id."""
        found: dict[Address, int] = {}
        for broker_id, broker in self.brokers.items():
            running = [*([] if broker.master is None else [broker.master]), *broker.slaves.values()]
            found |= dict.fromkeys(running, broker_id)
        return found


def registration_findings(registered: Registered, said: Mapping[int, BrokerReport]) -> Iterator[Finding]:
    """Compare the registrations with what the masters reported (``said``), by registered broker id."""
    for broker_id, broker in registered.brokers.items():
        what = f"registration of broker {broker_id}"
        if broker.master is None:
            slaves = ", ".join(map(str, broker.slaves.values()))
            yield warn(
                what, f"no master is registered; {f'slave {slaves}' if slaves else f'it was last at {broker.last}'}"
            )
        elif broker_id in said:
            yield from _topics(what, {topic for id_, topic in registered.topics if id_ == broker_id}, said[broker_id])
    for broker_id in sorted({id_ for id_, _ in registered.topics} - registered.brokers.keys()):
        topics = [topic for id_, topic in registered.topics if id_ == broker_id]
        yield warn(
            f"registration of broker {broker_id}", f"the broker is not registered, but its topics are: {_names(topics)}"
        )


def _topics(what: str, registered: set[str], said: BrokerReport) -> Iterator[Finding]:
    missing = [topic for topic, offered in said.topics.items() if offered and topic not in registered]
    dead = [topic for topic in registered if "*" not in topic and topic not in said.topics]
    if missing:
        yield warn(what, f"the broker has topics that are not registered: {_names(missing)}")
    if dead:
        yield warn(what, f"topics are registered that the broker does not know: {_names(dead)}")
    if not (missing or dead):
        yield ok(what, f"{len(registered)} topics and patterns, as the broker says")


def _names(topics: Iterable[str]) -> str:
    listed = sorted(topics)
    more = f" and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(listed[:NAMES_SHOWN]) + more
