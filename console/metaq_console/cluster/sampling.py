"""Takes samples of a cluster for its history, and takes care that this costs the cluster next to nothing.

A round asks for the brokers, the topics, and the lag of some groups. The pause after it is ``PAUSE_SHARE`` times as
long as the answers took, at least: a slow cluster is asked less often. Time without an answer does not count: after a
broker that hung for a minute, there would be no sample for hours.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from metaq.net.clock import SYSTEM_CLOCK, Clock, wall_clock_ms
from metaq_console.cluster.cluster_questions import ClusterQuestions
from metaq_console.cluster.history import History, SeriesKey
from metaq_console.cluster.values import LagRow, TopicRow, by_topic
from metaq_console.errors import RequestFailed, failure_of

PAUSE_SHARE: Final = 50
GROUPS_MAX: Final = 200
"""Groups whose lag is sampled: first the ones that clients requested most recently, then others in order."""
TOPICS_MAX: Final = 200
"""Topics whose rates are sampled: those with the highest."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """A group at the last sample: its lag in each topic, and its running consumers, ``None`` if they are not known."""

    group: str
    lags: tuple[LagRow, ...]
    members: int | None


class Sampler:
    """Fills ``history`` until its task is cancelled."""

    def __init__(
        self, cluster: ClusterQuestions, history: History, every_s: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._cluster, self._history, self._every_s, self._clock = cluster, history, every_s, clock
        self._unanswered_s = 0.0
        """Seconds of this round's questions without an answer."""
        self._watched: OrderedDict[str, None] = OrderedDict()
        self._complaint: str | None = None
        self.groups: tuple[GroupSample, ...] = ()
        """The groups of the last sample."""
        self.groups_at_ms: int | None = None
        """When they were asked for."""
        self.largest_lags: Mapping[str, LagRow] = {}
        """Of each topic, the group that is furthest behind in it, among the groups of the last sample."""

    def watch_group(self, group: str) -> None:
        """Sample a group from now on: a client looks at it."""
        self._watched[group] = None
        self._watched.move_to_end(group)
        while len(self._watched) > GROUPS_MAX:
            self._watched.popitem(last=False)

    async def run(self) -> None:
        """Take samples for ever."""
        while True:
            await asyncio.sleep(await self.sample())

    async def sample(self) -> float:
        """Take one sample of everything, and return the seconds until the next one. What cannot be had is left out;
        each complaint is logged once.
        """
        began_s, self._unanswered_s = self._clock.monotonic(), 0.0
        for part in (self._sample_topics, self._sample_groups):
            try:
                await part()
            except Exception as error:
                self._complain(error)
        answered_s = self._clock.monotonic() - began_s - self._unanswered_s
        return max(self._every_s, answered_s * PAUSE_SHARE)

    async def _asked(self, question: Awaitable[T]) -> T:
        """Return the answer; count the time if there is none."""
        began_s = self._clock.monotonic()
        try:
            return await question
        except RequestFailed:
            self._unanswered_s += self._clock.monotonic() - began_s
            raise

    async def _sample_topics(self) -> None:
        rows = await self._asked(self._cluster.all_topics())
        if rows is None:
            for broker in await self._asked(self._cluster.brokers()):
                if broker.in_per_s is not None:
                    self._history.add(SeriesKey("cluster", broker.name, "in_per_s"), broker.in_per_s)
            return
        self._add("cluster", "", "in_per_s", sum(row.in_per_s or 0.0 for row in rows))
        self._add("cluster", "", "out_bytes_per_s", sum(row.out_bytes_per_s or 0.0 for row in rows))
        busy = sorted(rows, key=_traffic, reverse=True)[:TOPICS_MAX]
        for row in busy:
            for figure in ("in_per_s", "out_bytes_per_s", "messages", "bytes"):
                value = getattr(row, figure)
                if value is not None:
                    self._add("topic", row.topic, figure, value)

    async def _sample_groups(self) -> None:
        names = await self._asked(self._cluster.group_names())
        watched = [name for name in reversed(self._watched) if name in set(names)]
        chosen = dict.fromkeys([*watched, *names[:GROUPS_MAX]])
        largest: dict[str, LagRow] = {}
        found = [await self._sample_group(name) for name in list(chosen)[:GROUPS_MAX]]
        self._cluster.require_all()  # a part of a lag would be wrong
        self.groups, self.groups_at_ms = tuple(one for one in found if one is not None), wall_clock_ms()
        for row in (row for sample in self.groups for row in sample.lags):
            if row.topic not in largest or row.lag > largest[row.topic].lag:
                largest[row.topic] = row
        self.largest_lags = largest

    async def _sample_group(self, name: str) -> GroupSample | None:
        """Return a group; ``None`` if it cannot be had, which does not keep others from being asked for."""
        try:
            rows = await self._asked(self._cluster.lag(name))
            members = await self._asked(self._cluster.members(name))
            self._cluster.require_all()
        except RequestFailed as error:
            self._complain(error)
            return None
        self._add("group", name, "lag", sum(row.lag for row in rows))
        return GroupSample(group=name, lags=tuple(by_topic(rows)), members=len(members))

    def _add(self, kind: str, name: str, figure: str, value: float) -> None:
        self._history.add(SeriesKey(kind, name, figure), value)  # type: ignore[arg-type]

    def _complain(self, error: Exception) -> None:
        failure = failure_of(error)
        text = str(failure)
        if text != self._complaint and not failure.body.code.startswith("not_supported"):
            _log.warning("history: %s", text)
            self._complaint = text


def _traffic(row: TopicRow) -> float:
    return (row.in_per_s or 0.0) + (row.out_bytes_per_s or 0.0) / 1000
