"""Messages by key: 12, on an index of KEYS and UNIQ_KEY that can be rebuilt from the log.

Every stored message is added to the index. Messages that are not in its files are read from the log in parts, with
pauses, so that clients are served meanwhile: after a restart, and every ten minutes for messages that could not be
added.

The index's name of a partition contains its incarnation: a recreated topic has other messages with the same ordinals.

Source: docs/rocketmq-broker.md, "Lookups".
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from metaq.formats.checksum import crc32
from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import attribute_span
from metaq.formats.rocketmq.properties import KEYS, UNIQ_KEY
from metaq.formats.rocketmq.records import Record, encode_record, read_records
from metaq.formats.stored_records import Wanted
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.pulls import QueryMessage, QueryMessageResponse
from metaq_broker.background import begin_work
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.key_index.coverage import Partition
from metaq_broker.rocketmq.key_index.key_index import KeyIndex, topic_seed
from metaq_broker.rocketmq.key_index.run_file import Covered, encode_entry
from metaq_broker.rocketmq.messages.message_store import MessageStore, NumberPending
from metaq_broker.rocketmq.session import Call
from metaq_broker.rocketmq.system_topics import NOT_WRITTEN_BY_CLIENTS

_LOG: Final = logging.getLogger(__name__)

MESSAGES_MAX: Final = 64
"""Limit on messages of one response."""
ANSWER_BYTES_MAX: Final = 4 << 20
CANDIDATES_MAX: Final = 512
"""Limit on entries of the index that one request checks."""
REQUESTS_MAX: Final = 64
"""Limit on look-ups in progress."""
READ_MESSAGES: Final = 256
PAUSE_SHARE: Final = 4
"""Reading old messages takes at most one part in so many of the event loop's time."""
LOOK_S: Final = 600.0
"""Seconds between two checks for deleted messages, and for entries to write."""

_KEYS: Final = re.compile(b"KEYS?\x01([^\x02]+)")
"""Values of KEYS and UNIQ_KEY, and possibly of properties with this suffix: a look-up checks the message itself."""

Ranges = Callable[[], Mapping[Partition, tuple[int, int]]]
"""Returns first and next queue offset of all queues that can be read."""

Name = Callable[[str, int], str]
"""Returns the index's name of a partition."""


class LookupRequests:
    def __init__(
        self,
        store: MessageStore,
        index: KeyIndex,
        ranges: Ranges,
        name_of: Name = lambda topic, _queue: topic,
    ) -> None:
        self._store, self._index, self._ranges, self._name_of = store, index, ranges, name_of
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None

    def mount(self, dispatcher: Dispatcher) -> None:
        dispatcher.add([QueryMessage.CODE], self._query)

    def start(self) -> None:
        """Index new messages from now on, and read missing ones."""
        self._index.watch_from_now()
        self._reading = begin_work(self._look_after(), "index of keys")

    async def stop(self) -> None:
        """Write the entries in memory. Look-ups in progress are not answered."""
        tasks = [*self._tasks, *([self._reading] if self._reading else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._index.close()

    def stored(
        self, topic: str, queue: int, first: int, frames: FrameBlock, places: Sequence[int] | None, ms: int
    ) -> None:
        """Add messages that were stored in one unit."""
        name, end = self._name_of(topic, queue), first + frames.count
        if places is None:
            self._index.missed(Covered(name, queue, first, end))
            return
        entries: list[bytes] = []
        if topic not in NOT_WRITTEN_BY_CLIENTS:
            seed, data, start = topic_seed(topic), frames.data, 0
            for frame_end, place in zip(frames.ends, places, strict=True):
                for value in _KEYS.findall(data, *attribute_span(data, start)):
                    if b" " in value:
                        entries += [encode_entry(crc32(key, seed), place, ms) for key in value.split(b" ") if key]
                    else:
                        entries.append(encode_entry(crc32(value, seed), place, ms))
                start = frame_end
        self._index.add(name, queue, first, end, entries)

    # ---- 12

    def _query(self, call: Call) -> RemotingCommand | None:
        asked = QueryMessage.from_ext(call.request.ext)
        if len(self._tasks) >= REQUESTS_MAX:
            remark = f"{REQUESTS_MAX} lookups are under way; try again"
            return call.request.reply(ResponseCode.SYSTEM_BUSY, remark=remark)
        task = asyncio.get_running_loop().create_task(self._answer(call, asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _answer(self, call: Call, asked: QueryMessage) -> None:
        records = await self._find(asked)
        latest = self._index.latest
        ext = QueryMessageResponse(
            index_last_update_timestamp=latest.time_ms, index_last_update_phyoffset=latest.place
        ).ext()
        if records:
            call.answer(call.request.reply(ext=ext, body=b"".join(records)))
        else:
            remark = "can not find message, maybe time range not correct"
            call.answer(call.request.reply(ResponseCode.QUERY_NOT_FOUND, ext, remark=remark))

    async def _find(self, asked: QueryMessage) -> list[bytes]:
        """Return the latest messages, up to the requested number, in the order in which they were stored."""
        count = min(max(asked.max_num, 0), MESSAGES_MAX)
        entries = await self._index.find(
            asked.topic, asked.key, asked.begin_timestamp, asked.end_timestamp, CANDIDATES_MAX
        )
        found: list[tuple[int, int, bytes]] = []
        byte_count = 0
        for entry in entries:
            if len(found) >= count:
                break
            await asyncio.sleep(0)  # others are served between two messages, which may be large, and all in vain
            record = self._store.find(entry.place)
            if isinstance(record, Refusal) or not _has_key(record, asked):
                continue
            data = encode_record(record)
            byte_count += len(data)
            if found and byte_count > ANSWER_BYTES_MAX:
                break
            found.append((record.store_timestamp, record.physical_offset, data))
        return [data for _, _, data in sorted(found)]

    # ---- gaps of the index

    async def _look_after(self) -> None:
        await self._read_gaps()
        while True:
            await asyncio.sleep(LOOK_S)
            ranges = self._ranges().items()
            self._index.drop_before({(self._name_of(*queue), queue[1]): first for queue, (first, _) in ranges})
            await self._index.flush()
            await self._read_gaps()

    async def _read_gaps(self) -> None:
        messages, known = 0, self._index.coverage()
        for (topic, queue), (first, end) in self._ranges().items():
            for gap in known.gaps(self._name_of(topic, queue), queue, first, end):
                messages += gap[1] - gap[0]
                await self._read_gap(topic, queue, *gap)
        if messages:
            _LOG.info("index of keys: messages were read again", extra={"fields": {"messages": messages}})

    async def _read_gap(self, topic: str, queue: int, first: int, end: int) -> None:
        loop, name = asyncio.get_running_loop(), self._name_of(topic, queue)
        while first < end and name == self._name_of(topic, queue):
            began = loop.time()
            messages_max = min(READ_MESSAGES, end - first)
            batch = self._store.read(topic, queue, first, Wanted(messages_max, 1 << 20, messages_max))
            if isinstance(batch, NumberPending):
                numbered: asyncio.Future[Refusal | None] = loop.create_future()
                self._store.when_numbered(batch, numbered.set_result)
                if await numbered is None:
                    continue
            if isinstance(batch, Refusal):
                fields = {"topic": topic, "queue": queue, "reason": batch}
                _LOG.warning("index of keys: a queue cannot be read", extra={"fields": fields})
                return
            next_offset = batch.next_offset if batch.next_offset > first else max(batch.min_offset, end)
            entries = [] if topic in NOT_WRITTEN_BY_CLIENTS else list(_entries(topic, batch.records))
            self._index.add_old(Covered(name, queue, first, next_offset), entries)
            first = next_offset
            await asyncio.sleep((PAUSE_SHARE - 1) * (loop.time() - began))


def _entries(topic: str, records: bytes) -> Iterator[bytes]:
    seed = topic_seed(topic)
    for record in read_records(records):
        for value in _KEYS.findall(record.properties):
            for key in value.split(b" "):
                if key:
                    yield encode_entry(crc32(key, seed), record.physical_offset, record.store_timestamp)


def _has_key(record: Record, asked: QueryMessage) -> bool:
    if record.topic != asked.topic or not asked.begin_timestamp <= record.store_timestamp <= asked.end_timestamp:
        return False
    properties = record.property_map()
    if properties.get(UNIQ_KEY) == asked.key:
        return True
    return not asked.unique_key and asked.key in properties.get(KEYS, "").split(" ")
