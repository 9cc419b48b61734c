"""Looks up at the brokers what a lag needs: the ranges of partitions, message counts, and the age of the oldest
message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import ordinal_at
from metaq.backends.metaq.session import Session
from metaq.errors import MetaqError
from metaq.formats.frames import HEADER_BYTES, message_id_at
from metaq.formats.message_id import timestamp_ms
from metaq.model import Address, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.protocols.text.extensions import EXT_ORDINAL
from metaq_spark.backends.metaq.cluster import directory_of, pool_with
from metaq_spark.backends.metaq.options import BrokerOptions
from metaq_spark.lag.unread import LagStatus, PartitionLag, lags, waited_s
from metaq_spark.offsets import Progress

LOOKUP_S_MAX: Final = 10.0
"""Time limit: after it, the remaining partitions get only their lag in bytes."""


class LagLookup:
    """Asks the brokers of ``options``. Failures are not retried: the next progress follows soon."""

    def __init__(
        self,
        options: BrokerOptions,
        pool: SessionPool | None = None,
        clock: Clock = SYSTEM_CLOCK,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool or pool_with(options.reach)
        self._directory = directory_of(options, self._pool)
        self._clock, self._now_s = clock, now_s

    def lags(self, read_to: Progress, others: Iterable[TopicPartition] | None = ()) -> list[PartitionLag]:
        """Return the lag of every partition in ``read_to`` and ``others``, against what the brokers hold now.

        ``others`` = ``None``: all partitions of the topics in ``read_to``.

        ``messages`` is ``None`` if the broker does not count, ``seconds`` if its ids contain no time, and both for
        partitions that are reached after ``LOOKUP_S_MAX``.

        Raises:
            ConnectionFailed, DeadlineExceeded: A broker could not be asked.
            BrokerError: It refused, for example because a partition was just deleted.
        """
        end_s = self._clock.monotonic() + LOOKUP_S_MAX
        available = self._directory.available({where.topic for where in (*read_to.offsets, *(others or ()))})
        if others is not None:
            available = {where: available[where] for where in available.keys() & {*read_to.offsets, *others}}
        measured, asked = self._begun(lags(read_to, available), self._directory.brokers())
        for address, places in asked.items():
            self._count(address, places, measured, end_s)
        return measured

    def lags_now(self, read_to: Progress) -> tuple[list[PartitionLag], dict[str, MetaqError]]:
        """Return the lag of all partitions of the topics in ``read_to`` at the brokers that answer, and the errors of
        the others by address. A partition that may be at one of those is left out.
        """
        end_s = self._clock.monotonic() + LOOKUP_S_MAX
        available, silent = self._directory.available_now({where.topic for where in read_to.offsets})
        away = {str(address): error for address, error in silent.items()}
        found = [lag for lag in lags(read_to, available) if not away or lag.status_note is not LagStatus.GONE]
        measured, asked = self._begun(found, self._directory.brokers_now(silent))
        for address, places in asked.items():
            try:
                self._count(address, places, measured, end_s)
            except MetaqError as error:
                away[str(address)] = error
        return measured, away

    def _begun(
        self, measured: list[PartitionLag], addresses: Mapping[int, Address]
    ) -> tuple[list[PartitionLag], dict[Address, list[int]]]:
        """Return the lags, and which of them each broker has to be asked about."""
        by_broker: dict[Address, list[int]] = {}
        for place, lag in enumerate(measured):
            if lag.status_note is LagStatus.GONE:
                continue
            if not len(lag.unread):
                measured[place] = replace(lag, messages=0, seconds=0.0)
            elif lag.where.partition.broker_id in addresses:
                by_broker.setdefault(addresses[lag.where.partition.broker_id], []).append(place)
        return measured, by_broker

    def _count(self, address: Address, places: Sequence[int], measured: list[PartitionLag], end_s: float) -> None:
        with self._pool.lease(address) as session:
            for place in places:
                if self._clock.monotonic() < end_s:
                    measured[place] = self._counted(session, measured[place])

    def _counted(self, session: Session, lag: PartitionLag) -> PartitionLag:
        topic, index, unread = lag.where.topic, lag.where.partition.index, lag.unread
        messages = None
        if EXT_ORDINAL in session.extensions:
            before = ordinal_at(session, topic, index, unread.start)
            messages = ordinal_at(session, topic, index, unread.end) - before
        first = fetch(session, topic, index, unread.start, HEADER_BYTES)
        return replace(lag, messages=messages, seconds=self._age_s(first.data) if isinstance(first, Run) else None)

    def _age_s(self, header: bytes) -> float | None:
        if len(header) < HEADER_BYTES:
            return None
        born_ms = timestamp_ms(message_id_at(header))
        return None if born_ms is None else waited_s(born_ms, self._now_s())
