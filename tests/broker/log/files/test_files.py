"""The door to the disk, and the fake disk: one contract for both, then what only the fake does."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from metaq_broker.clock import Clock, ManualClock
from metaq_broker.log.files.files import FileHandle, Files
from metaq_broker.testing import SECTOR_BYTES, Fault, FaultyFiles, PowerCut

MakeFiles = Callable[[Path], Files]


@pytest.fixture(params=[lambda path: Files(), FaultyFiles], ids=["real", "faulty"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    make: MakeFiles = request.param
    return make(tmp_path)


# ---- the contract


def test_writes_read_back(files: Files, tmp_path: Path) -> None:
    fd = files.open_append(tmp_path / "a")
    files.pwrite(fd, b"hello", 0)
    assert files.append(fd, memoryview(b" world")) == 5
    files.pwrite(fd, bytearray(b"J"), 0)
    assert files.pread(fd, 100, 0) == b"Jello world"
    assert files.pread(fd, 3, 4) == b"o w"
    assert files.pread(fd, 5, 100) == b""
    assert files.size(fd) == 11
    files.truncate(fd, 5)
    files.fsync(fd)
    files.fdatasync(fd)
    files.close(fd)
    assert files.read_bytes(tmp_path / "a") == b"Jello"
    assert files.stat(tmp_path / "a").size == 5
    assert abs(files.stat(tmp_path / "a").mtime_ms - Clock().now_ms()) < 60_000


def test_a_reopened_file_is_not_cut(files: Files, tmp_path: Path) -> None:
    for _ in range(2):
        fd = files.open_append(tmp_path / "a")
        files.append(fd, b"x")
        files.close(fd)
    assert files.read_bytes(tmp_path / "a") == b"xx"


def test_names(files: Files, tmp_path: Path) -> None:
    files.makedir(tmp_path / "d")
    for name in ("b", "a"):
        files.close(files.open_append(tmp_path / "d" / name))
    assert files.listdir(tmp_path / "d") == ["a", "b"]
    files.rename(tmp_path / "d" / "b", tmp_path / "d" / "a")
    files.fsync_dir(tmp_path / "d")
    assert files.listdir(tmp_path / "d") == ["a"]
    assert [check(tmp_path / "d" / "a") for check in (files.exists, files.is_file, files.is_dir)] == [True, True, False]
    assert [check(tmp_path / "d") for check in (files.exists, files.is_file, files.is_dir)] == [True, False, True]
    assert not files.exists(tmp_path / "d" / "b")
    files.unlink(tmp_path / "d" / "a")
    files.rmdir(tmp_path / "d")
    assert not files.exists(tmp_path / "d")
    assert files.free_bytes(tmp_path) > 0


def test_missing_things_are_errors(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open_read(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        files.stat(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        files.unlink(tmp_path / "nothing")


def test_write_atomic_replaces(files: Files, tmp_path: Path) -> None:
    for content in (b"one", b"", b"three"):
        files.write_atomic(tmp_path / "f", content)
        assert files.read_bytes(tmp_path / "f") == content
    assert files.listdir(tmp_path) == ["f"]


def test_a_lock_has_one_owner(files: Files, tmp_path: Path) -> None:
    fd = files.lock_exclusive(tmp_path / "lock")
    assert files.read_bytes(tmp_path / "lock") == f"{os.getpid()}\n".encode()
    with pytest.raises(BlockingIOError):
        files.lock_exclusive(tmp_path / "lock")
    assert files.read_bytes(tmp_path / "lock") == f"{os.getpid()}\n".encode()
    files.close(fd)
    files.close(files.lock_exclusive(tmp_path / "lock"))


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, data[:3], position))
    files = Files()
    fd = files.open_append(tmp_path / "a")
    files.pwrite(fd, b"abcdefgh", 2)
    assert files.pread(fd, 100, 0) == b"\0\0abcdefgh"
    files.close(fd)


@pytest.mark.parametrize("parts", [[b"ab"], [b"ab", bytearray(b"cd"), memoryview(b"e")], [b"x", b""] * 800])
def test_parts_are_written_behind_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[bytes]
) -> None:
    real = os.pwritev
    for count_max in (1 << 20, 1):  # the system may write less than it is given
        monkeypatch.setattr(os, "pwritev", lambda fd, given, at, most=count_max: real(fd, given[:most], at))
        files = Files()
        fd = files.open_append(tmp_path / f"{count_max}")
        files.pwrite_all(fd, parts, 2)
        assert files.pread(fd, 5000, 0) == b"\0\0" + b"".join(parts)
        files.close(fd)


def test_a_sync_without_fdatasync_is_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems without ``fdatasync``; macOS has a request of its own that empties the drive's cache, too."""
    synced: list[tuple[int, ...]] = []
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    monkeypatch.setattr(os, "fsync", lambda *arguments: synced.append(arguments))
    monkeypatch.setattr(fcntl, "fcntl", lambda *arguments: synced.append(arguments))
    Files().fdatasync(7)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    Files().fdatasync(8)
    Files().fsync(9)
    assert synced == [(7,), (8, 51), (9, 51)]


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"abcdefgh")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, position: real(fd, min(count, 3), position))
    files = Files()
    fd = files.open_read(tmp_path / "a")
    assert files.pread(fd, 100, 1) == b"bcdefgh"
    files.close(fd)


def test_a_buffer_is_filled_as_far_as_the_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"abcdefgh")
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, position: real(fd, [buffers[0][:3]], position))
    files = Files()
    fd = files.open_read(tmp_path / "a")
    free_bytes = memoryview(bytearray(10))
    assert [files.pread_into(fd, free_bytes[:size], 1) for size in (0, 5, 7)] == [0, 5, 7]
    assert files.pread_into(fd, free_bytes, 1) == 7
    assert free_bytes == b"bcdefgh\0\0\0"
    files.close(fd)


# ---- what the fake forgets


def survivors(files: FaultyFiles, name: str, seeds: int = 60) -> set[bytes | None]:
    """All contents that a file may have after a crash (``None``: it is not there)."""
    tree = files._tree
    found: set[bytes | None] = set()
    for seed in range(seeds):
        FaultyFiles(files.root, tree=tree).crash(Random(seed))
        path = files.root / name
        found.add(path.read_bytes() if path.exists() else None)
    return found


def test_nothing_is_durable_by_itself(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    fd = files.open_append(tmp_path / "a")
    files.pwrite(fd, b"abc", 0)
    assert survivors(files, "a") >= {None, b"", b"a", b"abc"}


def test_a_synced_file_needs_its_name_synced(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    fd = files.open_append(tmp_path / "a")
    files.pwrite(fd, b"abc", 0)
    files.fsync(fd)
    assert survivors(files, "a") == {None, b"abc"}
    files.fsync_dir(tmp_path)
    assert survivors(files, "a") == {b"abc"}


def test_synced_bytes_stay_and_later_ones_may_be_torn(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    files = FaultyFiles(tmp_path)
    fd = files.open_append(tmp_path / "a")
    files.append(fd, b"12")
    files.append(fd, b"34")
    found = survivors(files, "a")
    assert found >= {b"old", b"old1", b"old12", b"old123", b"old1234"}
    assert all(content is not None and content.startswith(b"old") for content in found)


def test_sectors_get_lost_in_any_order(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    fd = files.open_append(tmp_path / "a")
    files.fsync_dir(tmp_path)
    files.pwrite(fd, b"x" * SECTOR_BYTES * 4, 0)
    holes = bytes(SECTOR_BYTES) + b"x" * SECTOR_BYTES
    assert any(content is not None and holes in content for content in survivors(files, "a"))


def test_names_come_and_go_in_order(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    for name in ("a", "b"):
        files.close(files.open_append(tmp_path / name))
    files.unlink(tmp_path / "a")
    tree = files._tree
    seen = set()
    for seed in range(60):
        after = FaultyFiles(tmp_path, tree=tree).crash(Random(seed))
        seen.add(tuple(after.listdir(tmp_path)))
    assert seen == {(), ("a",), ("a", "b"), ("b",)}


def test_an_unlinked_file_may_come_back_with_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    files = FaultyFiles(tmp_path)
    files.unlink(tmp_path / "a")
    files.close(files.open_append(tmp_path / "a"))
    assert survivors(files, "a") == {b"old", None, b""}


def test_a_folder_that_was_not_synced_takes_its_files_along(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    files.makedir(tmp_path / "d")
    fd = files.open_append(tmp_path / "d" / "a")
    files.fsync(fd)
    files.fsync_dir(tmp_path / "d")
    assert survivors(files, "d/a") == {None, b""}


def test_after_a_failed_sync_no_other_sync_helps(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    files = FaultyFiles(tmp_path)
    fd = files.open_append(tmp_path / "a")
    files.pwrite(fd, b"lost", 0)
    files.fault = Fault(1, errno.EIO, calls=frozenset({"fsync"}))
    with pytest.raises(OSError, match="fsync"):
        files.fsync(fd)
    assert files.pread(fd, 10, 0) == b"lost"
    files.fsync(fd)
    assert survivors(files, "a") == {b""}


def test_a_restart_of_the_process_makes_nothing_durable(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    fd = files.open_append(tmp_path / "a")
    files.pwrite(fd, b"abc", 0)
    after = files.restart()
    assert after.read_bytes(tmp_path / "a") == b"abc"
    assert survivors(after, "a") >= {None, b"abc"}


# ---- what the fake breaks


def test_descriptors_that_nobody_closed_are_closed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second close would hit whoever has the number by then: in a run of many tests, a thread of another one."""
    closed: list[int] = []

    def close(fd: int, close: Callable[[int], None] = os.close, thread: int = threading.get_ident()) -> None:
        if threading.get_ident() == thread:
            closed.append(fd)
        close(fd)

    gc.collect()  # what other tests have left closes its own
    monkeypatch.setattr(os, "close", close)
    gc.disable()
    try:
        opened = []
        for number in range(20):
            files = FaultyFiles(tmp_path)
            opened.append(files.open_append(tmp_path / f"{number}"))
            files.known_as = FileHandle(files, opened[-1])  # type: ignore[attr-defined]  # a cycle: both go together
        del files
        gc.collect()
    finally:
        gc.enable()
    assert sorted(closed) == sorted(opened)


def test_the_nth_changing_call_fails_once(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path, Fault(3, errno.ENOSPC, kept=0.5))
    fd = files.open_append(tmp_path / "a")
    files.pwrite(fd, b"1234", 0)
    with pytest.raises(OSError, match="No space left") as failed:
        files.pwrite(fd, b"5678", 4)
    assert failed.value.errno == errno.ENOSPC
    assert files.read_bytes(tmp_path / "a") == b"123456"
    files.pwrite(fd, b"5678", 4)
    assert files.calls == ["create", "pwrite", "pwrite", "pwrite"]


def test_a_lasting_fault_stays(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path, Fault(2, errno.EIO, lasting=True, calls=frozenset({"truncate"})))
    fd = files.open_append(tmp_path / "a")
    files.truncate(fd, 5)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            files.truncate(fd, 0)
    files.pwrite(fd, b"x", 0)


def test_after_a_power_cut_nothing_works(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path, Fault(2, None))
    fd = files.open_append(tmp_path / "a")
    with pytest.raises(PowerCut):
        files.pwrite(fd, b"x", 0)
    for call in (
        lambda: files.fsync(fd),
        lambda: files.unlink(tmp_path / "a"),
        lambda: files.open_read(tmp_path / "a"),
    ):
        with pytest.raises(PowerCut):
            call()


# ---- clocks


def test_clocks() -> None:
    clock = Clock()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.monotonic() <= clock.monotonic()
    manual = ManualClock(1000)
    manual.advance(500)
    assert (manual.now_ms(), manual.monotonic()) == (1500, 0.5)
    manual.set_now_ms(3)
    assert (manual.now_ms(), manual.monotonic()) == (3, 0.5)
    with pytest.raises(ValueError, match="backwards"):
        manual.advance(-1)
