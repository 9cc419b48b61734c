"""Statistics of RocketMQ brokers and topics: requests 28, 202 and 315."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from metaq.backends.rocketmq.administration import broker_figures, put_rates, queue_figures
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError
from metaq.model import Address, Partition

_RUNTIME: Final = re.compile(r"\[ *(\d+) days?, *(\d+) hours?, *(\d+) minutes?, *(\d+) seconds? *\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketBrokerStatistics:
    """A broker's figures under RocketMQ's names, as the broker writes them; ``broker_id`` is 0 for the master."""

    broker: str
    broker_id: int
    address: Address
    figures: Mapping[str, str]

    @property
    def version(self) -> str | None:
        """The version, such as ``V4_9_7``."""
        return self.figures.get("brokerVersionDesc")

    @property
    def uptime_s(self) -> int | None:
        """Seconds since the broker started."""
        return uptime_s(self.figures)

    def number(self, name: str) -> int | None:
        """Return a figure as a number; ``None`` if the broker does not report it."""
        text = self.figures.get(name, "")
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def rate(self, *names: str) -> float | None:
        """Return the rate of the last minute, the second of three, under the first of ``names`` that is reported.

        ``None``: a broker that has just started reports none.
        """
        words = next((self.figures[name].split() for name in names if name in self.figures), [])
        return _float(words[1] if len(words) > 1 else words[0]) if words else None

    @property
    def disk_ratio(self) -> float | None:
        """Used part of the disk with the messages, 0..1."""
        return disk_ratio(self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """A queue and its stored range: the messages ``[start, end)``. ``last_ms``: when the last one was stored."""

    topic: str
    partition: Partition
    start: int
    end: int
    last_ms: int | None


def broker_statistics(directory: NameServerDirectory, pool: SessionPool) -> list[RocketBrokerStatistics]:
    """Ask each registered broker, masters and slaves.

    Raises:
        NameServersAway: No name server answers.
        ConnectionFailed, DeadlineExceeded, RequestRefused, AccessDenied: A broker does not report it.
    """
    directory.masters()  # refreshes the registrations
    found = []
    for name, addresses in sorted(directory.brokers().items()):
        for broker_id, address in sorted(addresses.items()):
            with pool.lease(address) as session:
                figures = broker_figures(session)
            found.append(RocketBrokerStatistics(broker=name, broker_id=broker_id, address=address, figures=figures))
    return found


def topic_statistics(directory: NameServerDirectory, pool: SessionPool, topic: str) -> list[QueueStatistics]:
    """Ask the brokers of a topic for the range of each queue, and the time of its last message.

    Raises:
        TopicNotFound: No name server knows the topic.
        NameServersAway, ConnectionFailed, DeadlineExceeded, RequestRefused, AccessDenied: A server does not report it.
    """
    names = sorted({queue.broker_name for queue in directory.queues(topic)})
    found = []
    for name in names:
        with pool.lease(directory.read_address(name, topic=topic)) as session:
            queues = queue_figures(session, with_namespace(topic, directory.namespace), name)
        found += [
            QueueStatistics(
                topic=topic,
                partition=Partition(name, index),
                start=offsets.min_offset,
                end=offsets.max_offset,
                last_ms=offsets.last_update_timestamp if offsets.last_update_timestamp > 0 else None,
            )
            for index, offsets in queues.items()
        ]
    return found


def topic_rates(
    directory: NameServerDirectory, pool: SessionPool, topics: Mapping[str, Collection[Partition]]
) -> dict[str, float | None]:
    """Ask the brokers of topics how many messages a second each got in the last minute.

    ``None``: one of its brokers cannot be asked, or does not count.
    """
    rates: dict[str, float | None] = dict.fromkeys(topics, 0.0)
    for name in sorted({queue.broker_name for queues in topics.values() for queue in queues}):
        there = [topic for topic, queues in topics.items() if any(queue.broker_name == name for queue in queues)]
        counted: Sequence[float | None] = [None] * len(there)
        with suppress(MetaqError), pool.lease(directory.write_address(name)) as session:
            counted = put_rates(session, [with_namespace(topic, directory.namespace) for topic in there], name)
        for topic, rate in zip(there, counted, strict=True):
            before = rates[topic]
            rates[topic] = None if rate is None or before is None else before + rate
    return rates


def uptime_s(figures: Mapping[str, str]) -> int | None:
    """Return ``runtime`` in seconds; ``None`` if it does not have RocketMQ's form."""
    match = _RUNTIME.fullmatch(figures.get("runtime", "").strip())
    if match is None:
        return None
    days, hours, minutes, seconds = map(int, match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def clock_ms(figures: Mapping[str, str]) -> int | None:
    """Return the time of the broker's clock, to the second, from its start time and uptime."""
    started, ran_s = figures.get("bootTimestamp", ""), uptime_s(figures)
    return None if ran_s is None or not started.isdecimal() else int(started) + ran_s * 1000


def disk_ratio(figures: Mapping[str, str]) -> float | None:
    """Return ``commitLogDiskRatio``, the used part of a disk; ``None`` if the broker does not report it."""
    ratio = _float(figures.get("commitLogDiskRatio", ""))
    return ratio if ratio is not None and 0 <= ratio <= 1 else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
