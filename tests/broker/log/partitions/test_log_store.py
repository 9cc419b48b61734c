"""A data folder: its lock, its partitions, the clean-shutdown mark, names that must not leave it."""

from __future__ import annotations

import errno
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.errors import LogFailed, StoreLocked, TopicNameRefused
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import LogSettings, Verify
from metaq_broker.testing import Fault, FaultyFiles
from stored import SMALL, START_MS, QuickFiles, by_offset, contents, frames

HOLD_LOCK = """
import sys
from pathlib import Path
from metaq_broker.clock import Clock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.loading import LogSettings
store = LogStore.open(Files(), Clock(), Path(sys.argv[1]), lambda topic: LogSettings())
print("locked", flush=True)
sys.stdin.read()
"""


def open_store(path: Path, files: Files | None = None, *, verify: Verify = "tail", threads: int = 1) -> LogStore:
    return LogStore.open(
        files or QuickFiles(), ManualClock(START_MS), path, lambda topic: SMALL, verify=verify, load_threads=threads
    )


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The values that a log line was given."""
    found: dict[str, Any] = record.__dict__["fields"]
    return found


# ---- one owner


def test_a_second_store_in_this_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreLocked) as refused:
        open_store(tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert f"process {os.getpid()}" in str(refused.value)
    store.close()
    open_store(tmp_path).close()


@pytest.mark.process
def test_a_second_broker_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(StoreLocked, match=f"process {first.pid}"):
            open_store(tmp_path)
    finally:
        first.kill()
        first.communicate()
    open_store(tmp_path).close()


def test_a_failed_start_gives_the_lock_back(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    files = FaultyFiles(tmp_path)

    def settings_for(topic: str) -> LogSettings:
        raise KeyError(topic)

    with pytest.raises(KeyError):
        LogStore.open(files, ManualClock(), tmp_path, settings_for)
    open_store(tmp_path).close()


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "data"
    store = open_store(path)
    store.get_or_create("orders", 0)
    assert (path / "orders-0").is_dir()
    store.close()


# ---- partitions


def test_partitions_come_back_in_order(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    keys = [("b", 10), ("b", 2), ("a-b", 0), ("a", 1), ("ünïcode", 3), ("a-b-7", 0), ("-", 0), ("t-1-2", 5)]
    for topic, index in keys:
        store.get_or_create(topic, index).append(frames(3))
    store.close()
    store = open_store(tmp_path, threads=4)
    assert [(log.topic, log.index) for log in store.logs()] == sorted(keys)
    assert all(contents(log) == by_offset(frames(3)) for log in store.logs())
    assert store.get("a", 1) is store.get_or_create("a", 1)
    assert store.get("a", 2) is None
    store.close()


def test_other_things_are_left_alone_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("transactions", "nodash", "orders-", "orders-x", "orders-01", "-5", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file-0").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path)
    assert list(store.logs()) == []
    warned = {fields(record)["folder"].name for record in caplog.records}
    assert warned == {"nodash", "orders-", "orders-x", "orders-01", "-5", ".hidden"}
    store.close()


REFUSED_NAMES = ["", ".", "..", "/", "a/b", "../etc", "a\0b", "\ud800", "x" * 201, "ü" * 101]


@pytest.mark.parametrize("topic", REFUSED_NAMES, ids=repr)
def test_names_that_could_leave_the_folder_are_refused(topic: str, tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TopicNameRefused) as refused:
        store.get_or_create(topic, 0)
    assert "cannot be stored" in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before
    store.close()


ODD_NAMES = ["...", "..-", ".hidden", "a..b", "x" * 200, "ü" * 100, "-", " ", "a\\b", "transactions"]


@pytest.mark.parametrize("topic", ODD_NAMES)
def test_odd_names_stay_inside(topic: str, tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    store.get_or_create(topic, 7).append(frames(1))
    store.close()
    assert (tmp_path / "data" / f"{topic}-7").is_dir()
    store = open_store(tmp_path / "data")
    assert [(log.topic, log.index) for log in store.logs()] == [(topic, 7)]
    store.close()


def test_a_negative_partition_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(TopicNameRefused, match="negative"):
        store.get_or_create("orders", -1)
    store.close()


def test_one_bad_partition_does_not_keep_the_others_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    for index in range(3):
        store.get_or_create("orders", index).append(frames(60))
    store.close()
    sorted((tmp_path / "orders-1").glob("*.meta"))[1].unlink()
    with caplog.at_level(logging.ERROR):
        store = open_store(tmp_path)
    assert [log.index for log in store.logs()] == [0, 2]
    assert list(store.refused) == [("orders", 1)]
    assert "there is a gap" in store.refused["orders", 1]
    (record,) = caplog.records
    assert "gap" in fields(record)["reason"]
    assert fields(record)["partition"] == "orders-1"
    with pytest.raises(LogFailed, match="gap"):
        store.get_or_create("orders", 1)
    store.close()
    assert len(list((tmp_path / "orders-1").glob("*.meta"))) > 1


def test_what_recovery_did_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    store.get_or_create("orders", 0).append(frames(3))
    store.close(clean=False)
    path = tmp_path / "orders-0" / f"{0:020d}.meta"
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        open_store(tmp_path).close()
    (record,) = caplog.records
    assert fields(record)["partition"] == "orders-0"
    assert "torn tail of" in fields(record)["what"]


# ---- the clean-shutdown mark


class ReadSpy(QuickFiles):
    """Counts the bytes read from segments."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def pread(self, fd: int, count: int, position: int) -> bytes:
        data = super().pread(fd, count, position)
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".meta"):
            self.bytes_read += len(data)
        return data


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    store = LogStore.open(QuickFiles(), ManualClock(START_MS), tmp_path, lambda topic: LogSettings())
    store.get_or_create("orders", 0).append(frames(3000))
    store.close()
    return tmp_path


def bytes_read_at_start(path: Path, verify: Verify = "tail") -> int:
    files = ReadSpy()
    store = LogStore.open(files, ManualClock(START_MS), path, lambda topic: LogSettings(), verify=verify)
    read = files.bytes_read
    (log,) = store.logs()
    assert contents(log) == by_offset(frames(3000))
    store.close(clean=False)
    return read


def test_a_clean_shutdown_spares_the_scan_once(stored: Path) -> None:
    assert bytes_read_at_start(stored) <= 4096
    assert not (stored / "clean-shutdown").exists()
    assert bytes_read_at_start(stored) > 100_000


def test_a_full_verification_trusts_no_mark(stored: Path) -> None:
    assert bytes_read_at_start(stored, "full") > 100_000


@pytest.mark.parametrize("content", [b"", b"metaq-clean-shutdown 1\ncrc32 00000000\n", b"\xff\xfe"])
def test_a_damaged_mark_is_no_mark(content: bytes, stored: Path) -> None:
    (stored / "clean-shutdown").write_bytes(content)
    assert bytes_read_at_start(stored) > 100_000


def test_a_mark_does_not_cover_what_another_broker_did(stored: Path) -> None:
    path = stored / "orders-0" / f"{0:020d}.meta"
    content = path.read_bytes()
    path.write_bytes(content + frames(1, 3000)[0])
    store = open_store(stored)
    (log,) = store.logs()
    assert contents(log) == by_offset(frames(3001))
    store.close()


def test_a_mark_does_not_cover_a_file_that_was_changed_since(stored: Path) -> None:
    """Even if it has the same size: the time of change tells."""
    path = stored / "orders-0" / f"{0:020d}.meta"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    store = open_store(stored)
    (log,) = store.logs()
    assert len(log.quarantined) == 1
    store.close()


def test_a_failed_partition_is_not_marked_clean(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = open_store(tmp_path, files)
    for index in range(2):
        store.get_or_create("orders", index).append(frames(5))
    files.fault = Fault(1, errno.EIO, calls=frozenset({"pwrite"}))
    log = store.get("orders", 1)
    assert log is not None
    with pytest.raises(LogFailed):
        log.append(frames(5))
    store.close()
    mark = (tmp_path / "clean-shutdown").read_text()
    assert "orders-0" in mark
    assert "orders-1" not in mark


def test_a_stop_on_a_full_disk_gives_the_lock_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFiles(tmp_path)
    store = open_store(tmp_path, files)
    store.get_or_create("orders", 0).append(frames(5))
    files.fault = Fault(1, errno.ENOSPC, lasting=True, calls=frozenset({"create", "pwrite"}))
    with caplog.at_level(logging.WARNING):
        store.close()
    assert caplog.messages == ["no clean-shutdown mark"]
    store = open_store(tmp_path)
    (log,) = store.logs()
    assert contents(log) == by_offset(frames(5))
    store.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_mark_goes_before_anything_is_appended(seed: int, tmp_path: Path) -> None:
    """If the power goes after the first append, the mark must not come back."""
    files = FaultyFiles(tmp_path)
    store = open_store(tmp_path, files)
    store.get_or_create("orders", 0).append(frames(5))
    store.close()
    assert (tmp_path / "clean-shutdown").exists()
    (log,) = open_store(tmp_path, files).logs()
    log.append(frames(1, 5))
    files.crash(Random(seed))
    assert not (tmp_path / "clean-shutdown").exists()


# ---- how many


def test_a_thousand_partitions_fit_into_1100_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 1000
    store = LogStore.open(QuickFiles(), ManualClock(START_MS), tmp_path, lambda topic: SMALL, open_files_max=64)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + count + 80, hard))
    try:
        for index in range(count):
            log = store.get_or_create("orders", index)
            log.append(frames(30))
            log.sync()
        assert all(len(contents(log)) == 30 for log in list(store.logs())[::10])
        store.close()
        store = LogStore.open(QuickFiles(), ManualClock(START_MS), tmp_path, lambda topic: SMALL, open_files_max=64)
        assert sum(log.message_count for log in store.logs()) == 30 * count
        store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
