"""Segments that leave the disk: what is there afterwards, byte for byte, and what an error or a crash leaves."""

from __future__ import annotations

import contextlib
import errno
import os
import zipfile
from datetime import datetime
from pathlib import Path
from random import Random

import pytest
from examples import spread
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import ReadMoved, Slice
from metaq_broker.log.retention.archive import (
    CHUNK_BYTES,
    PackingStopped,
    RemovalJob,
    archive_path,
    pack,
    remove_unfinished,
    zip_path,
)
from metaq_broker.log.retention.policy import Removal
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from retained import FOLDER, contents, frames, names, open_log, rolled_log

SEGMENTS = 4
PER_SEGMENT = 10
ALL = frames(SEGMENTS * PER_SEGMENT + 3)
SEGMENT_BYTES = {
    partition_key: b"".join(ALL[partition_key * PER_SEGMENT : (partition_key + 1) * PER_SEGMENT])
    for partition_key in range(SEGMENTS)
}


def segment_name(partition_key: int) -> str:
    return f"{sum(len(SEGMENT_BYTES[before]) for before in range(partition_key)):020d}.meta"


# ---- what is there afterwards


@pytest.mark.parametrize(
    ("removal", "suffix"), [(Removal.DELETE, None), (Removal.ARCHIVE, ".arc"), (Removal.ARCHIVE_PACKED, ".zip")]
)
def test_a_partition_without_its_oldest_segments(removal: Removal, suffix: str | None, tmp_path: Path) -> None:
    log = rolled_log(tmp_path)
    leave(log, removal, 2)
    left = [segment_name(partition_key) for partition_key in (2, 3)] + [f"{log.segments()[-1].start:020d}.meta"]
    gone = [] if suffix is None else [segment_name(partition_key) + suffix for partition_key in (0, 1)]
    assert names(tmp_path) == sorted(left + gone)
    assert len(list((tmp_path / FOLDER).glob("*.index"))) == 3
    for partition_key in (0, 1) if suffix else ():
        assert archived(tmp_path, partition_key) == SEGMENT_BYTES[partition_key]
    for again in (log, open_log(tmp_path), open_log(tmp_path, verify="full")):
        assert contents(again) == ALL[20:]
        assert (again.message_count, again.start_offset) == (23, len(b"".join(ALL[:20])))
        assert again.ordinal(again.start_offset) == 20
        assert again.read(0, 100) == ReadMoved(again.start_offset)


def leave(log: object, removal: Removal, count: int, files: Files | None = None) -> None:
    """Let the oldest segments leave, in the order of steps that retention has."""
    files = files or Files()
    if removal is not Removal.ARCHIVE_PACKED:
        RemovalJob(files, removal, log.forget_segments(count)).run()  # type: ignore[attr-defined]
        return
    for _ in range(count):
        pack(files, log.segments()[0].path)  # type: ignore[attr-defined]
        RemovalJob(files, removal, log.forget_segments(1)).run()  # type: ignore[attr-defined]


def archived(root: Path, partition_key: int) -> bytes:
    """The bytes of an archived segment; whole, or the test fails."""
    path = root / FOLDER / segment_name(partition_key)
    if archive_path(path).exists():
        return archive_path(path).read_bytes()
    with zipfile.ZipFile(zip_path(path)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [path.name]
        return archive.read(path.name)


def test_the_active_segment_alone_can_be_left(tmp_path: Path) -> None:
    log = rolled_log(tmp_path)
    leave(log, Removal.DELETE, 4)
    again = open_log(tmp_path)
    assert contents(again) == ALL[40:]
    more = frames(30, 43)
    again.append(more)
    again.sync()
    assert contents(again) == ALL[40:] + more
    with pytest.raises(ValueError, match="cannot forget"):
        again.forget_segments(len(again.segments()))


@pytest.mark.parametrize("removal", [Removal.ARCHIVE, Removal.ARCHIVE_PACKED], ids=lambda removal: removal.value)
def test_archives_can_be_brought_back(removal: Removal, tmp_path: Path) -> None:
    log = rolled_log(tmp_path)
    leave(log, removal, 3)
    log.close()
    for partition_key in (2, 1, 0):
        (tmp_path / FOLDER / segment_name(partition_key)).write_bytes(archived(tmp_path, partition_key))
    again = open_log(tmp_path)
    assert contents(again) == ALL
    assert (again.message_count, again.ordinal(again.start_offset)) == (43, 0)


def test_a_reader_keeps_what_it_has_begun_to_read(tmp_path: Path) -> None:
    log = rolled_log(tmp_path)
    held = [log.read(info.start, 1000) for info in log.segments()[:2]]
    leave(log, Removal.DELETE, 1)
    leave(log, Removal.ARCHIVE, 1)
    assert all(isinstance(found, Slice) for found in held)
    assert [found.read() for found in held] == [SEGMENT_BYTES[0], SEGMENT_BYTES[1]]  # type: ignore[union-attr]


def test_quarantined_ranges_leave_with_their_segment(tmp_path: Path) -> None:
    log = rolled_log(tmp_path)
    first, second = (info.path for info in log.segments()[:2])
    log.close()
    for path in (first, second):
        damaged = bytearray(path.read_bytes())
        damaged[45] ^= 1
        path.write_bytes(damaged)
    log = open_log(tmp_path, verify="full")
    assert [(span.start, span.end) for span in log.quarantined] == [(30, 60), (330, 360)]
    assert log.message_count == 41
    leave(log, Removal.DELETE, 1)
    for again in (log, open_log(tmp_path), open_log(tmp_path, verify="full")):
        assert [(span.start, span.end) for span in again.quarantined] == [(330, 360)]
        assert again.message_count == 32


def test_a_segment_that_was_removed_by_hand_is_taken_note_of(tmp_path: Path) -> None:
    log = rolled_log(tmp_path)
    log.segments()[0].path.unlink()
    assert log.segments()[0].mtime_ms == 0
    leave(log, Removal.DELETE, 1)
    assert contents(log) == ALL[10:]


# ---- zip files


def test_a_zip_knows_when_its_segment_was_written(tmp_path: Path) -> None:
    path = rolled_log(tmp_path).segments()[0].path
    changed = datetime(2026, 1, 30, 12, 30, 14)
    os.utime(path, (changed.timestamp(), changed.timestamp()))
    pack(Files(), path)
    [entry] = zipfile.ZipFile(zip_path(path)).infolist()
    assert (entry.date_time, entry.file_size, entry.compress_type) == ((2026, 1, 30, 12, 30, 14), 300, 8)
    assert entry.compress_size < 300


def test_large_segments_are_packed_chunk_by_chunk(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.meta"
    content = Random(1).randbytes(3 * CHUNK_BYTES + 17)
    path.write_bytes(content)
    files = FaultyFiles(tmp_path)
    pack(files, path)
    assert zipfile.ZipFile(zip_path(path)).read(path.name) == content
    assert files.calls[:2] == ["create", "truncate"]
    assert 3 <= files.calls.count("pwrite") <= 5
    assert files.calls[-3:] == ["fsync", "rename", "fsync_dir"]


def test_packing_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.meta"
    path.write_bytes(bytes(3 * CHUNK_BYTES))
    answers = iter([False, False, True])
    with pytest.raises(PackingStopped):
        pack(Files(), path, lambda: next(answers))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_an_empty_zip_entry_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.meta"
    path.touch()
    pack(Files(), path)
    assert zipfile.ZipFile(zip_path(path)).read(path.name) == b""


def test_a_zip_that_is_there_already_is_kept_if_it_is_the_same(tmp_path: Path) -> None:
    path = rolled_log(tmp_path).segments()[0].path
    pack(Files(), path)
    before = zip_path(path).stat()
    pack(Files(), path)
    assert zip_path(path).stat().st_mtime_ns == before.st_mtime_ns
    path.write_bytes(b"another segment of that name")
    with pytest.raises(FileExistsError, match="move it away"):
        pack(Files(), path)
    zip_path(path).write_bytes(b"no zip at all")
    with pytest.raises(FileExistsError, match="move it away"):
        pack(Files(), path)
    assert zip_path(path).read_bytes() == b"no zip at all"


def test_an_archive_of_that_name_is_never_replaced(tmp_path: Path) -> None:
    log = rolled_log(tmp_path)
    first = log.segments()[0].path
    archive_path(first).write_bytes(b"older")
    job = RemovalJob(Files(), Removal.ARCHIVE, log.forget_segments(2))
    with pytest.raises(FileExistsError, match="move it away"):
        job.run()
    assert (job.gone, first.exists(), archive_path(first).read_bytes()) == (0, True, b"older")
    archive_path(first).unlink()
    job.run()
    assert (job.gone, archived(tmp_path, 0), archived(tmp_path, 1)) == (2, SEGMENT_BYTES[0], SEGMENT_BYTES[1])


# ---- errors and crashes at every call


SCENARIOS = [Removal.DELETE, Removal.ARCHIVE, Removal.ARCHIVE_PACKED]


def calls_of(removal: Removal, root: Path) -> int:
    files = faulty(root, None)
    leave(open_log(root, files), removal, 3, files)
    return len(files.calls)


def faulty(root: Path, fault: Fault | None) -> FaultyFiles:
    """A disk with a finished partition on it; ``fault`` counts from the first call of what comes now."""
    files = FaultyFiles(root)
    rolled_log(root, files=files).close()
    files = FaultyFiles(root)
    files.fault = fault
    return files


def check(root: Path, removal: Removal, files: FaultyFiles) -> None:
    """Every segment is served, or left whole by ``removal``; the rest is as if nothing had happened."""
    remove_unfinished(files, root / FOLDER)
    log = open_log(root, files)
    served = contents(log)
    assert served == ALL[len(ALL) - len(served) :]
    assert log.message_count == len(served)
    assert log.ordinal(log.start_offset) == len(ALL) - len(served)
    gone = (len(ALL) - len(served)) // PER_SEGMENT
    assert gone * PER_SEGMENT == len(ALL) - len(served)
    for partition_key in range(gone if removal is not Removal.DELETE else 0):
        assert archived(root, partition_key) == SEGMENT_BYTES[partition_key]
    leave(log, removal, 3 - gone, files)
    more = frames(20, len(ALL))
    log.append(more)
    log.sync()
    assert contents(open_log(root, files)) == ALL[30:] + more
    expected = {Removal.DELETE: 0, Removal.ARCHIVE: 3, Removal.ARCHIVE_PACKED: 3}[removal]
    assert sum(not name.endswith(".meta") for name in names(root)) == expected
    assert all(archived(root, partition_key) == SEGMENT_BYTES[partition_key] for partition_key in range(expected))


@pytest.mark.parametrize("removal", SCENARIOS, ids=lambda removal: removal.value)
def test_power_cut_at_every_call(removal: Removal, tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    calls = calls_of(removal, tmp_path / "count")
    assert calls > 8
    for at in spread(range(1, calls + 1)):
        for seed in range(4):
            root = tmp_path / f"{at}-{seed}"
            root.mkdir()
            files = faulty(root, Fault(at, None, kept=0.5))
            with pytest.raises(PowerCut):
                leave(open_log(root, files), removal, 3, files)
            check(root, removal, files.crash(Random(seed)))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("removal", SCENARIOS, ids=lambda removal: removal.value)
def test_one_failing_call_and_a_restart(removal: Removal, error: int, tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    calls = calls_of(removal, tmp_path / "count")
    for at in spread(range(1, calls + 1)):
        for ending in ("process", "power"):
            root = tmp_path / f"{at}-{ending}"
            root.mkdir()
            files = faulty(root, Fault(at, error, kept=0.5))
            with contextlib.suppress(OSError):
                leave(open_log(root, files), removal, 3, files)
            check(root, removal, files.restart() if ending == "process" else files.crash(Random(at)))


@pytest.mark.parametrize("removal", [Removal.DELETE, Removal.ARCHIVE], ids=lambda removal: removal.value)
def test_one_failing_call_and_another_try(removal: Removal, tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    calls = calls_of(removal, tmp_path / "count")
    retried = 0
    for at in range(1, calls + 1):
        root = tmp_path / str(at)
        root.mkdir()
        files = faulty(root, Fault(at, errno.EIO))
        with contextlib.suppress(OSError):
            log = open_log(root, files)
            job = RemovalJob(files, removal, log.forget_segments(3))
            try:
                job.run()
            except OSError:
                assert contents(log) == ALL[30:]
                job.run()
                retried += 1
            assert job.gone == 3
        check(root, removal, files.restart())
    assert retried > calls / 2


@pytest.mark.parametrize("removal", SCENARIOS, ids=lambda removal: removal.value)
def test_what_has_left_does_not_come_back(removal: Removal, tmp_path: Path) -> None:
    for seed in range(8):
        root = tmp_path / str(seed)
        root.mkdir()
        files = faulty(root, None)
        leave(open_log(root, files), removal, 3, files)
        assert contents(open_log(root, files.crash(Random(seed)))) == ALL[30:]
