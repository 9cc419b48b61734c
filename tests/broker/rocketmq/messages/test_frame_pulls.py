"""What a request for frames (31002) finds in the log: whole frames, and which messages they are."""

from __future__ import annotations

from pathlib import Path

from metaq_broker.log.engine.outcomes import PartitionClosed, PartitionEmpty
from metaq_broker.rocketmq.messages.message_store import ReadRecords, StoredRun
from test_message_store import Opened, play, play_with_damage

from metaq.formats.frames import Frame, walk
from metaq.formats.rocketmq.records import read_record, read_records

SIZES = [10, 70_000, 5, 300_000, 0, 4000, 66_000, 1]


def stored(opened: Opened, offset: int, messages: int = 1000, size: int = 1 << 30) -> StoredRun:
    found = opened.store.stored("t", 0, offset, messages, size)
    assert isinstance(found, StoredRun), found
    return found


def frames_of(run: StoredRun) -> list[Frame]:
    """The frames of a run, all of whose bytes they are."""
    data = run.file.read()
    frames = list(walk(data, run.physical_offset))
    assert sum(each.end - each.offset for each in frames) == len(data) == run.file.length
    assert len(frames) == run.end - run.begin
    return frames


def test_frames_are_whole_and_where_records_say_that_they_are(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        for size in SIZES:
            await opened.send(bytes(size), tag="red")
        records = list(read_records(opened.read().records))
        for start in range(len(SIZES)):
            position, found = start, []
            while position < len(SIZES):
                run = stored(opened, position)
                assert (run.begin, run.min_offset, run.max_offset) == (position, 0, len(SIZES))
                found += frames_of(run)
                position = run.end
            assert [each.offset for each in found] == [each.physical_offset for each in records[start:]]
            assert [len(each.message.payload) for each in found] == SIZES[start:]
            assert {each.message.attribute for each in found} == {"red"}

    play(tmp_path, scenario, segment=200_000)


def test_no_more_messages_and_bytes_than_wanted_but_one(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        for size in SIZES:
            await opened.send(bytes(size))
        sizes = [each.end - each.offset for each in frames_of(stored(opened, 0))]
        for wanted in (1, 2, 3, 7):
            for start in range(len(SIZES) - wanted):
                run = stored(opened, start, wanted)
                assert (run.begin, run.end) == (start, start + wanted)
                frames_of(run)
        for start in range(len(SIZES)):
            for count in range(1, len(SIZES) - start):
                byte_count = sum(sizes[start : start + count])
                for limit, expected in ((byte_count, count), (byte_count - 1, max(1, count - 1))):
                    run = stored(opened, start, size=limit)
                    assert run.end == start + expected
                    frames_of(run)

    play(tmp_path, scenario)


def test_many_small_messages_over_the_index(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        for number in range(20):
            await opened.send(*[b"%d" % number] * 100)
        for start in (0, 1, 99, 100, 777, 1999):
            for wanted in (1, 10, 333, 2000):
                run = stored(opened, start, wanted)
                assert (run.begin, run.end) == (start, min(2000, start + wanted))
                assert [each.message.payload for each in frames_of(run)] == [
                    b"%d" % (number // 100) for number in range(run.begin, run.end)
                ]

    play(tmp_path, scenario)


def test_outside_the_queue_there_is_nothing(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        assert opened.store.stored("t", 2, 0, 10, 1000) == PartitionEmpty("t", 2)
        await opened.send(b"one")
        for offset in (-1, 1, 7):
            assert opened.store.stored("t", 0, offset, 10, 1000) == ReadRecords(b"", offset, 0, 1)
        opened.engine.close_partition("t", 0)
        assert opened.store.stored("t", 0, 0, 10, 1000) == PartitionClosed(0)

    play(tmp_path, scenario)


def test_a_partition_that_only_metaq_knows_is_numbered_first(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        await opened.put(b"from MetaQ", "tea")
        assert await opened.numbered(opened.store.stored("t", 0, 0, 10, 1000)) is None
        (frame,) = frames_of(stored(opened, 0))
        assert frame.offset == read_record(opened.read().records).physical_offset

    play(tmp_path, scenario)


def test_known_damage_is_passed_and_the_rest_has_its_offsets(tmp_path: Path) -> None:
    async def after(opened: Opened) -> None:
        assert [each.message.payload for each in frames_of(stored(opened, 0))] == [b"message 0", b"message 1"]
        for asked in (2, 3):
            run = stored(opened, asked)
            assert (run.begin, run.end) == (4, 6)
            assert [each.message.payload for each in frames_of(run)] == [b"message 4", b"message 5"]

    play_with_damage(tmp_path, 6, {2, 3}, after, is_known=True)


def test_damage_that_nobody_knows_of_is_for_the_reader_to_find(tmp_path: Path) -> None:
    async def after(opened: Opened) -> None:
        run = stored(opened, 0)
        assert (run.begin, run.end) == (0, 3)
        data = run.file.read()
        assert [each.intact for each in walk(data, verify=False)] == [True, False, True]

    play_with_damage(tmp_path, 3, {1}, after)
