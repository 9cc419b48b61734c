"""A partition's incarnation: made once, told when it is durable, kept as long as the folder, never another's."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.partitions.folders import delete_folder, rename_folder
from metaq_broker.log.partitions.incarnation import FILE_NAME
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.testing import Fault, FaultyFiles
from stored import FOLDER, ONE_SEGMENT, SMALL, START_MS, QuickFiles, contents, drop_segments, filled, frames, open_log


def incarnation_file(root: Path, folder: str = FOLDER) -> Path:
    return root / folder / FILE_NAME


def reopened(root: Path, log: PartitionLog) -> PartitionLog:
    log.close()
    return open_log(root, SMALL)


def incarnation_of(root: Path) -> str:
    """Open the partition, and tell its incarnation."""
    log = open_log(root, SMALL)
    reported = log.incarnation
    log.close()
    assert reported is not None
    return reported


def test_it_is_reported_with_the_first_durable_message_and_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    assert log.incarnation is None
    log.append(frames(3))
    assert log.incarnation is None
    log.sync()
    reported = log.incarnation
    assert reported is not None
    assert re.fullmatch(r"[0-9a-f]{32}", reported)
    log.append(frames(60))
    log.sync()
    drop_segments(log, log.removable)
    assert log.incarnation == reported
    log.reopen()
    assert log.incarnation == reported
    assert reopened(tmp_path, log).incarnation == reported


def test_an_empty_partition_has_one_as_soon_as_its_folder_is_durable(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.sync()
    reported = log.incarnation
    assert reported is not None
    assert reopened(tmp_path, log).incarnation == reported


def test_what_the_file_looks_like(tmp_path: Path) -> None:
    filled(tmp_path, frames(1))
    title, uuid, checksum = incarnation_file(tmp_path).read_text().splitlines()
    assert (title, uuid) == ("metaq-incarnation 1", incarnation_of(tmp_path))
    assert re.fullmatch(r"crc32 [0-9a-f]{8}", checksum)


def test_the_folder_of_a_java_broker_gets_one_when_it_is_opened(tmp_path: Path) -> None:
    filled(tmp_path, frames(5))
    incarnation_file(tmp_path).unlink()
    log = open_log(tmp_path)
    assert log.incarnation is not None
    assert list(log.recovery.warnings()) == []
    assert reopened(tmp_path, log).incarnation == log.incarnation


DAMAGED = {
    "empty": b"",
    "zeros": bytes(64),
    "torn": b"metaq-incarnation 1\n0123",
    "a checksum of other bytes": b"metaq-incarnation 1\n" + b"0" * 32 + b"\ncrc32 00000000\n",
    "no UUID": b"metaq-incarnation 1\nx\ncrc32 88a1cb2d\n",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_one_is_replaced_with_a_warning(content: bytes, tmp_path: Path) -> None:
    stored = frames(5)
    filled(tmp_path, stored)
    former = incarnation_of(tmp_path)
    incarnation_file(tmp_path).write_bytes(content)
    log = open_log(tmp_path)
    assert log.incarnation not in (None, former)
    (warning,) = log.recovery.warnings()
    assert "incarnation cannot be read" in warning
    assert list(contents(log).values()) == stored
    again = reopened(tmp_path, log)
    assert again.incarnation == log.incarnation
    assert list(again.recovery.warnings()) == []


# I8
def test_a_recreated_partition_has_another_incarnation_a_copy_the_same(tmp_path: Path) -> None:
    files = QuickFiles()
    filled(tmp_path, frames(5))
    former = incarnation_of(tmp_path)
    shutil.copytree(tmp_path / FOLDER, tmp_path / "copy" / FOLDER)
    assert incarnation_of(tmp_path / "copy") == former
    rename_folder(files, tmp_path / FOLDER, tmp_path / "orders-9")
    moved = PartitionLog.open(files, ManualClock(START_MS), tmp_path / "orders-9", SMALL)
    assert moved.incarnation == former
    moved.close()
    rename_folder(files, tmp_path / "orders-9", tmp_path / FOLDER)
    delete_folder(files, tmp_path / FOLDER)
    filled(tmp_path, frames(5))
    assert incarnation_of(tmp_path) != former


def test_a_folder_without_its_segments_begins_another_incarnation(tmp_path: Path) -> None:
    filled(tmp_path, frames(5))
    former = incarnation_of(tmp_path)
    for segment in (tmp_path / FOLDER).glob("*.meta"):
        segment.unlink()
    log = open_log(tmp_path)
    assert log.incarnation is None
    assert not incarnation_file(tmp_path).exists()  # a crash before the first sync must not bring it back
    log.append(frames(1))
    log.sync()
    assert log.incarnation not in (None, former)


# ---- disks that do not take it


def test_a_disk_that_refuses_it_costs_no_message_and_is_asked_again(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, files=files)
    files.fault = Fault(1, errno.ENOSPC, lasting=True, calls=frozenset({"rename"}))
    first = log.append(frames(1))
    log.sync()
    assert (log.incarnation, log.failure) == (None, None)
    assert list(contents(log)) == [first]
    files.fault = None
    log.append(frames(1))
    log.sync()
    assert log.incarnation is not None
    assert reopened(tmp_path, log).incarnation == log.incarnation


def test_an_old_folder_on_a_full_disk_is_served_without(tmp_path: Path) -> None:
    stored = frames(5)
    filled(tmp_path, stored)
    incarnation_file(tmp_path).unlink()
    files = FaultyFiles(tmp_path)
    files.fault = Fault(1, errno.ENOSPC, lasting=True)
    log = open_log(tmp_path, files=files, verify="trust")
    assert log.incarnation is None
    assert list(contents(log).values()) == stored
    files.fault = None
    log.append(frames(1))
    log.sync()
    assert log.incarnation is not None


def test_a_job_of_the_log_before_it_was_reopened_does_not_change_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(frames(2))
    job = log.pending_sync()
    assert job is not None
    log.reopen()
    reported = log.incarnation
    assert reported is not None
    job.run()
    log.complete_sync(job, None)
    assert log.incarnation == reported
    assert reopened(tmp_path, log).incarnation == reported


def test_a_store_names_the_partition_whose_incarnation_was_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, frames(5))
    incarnation_file(tmp_path).write_bytes(b"?")
    store = LogStore.open(QuickFiles(), ManualClock(START_MS), tmp_path, lambda topic: ONE_SEGMENT)
    store.close()
    assert [(record.message, record.fields["partition"]) for record in caplog.records] == [("recovery", FOLDER)]  # type: ignore[attr-defined]
