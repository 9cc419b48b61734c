"""What topics and groups did in the last minute, hour and day: the figures of ``mqadmin statsAll`` and exporters (315).

Everything is counted since the broker's start. Samples of the counts are kept: of every ten seconds for a minute, of
every ten minutes for an hour, of every hour for a day. A figure is the present count less that in the
oldest sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metaq.protocols.remoting.bodies.administration import BrokerStats, BrokerStatsItem

KEYS_MAX: Final = 10_000
"""Topics of groups that are counted; further ones are not."""


class _Name(NamedTuple):
    """Where a figure is: the kind of key, the count in it, and the count of events."""

    kind: str
    value: int
    times: int


TOPICS, GROUPS, RETURNS, BROKER = "topics", "groups", "returns", "broker"

_NAMES: Final = {
    "TOPIC_PUT_NUMS": _Name(TOPICS, 0, 0),
    "TOPIC_PUT_SIZE": _Name(TOPICS, 1, 0),
    "GROUP_GET_NUMS": _Name(GROUPS, 0, 2),
    "GROUP_GET_SIZE": _Name(GROUPS, 1, 2),
    "SNDBCK_PUT_NUMS": _Name(RETURNS, 0, 0),
    "BROKER_PUT_NUMS": _Name(BROKER, 0, 0),
    "BROKER_GET_NUMS": _Name(BROKER, 1, 2),
}
"""The figures by RocketMQ's names. Keys: a topic, ``topic@group``, or the cluster's name."""

WINDOWS: Final = ((10, 6), (600, 6), (3600, 24))
"""Seconds between two samples, and how many: a minute, an hour, a day."""

Counts = tuple[int, ...]
Snapshot = Mapping[str, Mapping[str, Counts]]
"""Kind -> key -> counts."""

_NOTHING: Final[Mapping[str, Counts]] = {}


@dataclass(slots=True)
class GroupCounts:
    """What groups were given, and sent back, by ``topic@group``, since the start."""

    given: dict[str, list[int]] = field(default_factory=dict)
    """Messages, bytes, pulls."""
    returned: dict[str, int] = field(default_factory=dict)

    def pulled(self, topic: str, group: str, messages: int, byte_count: int) -> None:
        """Count a pull that is answered with messages."""
        key = f"{topic}@{group}"
        counts = self.given.get(key)
        if counts is None:
            if len(self.given) >= KEYS_MAX:
                return
            counts = self.given[key] = [0, 0, 0]
        counts[0] += messages
        counts[1] += byte_count
        counts[2] += 1

    def sent_back(self, topic: str, group: str) -> None:
        """Count a message that a group sent back."""
        key = f"{topic}@{group}"
        if key in self.returned or len(self.returned) < KEYS_MAX:
            self.returned[key] = self.returned.get(key, 0) + 1


class Activity:
    """The figures. ``counts`` returns all counts, ``one`` the counts of a kind and key.

    Call ``sample`` every few seconds.
    """

    def __init__(
        self,
        counts: Callable[[], Snapshot],
        one: Callable[[str, str], Counts | None],
        monotonic: Callable[[], float],
    ) -> None:
        self._counts, self._one, self._monotonic = counts, one, monotonic
        first = (monotonic(), counts())
        self._samples = tuple(deque([first], maxlen=count + 1) for _, count in WINDOWS)

    def sample(self) -> None:
        """Keep the present counts where it is time."""
        now, counts = self._monotonic(), None
        for samples, (step_s, _) in zip(self._samples, WINDOWS, strict=True):
            if now - samples[-1][0] >= step_s:
                counts = self._counts() if counts is None else counts
                samples.append((now, counts))

    def stats(self, name: str, key: str) -> BrokerStats | None:
        """Return a figure of the last minute, hour and day; ``None`` if there is no such one."""
        where = _NAMES.get(name)
        counts = None if where is None else self._one(where.kind, key)
        if where is None or counts is None:
            return None
        now = self._monotonic()
        items = [self._item(window, where, key, counts, now) for window in range(len(WINDOWS))]
        return BrokerStats(stats_minute=items[0], stats_hour=items[1], stats_day=items[2])

    def rate(self, name: str, key: str) -> float:
        """Return a figure's events a second in the last minute."""
        stats = self.stats(name, key)
        return 0.0 if stats is None else stats.stats_minute.tps

    def _item(self, window: int, where: _Name, key: str, counts: Counts, now: float) -> BrokerStatsItem:
        began, before = self._samples[window][0]
        old = before.get(where.kind, _NOTHING).get(key)
        total = counts[where.value] - (0 if old is None else old[where.value])
        times = counts[where.times] - (0 if old is None else old[where.times])
        seconds = now - began
        return BrokerStatsItem(
            sum=total, tps=total / seconds if seconds > 0 else 0.0, avgpt=total / times if times else 0.0
        )
