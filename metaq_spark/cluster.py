"""The brokers as the connector asks about them: who they are, what they hold, where frames begin.

Every question is asked again after a lost connection or no answer, as the options ``retries`` and ``retryIntervalMs``
say. Nothing is cached here; sockets are pooled for the whole process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

from metaq.client.boundaries import frame_boundary
from metaq.client.clock import SYSTEM_CLOCK, Clock
from metaq.client.fetch import Run, fetch
from metaq.client.pool import SessionPool
from metaq.client.retry import Attempts, RetryPolicy
from metaq.client.session import Session
from metaq.client.tls import TlsSettings, TlsTransport
from metaq.client.transport import Timeouts
from metaq.directory.base import Directory
from metaq.directory.fixed import FixedDirectory
from metaq.errors import DataMissing, MetaqError, TopicNotFound
from metaq.model import Address, OffsetRange, Partition, TopicPartition
from metaq.wire.text.frames import HEADER_BYTES
from metaq_spark.errors import BrokerNotNamed
from metaq_spark.options import BrokerOptions

T = TypeVar("T")


@functools.cache
def pool_with(timeouts: Timeouts, tls: TlsSettings | None = None) -> SessionPool:
    """The pool of this process for connections with these deadlines, secured with ``tls`` if that is given."""
    return SessionPool(timeouts) if tls is None else SessionPool(timeouts, TlsTransport(tls))


class Cluster:
    """Implements ``planning.FrameBoundaries``.

    All methods raise ``ConnectionFailed`` or ``DeadlineExceeded``, naming the broker, when retrying did not help.
    """

    def __init__(self, options: BrokerOptions, pool: SessionPool | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._pool = pool or pool_with(options.timeouts, options.tls)
        self._directory: Directory = FixedDirectory(options.brokers, self._pool)
        self._names = [str(address) for address in options.brokers]
        self._policy = RetryPolicy(options.retries, options.retry_interval_ms / 1000)
        self._clock = clock
        self._addresses: dict[int, Address] = {}

    def held(self, topics: Sequence[str]) -> dict[TopicPartition, OffsetRange]:
        """What can be read now of every partition of ``topics`` that was ever written to."""
        return self._persist(lambda: self._directory.ends(topics))

    def writable(self, topic: str) -> dict[Partition, Address]:
        """Where messages of ``topic`` can be put, in the order of the partitions.

        Raises:
            TopicNotFound: No broker accepts the topic.
        """
        return self._persist(lambda: self._directory.writable(topic))

    def require_stored(self, topics: Sequence[str]) -> None:
        """Check that the brokers know every topic: by name in their configuration, or because it has messages.

        Raises:
            TopicNotFound: They do not.
        """
        known = self._persist(self._directory.topics)
        for topic in topics:
            if topic not in known:
                raise TopicNotFound(topic, self._names, sorted(known))

    def require_possible(self, topics: Sequence[str]) -> None:
        """Check that every topic is known or would be accepted: somebody may write its first message later.

        Raises:
            TopicNotFound: No broker accepts the topic.
        """
        known = self._persist(self._directory.topics)
        for topic in topics:
            if topic not in known:
                self.writable(topic)

    def address_of(self, where: TopicPartition) -> Address:
        """The broker that serves a partition.

        Raises:
            BrokerNotNamed: None of the brokers has that broker id.
        """
        broker_id = where.partition.broker_id
        if broker_id not in self._addresses:
            self._addresses = self._persist(self._directory.brokers)
        if broker_id not in self._addresses:
            raise BrokerNotNamed(str(where), broker_id, [f"{at} ({known})" for known, at in self._addresses.items()])
        return self._addresses[broker_id]

    def at_or_below(self, where: TopicPartition, offset: int, floor: int) -> int:
        """See ``FrameBoundaries``."""
        if offset <= floor:
            return floor
        topic, index = where.topic, where.partition.index
        return self._with_session(where, lambda session: frame_boundary(session, topic, index, offset, floor))

    def end_of_frame(self, where: TopicPartition, offset: int) -> int:
        """See ``FrameBoundaries``.

        Raises:
            DataMissing: There is no frame at ``offset``.
        """
        topic, index = where.topic, where.partition.index
        outcome = self._with_session(where, lambda session: fetch(session, topic, index, offset, HEADER_BYTES))
        if not isinstance(outcome, Run) or len(outcome.data) < HEADER_BYTES:
            raise DataMissing(str(where), offset, offset + HEADER_BYTES, "no frame there")
        return offset + HEADER_BYTES + int.from_bytes(outcome.data[:4], "big", signed=True)

    def _with_session(self, where: TopicPartition, ask: Callable[[Session], T]) -> T:
        def leased() -> T:
            with self._pool.lease(self.address_of(where)) as session:
                return ask(session)

        return self._persist(leased)

    def _persist(self, ask: Callable[[], T]) -> T:
        attempts = Attempts(self._policy, self._clock)
        while True:
            try:
                return ask()
            except MetaqError as error:
                attempts.pause_after(error)
