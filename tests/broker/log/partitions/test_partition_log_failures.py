"""When the disk refuses: what is promised, what is served, and the way back."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog, ReadAtEnd
from metaq_broker.testing import Fault, FaultyFiles
from stored import FOLDER, ONE_SEGMENT, by_offset, contents, frames, last_segment, open_log

from metaq.formats.frame_block import FrameBlock

SMALL = LogSettings(segment_bytes_max=500, index_interval_bytes=100)


def write_fault(at: int = 1, kept: float = 0.5, error: int = errno.EIO) -> Fault:
    return Fault(at, error, kept, calls=frozenset({"pwrite"}))


# I4
def test_a_failed_write_makes_the_log_read_only_and_leaves_no_trace(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    log.append(frames(5))
    end = log.end_offset
    files.fault = write_fault()
    with pytest.raises(LogFailed, match=r"orders-0 is read-only: .*Input/output error"):
        log.append(frames(5, 5))
    assert (log.end_offset, last_segment(tmp_path).stat().st_size) == (end, end)
    with pytest.raises(LogFailed):
        log.append(frames(1))
    with pytest.raises(LogFailed):
        log.append_blocks([FrameBlock.of(frames(1))])
    log.sync()
    assert contents(log) == by_offset(frames(5))
    assert not log.sync_failed


def test_a_write_that_cannot_be_undone_is_never_served(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    log.append(frames(5))
    files.fault = Fault(1, errno.EIO, kept=0.7, lasting=True, calls=frozenset({"pwrite", "truncate"}))
    with pytest.raises(LogFailed):
        log.append(frames(5, 5))
    log.sync()
    assert contents(log) == by_offset(frames(5))
    files.fault = None
    report = log.reopen()
    assert contents(log).items() >= by_offset(frames(5)).items()
    assert contents(log).items() <= by_offset(frames(10)).items()
    assert report.bytes_cut > 0


def test_reopening_makes_the_log_writable_again(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path, write_fault(2))
    log = open_log(tmp_path, files=files)
    log.append(frames(5))
    with pytest.raises(LogFailed):
        log.append(frames(1, 5))
    assert log.reopen().bytes_cut == 0
    assert log.failure is None
    log.append(frames(1, 5))
    log.sync()
    assert contents(log) == by_offset(frames(6))


# I3, I5
def test_after_a_failed_sync_nothing_later_is_acknowledged(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    log.append(frames(5))
    log.sync()
    durable_end = log.readable_end
    log.append(frames(5, 5))
    job = log.pending_sync()
    assert job is not None
    files.fault = Fault(1, errno.EIO, calls=frozenset({"fdatasync"}))
    with pytest.raises(OSError, match="Input/output") as failed:
        job.run()
    log.append(frames(1, 10))
    log.complete_sync(job, failed.value)
    assert log.sync_failed
    assert log.failure is not None
    assert "durable failed: Input/output error" in log.failure
    assert log.pending_sync() is None
    assert log.readable_end == durable_end
    assert log.read(durable_end, 100) == ReadAtEnd(durable_end, durable_end)
    assert contents(log) == by_offset(frames(5))
    with pytest.raises(LogFailed):
        log.append(frames(1))
    with pytest.raises(LogFailed):
        log.sync()
    assert not log.close(clean=True)


def behind_a_failed_sync(folder: Path, call: str) -> tuple[FaultyFiles, PartitionLog]:
    """A log of five durable frames and twenty more, whose sync has failed at ``call``."""
    files = FaultyFiles(folder)
    log = open_log(folder, SMALL, files=files)
    log.append(frames(5))
    log.sync()
    log.append(frames(20, 5))
    files.fault = Fault(1, errno.EIO, calls=frozenset({call}))
    with pytest.raises(LogFailed):
        log.sync()
    return files, log


# I5
@pytest.mark.parametrize("how", ["reopen", "restart"])
def test_what_a_failed_sync_left_in_memory_is_not_believed(how: str, tmp_path: Path) -> None:
    """The lost pages still read back well; if they were believed, a power cut later would take them away again."""
    files, log = behind_a_failed_sync(tmp_path, "fdatasync")
    files.fault = None
    if how == "reopen":
        log.reopen()
    else:
        files = files.restart()
        log = open_log(tmp_path, SMALL, files=files)
    assert contents(log) == by_offset(frames(5))
    assert log.recovery.bytes_cut > 0
    assert not list((tmp_path / FOLDER).glob("failed-sync*"))
    log.append(frames(7, 100))
    log.sync()
    for seed in range(5):
        after = files.crash(Random(seed))
        assert contents(open_log(tmp_path, SMALL, files=after)) == by_offset([*frames(5), *frames(7, 100)])
        files = after


# I3
@pytest.mark.parametrize("call", ["fdatasync", "rename", "fsync_dir"])
def test_every_step_of_a_sync_must_succeed(call: str, tmp_path: Path) -> None:
    _, log = behind_a_failed_sync(tmp_path, call)
    assert contents(log) == by_offset(frames(5))


def test_an_index_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, SMALL, files=files)
    offsets = [log.append([item]) for item in frames(30)]
    files.fault = Fault(1, errno.ENOSPC, lasting=True, calls=frozenset({"pwrite"}))
    log.sync()
    assert log.failure is None
    assert [log.ordinal(at) for at in offsets] == list(range(30))
    files.fault = None
    log.append(frames(1, 30))
    log.sync()
    assert log.close()
    again = open_log(tmp_path, SMALL, files=files)
    assert [again.ordinal(at) for at in offsets] == list(range(30))
    assert len(contents(again)) == 31


def test_a_roll_that_fails_refuses_the_next_append_only(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, SMALL, files=files)
    files.fault = Fault(1, errno.EMFILE, calls=frozenset({"create"}))
    first = frames(8)
    assert sum(map(len, first)) < 500 <= sum(map(len, frames(9)))
    log.append(first)
    assert log.append(frames(1, 8)) == sum(map(len, first))
    log.sync()
    assert contents(log) == by_offset(frames(9))
    with pytest.raises(LogFailed, match="making the segment"):
        log.append(frames(1))
    log.reopen()
    log.append(frames(11, 9))
    log.sync()
    assert contents(log) == by_offset(frames(20))


def test_a_roll_that_fails_between_frames_stores_each_whole_or_not(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, SMALL, files=files)
    files.fault = Fault(2, errno.EIO, calls=frozenset({"create"}))
    with pytest.raises(LogFailed):
        log.append(frames(60))
    log.sync()
    kept = contents(log)
    assert 0 < len(kept) < 60
    assert kept == by_offset(frames(60)[: len(kept)])


def test_a_job_from_before_the_log_was_reopened_does_not_count(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    log.append(frames(5))
    job = log.pending_sync()
    assert job is not None
    assert log.pending_sync() is None
    log.reopen()
    log.append(frames(1, 5))
    end = log.readable_end
    log.complete_sync(job, OSError(errno.EIO, "too late"))
    assert (log.failure, log.readable_end) == (None, end)
    log.sync()
    assert contents(log) == by_offset(frames(6))


def test_closing_with_a_job_under_way_is_clean(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    log.append(frames(30))
    job = log.pending_sync()
    assert job is not None
    job.run()
    assert log.close()
    again = open_log(tmp_path, SMALL, verify="trust")
    assert contents(again) == by_offset(frames(30))
    assert again.recovery.indexes_rebuilt == []


def test_a_closed_log_refuses_appends(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    assert log.close()
    with pytest.raises(LogFailed, match="closed"):
        log.append(frames(1))
    assert not log.close()


def test_repr_reports_the_state(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    log.append(frames(1))
    assert repr(log) == f"<PartitionLog orders-0 [0, 0..{log.end_offset})>"
    files.fault = write_fault()
    with pytest.raises(LogFailed):
        log.append(frames(1))
    assert "FAILED: writing" in repr(log)
