"""MetaQ's tree in ZooKeeper: the paths, and the texts of the nodes in both directions. Pure.

::

    ROOT/brokers/ids/ID                          meta://HOST:PORT            current or last address of the master
    ROOT/brokers/ids/ID/master                   meta://HOST:PORT            ephemeral, like all nodes of a live broker
    ROOT/brokers/ids/ID/slaveK                   meta://HOST:PORT
    ROOT/brokers/ids/ID/master_config_checksum   CRC-32 of server.ini
    ROOT/brokers/topics/TOPIC/ID-m               2                           ID-sK of slave K; for clients before 1.4
    ROOT/brokers/topics-pub/TOPIC/ID-m           {"numParts":2,"broker":"ID-m"}
    ROOT/brokers/topics-sub/TOPIC/ID-m           the same
    ROOT/members/ID                              meta://HOST:PORT            not MetaQ's: as ROOT/brokers/ids/ID
    ROOT/members/ID/topics                       ["orders","pay*"]           not MetaQ's: what the master may have
    ROOT/pairs/ID                                {"epoch":4,...}             not MetaQ's: the record of a pair
    ROOT/consumers/GROUP/ids/CONSUMER            topics, separated by commas; ephemeral
    ROOT/consumers/GROUP/owners/TOPIC/ID-INDEX   CONSUMER that reads the partition; ephemeral
    ROOT/consumers/GROUP/offsets/TOPIC/ID-INDEX  MESSAGE_ID-OFFSET

Readers must tolerate other nodes: a node of another form is not a broker, slave or partition.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from metaq import ports
from metaq.model import BROKER_ID_MAX, INT64_MAX, INT64_MIN, Address, Partition, TopicPartition

DEFAULT_ROOT: Final = "/meta"
ANY_TOPIC: Final = ("*",)
"""The list of topics of a broker that has too many for one node, or that accepts all."""
NO_MESSAGE: Final = -1
"""In place of the id of the last message, if there is none or it is unknown."""

_SCHEME: Final = "meta://"
_REGISTRANT: Final = re.compile(r"(\d{1,4})-(?:m|s(\d{1,9}))")
_SLAVE: Final = re.compile(r"slave(\d{1,9})")
_MEMBER_TOPICS_CHARS_MAX: Final = 500_000  # ZooKeeper accepts nodes of up to 1 MiB
_ROOT: Final = re.compile(r"(?:/[^/\s]+)+")
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/,\[\]]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """The place of MetaQ's tree: ``hosts`` as ``host:port,host:port``, and the path of its root."""

    hosts: str
    root: str = DEFAULT_ROOT

    def __str__(self) -> str:
        return self.hosts + self.root

    @classmethod
    def parse(cls, text: str) -> ZooKeeperAddress:
        """Parse ``host:port,host:port/root``; without a root it is ``/meta``, without a port ZooKeeper's is used.

        Raises:
            ValueError: The text has another form.
        """
        hosts, slash, rest = text.strip().partition("/")
        faults = [host for host in hosts.split(",") if not _is_host(host.strip())]
        if faults or (slash and not _ROOT.fullmatch(slash + rest)):
            example = f"zk1:{ports.ZOOKEEPER},zk2:{ports.ZOOKEEPER}/meta"
            raise ValueError(f"expected host:port,host:port/root, for example {example}")
        return cls(",".join(host.strip() for host in hosts.split(",")), slash + rest or DEFAULT_ROOT)


def _is_host(text: str) -> bool:
    match = _HOST.fullmatch(text)
    return match is not None and (match[1] is None or 1 <= int(match[1]) <= 65535)


@dataclass(frozen=True, slots=True, order=True)
class Registrant:
    """A broker that registers topics: a master (``slave`` is ``None``), or a slave. Prints as ``3-m``, ``3-s1``."""

    broker_id: int
    slave: int | None = None

    def __str__(self) -> str:
        return f"{self.broker_id}-m" if self.slave is None else f"{self.broker_id}-s{self.slave}"

    @classmethod
    def parse(cls, name: str) -> Registrant | None:
        """Parse the name of a node below a topic; ``None`` if it has another form."""
        match = _REGISTRANT.fullmatch(name)
        if match is None or int(match[1]) > BROKER_ID_MAX:
            return None
        return cls(int(match[1]), None if match[2] is None else int(match[2]))


@dataclass(frozen=True, slots=True)
class ZooKeeperLayout:
    """The paths below ``root``. Topics, groups and consumers contain no slash."""

    root: str = DEFAULT_ROOT

    @property
    def ids(self) -> str:
        """Parent of all broker ids."""
        return f"{self.root}/brokers/ids"

    @property
    def topics(self) -> str:
        """Parent of all topics, in the tree for clients before 1.4."""
        return f"{self.root}/brokers/topics"

    @property
    def topics_pub(self) -> str:
        """Parent of the topics that can be written."""
        return f"{self.root}/brokers/topics-pub"

    @property
    def topics_sub(self) -> str:
        """Parent of the topics that can be read."""
        return f"{self.root}/brokers/topics-sub"

    def broker(self, broker_id: int) -> str:
        """The persistent node of a broker id."""
        return f"{self.ids}/{broker_id}"

    def master(self, broker_id: int) -> str:
        """The node of a broker's master; exists while its session lives."""
        return f"{self.broker(broker_id)}/master"

    def slave(self, broker_id: int, slave: int) -> str:
        """The node of a slave; exists while its session lives."""
        return f"{self.broker(broker_id)}/slave{slave}"

    def config_checksum(self, broker_id: int) -> str:
        """The node with the checksum of the master's configuration."""
        return f"{self.broker(broker_id)}/master_config_checksum"

    @property
    def members(self) -> str:
        """Parent of the nodes that masters of this project leave behind when they stop."""
        return f"{self.root}/members"

    def member(self, broker_id: int) -> str:
        """The node of a broker that belongs to the cluster, whether or not it runs."""
        return f"{self.members}/{broker_id}"

    def member_topics(self, broker_id: int) -> str:
        """The node with the topics that a broker has or may get; it stays when the broker is away."""
        return f"{self.member(broker_id)}/topics"

    def pair(self, broker_id: int) -> str:
        """The node with the record of a pair that elects its master."""
        return f"{self.root}/pairs/{broker_id}"

    @property
    def consumers(self) -> str:
        """Parent of all consumer groups."""
        return f"{self.root}/consumers"

    def consumer_ids(self, group: str) -> str:
        """Parent of the consumers of a group that are running."""
        return f"{self.consumers}/{group}/ids"

    def consumer_id(self, group: str, consumer: str) -> str:
        """The node of a running consumer of a group."""
        return f"{self.consumer_ids(group)}/{consumer}"

    def owner(self, group: str, where: TopicPartition) -> str:
        """The node of the consumer that reads a partition."""
        return f"{self.consumers}/{group}/owners/{where.topic}/{where.partition}"

    def offsets(self, group: str) -> str:
        """Parent of the topics for which a group has offsets."""
        return f"{self.consumers}/{group}/offsets"

    def offset(self, group: str, where: TopicPartition) -> str:
        """The node with a group's offset in one partition."""
        return f"{self.offsets(group)}/{where.topic}/{where.partition}"


def parse_broker_id(name: str) -> int | None:
    """Parse the name of a node below ``ids``; ``None`` if it is not a broker id."""
    return int(name) if re.fullmatch(r"\d{1,4}", name) and int(name) <= BROKER_ID_MAX else None


def parse_slave(name: str) -> int | None:
    """Parse the name of a node below a broker id; ``None`` if it is not a slave's."""
    match = _SLAVE.fullmatch(name)
    return None if match is None else int(match[1])


def address_text(address: Address) -> str:
    """Return the text of a broker's nodes."""
    return f"{_SCHEME}{address}"


def parse_address(text: str) -> Address | None:
    """Parse the text of a broker's node; ``None`` for an empty text, which a master leaves for its slaves.

    Raises:
        ValueError: It is not an address.
    """
    return Address.parse(text.partition("?")[0].rstrip("/")) if text else None


def partition_count_text(count: int) -> str:
    """Return the text of a topic's node in the tree for clients before 1.4."""
    return str(count)


def topic_text(count: int, registrant: Registrant) -> str:
    """Return the text of a topic's node in the trees for writing and reading. Java clients accept no other keys."""
    return json.dumps({"numParts": count, "broker": str(registrant)}, separators=(",", ":"))


def member_topics_text(names: Iterable[str]) -> str:
    """Return the text of the node ``member_topics``: topics and patterns with ``*``; for very many, a text
    for "any".
    """
    text = json.dumps(sorted(set(names)), separators=(",", ":"))
    return text if len(text) <= _MEMBER_TOPICS_CHARS_MAX else json.dumps(ANY_TOPIC)


def parse_member_topics(text: str) -> tuple[str, ...] | None:
    """Parse the node ``member_topics``; ``None`` for any other text, which a later version may write."""
    try:
        names = json.loads(text)
    except json.JSONDecodeError:
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


@dataclass(frozen=True, slots=True)
class RegisteredPair:
    """What the record of a pair says: its elected master, the other member, and the epoch of the election."""

    master: Address
    other: Address
    epoch: int


def parse_pair_record(text: str) -> RegisteredPair | None:
    """Parse the record of a pair, as far as clients need it; ``None`` for any other text, which a later version may
    write, and for a pair with one member.
    """
    try:
        record = json.loads(text)
        addresses = {uuid: Address.parse(entry["address"]) for uuid, entry in record["members"].items()}
        master, epoch = addresses.pop(record["master"]), int(record["epoch"])
        [other] = addresses.values()
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return RegisteredPair(master, other, epoch)


def parse_partition_count(text: str) -> int:
    """Parse a topic's node in any of the three trees.

    Raises:
        ValueError: It has no number of partitions.
    """
    try:
        count = json.loads(text)
    except json.JSONDecodeError:
        count = None
    if isinstance(count, dict):
        count = count.get("numParts")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f'{text!r} is not a number of partitions; expected 2 or {{"numParts":2,"broker":"0-m"}}')
    return count


def partitions_of(broker_id: int, count: int) -> Iterator[Partition]:
    """Yield the partitions of a broker with ``count`` partitions."""
    return (Partition(broker_id, index) for index in range(count))


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's position in a partition: ``offset`` is the next byte to fetch, ``message_id`` the last consumed
    message.

    ``message_id`` is any signed 64-bit number, possibly negative; ``NO_MESSAGE`` if there is none.
    """

    offset: int
    message_id: int = NO_MESSAGE

    def __str__(self) -> str:
        return f"{self.message_id}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> GroupOffset:
        """Parse ``MESSAGE_ID-OFFSET``, split at the last dash, or the plain ``OFFSET`` of clients before 1.4.

        Raises:
            ValueError: It is neither.
        """
        match = re.fullmatch(r"(?:(-?\d{1,19})-)?(\d{1,19})", text)
        message_id = int(match[1]) if match and match[1] else NO_MESSAGE
        if match is None or int(match[2]) > INT64_MAX or not INT64_MIN <= message_id <= INT64_MAX:
            raise ValueError(f"{text!r} is not an offset of a group; expected MESSAGE_ID-OFFSET, for example -1-0")
        return cls(int(match[2]), message_id)


def is_further(there: GroupOffset, saved: GroupOffset | None, position: GroupOffset) -> bool:
    """Whether another consumer has saved ``there`` since this one saved ``saved``, and is ahead of ``position``."""
    return there != saved and there.offset > position.offset


def is_unchanged(there: GroupOffset | None, expected: GroupOffset | None, new: GroupOffset) -> bool:
    """Whether ``new`` may replace the stored offset ``there``: no other consumer has saved one since ``expected``.

    Compares offsets, not the ids of the last messages.
    """
    if there is None or there.offset == new.offset:
        return True
    return expected is not None and there.offset == expected.offset
