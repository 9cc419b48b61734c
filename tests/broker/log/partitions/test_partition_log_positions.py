"""Boundaries, ordinals, times and counts against a brute-force model, over appends, rolls, lost indexes, restarts."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from metaq_broker.clock import ManualClock
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog
from stored import FOLDER, SMALL, START_MS, by_offset, contents, drop_segments, filled, frame, frames, open_log

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import EPOCH_MS

NO_TIME = None


@dataclass
class Model:
    """Every message appended: its offset, its end and its time."""

    offsets: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    times: list[int | None] = field(default_factory=list)

    def add(self, offset: int, size: int, time_ms: int | None) -> None:
        self.offsets.append(offset)
        self.ends.append(offset + size)
        self.times.append(time_ms)

    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    def boundary(self, offset: int) -> int:
        if offset >= self.end():
            return self.end()
        return self.offsets[bisect_right(self.offsets, offset) - 1] if self.offsets else 0

    def ordinal(self, offset: int) -> int:
        return sum(end <= offset for end in self.ends)

    def offset_of_message(self, ordinal: int) -> int:
        return [*self.offsets, self.end()][min(max(ordinal, 0), len(self.offsets))]

    def first_at(self, time_ms: int) -> int:
        later = [
            at for at, known in zip(self.offsets, self.times, strict=True) if known is not None and known >= time_ms
        ]
        return min(later, default=self.end())


def check(log: PartitionLog, model: Model, random: Random) -> None:
    end = model.end()
    assert log.readable_end == log.end_offset == end
    assert log.message_count == len(model.offsets)
    for offset in (-5, 0, end - 1, end, end + 7, *(random.randint(0, end + 1) for _ in range(25))):
        clamped = min(max(offset, 0), end)
        assert log.boundary(offset) == model.boundary(clamped)
        assert log.ordinal(offset) == model.ordinal(clamped)
        segment = log.segment_start(offset)
        assert segment == end if offset >= end else segment <= clamped
    for ordinal in (-1, 0, len(model.offsets), 2**63 - 1, *(random.randint(0, len(model.offsets)) for _ in range(25))):
        assert log.offset_of_message(ordinal) == model.offset_of_message(ordinal)
    for time_ms in {START_MS - 1, START_MS + 10**6, *(START_MS + random.randint(-30, 300) for _ in range(25))}:
        assert log.first_at(time_ms) == model.first_at(time_ms)


STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(0, 250), min_size=1, max_size=12)),
    st.tuples(st.just("block"), st.lists(st.integers(0, 250), min_size=1, max_size=12)),
    st.tuples(st.just("sync"), st.just([])),
    st.tuples(st.sampled_from(["close", "stop", "lose index", "cut index", "rot index"]), st.just([])),
)


class Subject:
    """A log and its model, driven by steps."""

    def __init__(self, root: Path, log_settings: LogSettings, seed: int) -> None:
        self.root, self.settings = root, log_settings
        self.random = Random(seed)
        self.clock = ManualClock(START_MS)
        self.model = Model()
        self.log = open_log(root, log_settings, clock=self.clock)
        self.count = 0

    def take(self, step: str, sizes: list[int]) -> None:
        if step in ("append", "block"):
            self.append(sizes, as_block=step == "block")
        self.log.sync()
        if step not in ("append", "block", "sync"):
            self.log.close(clean=step == "close")
            if step.endswith("index"):
                self.spoil_index(step.split()[0])
            verify = self.random.choice(["tail", "trust", "full"])
            self.log = open_log(self.root, self.settings, clock=self.clock, verify=verify)
        check(self.log, self.model, self.random)

    def append(self, sizes: list[int], *, as_block: bool) -> None:
        ids = (
            sorted(self.random.randint(0, 40) for _ in sizes)
            if as_block
            else [self.random.randint(0, 40) for _ in sizes]
        )
        self.clock.advance(self.random.randint(0, 20))
        now = self.clock.now_ms()
        items = []
        for size, late in zip(sizes, ids, strict=True):
            self.count += 1
            time_ms = now + late - 20
            items.append(encode_frame((time_ms - EPOCH_MS) << 22 | self.count, 0, self.random.randbytes(size)))
            self.model.add(self.model.end(), len(items[-1]), time_ms)
        if as_block:
            self.log.append_blocks([FrameBlock.of(items)])
        else:
            self.log.append(items)

    def spoil_index(self, how: str) -> None:
        for path in (self.root / FOLDER).glob("*.index"):
            content = bytearray(path.read_bytes())
            if how == "lose":
                path.unlink()
            elif how == "cut":
                path.write_bytes(content[: self.random.randint(0, len(content))])
            elif content:
                content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
                path.write_bytes(content)


# I1
@settings(max_examples=examples(150))
@given(
    st.lists(STEPS, min_size=1, max_size=12),
    st.sampled_from([300, 1500, 1 << 20]),
    st.sampled_from([1, 90, 700]),
    st.integers(0, 1 << 30),
)
def test_positions_match_a_model(steps: list[tuple[str, list[int]]], segment: int, interval: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(Path(folder), LogSettings(segment, interval), seed)
        for step, sizes in steps:
            subject.take(step, sizes)
        subject.log.close(clean=False)


# ---- times that ids do not tell


def test_the_clock_gives_the_time_of_ids_that_have_none(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, LogSettings(index_interval_bytes=1), clock=clock)
    offsets = []
    for number in range(10):
        offsets.append(log.append([encode_frame(-1 - number, 0, b"from a Java broker")]))
        clock.advance(1000)
    log.sync()
    for number, offset in enumerate(offsets):
        found = log.first_at(START_MS + 1000 * number)
        assert offsets[max(0, number - 1)] <= found <= offset
    assert log.first_at(START_MS + 9001) == log.readable_end


def test_a_wall_clock_that_jumps_back_does_not_confuse_the_index(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, LogSettings(index_interval_bytes=1), clock=clock)
    for jump in (0, 5000, -4000, 100):
        clock.set_now_ms(clock.now_ms() + jump)
        log.append([encode_frame(-1, 0, b"x" * 50)])
    log.sync()
    assert log.first_at(START_MS + 5001) == log.readable_end
    assert log.first_at(START_MS + 4999) <= 70


def test_without_times_a_rebuilt_index_answers_too_early_never_too_late(tmp_path: Path) -> None:
    stored = [encode_frame(-1 - number, 0, b"x" * 30) for number in range(40)]
    filled(tmp_path, stored, SMALL)
    for path in (tmp_path / FOLDER).glob("*.index"):
        path.unlink()
    log = open_log(tmp_path, SMALL)
    changed_ms = max(segment.mtime_ms for segment in log.segments())
    assert log.first_at(changed_ms + 1) == log.readable_end
    assert log.first_at(START_MS) == 0


# ---- damage


def test_positions_around_damage(tmp_path: Path) -> None:
    stored = frames(60)
    offsets = filled(tmp_path, stored, SMALL)
    segment = min((tmp_path / FOLDER).glob("*.meta"))
    content = bytearray(segment.read_bytes())
    content[offsets[4] + 25] ^= 1
    segment.write_bytes(content)
    log = open_log(tmp_path, SMALL, verify="full")
    assert log.boundary(offsets[4] + 10) == offsets[4]
    assert log.boundary(offsets[5] + 3) == offsets[5]
    assert [log.ordinal(at) for at in offsets] == list(range(60))
    assert [log.offset_of_message(number) for number in range(61)] == [*offsets, log.readable_end]
    assert log.first_at(START_MS + 4) == offsets[5]
    assert log.message_count == 59


# ---- the index file


def spoiled(content: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "header only": content[:32],
        "half a header": content[:20],
        "half an entry": content[:80],
        "another version": content[:7] + b"\2" + content[8:],
        "another segment's": content[:15] + bytes([content[15] ^ 1]) + content[16:],
        "zeros": bytes(len(content)),
        "zeros at the end": content[:96] + bytes(len(content) - 96),
        "entries too many": content + content[32:64],
        "random": Random(7).randbytes(len(content)),
    }


@pytest.mark.parametrize("fault", spoiled(bytes(128)))
@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "second", "last"])
def test_a_damaged_index_is_made_again(fault: str, which: int, tmp_path: Path) -> None:
    stored = frames(60)
    offsets = filled(tmp_path, stored, SMALL)
    path = sorted((tmp_path / FOLDER).glob("*.index"))[which]
    content = path.read_bytes()
    path.write_bytes(spoiled(content)[fault])
    log = open_log(tmp_path, SMALL)
    assert len(log.recovery.indexes_rebuilt) == 1
    assert path.read_bytes() == content
    assert [log.ordinal(at) for at in offsets] == list(range(60))
    assert [log.first_at(START_MS + number) for number in range(60)] == offsets


def test_the_index_of_other_bytes_is_found_out(tmp_path: Path) -> None:
    """Another program wrote a segment of the same size, with other frames in it."""
    stored = frames(60)
    filled(tmp_path, stored, SMALL)
    segment = min((tmp_path / FOLDER).glob("*.meta"))
    size = segment.stat().st_size
    others = [frame(100, b"y" * 100)]
    others.append(frame(101, b"z" * (size - len(others[0]) - 20)))
    segment.write_bytes(b"".join(others))
    log = open_log(tmp_path, SMALL)
    assert 0 in log.recovery.indexes_rebuilt
    assert list(contents(log))[:3] == [0, len(others[0]), size]
    assert log.boundary(len(others[0]) + 5) == len(others[0])


def test_an_index_that_cannot_be_read_only_makes_lookups_longer(tmp_path: Path) -> None:
    stored = frames(60)
    offsets = filled(tmp_path, stored, SMALL)
    log = open_log(tmp_path, SMALL)
    for path in (tmp_path / FOLDER).glob("*.index"):
        path.unlink()
    assert [log.boundary(at + 1) for at in offsets] == offsets
    assert [log.ordinal(at) for at in offsets] == list(range(60))


def test_orphaned_indexes_are_removed(tmp_path: Path) -> None:
    filled(tmp_path, frames(60), SMALL)
    orphan = tmp_path / FOLDER / "00000000000000000007.index"
    orphan.write_bytes(b"of a deleted segment")
    open_log(tmp_path, SMALL)
    assert not orphan.exists()


# I8
def test_ordinals_go_on_after_old_segments_are_gone(tmp_path: Path) -> None:
    stored = frames(150)
    offsets = filled(tmp_path, stored, SMALL)
    log = open_log(tmp_path, SMALL)
    drop_segments(log, 2)
    start = log.start_offset
    kept = {at: number for number, at in enumerate(offsets) if at >= start}
    log.close()
    for lost in (0, 1, 2):
        for path in sorted((tmp_path / FOLDER).glob("*.index"))[:lost]:
            path.unlink()
        log = open_log(tmp_path, SMALL)
        assert {at: log.ordinal(at) for at in kept} == kept
        assert {log.offset_of_message(number): number for number in kept.values()} == kept
        assert log.offset_of_message(0) == start
        assert log.message_count == len(kept)
        assert contents(log) == {at: item for at, item in by_offset(stored).items() if at >= start}
        log.close()


# I8
def test_without_indexes_ordinals_begin_above_all_that_were_given(tmp_path: Path) -> None:
    offsets = filled(tmp_path, frames(150), SMALL)
    log = open_log(tmp_path, SMALL)
    drop_segments(log, 2)
    gone = log.ordinal(log.start_offset)
    log.close()
    for path in (tmp_path / FOLDER).glob("*.index"):
        path.unlink()
    for verify in ("tail", "full", "trust"):
        log = open_log(tmp_path, SMALL, verify=verify)
        first = log.ordinal(0)
        assert first >= 150
        assert {log.ordinal(at) - first + gone for at in offsets[gone:]} == set(range(gone, 150))
        assert [log.offset_of_message(number - gone + first) for number in range(gone, 150)] == offsets[gone:]
        assert {log.offset_of_message(number) for number in range(151)} == {log.start_offset}
        log.close()


def test_damage_that_stands_for_several_messages_is_one_place(tmp_path: Path) -> None:
    """With the index, the damaged range counts as many messages as were in it; all others keep their ordinals."""
    offsets = filled(tmp_path, frames(60), SMALL)
    segment = min((tmp_path / FOLDER).glob("*.meta"))
    content = bytearray(segment.read_bytes())
    content[offsets[4] : offsets[7]] = bytes(offsets[7] - offsets[4])
    segment.write_bytes(content)
    log = open_log(tmp_path, SMALL, verify="full")
    (damaged,) = log.quarantined
    assert (damaged.start, damaged.end) == (offsets[4], offsets[7])
    assert [log.offset_of_message(number) for number in range(3, 9)] == [offsets[3], *[offsets[4]] * 3, *offsets[7:9]]
    assert [log.ordinal(at) for at in (offsets[3], offsets[4], offsets[7], offsets[8])] == [3, 4, 7, 8]
