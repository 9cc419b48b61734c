"""Statistics of MetaQ brokers and topics: the answers to ``stats``, from a Java broker or the bundled one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metaq.backends.metaq.pair_members import ASK_S
from metaq.backends.metaq.pool import SessionPool
from metaq.discovery.base import Directory
from metaq.discovery.stats import parse_figures, topic_fields
from metaq.errors import MetaqError, ProtocolError, TopicNotFound
from metaq.model import Address

RATES, TOPIC_RATES = "rates", "rates:"
"""Items of ``stats`` for what was stored and sent in the last minute, the second with a topic or ``*`` after it. Only
the bundled broker has them.
"""

REPLICATION: Final = "replication"
OTHER_MEMBER: Final = "other"
"""Line of the answer with the address of the other member of a pair."""

RESERVED: Final = frozenset(
    {"help", "topics", "offsets", "realtime", "reset", "config", "incarnations", "segments", REPLICATION}
    | {"durability", "failures", "retention", "machine", RATES}
)
"""Items of ``stats``: a topic of such a name cannot be queried, and ``reset`` even changes counters."""

_REALTIME: Final = re.compile(r"Count=(\d+),Value=(\d+),Value/Count=([\d.]*),Count/Duration=([\d.]*),Duration=(\d+)")
_HAS_MESSAGES, _UNKNOWN = "0", "1"
_LAST_MINUTE: Final = "last_minute_"


@dataclass(frozen=True, slots=True)
class Realtime:
    """A count over the last ``seconds``, at most half an hour, and its sum ``value``, such as bytes."""

    count: int = 0
    value: int = 0
    seconds: int = 0

    @property
    def per_s(self) -> float:
        """Count per second."""
        return self.count / max(1, self.seconds)


@dataclass(frozen=True, slots=True)
class LastMinute:
    """What the bundled broker stored and sent in the last ``seconds``, at most a minute."""

    seconds: int
    puts: int
    bytes_out: int

    @property
    def puts_per_s(self) -> float:
        """Messages stored per second."""
        return self.puts / max(1, self.seconds)

    @property
    def bytes_out_per_s(self) -> float:
        """Bytes sent to readers per second."""
        return self.bytes_out / max(1, self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatistics:
    """A broker's figures since it started, under MetaQ's names, and counts of the last half hour.

    ``figures``: ``uptime`` (seconds), ``cmd_put``, ``cmd_get``, ``total_messages`` and so on, as the broker writes
    them. ``realtime``: ``put``, ``get``, ``offset``, ``get_miss``, ``put_failed``, ``message_size``; items without a
    count are left out.
    """

    broker: int
    address: Address
    figures: Mapping[str, str]
    realtime: Mapping[str, Realtime]

    def number(self, name: str) -> int | None:
        """Return a figure as a number; ``None`` if the broker does not report it."""
        return _number(self.figures, name)

    def per_s(self, kind: str) -> float | None:
        """Return ``put`` or ``get`` per second, of the last minute; of a Java broker, of its last half hour.

        ``None``: nothing was counted.
        """
        seconds, count = self.number(f"{_LAST_MINUTE}s"), self.number(f"{_LAST_MINUTE}{kind}s")
        if seconds is not None and count is not None:
            return count / max(1, seconds)
        realtime = self.realtime.get(kind)
        return None if realtime is None else realtime.per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatistics:
    """A broker's statistics of a topic. ``realtime`` is empty unless the topic is configured with ``stat=true``.

    ``last_minute`` is ``None`` with a Java broker.

    After a restart, a Java broker counts ``messages`` of the last segment of each partition only.
    """

    broker: int
    address: Address
    partitions: int
    messages: int
    bytes: int
    realtime: Mapping[str, Realtime]
    last_minute: LastMinute | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSize:
    """What the brokers hold of a topic together. ``last_minute`` is ``None`` if one of them is a Java broker."""

    topic: str
    partitions: int
    messages: int
    bytes: int
    last_minute: LastMinute | None


def broker_statistics(directory: Directory, pool: SessionPool) -> list[BrokerStatistics]:
    """Ask each broker for its figures.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: A broker did not answer, or its answer is not valid.
    """
    found = []
    for broker_id, address in directory.brokers().items():
        with pool.lease(address) as session:
            texts = session.stats(["", "realtime", RATES])
        figures, realtime = parse_figures(texts[""]), parse_figures(texts["realtime"])
        recent = parse_figures(texts[RATES])
        figures |= {name: value for name, value in recent.items() if name.startswith(_LAST_MINUTE)}
        found.append(
            BrokerStatistics(
                broker=broker_id, address=address, figures=figures, realtime=_realtime(realtime, "realtime_")
            )
        )
    return found


def replication_figures(directory: Directory, pool: SessionPool) -> dict[Address, dict[str, str]]:
    """Ask each broker for its role, its faults, and how far it is behind its master: name or partition -> text.

    The other member of a pair is asked, too, for ``ASK_S``; its answer is its ``trouble`` if it does not answer. A Java
    broker takes the word for a topic; its answer is left empty. Raises as ``broker_statistics``.
    """
    found = {address: _replication(pool, address) for address in directory.brokers().values()}
    hurried = pool.hurried(ASK_S)
    for other in [lines[OTHER_MEMBER] for lines in found.values() if OTHER_MEMBER in lines]:
        try:
            address = Address.parse(other)
            if address not in found:
                found[address] = _replication(hurried, address)
        except MetaqError as error:
            found[address] = {"trouble": str(error)}
        except ValueError:  # a broker of another make has a line of this name
            continue
    return found


def _replication(pool: SessionPool, address: Address) -> dict[str, str]:
    with pool.member(address) as session:
        figures = parse_figures(session.stats([REPLICATION])[REPLICATION])
    return {} if "resultCode" in figures else figures


def topic_sizes(directory: Directory, pool: SessionPool) -> list[TopicSize]:
    """Ask each broker what it holds of its topics, those without a message too; sorted by topic.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: As ``broker_statistics``.
    """
    found: dict[str, list[TopicSize]] = {}
    for address in directory.brokers().values():
        with pool.lease(address) as session:
            texts = session.stats(["topics", rates := f"{TOPIC_RATES}*"])
        recent = dict(topic_fields(texts[rates]))
        for topic, fields in topic_fields(texts["topics"]):
            found.setdefault(topic, []).append(_size(topic, fields, _last_minute(recent.get(topic, {}))))
    return [_sum(found[topic]) for topic in sorted(found)]


def _size(topic: str, fields: Mapping[str, str], last_minute: LastMinute | None) -> TopicSize:
    partitions, messages, size = (
        _number(fields, name) or 0 for name in ("partitions", "message_count", "message_bytes")
    )
    return TopicSize(topic=topic, partitions=partitions, messages=messages, bytes=size, last_minute=last_minute)


def _sum(sizes: Sequence[TopicSize]) -> TopicSize:
    recent = [one.last_minute for one in sizes if one.last_minute is not None]
    total = LastMinute(
        max((one.seconds for one in recent), default=0),
        sum(one.puts for one in recent),
        sum(one.bytes_out for one in recent),
    )
    return TopicSize(
        topic=sizes[0].topic,
        partitions=sum(one.partitions for one in sizes),
        messages=sum(one.messages for one in sizes),
        bytes=sum(one.bytes for one in sizes),
        last_minute=total if len(recent) == len(sizes) else None,
    )


def _last_minute(fields: Mapping[str, str]) -> LastMinute | None:
    seconds, puts, size = (_number(fields, _LAST_MINUTE + name) for name in ("s", "puts", "bytes_out"))
    return None if seconds is None or puts is None or size is None else LastMinute(seconds, puts, size)


def topic_statistics(directory: Directory, pool: SessionPool, topic: str) -> list[TopicStatistics]:
    """Ask each broker for its figures of a topic; brokers that do not know the topic are left out.

    Raises:
        ValueError: ``stats`` reserves the name.
        TopicNotFound: No broker knows the topic.
        ConnectionFailed, DeadlineExceeded, ProtocolError: As ``broker_statistics``.
    """
    if topic in RESERVED:
        raise ValueError(f"statistics of topic {topic!r}: the name is reserved in MetaQ's protocol")
    found, asked = [], []
    for broker_id, address in directory.brokers().items():
        with pool.lease(address) as session:
            texts = session.stats([topic, rates := f"{TOPIC_RATES}{topic}"])
        figures, recent = parse_figures(texts[topic]), dict(topic_fields(texts[rates]))
        asked.append(str(address))
        if figures.get("resultCode", _UNKNOWN) != _UNKNOWN:
            found.append(_topic(broker_id, address, figures, _last_minute(recent.get(topic, {}))))
    if not found:
        raise TopicNotFound(topic, asked)
    return found


def _topic(
    broker_id: int, address: Address, figures: Mapping[str, str], last_minute: LastMinute | None
) -> TopicStatistics:
    partitions, messages, size = (_number(figures, name) for name in ("partitions", "message_count", "bytes"))
    if partitions is None or messages is None or size is None:
        raise ProtocolError("the answer to stats TOPIC has no partitions, message_count or bytes", b"", address)
    return TopicStatistics(
        broker=broker_id,
        address=address,
        partitions=partitions,
        messages=messages,
        bytes=size,
        realtime=_realtime(figures, "topic_realtime_"),
        last_minute=last_minute,
    )


def _number(figures: Mapping[str, str], name: str) -> int | None:
    text = figures.get(name, "")
    return int(text) if text.isdecimal() else None


def _realtime(figures: Mapping[str, str], prefix: str) -> dict[str, Realtime]:
    """Return the counts. ``null`` and MetaQ's texts for topics that are not counted are left out."""
    matches = {name.removeprefix(prefix): _REALTIME.fullmatch(text) for name, text in figures.items()}
    return {
        name: Realtime(int(match[1]), int(match[2]), int(match[5]))
        for name, match in matches.items()
        if match is not None
    }
