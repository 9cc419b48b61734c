"""Reads a topic's messages outside a group: what it holds now, or also what follows."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import Final

from metaq.backends.rocketmq.errors import QueuesAway, RequestRefused, TopicNotReadable
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.messages import read_messages
from metaq.backends.rocketmq.reads.pull_reader import PullSettings
from metaq.backends.rocketmq.reads.pulls import ALL, GROUP, Subscription
from metaq.client.browser import End, Start, TopicBrowser
from metaq.client.rocketmq.records import RocketReceived
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import OffsetRange, Partition, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock

RANGE_MESSAGES: Final = 10_000
"""Limit on offsets of a queue that are read before the broker is asked for the queue's range again."""


class RocketBrowser(TopicBrowser[RocketReceived]):
    """An iterator over the messages of ``topic``.

    Queues are read one after the other, each in its order, up to what is readable when the iteration begins, or up to
    ``end`` if that is reached first. With ``follow`` the iteration continues with new messages and never ends; new
    queues are read from their first message. ``positions`` has the next offset of each queue that was read: pass it as
    ``start`` to continue. ``require_brokers``: names of brokers without which nothing is read. Messages are pulled in
    the name of the group, but no offset is committed.

    Raises:
        ValueError, TypeError: ``start``, ``end``, ``partitions`` or ``require_brokers`` is not valid.

    Iterating raises:
        TopicNotFound: No name server knows the topic.
        TopicNotReadable: No broker allows reads of the topic.
        QueuesAway: A required broker, or the broker of a given queue, is in no route.
        ValueError: The topic does not have a given queue.
        OffsetOutOfRange: An offset in ``start`` is outside the stored range, or retention overtook the reader.
        CorruptRecord, CodecMissing: A message is damaged or cannot be decompressed; those before it were yielded.
        RequestRefused, AccessDenied: A broker refuses reads.
        ConnectionFailed, DeadlineExceeded, BrokerAway, NameServersAway: No server could be asked, after retries.
    """

    def __init__(
        self,
        directory: NameServerDirectory,
        pool: SessionPool,
        topic: str,
        *,
        partitions: Collection[Partition] | None = None,
        start: Start = "earliest",
        end: End | None = None,
        follow: bool = False,
        subscription: Subscription = ALL,
        group: str = GROUP,
        require_brokers: Collection[str | int] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(topic, partitions, start, end, follow, clock, require_brokers)
        self._directory, self._pool = directory, pool
        self._stops: Mapping[Partition, int] = {}
        within_s = pool.timeouts.all_tries_s
        self._offsets = Offsets(pool, directory, group=group, within_s=within_s)
        self._settings = PullSettings(group=group, subscription=subscription, within_s=within_s)

    def poll(self) -> Generator[RocketReceived, None, None]:
        ranges = self._ranges()
        if not self._is_begun:
            self._check(ranges)
            self.positions.update(self._first_positions(ranges))
            self._stops = self._end_offsets(ranges)
            self._is_begun = True
        for queue, offsets in ranges.items():
            yield from self._read(queue, offsets)

    def _ranges(self) -> dict[Partition, OffsetRange]:
        queues = [
            TopicPartition(self._topic, queue)
            for queue in self._directory.queues(self._topic)
            if self._wanted is None or queue in self._wanted
        ]
        return {where.partition: found for where, found in self._offsets.ranges(queues).items()}

    def _check(self, ranges: Mapping[Partition, OffsetRange]) -> None:
        queues, servers = self._directory.queues(self._topic), list(map(str, self._directory.servers))
        there = {queue.broker_name for queue in queues}
        if required := sorted(set(self._required) - there):
            raise QueuesAway(f"topic {self._topic}", required, servers)
        missing = sorted(self._named() - set(queues))
        if away := sorted({queue.broker_name for queue in missing} - there):
            raise QueuesAway(", ".join(f"{self._topic}/{queue}" for queue in missing), away, servers)
        if missing:
            present, names = ", ".join(map(str, queues)) or "none", ", ".join(map(str, missing))
            raise ValueError(f"topic {self._topic!r} has no queue {names}; it has {present}")
        if not queues:
            raise TopicNotReadable(self._topic, servers)

    def _first_positions(self, ranges: Mapping[Partition, OffsetRange]) -> dict[Partition, int]:
        match self._start:
            case "earliest":
                return {queue: offsets.start for queue, offsets in ranges.items()}
            case "latest":
                return {queue: offsets.end for queue, offsets in ranges.items()}
            case int(time_ms):
                return self._at(time_ms, ranges)
            case given:
                return {queue: given.get(queue, offsets.start) for queue, offsets in ranges.items()}

    def _end_offsets(self, ranges: Mapping[Partition, OffsetRange]) -> Mapping[Partition, int]:
        """Return where to stop, for queues that are not read to their end."""
        match self._end:
            case None:
                return {}
            case int(time_ms):
                return self._at(time_ms, ranges)
            case given:
                return given

    def _at(self, time_ms: int, queues: Iterable[Partition]) -> dict[Partition, int]:
        found = self._offsets.at({TopicPartition(self._topic, queue): time_ms for queue in queues})
        return {where.partition: offset for where, offset in found.items()}

    def _read(self, queue: Partition, offsets: OffsetRange) -> Iterator[RocketReceived]:
        """Yield the messages of a queue from its position on; the reader raises for an offset outside the
        stored range. A queue whose topic was deleted has none.
        """
        position = self.positions.setdefault(queue, offsets.start)
        if position > offsets.end:
            try:
                yield from self._read_range(queue, OffsetRange(position, position + 1))
            except RequestRefused as error:
                if not error.topic_is_missing:
                    raise
                return
        stop = min(offsets.end, self._stops.get(queue, offsets.end))
        while position < stop:
            wanted = OffsetRange(position, min(position + RANGE_MESSAGES, stop))
            yield from self._read_range(queue, wanted)
            self.positions[queue] = position = wanted.end  # includes messages that the filter left out

    def _read_range(self, queue: Partition, wanted: OffsetRange) -> Iterator[RocketReceived]:
        records = read_messages(self._pool, self._directory, self._topic, queue, wanted, self._settings)
        try:
            for record in records:
                message = RocketReceived.of(self._topic, queue, record)
                self.positions[queue] = message.end
                yield message
                self._pool.check_open()
        finally:
            records.close()
