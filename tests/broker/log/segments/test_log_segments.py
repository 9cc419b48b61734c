"""Segments: when the log rolls, which files make up a partition, what is served from them, and how they go."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from leaks import open_files
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.errors import PartitionRefused
from metaq_broker.log.files.files import HandleCache
from metaq_broker.log.partitions.partition_log import (
    LogSettings,
    PartitionLog,
    ReadAtEnd,
    ReadMoved,
    Slice,
)
from metaq_broker.log.segments.segment import delete_segment
from recordings import METAQ
from stored import (
    FOLDER,
    SMALL,
    START_MS,
    QuickFiles,
    by_offset,
    contents,
    drop_segments,
    filled,
    frame,
    frames,
    last_segment,
    open_log,
)

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import HEADER_BYTES
from metaq.model import Message

GOLDEN = METAQ / "segments" / "meta-test-0"


def sized(count: int, size: int, first: int = 0) -> list[bytes]:
    """Frames of ``size`` bytes each."""
    return [frame(first + number, b"b" * (size - 20)) for number in range(count)]


def segment_sizes(root: Path) -> list[tuple[int, int]]:
    return [(int(path.stem), path.stat().st_size) for path in sorted((root / FOLDER).glob("*.meta"))]


# ---- rolling

ROLLS = {
    "below the maximum": ([50], [(0, 50)]),
    "one byte below": ([60, 39], [(0, 99)]),
    "exactly the maximum": ([60, 40], [(0, 100), (100, 0)]),
    "one frame beyond": ([60, 60, 60], [(0, 120), (120, 60)]),
    "a frame larger than a segment": ([500], [(0, 500), (500, 0)]),
    "large frames in a row": ([500, 300], [(0, 500), (500, 300), (800, 0)]),
    "every frame fills one": ([100, 100], [(0, 100), (100, 100), (200, 0)]),
    "small ones": ([30] * 9, [(0, 120), (120, 120), (240, 30)]),
}


@pytest.mark.parametrize(("sizes", "expected"), ROLLS.values(), ids=ROLLS)
@pytest.mark.parametrize("together", [True, False], ids=["one-append", "many-appends"])
def test_roll_table(sizes: list[int], expected: list[tuple[int, int]], together: bool, tmp_path: Path) -> None:
    items = [frame(number, b"b" * (size - 20)) for number, size in enumerate(sizes)]
    log = open_log(tmp_path, LogSettings(segment_bytes_max=100))
    if together:
        assert log.append(items) == 0
    else:
        assert [log.append([item]) for item in items] == list(by_offset(items))
    log.sync()
    assert segment_sizes(tmp_path) == expected
    assert [(segment.start, segment.size) for segment in log.segments()] == expected
    assert [segment.read_only for segment in log.segments()] == [True] * (len(expected) - 1) + [False]
    assert contents(log) == by_offset(items)
    assert last_segment(tmp_path).name == f"{expected[-1][0]:020d}.meta"


@pytest.mark.parametrize(("before", "expected"), [(0, [(0, 400), (400, 0)]), (60, [(0, 460), (460, 0)])])
def test_a_block_is_never_divided(before: int, expected: list[tuple[int, int]], tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes_max=100))
    if before:
        log.append(sized(1, before))
    items = sized(10, 40)
    block = b"".join(items)
    assert log.append_blocks([FrameBlock(block, len(items))]) == before
    log.sync()
    assert segment_sizes(tmp_path) == expected
    assert list(contents(log).values())[-10:] == items


def test_a_full_last_segment_rolls_after_the_next_frame(tmp_path: Path) -> None:
    """A smaller maximum since the last start: the rule is looked at after a frame, as in MetaQ."""
    filled(tmp_path, sized(3, 50), LogSettings(segment_bytes_max=1000))
    log = open_log(tmp_path, LogSettings(segment_bytes_max=100))
    log.append(sized(1, 50))
    log.sync()
    assert segment_sizes(tmp_path) == [(0, 200), (200, 0)]


def test_an_append_of_nothing_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(frames(1))
    end = log.end_offset
    assert log.append([]) == end == log.end_offset


# ---- which files make up a partition


def test_a_segment_of_the_java_broker(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "meta-test-0")
    path = tmp_path / "meta-test-0" / "00000000000000000000.meta"
    path.chmod(0o644)
    content = path.read_bytes()
    log = PartitionLog.open(QuickFiles(), ManualClock(START_MS), tmp_path / "meta-test-0", LogSettings())
    assert (log.topic, log.index, log.readable_end) == ("meta-test", 0, len(content))
    assert [item.message for item in log.scan(0)] == [
        Message(b"FFFF"),
        Message(b"FFFF", "AAA"),
        Message(b""),
        Message("消息".encode(), "属性"),
        Message(b"zero-length attr", ""),
        Message(b"t1"),
    ]
    assert not log.recovery.bytes_cut
    log.append(frames(3))
    log.sync()
    assert path.read_bytes() == content + b"".join(frames(3))


def rename_segments(root: Path, digits: int) -> None:
    for path in (root / FOLDER).glob("*.meta"):
        path.rename(path.with_name(f"{int(path.stem):0{digits}d}.meta"))


@pytest.mark.parametrize("digits", [1, 20, 32])
def test_names_of_any_number_of_digits(digits: int, tmp_path: Path) -> None:
    stored = frames(60)
    filled(tmp_path, stored, SMALL)
    rename_segments(tmp_path, digits)
    log = open_log(tmp_path, SMALL)
    assert contents(log) == by_offset(stored)
    log.append(frames(1, 60))
    log.sync()
    assert contents(open_log(tmp_path, SMALL)) == by_offset(frames(61))


def test_a_partition_that_starts_elsewhere(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "00000000000000005000.meta").write_bytes(b"".join(frames(3)))
    log = open_log(tmp_path)
    assert (log.start_offset, log.ordinal(5000)) == (5000, log.end_offset // HEADER_BYTES)
    assert contents(log) == by_offset(frames(3), 5000)


# I6
@pytest.mark.parametrize("missing", [1, 2])
def test_a_gap_is_refused_by_name(missing: int, tmp_path: Path) -> None:
    filled(tmp_path, frames(100), SMALL)
    paths = sorted((tmp_path / FOLDER).glob("*.meta"))
    paths[missing].unlink()
    before = {path: path.read_bytes() for path in (tmp_path / FOLDER).iterdir()}
    with pytest.raises(PartitionRefused) as refused:
        open_log(tmp_path, SMALL)
    assert paths[missing - 1].name in str(refused.value)
    assert paths[missing + 1].name in str(refused.value)
    assert "gap" in str(refused.value)
    assert {path: path.read_bytes() for path in (tmp_path / FOLDER).iterdir()} == before


def test_overlapping_segments_are_refused(tmp_path: Path) -> None:
    filled(tmp_path, frames(60), SMALL)
    first = min((tmp_path / FOLDER).glob("*.meta"))
    first.write_bytes(first.read_bytes() + frame(70))
    with pytest.raises(PartitionRefused, match="overlap"):
        open_log(tmp_path, SMALL)


def test_two_files_of_one_start_are_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "0.meta").write_bytes(b"")
    (tmp_path / FOLDER / "00.meta").write_bytes(frame(1))
    with pytest.raises(PartitionRefused):
        open_log(tmp_path)


def test_a_segment_without_its_name_is_taken_over(tmp_path: Path) -> None:
    """The process ended before the sync: nothing in it was acknowledged, and nothing is wrong with it."""
    log = open_log(tmp_path, SMALL)
    log.append(frames(60))
    log.close(clean=False)
    assert len(list((tmp_path / FOLDER).glob("*.meta.new"))) >= 2
    again = open_log(tmp_path, SMALL)
    assert contents(again) == by_offset(frames(60))
    assert not list((tmp_path / FOLDER).glob("*.new"))


def test_a_segment_without_its_name_that_continues_nothing_is_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    log.append(frames(60))
    log.close(clean=False)
    first = min((tmp_path / FOLDER).glob("*.meta"))
    first.write_bytes(first.read_bytes()[:-1])
    again = open_log(tmp_path, SMALL)
    assert list(contents(again).values()) == frames(60)[: len(contents(again))]
    assert [path.name for path in (tmp_path / FOLDER).glob("*.meta*")] == [first.name]
    assert again.recovery.removed


# ---- reading


def test_read_table(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogSettings(segment_bytes_max=100))
    log.append(sized(5, 50))
    log.sync()
    log.append(sized(1, 50, first=5))
    rows = [
        (-1, 10, ReadMoved(0)),
        (0, 10, (0, 10)),
        (3, 1000, (3, 97)),
        (99, 1000, (99, 1)),
        (100, 1000, (0, 100)),
        (200, 1000, (0, 50)),
        (249, 1000, (49, 1)),
        (250, 1000, ReadAtEnd(250, 250)),
        (299, 1000, ReadAtEnd(250, 299)),
        (1 << 62, 1, ReadAtEnd(250, 1 << 62)),
    ]
    for offset, bytes_max, expected in rows:
        found = log.read(offset, bytes_max)
        if isinstance(found, Slice):
            assert (found.position, found.length) == expected
            assert found.offset == offset
            assert found.read() == b"".join(sized(5, 50))[offset : offset + found.length]
        else:
            assert found == expected


def test_damage_is_stepped_over(tmp_path: Path) -> None:
    offsets = filled(tmp_path, frames(10))
    path = last_segment(tmp_path)
    content = bytearray(path.read_bytes())
    content[offsets[4] + 30] ^= 1
    path.write_bytes(content)
    log = open_log(tmp_path)
    before = log.read(offsets[2], 10_000)
    assert isinstance(before, Slice)
    assert before.length == offsets[4] - offsets[2]
    assert log.read(offsets[4], 10_000) == log.read(offsets[4] + 7, 1) == ReadMoved(offsets[5])
    assert log.segment_start(offsets[4]) == 0


# I2
def test_what_is_not_durable_is_not_served(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(frames(1))
    assert log.read(0, 100) == ReadAtEnd(0, 0)
    assert (log.boundary(10), log.ordinal(10), log.offset_of_message(1), log.first_at(0)) == (0, 0, 0, 0)
    assert (log.message_count, log.unflushed_messages) == (1, 1)
    log.sync()
    assert isinstance(log.read(0, 100), Slice)
    assert log.unflushed_messages == 0


# ---- deleting


# I1
def test_deleting_moves_the_start(tmp_path: Path) -> None:
    stored = frames(100)
    filled(tmp_path, stored, SMALL)
    log = open_log(tmp_path, SMALL)
    segments = log.segments()
    drop_segments(log, 2)
    start = segments[2].start
    assert log.start_offset == start
    assert log.read(0, 10) == ReadMoved(start)
    assert (log.segment_start(0), log.boundary(0), log.first_at(0)) == (start, start, start)
    kept = {at: item for at, item in by_offset(stored).items() if at >= start}
    assert contents(log) == kept
    assert log.message_count == len(kept)
    assert log.ordinal(start) == len(stored) - len(kept)
    assert not segments[0].path.exists()
    assert not segments[0].index_path.exists()
    log.close()
    assert contents(open_log(tmp_path, SMALL)) == kept


# I6
def test_only_the_oldest_finished_segments_can_go(tmp_path: Path) -> None:
    filled(tmp_path, frames(100), SMALL)
    log = open_log(tmp_path, SMALL)
    segments = log.segments()
    with pytest.raises(ValueError, match="cannot forget"):
        log.forget_segments(len(segments))
    assert len(log.segments()) == len(segments)


# I6
def test_a_segment_that_is_not_durable_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    log.append(frames(100))
    with pytest.raises(ValueError, match="cannot forget"):
        log.forget_segments(1)
    assert log.removable == 0
    log.sync()
    drop_segments(log, log.removable)
    assert [segment.read_only for segment in log.segments()] == [False]


def test_forgotten_segments_are_deleted_later(tmp_path: Path) -> None:
    filled(tmp_path, frames(100), SMALL)
    log = open_log(tmp_path, SMALL)
    gone = log.forget_segments(2)
    assert [info.path.exists() for info in gone] == [True, True]
    assert log.start_offset == gone[-1].start + gone[-1].size
    for segment in gone:
        delete_segment(QuickFiles(), segment)
    assert [info.path.exists() for info in gone] == [False, False]


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    """The reader holds the slice, the slice holds the file: deleting, evicting and closing only drop their own hold."""
    stored = frames(100)
    filled(tmp_path, stored, SMALL)
    handles = HandleCache(QuickFiles(), 1)
    log = PartitionLog.open(QuickFiles(), ManualClock(START_MS), tmp_path / FOLDER, SMALL, handles=handles)
    slices = [log.read(segment.start, 1 << 20) for segment in log.segments() if segment.size]
    drop_segments(log, 3)
    log.append(frames(100, 100))
    log.sync()
    log.close()
    assert b"".join(found.read() for found in slices if isinstance(found, Slice)) == b"".join(stored)


def test_open_files_are_bounded(tmp_path: Path) -> None:
    filled(tmp_path, frames(1000), SMALL)
    handles = HandleCache(QuickFiles(), 3)
    before = open_files()
    log = PartitionLog.open(QuickFiles(), ManualClock(START_MS), tmp_path / FOLDER, SMALL, handles=handles)
    assert len(log.segments()) > 20
    assert len(contents(log)) == 1000
    assert [log.boundary(segment.start) for segment in log.segments()] == [segment.start for segment in log.segments()]
    assert (open_files() - before).total() <= 1 + 3
    assert len(handles) == 3
