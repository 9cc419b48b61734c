"""A running stream's look-ups of the brokers' ranges: rate-limited, and tolerant of a broker that is away.

Spark polls an idle query every few milliseconds; the brokers are asked at most every ``offsetPollMs``, and the last
answer is used in between. If a look-up is slow, because of many partitions or a distant broker, the interval grows up
to 100 ms, so that look-ups take a twentieth of the time at most.

If a broker cannot be asked even after retries, only the others are asked from then on. Partitions of the missing broker
are not listed, and planning keeps their positions. Only after ``brokerWaitMs`` does the look-up fail, with an error
that names the broker. It is logged when a broker is away, and when it is back. A look-up that must be complete (the
first of a run, and those for AvailableNow, which ends when nothing is left) fails at once.

Spark asks an idle query ten milliseconds after each answer. An answer over thousands of partitions takes longer, mostly
to convert JSON. So ``IdleBackoff`` delays answers without new data, in proportion to the processor time of an answer;
cheap answers are not delayed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.errors import MetaqError
from metaq.model import TopicPartition
from metaq.net.clock import Clock
from metaq_spark.offsets import AvailableRanges
from metaq_spark.options.parsing import ReadOptions
from metaq_spark.source.backend import Cluster

_log = logging.getLogger(__name__)

PAUSE_PER_LOOKUP: Final = 20
"""The pause after a look-up, in multiples of the time that it took."""

PAUSE_S_MAX: Final = 0.1
"""Limit on this pause, in seconds; ``offsetPollMs`` if that is more."""

REST_PER_ANSWER: Final = 60
"""The delay of an answer without new data, in multiples of the processor time of an answer."""

REST_S_MAX: Final = 0.5
"""Limit on this delay, in seconds."""

REST_S_MIN: Final = 0.1
"""Shorter delays are left out, in seconds."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``available`` of the brokers that answered, at ``since_s`` of the clock; ``away`` are the others."""

    available: AvailableRanges
    since_s: float
    away: Mapping[str, MetaqError] = field(default_factory=dict)


class Lookup:
    """Asks ``cluster`` for the partitions that ``options`` select."""

    def __init__(self, cluster: Cluster, options: ReadOptions, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._selection = options.selection
        self._poll_s, self._wait_s = options.offset_poll_ms / 1000, options.broker_wait_ms / 1000
        self._last: Snapshot | None = None
        self._took_s = 0.0
        self._away_since_s: dict[str, float] = {}

    def latest(self, *, fresh: bool = False, complete: bool = False) -> Snapshot:
        """Return the brokers' ranges; asked now if ``fresh`` or due, and from all brokers if ``complete``.

        Raises:
            ConnectionFailed, DeadlineExceeded: A broker has been away for too long, or with ``complete`` is away now.
        """
        last = self._last
        asked_s = self._clock.monotonic()
        due = last is None or asked_s - last.since_s >= self._pause_s
        if last is None or fresh or due or (complete and last.away):
            self._last = last = self._ask(complete or last is None, complete)
            self._took_s = last.since_s - asked_s
        return last

    @property
    def _pause_s(self) -> float:
        """How long an answer is used."""
        return max(self._poll_s, min(PAUSE_PER_LOOKUP * self._took_s, PAUSE_S_MAX))

    def is_away(self, where: TopicPartition) -> bool:
        """Whether the broker of a partition that is not listed did not answer the last look-up."""
        return self._last is not None and self._cluster.broker_of(where) in self._last.away

    def _ask(self, at_once: bool, complete: bool) -> Snapshot:
        """``at_once``: a silent broker fails the look-up; ``complete``: a broker that is not listed, too."""
        if at_once or not self._away_since_s:
            try:
                available = self._cluster.available(self._selection)
            except MetaqError as error:
                if at_once or not error.retryable:
                    raise
            else:
                missed = dict(self._cluster.missed)
                if complete and missed:
                    raise next(iter(missed.values()))
                self._note(missed)
                return Snapshot(available, self._clock.monotonic(), missed)
        available, away = self._cluster.available_now(self._selection)
        self._note(away)
        return Snapshot(available, self._clock.monotonic(), away)

    def _note(self, away: Mapping[str, MetaqError]) -> None:
        now_s = self._clock.monotonic()
        for broker, error in away.items():
            if broker not in self._away_since_s:
                _log.warning("%s. Its partitions wait; the query continues with the others", error)
        for broker in self._away_since_s.keys() - away.keys():
            _log.warning("broker %s is back after %.0f s", broker, now_s - self._away_since_s[broker])
        self._away_since_s = {broker: self._away_since_s.get(broker, now_s) for broker in away}
        for broker, error in away.items():
            if now_s - self._away_since_s[broker] >= self._wait_s:
                raise error


class IdleBackoff:
    """Sleeps before answers without new data. ``cpu_s`` returns this process's seconds."""

    def __init__(self, clock: Clock, cpu_s: Callable[[], float] = time.process_time) -> None:
        self._clock, self._cpu_s = clock, cpu_s
        self._since_cpu_s: float | None = None

    def rest(self) -> None:
        """Sleep before an answer without new data is returned."""
        if self._since_cpu_s is not None:
            rest_s = min(REST_PER_ANSWER * (self._cpu_s() - self._since_cpu_s), REST_S_MAX)
            if rest_s >= REST_S_MIN:
                self._clock.sleep(rest_s)
        self._since_cpu_s = self._cpu_s()

    def reset(self) -> None:
        """Begin again: this answer has a new batch."""
        self._since_cpu_s = None
