"""The message store: what is sent comes back as records, by queue offset, by physical offset and by time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest
from metaq_broker.clock import Clock
from metaq_broker.log.engine.appends import Append, Terms
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.outcomes import NothingAt, PartitionClosed, PartitionUnknown, Refusal
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_table import LoopDriver, StateTable
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.configuration import parse
from metaq_broker.rocketmq.messages.message_store import (
    MessageStore,
    NumberPending,
    OutgoingMessage,
    ReadRecords,
    StoredBatch,
)
from metaq_broker.rocketmq.messages.partition_numbers import PartitionNumbers
from metaq_broker.rocketmq.pulls.filters import LOOKED_AT_MAX
from metaq_broker.statistics import Statistics

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_body, encode_frame
from metaq.formats.message_id import IdWorker
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.records import Record, read_records
from metaq.formats.stored_records import Wanted
from metaq.model import Message

SYSTEM = (
    "[system]\nbrokerId=5\nnumPartitions=4\nunflushThreshold=0\nunflushInterval=1000\nmaxSegmentSize={segment}\n"
    "maxTransferSize=1024\ndataPath={folder}\nmaxMessageSize=1000000\n[topic=t]\n"
)
HERE = host_bytes("127.0.0.1", 10911)
BORN = host_bytes("10.0.0.1", 999)


class Opened:
    """An engine with topic ``t`` of four partitions, and a message store on it."""

    def __init__(self, engine: Engine, commit: GroupCommit, state: StateTable) -> None:
        self.engine, self.commit, self.state = engine, commit, state
        self.store = MessageStore(engine, PartitionNumbers(state), HERE)

    async def send(self, *bodies: bytes, queue: int = 0, tag: str = "") -> StoredBatch:
        """Store one unit; return where it is."""
        stored = await self.outcome(*bodies, queue=queue, tag=tag)
        assert isinstance(stored, StoredBatch), stored
        return stored

    async def outcome(self, *bodies: bytes, queue: int = 0, tag: str = "") -> StoredBatch | Refusal:
        """Store one unit; return what came of it."""
        future: asyncio.Future[StoredBatch | Refusal] = asyncio.get_running_loop().create_future()
        properties = b"TAGS\x01" + tag.encode() if tag else b"K\x01v"
        self.store.append(
            "t", queue, [OutgoingMessage(body, properties, 5, BORN) for body in bodies], future.set_result
        )
        return await future

    async def put(self, body: bytes, attribute: str | None = None, queue: int = 0) -> None:
        """Put one message as MetaQ's clients do."""
        future: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        frame = encode_frame(0, *encode_body(Message(body, attribute)))
        self.engine.append(Append("t", queue, FrameBlock(frame, 1), Terms.BLOCK), future.set_result)
        assert await future is None

    async def numbered(self, pending: object) -> Refusal | None:
        """Wait until the messages of a partition have numbers; return what came of it."""
        assert isinstance(pending, NumberPending)
        future: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self.store.when_numbered(pending, future.set_result)
        return await future

    def read(self, offset: int = 0, messages: int = 100, size: int = 1 << 20, **more: object) -> ReadRecords:
        """Read what is there."""
        batch = self.store.read("t", 0, offset, Wanted(messages, size, LOOKED_AT_MAX, **more))  # type: ignore[arg-type]
        assert isinstance(batch, ReadRecords), batch
        return batch

    def bodies(self, offset: int = 0, **more: object) -> list[bytes]:
        """Read what is there; return the bodies."""
        return [record.body for record in read_records(self.read(offset, **more).records)]


def play_with_damage(
    folder: Path,
    count: int,
    damaged: Collection[int],
    scenario: Callable[[Opened], Awaitable[None]],
    *,
    is_known: bool = False,
) -> None:
    """Store ``count`` messages, damage some of them, and run ``scenario``.

    ``is_known``: the file is newer than the stop, so that the start looks at every message and sets these aside.
    """

    async def send(opened: Opened) -> None:
        for number in range(count):
            await opened.send(b"message %d" % number)

    play(folder, send)
    (segment,) = (folder / "t-0").glob("*.meta")
    content, time_ns = segment.read_bytes(), segment.stat().st_mtime_ns
    for number in damaged:
        content = content.replace(b"message %d" % number, b"massage %d" % number)
    segment.write_bytes(content)
    if not is_known:
        os.utime(segment, ns=(time_ns, time_ns))  # as if nobody had written: a failing disk
    play(folder, scenario)


def play(folder: Path, scenario: Callable[[Opened], Awaitable[None]], segment: int = 1 << 20) -> None:
    """Open everything in ``folder``, run ``scenario``, close everything."""

    async def run() -> None:
        config, clock = parse(SYSTEM.format(folder=folder, segment=segment).encode()), Clock()
        files = Files()
        stores, commit = TopicStores.open(files, clock, config), GroupCommit()
        engine = Engine(config, stores, commit, IdWorker(5), clock, Statistics(clock.monotonic, lambda topic: False))
        state = StateTable.open(files, folder / "state", LoopDriver())
        try:
            await scenario(Opened(engine, commit, state))
            await commit.drain()
        finally:
            state.close()
            commit.stop()
            stores.close(clean=True)

    asyncio.run(run())


def test_units_have_dense_offsets_and_ids_that_lead_back(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        first = await opened.send(b"one")
        both = await opened.send(b"two", b"three")
        other = await opened.send(b"other queue", queue=3)
        assert [first.queue_offset, both.queue_offset, other.queue_offset] == [0, 1, 0]
        physical = [*first.physical_offsets, *both.physical_offsets, *other.physical_offsets]
        assert len(set(physical)) == 4
        found = [opened.store.find(each) for each in physical]
        assert [each.body for each in found if isinstance(each, Record)] == [b"one", b"two", b"three", b"other queue"]
        batch = opened.read()
        records = list(read_records(batch.records))
        assert records == found[:3]
        assert [each.queue_offset for each in records] == [0, 1, 2]
        assert [each.physical_offset for each in records] == physical[:3]
        assert [each.offset_message_id for each in records] == [*first.message_ids(), *both.message_ids()]
        assert (batch.next_offset, batch.min_offset, batch.max_offset) == (3, 0, 3)
        assert records[1].store_timestamp == both.store_time
        assert (records[0].born_timestamp, records[0].born_host) == (5, BORN)

    play(tmp_path, scenario)


def test_numbers_last_over_restarts_and_are_not_given_twice(tmp_path: Path) -> None:
    known: list[int] = []

    async def before(opened: Opened) -> None:
        known.extend((await opened.send(b"one")).physical_offsets)
        known.extend((await opened.send(b"two", queue=1)).physical_offsets)

    async def after(opened: Opened) -> None:
        known.extend((await opened.send(b"three", queue=2)).physical_offsets)
        known.extend((await opened.send(b"four")).physical_offsets)
        bodies = [each.body for each in map(opened.store.find, known) if isinstance(each, Record)]
        assert bodies == [b"one", b"two", b"three", b"four"]

    play(tmp_path, before)
    play(tmp_path, after)


def test_the_numbers_of_a_deleted_partition_are_forgotten_and_not_given_again(tmp_path: Path) -> None:
    """Where topics come and go for years, the table would be full of them, and no new queue could be written."""
    known: list[int] = []

    async def before(opened: Opened) -> None:
        numbers = opened.store.numbers
        known.extend((await opened.send(b"one")).physical_offsets)
        for _ in range(3):
            known.extend((await opened.send(b"two", queue=1)).physical_offsets)
            numbers.forget("t", 1)
        numbers.forget("t", 2)
        assert [key for key, _ in opened.state.items("partition-number/")] == ["partition-number/1"]

    async def after(opened: Opened) -> None:
        known.extend((await opened.send(b"three", queue=2)).physical_offsets)
        assert [offset >> 40 for offset in known] == [1, 2, 3, 4, 5]
        found = [opened.store.find(each) for each in known]
        assert [each.body for each in found if isinstance(each, Record)] == [b"one", b"three"]

    play(tmp_path, before)
    play(tmp_path, after)


def test_a_partition_that_only_metaq_knows_is_numbered_before_it_is_read(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        await opened.put(b"from MetaQ", "tea")
        assert await opened.numbered(opened.store.read("t", 0, 0, Wanted(10, 1000, 10))) is None
        (record,) = read_records(opened.read().records)
        assert (record.body, record.property_map()) == (b"from MetaQ", {"TAGS": "tea"})
        assert opened.store.find(record.physical_offset) == record

    play(tmp_path, scenario)


def test_a_partition_that_was_made_anew_has_other_physical_offsets(tmp_path: Path) -> None:
    known: list[int] = []

    async def before(opened: Opened) -> None:
        known.extend((await opened.send(b"old")).physical_offsets)

    async def after(opened: Opened) -> None:
        await opened.put(b"new message")
        assert opened.store.find(known[0]) == NothingAt(known[0])
        known.extend((await opened.send(b"new")).physical_offsets)
        assert known[0] >> 40 != known[1] >> 40
        assert isinstance(opened.store.find(known[1]), Record)

    play(tmp_path, before)
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    (tmp_path / "t-0").rmdir()
    for name in ("durable-ends", "clean-shutdown"):
        (tmp_path / name).unlink(missing_ok=True)
    play(tmp_path, after)


def test_reads_over_segments_and_long_messages(tmp_path: Path) -> None:
    sizes = [10, 70_000, 5, 300_000, 0, 4000, 66_000, 1]

    async def scenario(opened: Opened) -> None:
        for size in sizes:
            await opened.send(bytes(size))
        assert list(map(len, opened.bodies())) == sizes
        for start in range(len(sizes)):
            assert list(map(len, opened.bodies(start))) == sizes[start:]
            assert list(map(len, opened.bodies(start, messages=2))) == sizes[start : start + 2]
        assert list(map(len, opened.bodies(0, size=75_000))) == sizes[:3]
        assert list(map(len, opened.bodies(3, size=1))) == sizes[3:4]

    play(tmp_path, scenario, segment=4096)


def test_outside_the_queue_there_is_nothing(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        await opened.send(b"one")
        for offset in (-1, 1, 7):
            assert opened.read(offset) == ReadRecords(b"", offset, 0, 1)
        assert opened.store.min_offset("t", 2) == opened.store.max_offset("t", 2) == 0
        for wrong in (-1, 2 << 40, 7, 1 << 62):
            assert opened.store.find(wrong) == NothingAt(wrong)

    play(tmp_path, scenario)


def test_tags_and_bounded_looks(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        for number in range(10):
            await opened.send(*[b"%d" % number] * 100, tag="even" if number % 2 == 0 else "odd")
        batch = opened.read(0, 1000, tags={b"odd"})
        assert [each.queue_offset for each in read_records(batch.records)] == [
            *range(100, 200),
            *range(300, 400),
            *range(500, 600),
            *range(700, 800),
        ]
        assert batch.next_offset == LOOKED_AT_MAX
        assert opened.read(0, tags={b"none"}).next_offset == LOOKED_AT_MAX

    play(tmp_path, scenario)


def test_a_condition_picks_messages_of_both_systems(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        for number in range(4):
            await opened.send(b"%d" % number, tag="even" if number % 2 == 0 else "odd")
        await opened.put(b"put", "odd")
        await opened.put(b"put")
        batch = opened.read(0, condition=lambda properties: properties.get("TAGS") == "odd")
        assert [each.queue_offset for each in read_records(batch.records)] == [1, 3, 4]
        assert (batch.next_offset, batch.looked_at) == (6, 6)

    play(tmp_path, scenario)


def test_times(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        stored = [await opened.send(b"%d" % number) for number in range(3)]
        times = [each.store_time for each in stored]
        assert [opened.store.store_time("t", 0, number) for number in range(-1, 4)] == [None, *times, None]
        assert opened.store.offset_at("t", 0, times[0]) == 0
        assert opened.store.offset_at("t", 0, times[-1] + 1) == 3
        assert opened.store.offset_at("t", 0, times[-1]) == times.index(times[-1])

    play(tmp_path, scenario)


def test_refusals(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        assert await opened.outcome(b"x", queue=4) == PartitionUnknown(4)
        opened.engine.close_partition("t", 0)
        assert await opened.outcome(b"x") == PartitionClosed(0)
        assert opened.store.read("t", 0, 0, Wanted(1, 1, 1)) == PartitionClosed(0)

    play(tmp_path, scenario)


def test_a_watch_is_called_when_there_is_more(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        seen: list[int] = []
        end = opened.store.watch("t", 0, lambda: seen.append(opened.store.max_offset("t", 0)))
        await opened.send(b"one")
        await opened.put(b"two")
        end()
        await opened.send(b"three")
        assert seen == [1, 2]

    play(tmp_path, scenario)


def test_damage_is_not_served(tmp_path: Path) -> None:
    async def after(opened: Opened) -> None:
        assert opened.bodies() == [b"message 0"]
        batch = opened.read(1)
        assert [each.queue_offset for each in read_records(batch.records)] == [2], "one wrong frame costs one frame"
        assert batch.next_offset == 3

    play_with_damage(tmp_path, 3, {1}, after)


@pytest.mark.parametrize("failing", ["full", "closed"])
def test_without_a_durable_number_nobody_gets_a_physical_offset(tmp_path: Path, failing: str) -> None:
    async def scenario(opened: Opened) -> None:
        if failing == "closed":
            opened.state.close()
        else:
            opened.state.bytes_max = 0
        stored = await opened.send(b"x", b"y")
        assert (stored.queue_offset, stored.physical_offsets) == (0, [0, 0])
        assert "its queue has no number for message ids yet" in str(stored.unnumbered)

    play(tmp_path, scenario)
