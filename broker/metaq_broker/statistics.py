"""Counts what the broker does, since its start and since the last reset. ``stats_report`` formats the figures.

Two sets of figures: totals (``commands``), which are never reset, and realtime counters per kind of event, over all
topics and per topic, which ``reset`` clears. Kinds: put, get, offset, get_miss, put_failed, message_size. In addition,
for metrics: traffic of each topic, sizes of messages, and how long puts waited.

Source: docs/protocol.md (stats).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple

from metaq.formats.frames import HEADER_BYTES
from metaq_broker.histogram import BYTES, SECONDS, Histogram
from metaq_broker.serve.session import ConnectionCounts

Kind = Literal["put", "get", "offset", "get_miss", "put_failed", "message_size"]
KINDS: Final[tuple[Kind, ...]] = ("put", "get", "offset", "get_miss", "put_failed", "message_size")

RESET_INTERVAL_S: Final = 1800
"""MetaQ clears the realtime counters every half hour."""


@dataclass(slots=True)
class RealtimeCount:
    """How often an event happened (``count``) and the sum of its values (``value``; bytes for message_size)."""

    count: int = 0
    value: int = 0


_Figures = defaultdict[Kind, RealtimeCount]


SLOT_S: Final = 5
_SLOTS: Final = 12


@dataclass(slots=True)
class MinuteSum:
    """A sum over the last minute, in slots of five seconds. A slot has a number, counted from any fixed moment."""

    _sums: list[int] = field(default_factory=lambda: [0] * _SLOTS)
    _newest: int = 0

    def add(self, slot: int, count: int) -> None:
        """Count in the current slot."""
        if slot != self._newest:
            self._advance(slot)
        self._sums[slot % _SLOTS] += count

    def total(self, slot: int) -> int:
        """Return the sum of the last slots; ``slot`` is the current one."""
        if slot != self._newest:
            self._advance(slot)
        return sum(self._sums)

    def _advance(self, slot: int) -> None:
        for old in range(max(self._newest + 1, slot - _SLOTS + 1), slot + 1):
            self._sums[old % _SLOTS] = 0
        self._newest = max(self._newest, slot)


@dataclass(slots=True)
class Traffic:
    """Messages and bytes of frames that were stored, and bytes sent to readers, since the start."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    recent_messages_in: MinuteSum = field(default_factory=MinuteSum)
    recent_bytes_out: MinuteSum = field(default_factory=MinuteSum)


class Rates(NamedTuple):
    """What happened in the last ``seconds``, at most a minute."""

    seconds: int
    messages_in: int
    gets: int
    bytes_out: int


class Statistics:
    """All counters of one broker. ``tracked`` says whether a topic has figures of its own (``stat=true``)."""

    def __init__(self, monotonic: Callable[[], float], tracked: Callable[[str], bool]) -> None:
        self._monotonic = monotonic
        self._tracked = tracked
        self._started = monotonic()
        self.connection_counts = ConnectionCounts()
        self.commands: Counter[str] = Counter()
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self.message_bytes = Histogram(BYTES)
        self.put_seconds = Histogram(SECONDS)
        """From the append of a message to its acknowledgement; counts messages."""
        self._recent_gets = MinuteSum()
        self._reset_at = self._started
        self._all: _Figures = defaultdict(RealtimeCount)
        self._topics: defaultdict[str, _Figures] = defaultdict(partial(defaultdict, RealtimeCount))

    @property
    def uptime_s(self) -> int:
        """Whole seconds since the broker's start."""
        return int(self._monotonic() - self._started)

    @property
    def realtime_s(self) -> int:
        """Whole seconds that the realtime counters cover."""
        return int(self._monotonic() - self._reset_at)

    def puts(self, topic: str, count: int, body_bytes: int) -> None:
        """Count ``count`` put messages of ``body_bytes`` together, accepted or not."""
        self.commands["put"] += count
        self._add(topic, count, ("put", count), ("message_size", body_bytes))

    def block_puts(self, topic: str, count: int, block_bytes: int) -> None:
        """Count the put messages of a block of ``count`` frames, accepted or not."""
        self.puts(topic, count, max(0, block_bytes - count * HEADER_BYTES))

    def puts_failed(self, topic: str, count: int) -> None:
        """Count puts that were refused or could not be stored."""
        self.commands["put_failed"] += count
        self._add(topic, count, ("put_failed", count))

    def get(self, topic: str) -> None:
        """Count one get, successful or not."""
        self.commands["get"] += 1
        self._recent_gets.add(self._slot, 1)
        self._add(topic, 1, ("get", 1))

    def get_missed(self, topic: str) -> None:
        """Count a get that was answered with 301 or 404."""
        self.commands["get_miss"] += 1
        self._add(topic, 1, ("get_miss", 1))

    def offset(self, topic: str) -> None:
        """Count an offset command, or a get whose reply is another offset (as MetaQ does)."""
        self.commands["offset"] += 1
        self._add(topic, 1, ("offset", 1))

    def stored(self, topic: str, messages: int, frame_bytes: int) -> None:
        """Count messages that were appended together; each counts with their average size."""
        traffic = self.traffic[topic]
        traffic.messages_in += messages
        traffic.recent_messages_in.add(self._slot, messages)
        traffic.bytes_in += frame_bytes
        self.message_bytes.observe(frame_bytes / messages - HEADER_BYTES, messages)

    def sent(self, topic: str, frame_bytes: int) -> None:
        traffic = self.traffic[topic]
        traffic.bytes_out += frame_bytes
        traffic.recent_bytes_out.add(self._slot, frame_bytes)

    @property
    def _slot(self) -> int:
        return int(self._monotonic() - self._started) // SLOT_S

    def last_minute(self) -> Rates:
        """Return what happened in the last minute, in all topics."""
        all_topics = [self._of_topic(traffic) for traffic in self.traffic.values()]
        gets = self._recent_gets.total(self._slot)
        return Rates(self._covered_s, sum(one[0] for one in all_topics), gets, sum(one[1] for one in all_topics))

    def topic_last_minute(self, topic: str) -> Rates:
        """Return what happened in the last minute in a topic. Gets are counted for all topics together."""
        traffic = self.traffic.get(topic)
        messages, size = (0, 0) if traffic is None else self._of_topic(traffic)
        return Rates(self._covered_s, messages, 0, size)

    def _of_topic(self, traffic: Traffic) -> tuple[int, int]:
        slot = self._slot
        return traffic.recent_messages_in.total(slot), traffic.recent_bytes_out.total(slot)

    @property
    def _covered_s(self) -> int:
        """Seconds that the slots cover: the last one has just begun, or is nearly over."""
        return min(self.uptime_s, (_SLOTS - 1) * SLOT_S + self.uptime_s % SLOT_S)

    def realtime(self, kind: Kind) -> RealtimeCount | None:
        """Return the figures over all topics; ``None`` if nothing was counted since the last reset."""
        self._expire()
        return self._all.get(kind)

    def topic_realtime(self, kind: Kind, topic: str) -> RealtimeCount | None:
        """Return the figures of one topic; ``None`` if nothing was counted or the topic is not tracked."""
        self._expire()
        figures = self._topics.get(topic)
        return None if figures is None else figures.get(kind)

    def any_topic_counted(self, kind: Kind) -> bool:
        """Return whether any topic has figures of its own for ``kind``."""
        return any(kind in figures for figures in self._topics.values())

    def reset(self) -> None:
        """Clear the realtime counters; the totals stay."""
        self._reset_at = self._monotonic()
        self._all.clear()
        self._topics.clear()

    def _add(self, topic: str, count: int, *values: tuple[Kind, int]) -> None:
        if self._monotonic() - self._reset_at >= RESET_INTERVAL_S:
            self.reset()
        for figures in (self._all, self._topics[topic]) if self._tracked(topic) else (self._all,):
            for kind, value in values:
                realtime = figures[kind]
                realtime.count += count
                realtime.value += value

    def _expire(self) -> None:
        if self._monotonic() - self._reset_at >= RESET_INTERVAL_S:
            self.reset()
