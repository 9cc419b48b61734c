"""The state of a scripted RocketMQ broker in memory: topics, queues of records, positions of groups."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import Record, encode_record
from metaq.formats.rocketmq.tags import tag_hash
from metaq.formats.topic_names import TEMPLATE_TOPIC

READ: Final = 4
WRITE: Final = 2
INHERITED: Final = 1
_PHYSICAL: Final = slice(28, 36)
"""Position of the physical offset in a record."""


@dataclass(slots=True)
class Topic:
    """A topic's settings at one broker."""

    read_queues: int
    write_queues: int
    perm: int = READ | WRITE

    @property
    def queue_count(self) -> int:
        """Queues that exist in one way or the other."""
        return max(self.read_queues, self.write_queues)


@dataclass(frozen=True, slots=True)
class Stored:
    """A message: its record, and fields for lookups."""

    record: bytes
    store_ms: int
    tag_hash: int
    properties: Mapping[str, str]


@dataclass(slots=True)
class QueueLog:
    """The messages of one queue from offset ``first`` on; earlier ones were deleted."""

    first: int = 0
    stored: list[Stored] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.first + len(self.stored)

    def remove_below(self, offset: int) -> None:
        """Forget the messages below ``offset``, as retention does."""
        kept = max(0, min(offset, self.end) - self.first)
        del self.stored[:kept]
        self.first += kept

    def nearest(self, time_ms: int) -> int:
        """Return the message with the nearest store time, of two the earlier; the last for any later time. As
        in 4.9.7.
        """
        if not self.stored:
            return self.first
        times = [each.store_ms for each in self.stored]
        at = bisect.bisect_left(times, time_ms)
        if at == len(times) or (at > 0 and time_ms - times[at - 1] <= times[at] - time_ms and times[at] != time_ms):
            at -= 1
        return self.first + at

    def boundary(self, time_ms: int, upper: bool) -> int:
        """The first message at or after a time, or the last at or before it. As 5.1.1 and later."""
        times = [each.store_ms for each in self.stored]
        if upper:
            return self.first + max(0, bisect.bisect_right(times, time_ms) - 1)
        return self.first + bisect.bisect_left(times, time_ms)


class Store:
    """The state of one broker, which its slave shares. ``clock_ms`` returns store times."""

    def __init__(self, ip: str, clock_ms: Callable[[], int]) -> None:
        self._ip, self.clock_ms = ip, clock_ms
        self.topics: dict[str, Topic] = {TEMPLATE_TOPIC: Topic(8, 8, READ | WRITE | INHERITED)}
        self.group_offsets: dict[tuple[str, str, int], int] = {}
        self._queues: dict[tuple[str, int], QueueLog] = {}
        self._physical_end = 0

    def queue(self, topic: str, queue_id: int) -> QueueLog:
        """The queue's messages; a queue that does not exist has none."""
        return self._queues.get((topic, queue_id)) or QueueLog()

    def all(self) -> Iterator[tuple[str, int, int, Stored]]:
        """Yield topic, queue, physical offset and message of all that is stored."""
        for (topic, queue_id), queue in self._queues.items():
            for stored in queue.stored:
                yield topic, queue_id, int.from_bytes(stored.record[_PHYSICAL]), stored

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages."""
        self.topics.pop(topic, None)
        self._queues = {key: queue for key, queue in self._queues.items() if key[0] != topic}

    def append(
        self,
        topic: str,
        queue_id: int,
        messages: Iterable[tuple[bytes, Mapping[str, str], int]],
        *,
        port: int,
        born_ms: int,
        born: tuple[str, int],
        sys_flag: int = 0,
        reconsume_times: int = 0,
        store_ms: int | None = None,
    ) -> tuple[int, list[str]]:
        """Store bodies with properties and flags; return the first one's offset, and the ids of all."""
        queue = self._queues.setdefault((topic, queue_id), QueueLog())
        start = queue.end
        ids: list[str] = []
        host, born_host = host_bytes(self._ip, port), host_bytes(*born)
        stored_ms = self.clock_ms() if store_ms is None else store_ms
        for body, properties, flag in messages:
            text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
            record = encode_record(
                Record(
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=queue.end,
                    body=body,
                    properties=text.encode(),
                    flag=flag,
                    sys_flag=sys_flag,
                    physical_offset=self._physical_end,
                    born_timestamp=born_ms,
                    born_host=born_host,
                    store_timestamp=stored_ms,
                    store_host=host,
                    reconsume_times=reconsume_times,
                )
            )
            ids.append(str(OffsetMessageId(host, self._physical_end)))
            self._physical_end += len(record)
            tag = properties.get("TAGS")
            queue.stored.append(Stored(record, stored_ms, tag_hash(tag) if tag else 0, properties))
        return start, ids
