"""A disk without space: what was to be appended is refused, and nothing else is wrong."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from metaq_broker.log.files.errors import LogFailed, LogFull
from metaq_broker.log.partitions.partition_log import LogSettings
from metaq_broker.testing import Fault, FaultyFiles
from stored import by_offset, contents, frames, last_segment, open_log

from metaq.formats.frame_block import FrameBlock

SMALL = LogSettings(segment_bytes_max=500, index_interval_bytes=100)


def full(*calls: str, error: int = errno.ENOSPC, kept: float = 0.5) -> Fault:
    """No space for these calls, until it is taken away."""
    return Fault(1, error, kept, lasting=True, calls=frozenset(calls))


# I4
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_an_append_without_space_is_refused_and_the_next_one_is_not(error: int, tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    log.append(frames(5))
    end = log.end_offset
    files.fault = full("pwrite", error=error)
    for _ in range(3):
        with pytest.raises(LogFull, match=rf"^partition orders-0: writing \d+ bytes at offset {end} failed: "):
            log.append(frames(5, 5))
        block = b"".join(frames(3))
        with pytest.raises(LogFull):
            log.append_blocks([FrameBlock(block, 3)])
        assert (log.failure, log.end_offset, last_segment(tmp_path).stat().st_size) == (None, end, end)
    assert log.unflushed_messages == 5
    files.fault = None
    log.sync()
    assert log.append(frames(5, 5)) == end
    log.sync()
    assert contents(log) == by_offset(frames(10))
    assert log.message_count == 10
    assert contents(open_log(tmp_path, files=files)) == by_offset(frames(10))


def test_without_space_for_a_new_segment_the_old_one_grows_on(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, SMALL, files=files)
    files.fault = full("create")
    log.append(frames(20))
    for number in range(20, 25):
        log.append(frames(1, number))
    log.sync()
    assert (log.failure, len(log.segments())) == (None, 1)
    files.fault = None
    log.append(frames(1, 25))
    assert len(log.segments()) == 2
    log.append(frames(1, 26))
    log.sync()
    assert contents(log) == by_offset(frames(27))
    assert [log.ordinal(at) for at in by_offset(frames(27))] == list(range(27))
    again = open_log(tmp_path, SMALL, files=files, verify="full")
    assert contents(again) == by_offset(frames(27))


def test_a_part_that_cannot_be_taken_back_makes_it_read_only(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    log.append(frames(5))
    files.fault = full("pwrite", "truncate")
    with pytest.raises(LogFailed, match="is read-only") as failed:
        log.append(frames(5, 5))
    assert type(failed.value) is LogFailed
    assert log.failure is not None


def test_a_sync_without_space_makes_it_read_only(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    log.append(frames(5))
    files.fault = full("fdatasync")
    with pytest.raises(LogFailed, match="No space left"):
        log.sync()
    assert log.sync_failed
    files.fault = None
    log.reopen()
    log.append(frames(5))
    log.sync()
    assert contents(log) == by_offset(frames(5))
