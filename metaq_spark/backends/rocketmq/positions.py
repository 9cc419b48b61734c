"""Lookups of offsets in queues, whose offsets count messages: only sizes and times need requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pull_reader import NOT_AT_SLAVE
from metaq.backends.rocketmq.reads.pulls import PulledQueue, PulledRecords, describe, read_outcome
from metaq.backends.rocketmq.reads.record_walk import WantedRecords, measure_records, store_times
from metaq.backends.rocketmq.routes import Routes
from metaq.backends.rocketmq.session import Session
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError, ProtocolError
from metaq.model import OffsetRange, TopicPartition
from metaq.net.retry import RetryPolicy, persist
from metaq_spark.offsets import Ranges
from metaq_spark.source.backend import DensePositions

SAMPLE_MESSAGES: Final = 8
"""Messages at the start of a range that are sampled for their size."""

ASKED_MAX: Final = 64
"""Limit on pulls in flight to one broker."""

BYTES_UNKNOWN: Final = 1024.0
"""Assumed size of a message if none could be sampled."""


class QueuePositions(DensePositions):
    """Implements ``Positions``."""

    def __init__(self, pool: SessionPool, routes: Routes, offsets: Offsets, group: str, policy: RetryPolicy) -> None:
        self._pool, self._routes, self._offsets, self._policy = pool, routes, offsets, policy
        self._group = with_namespace(group, routes.namespace)
        self._sizes: dict[tuple[TopicPartition, int, int], float] = {}

    def bytes_per_offset(self, ranges: Ranges) -> Mapping[TopicPartition, float]:
        """Return the mean stored size of the first messages of each range.

        Messages of a range do not change, so the answer does not change either, unless retention deletes them. A
        micro-batch is limited first and then cut into tasks; the last answers are cached, so that brokers are asked
        once.

        A broker that is away is an error: a batch that was cut by an estimate would be cut differently when repeated,
        and its rows would be written with other UNIQ_KEYs.

        Raises:
            MetaqError: A broker could not be asked.
        """
        samples = {where: (where, span.start, _sample_count(span)) for where, span in ranges.items()}
        known = {where: self._sizes[sample] for where, sample in samples.items() if sample in self._sizes}
        sampled = known | self._ask_sizes({where: span for where, span in ranges.items() if where not in known})
        self._sizes = {samples[where]: size for where, size in sampled.items()}
        return dict.fromkeys(ranges, BYTES_UNKNOWN) | sampled

    def _ask_sizes(self, ranges: Ranges) -> dict[TopicPartition, float]:
        """Return the sizes for the ranges whose messages were received."""
        found: dict[TopicPartition, float] = {}
        by_broker: dict[str, list[TopicPartition]] = {}
        for where in ranges:
            by_broker.setdefault(where.partition.broker_name, []).append(where)
        for broker_name, queues in by_broker.items():
            for first in range(0, len(queues), ASKED_MAX):
                some = queues[first : first + ASKED_MAX]
                found |= persist(
                    lambda name=broker_name, part=some: self._sampled(name, part, ranges),  # type: ignore[misc]
                    self._policy,
                    self._pool.clock,
                )
        return found

    def first_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self._offsets.at(times_ms)

    def store_times_ms(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the store time of the message at each offset, as far as it is known."""
        found: dict[TopicPartition, int] = {}
        for where, at in starts.items():
            try:
                with self._pool.lease(self._routes.read_address(where.partition.broker_name)) as session:
                    command = self._pulled(where).pull(at, 1)
                    response = session.call(command, describe(command))
                    outcome = read_outcome(session, command, response)
                    data = outcome.data if isinstance(outcome, PulledRecords) else memoryview(b"")
            except MetaqError:
                continue
            name = with_namespace(where.topic, self._routes.namespace).encode()
            measured = measure_records(data, WantedRecords(name, where.partition.index, at, at + 1))
            for _, stored_ms in store_times(data[measured.begin : measured.stop]):
                found[where] = stored_ms
        return found

    def _sampled(
        self, broker_name: str, queues: Sequence[TopicPartition], ranges: Ranges
    ) -> dict[TopicPartition, float]:
        address = self._routes.read_address(broker_name)
        try:
            with self._pool.lease(address) as session:
                return self._mean_sizes(session, {where: ranges[where] for where in queues})
        except (ConnectionFailed, DeadlineExceeded):
            self._routes.avoid(address)
            raise
        except RequestRefused as refusal:
            raise _NotKnownYet(refusal) if refusal.code in NOT_AT_SLAVE else refusal from None
        except ProtocolError:
            return {}

    def _mean_sizes(self, session: Session, ranges: Ranges) -> dict[TopicPartition, float]:
        """Return the mean sizes. A broker returns fewer messages than requested if they are large or on disk: it is
        asked again, because the result must not depend on that.
        """
        sizes: dict[TopicPartition, list[int]] = {where: [] for where in ranges}
        left = {where: OffsetRange(one.start, one.start + _sample_count(one)) for where, one in ranges.items()}
        while left:
            commands = [self._pulled(where).pull(span.start, len(span)) for where, span in left.items()]
            opaques = session.post_all(commands, "pulls of a few messages")
            responses = [session.wait(opaque) for opaque in opaques]
            outcomes = [read_outcome(session, *pair) for pair in zip(commands, responses, strict=True)]
            asked, left = left, {}
            for (where, span), outcome in zip(asked.items(), outcomes, strict=True):
                if isinstance(outcome, PulledRecords) and outcome.data:
                    sizes[where] += (size for at, size in _records(outcome.data) if span.start <= at < span.end)
                    if outcome.next_offset < span.end:
                        left[where] = OffsetRange(outcome.next_offset, span.end)
        return {where: sum(some) / len(some) for where, some in sizes.items() if some}

    def _pulled(self, where: TopicPartition) -> PulledQueue:
        topic = with_namespace(where.topic, self._routes.namespace)
        return PulledQueue(topic, where.partition.broker_name, where.partition.index, self._group)


class _NotKnownYet(MetaqError):
    """A slave does not know the topic or the group yet; it copies both from its master periodically."""

    retryable = True

    def __init__(self, refusal: RequestRefused) -> None:
        self.refusal = refusal
        super().__init__(refusal)

    def __str__(self) -> str:
        return str(self.refusal)


def _sample_count(span: OffsetRange) -> int:
    return min(SAMPLE_MESSAGES, max(1, len(span)))


def _records(data: memoryview) -> Iterable[tuple[int, int]]:
    """Yield queue offset and size of each whole record in ``data``, up to an invalid one."""
    at = 0
    while at + 28 <= len(data):
        size = int.from_bytes(data[at : at + 4], signed=True)
        if size <= 0 or at + size > len(data):
            return
        yield int.from_bytes(data[at + 20 : at + 28], signed=True), size
        at += size
