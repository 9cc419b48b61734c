"""What the brokers hold, as a running stream asks: not too often, and patient with a broker that is away.

Spark polls an idle query every few milliseconds; the brokers are asked at most every ``offsetPollMs``, and the last
answer stands in between. Where asking takes long, because of many partitions or a far broker, it is done more rarely,
down to every 100 ms, so that it takes a twentieth of the time at most.

When a broker cannot be asked even after retries, the others are asked alone from then on. Partitions of the one that
is away are then simply not there, which the planning takes as "stay". Only when it has been away for ``brokerWaitMs``
does the lookup fail, with an error that names the broker. The log says when a broker is away, and when it is back. A
lookup that must be complete (the first of a run, and those of AvailableNow, which ends when there is nothing left)
fails at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.errors import MetaqError
from metaq.model import Address, TopicPartition
from metaq.net.clock import Clock
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.offsets import Holdings
from metaq_spark.options.parsing import SourceOptions

_log = logging.getLogger(__name__)

PAUSE_PER_LOOKUP: Final = 20
"""How many times as long as a lookup took the next one is put off, ..."""

PAUSE_S_MAX: Final = 0.1
"""... up to this, or to ``offsetPollMs`` if that is more."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``available`` of the brokers that answered, at ``since_s`` of the clock; ``away`` are the others."""

    available: Holdings
    since_s: float
    away: Mapping[Address, MetaqError] = field(default_factory=dict)


class Lookup:
    """Asks ``cluster`` about what ``options`` select."""

    def __init__(self, cluster: Cluster, options: SourceOptions, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._selection = options.selection
        self._poll_s, self._wait_s = options.offset_poll_ms / 1000, options.broker_wait_ms / 1000
        self._last: Snapshot | None = None
        self._took_s = 0.0
        self._away_since_s: dict[Address, float] = {}

    def latest(self, *, fresh: bool = False, complete: bool = False) -> Snapshot:
        """What the brokers hold; asked now if ``fresh`` or if it is time again, and of all brokers if ``complete``.

        Raises:
            ConnectionFailed, DeadlineExceeded: A broker has been away for too long, or at all if ``complete``.
        """
        last = self._last
        asked_s = self._clock.monotonic()
        due = last is None or asked_s - last.since_s >= self._pause_s
        if last is None or fresh or due or (complete and last.away):
            self._last = last = self._ask(complete or last is None)
            self._took_s = last.since_s - asked_s
        return last

    @property
    def _pause_s(self) -> float:
        """How long an answer stands."""
        return max(self._poll_s, min(PAUSE_PER_LOOKUP * self._took_s, PAUSE_S_MAX))

    def is_away(self, where: TopicPartition) -> bool:
        """Whether the broker of a partition that is not listed did not answer the last time."""
        return self._last is not None and self._cluster.known_address(where) in self._last.away

    def _ask(self, complete: bool) -> Snapshot:
        if complete or not self._away_since_s:
            try:
                found = Snapshot(self._cluster.available(self._selection), self._clock.monotonic())
            except MetaqError as error:
                if complete or not error.retryable:
                    raise
            else:
                self._note({})
                return found
        available, away = self._cluster.available_now(self._selection)
        self._note(away)
        return Snapshot(available, self._clock.monotonic(), away)

    def _note(self, away: Mapping[Address, MetaqError]) -> None:
        now_s = self._clock.monotonic()
        for address, error in away.items():
            if address not in self._away_since_s:
                _log.warning("%s. Its partitions wait; the query goes on with the others", error)
        for address in self._away_since_s.keys() - away.keys():
            _log.warning("broker %s is back after %.0f s", address, now_s - self._away_since_s[address])
        self._away_since_s = {address: self._away_since_s.get(address, now_s) for address in away}
        for address, error in away.items():
            if now_s - self._away_since_s[address] >= self._wait_s:
                raise error
