"""What MetaQ brokers say of themselves and of a topic: the answers to ``stats``, of a Java broker or of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metaq.backends.metaq.pool import SessionPool
from metaq.discovery.base import Directory
from metaq.discovery.stats import parse_figures
from metaq.errors import ProtocolError, TopicNotFound
from metaq.model import Address

RESERVED: Final = frozenset(
    {"help", "topics", "offsets", "realtime", "reset", "config", "incarnations", "segments", "replication"}
    | {"durability", "failures", "retention", "machine"}
)
"""Words that ``stats`` takes for an item, so that a topic of that name cannot be asked for; ``reset`` even changes
something."""

_REALTIME: Final = re.compile(r"Count=(\d+),Value=(\d+),Value/Count=([\d.]*),Count/Duration=([\d.]*),Duration=(\d+)")
_HAS_MESSAGES, _UNKNOWN = "0", "1"


@dataclass(frozen=True, slots=True)
class Realtime:
    """What was counted in the last ``seconds``, at most half an hour: how often, and ``value``, such as bytes."""

    count: int = 0
    value: int = 0
    seconds: int = 0

    @property
    def per_s(self) -> float:
        """How often a second."""
        return self.count / max(1, self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatistics:
    """A broker's figures since it started, by MetaQ's names, and those of the last half hour.

    ``figures``: ``uptime`` (seconds), ``cmd_put``, ``cmd_get``, ``total_messages`` and so on, as it writes them.
    ``realtime``: ``put``, ``get``, ``offset``, ``get_miss``, ``put_failed``, ``message_size``; none without a count.
    """

    broker: int
    address: Address
    figures: Mapping[str, str]
    realtime: Mapping[str, Realtime]

    def number(self, name: str) -> int | None:
        """Return a figure as a number; ``None`` if the broker does not tell it."""
        return _number(self.figures, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatistics:
    """What a broker has of a topic. ``realtime`` is empty unless the topic is configured with ``stat=true``.

    After a restart, a Java broker counts ``messages`` of the last segment of each partition only.
    """

    broker: int
    address: Address
    partitions: int
    messages: int
    bytes: int
    realtime: Mapping[str, Realtime]


def broker_statistics(directory: Directory, pool: SessionPool) -> list[BrokerStatistics]:
    """Ask each broker for its figures.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: One of them did not answer, or not so.
    """
    found = []
    for broker_id, address in directory.brokers().items():
        with pool.lease(address) as session:
            texts = session.stats(["", "realtime"])
        figures, realtime = parse_figures(texts[""]), parse_figures(texts["realtime"])
        found.append(
            BrokerStatistics(
                broker=broker_id, address=address, figures=figures, realtime=_realtime(realtime, "realtime_")
            )
        )
    return found


def topic_statistics(directory: Directory, pool: SessionPool, topic: str) -> list[TopicStatistics]:
    """Ask each broker what it has of a topic; those that do not know it are left out.

    Raises:
        ValueError: ``stats`` takes the name for something else.
        TopicNotFound: No broker knows it.
        ConnectionFailed, DeadlineExceeded, ProtocolError: As ``broker_statistics``.
    """
    if topic in RESERVED:
        raise ValueError(f"statistics of topic {topic!r}: MetaQ's protocol takes this word for something else")
    found, asked = [], []
    for broker_id, address in directory.brokers().items():
        with pool.lease(address) as session:
            figures = parse_figures(session.stats([topic])[topic])
        asked.append(str(address))
        if figures.get("resultCode", _UNKNOWN) != _UNKNOWN:
            found.append(_topic(broker_id, address, figures))
    if not found:
        raise TopicNotFound(topic, asked)
    return found


def _topic(broker_id: int, address: Address, figures: Mapping[str, str]) -> TopicStatistics:
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
    )


def _number(figures: Mapping[str, str], name: str) -> int | None:
    text = figures.get(name, "")
    return int(text) if text.isdecimal() else None


def _realtime(figures: Mapping[str, str], prefix: str) -> dict[str, Realtime]:
    """Return what was counted; ``null``, and MetaQ's words for topics that are not counted, are nothing."""
    matches = {name.removeprefix(prefix): _REALTIME.fullmatch(text) for name, text in figures.items()}
    return {
        name: Realtime(int(match[1]), int(match[2]), int(match[5]))
        for name, match in matches.items()
        if match is not None
    }
