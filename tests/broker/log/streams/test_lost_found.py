"""Cutting a tail that the leader does not have: kept first, then cut, whatever call fails on the way."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.damage import Damage, read_quarantine, write_quarantine
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog
from metaq_broker.log.segments.segment import index_path
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.lost_found import Intention, IntentionDamaged
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from stored import START_MS, QuickFiles, by_offset, contents, drop_segments, each_call, frames

SETTINGS = LogSettings(segment_bytes_max=400, index_interval_bytes=100)
ALL = frames(40)
AT = sorted(by_offset(ALL))


def opened(files: Files, root: Path) -> LogStore:
    return LogStore.open(files, ManualClock(START_MS), root / "data", lambda topic: SETTINGS, follows=True)


def log_of(store: LogStore) -> PartitionLog:
    log = store.get("orders", 0)
    assert log is not None, store.refused
    return log


def filled(files: Files, root: Path, *, dropped: int = 0) -> LogStore:
    """Forty messages in segments of about ten; the oldest segments are removed."""
    store = opened(files, root)
    log = store.get_or_create("orders", 0)
    for item in ALL:
        log.append([item])
    log.sync()
    if dropped:
        drop_segments(log, dropped, files)
    store.note_ends(store.ends())
    return store


def cut(store: LogStore, offset: int) -> None:
    log = store.take_offline("orders", 0, "it is being cut")
    assert log is not None
    log.close(clean=False)
    store.cut("orders", 0, Intention(offset, 8, START_MS, "uuid-of-b"))
    store.bring_online(store.open_again("orders", 0))


def tails(files: Files, root: Path) -> list[bytes]:
    return [each.path.read_bytes() for each in lost_found.kept(files, root / "data") if each.offset is not None]


@pytest.mark.parametrize("number", [1, 5, 13, 22, 39])
@pytest.mark.parametrize("dropped", [0, 1])
def test_what_is_before_the_cut_stays_with_its_numbers(number: int, dropped: int, tmp_path: Path) -> None:
    files = QuickFiles()
    store = filled(files, tmp_path, dropped=dropped)
    log, offset = log_of(store), AT[number]
    start, first = log.start_offset, log.ordinal(log.start_offset)
    if offset < start:
        store.close()
        return
    cut(store, offset)
    log = log_of(store)
    assert contents(log) == {at: item for at, item in by_offset(ALL).items() if start <= at < offset}
    assert (log.start_offset, log.ordinal(start), log.end_ordinal) == (start, first, number)
    assert tails(files, tmp_path) == [b"".join(ALL[number:])]
    assert not log.recovery.missing_bytes
    assert not store.losses
    log.append([ALL[number]])
    log.sync()
    store.close()
    again = opened(files, tmp_path)
    assert max(contents(log_of(again))) == offset
    assert log_of(again).recovery.renumbered is None
    again.close()


def test_indexes_and_damage_behind_the_cut_go(tmp_path: Path) -> None:
    files = QuickFiles()
    store = filled(files, tmp_path)
    folder, offset = tmp_path / "data" / "orders-0", AT[13]
    old, across = Damage(AT[2], AT[3], 1, "old"), Damage(AT[12], AT[15], 3, "across")
    write_quarantine(files, folder, [old, across, Damage(AT[20], AT[21], 1, "behind")])
    cut(store, offset)
    assert read_quarantine(files, folder) == [old, Damage(AT[12], offset, 3, "across")]
    assert log_of(store).end_offset == offset
    assert not [path for path in folder.glob("*.index") if int(path.stem) > offset]
    store.close()


def test_a_cut_at_the_end_keeps_nothing(tmp_path: Path) -> None:
    files = QuickFiles()
    store = filled(files, tmp_path)
    cut(store, log_of(store).end_offset)
    assert (len(contents(log_of(store))), tails(files, tmp_path)) == (40, [])
    store.close()


def test_empty_last_segments_of_a_follower_go(tmp_path: Path) -> None:
    files = QuickFiles()
    store = filled(files, tmp_path)
    log = log_of(store)
    log.begin_segment()
    log.sync()
    store.close()
    start = log.end_offset
    assert index_path(log.directory, start).exists()
    again = opened(files, tmp_path)
    assert log_of(again).active.start < log_of(again).end_offset == start
    assert not index_path(log.directory, start).exists()
    assert not again.losses
    again.close()


def test_a_damaged_intention_keeps_the_partition_out_of_service(tmp_path: Path) -> None:
    files = QuickFiles()
    filled(files, tmp_path).close()
    folder = tmp_path / "data" / lost_found.FOLDER_NAME / "orders-0"
    folder.mkdir(parents=True)
    (folder / lost_found.INTENTION_NAME).write_bytes(b"metaq-cut 1\n")
    store = opened(files, tmp_path)
    assert "intention: its checksum does not match; a cut of stream orders-0" in store.refused["orders", 0]
    store.close()
    with pytest.raises(IntentionDamaged):
        lost_found.read_intention(files, folder)


OFFSET = AT[17]


def interrupted(folder: Path) -> Iterator[tuple[int, Path]]:
    """Every call of a cut that changes files, and a filled folder in which it fails."""

    class Cutting:
        def __init__(self, root: Path) -> None:
            self.root = root

        def run(self, files: FaultyFiles) -> None:
            store = filled(files, self.root)
            files.calls.clear()
            cut(store, OFFSET)

        def check(self, files: FaultyFiles) -> None:
            raise AssertionError("is not called")

    yield from each_call(folder, Cutting)


def prepared(root: Path) -> tuple[FaultyFiles, LogStore]:
    files = FaultyFiles(root)
    store = filled(files, root)
    files.calls.clear()
    return files, store


def check_after(files: Files, root: Path) -> None:
    """Either nothing has happened, or the cut is done; nothing is half there, and nothing is lost."""
    store = opened(files, root)
    log = log_of(store)
    kept, left = b"".join(tails(files, root)), b"".join(contents(log).values())
    assert not store.losses
    assert log.incarnation is not None
    assert (left, kept) in ((b"".join(ALL[:17]), b"".join(ALL[17:])), (b"".join(ALL), b""))
    assert not lost_found.unfinished(files, root / "data")
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_power_cut_at_every_call(kept: float, tmp_path: Path) -> None:
    count = 0
    for at, root in interrupted(tmp_path):
        files, store = prepared(root)
        files.fault = Fault(at, None, kept)
        with pytest.raises(PowerCut):
            cut(store, OFFSET)
        after = files.crash(Random(at))
        after.fault = Fault(1 + at % 7, None, kept)  # and once more while it is finished
        with contextlib.suppress(PowerCut):
            check_after(after, root)
        after.fault = None
        check_after(after.crash(Random(at + 1)), root)
        count = at
    assert count > 15


@pytest.mark.slow
def test_an_error_at_every_call(tmp_path: Path) -> None:
    for at, root in interrupted(tmp_path):
        files, store = prepared(root)
        files.fault = Fault(at, errno.EIO)
        try:
            cut(store, OFFSET)
        except OSError:
            files.fault = None
            store.close(clean=True)
            check_after(files, root)
        else:  # the disk fails where it does not matter
            files.fault = None
            store.close(clean=True)
            check_after(files, root)


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_putting_aside_survives_a_power_cut_at_every_call(kept: float, tmp_path: Path) -> None:
    class PuttingAside:
        def __init__(self, root: Path) -> None:
            self.root = root

        def run(self, files: FaultyFiles) -> None:
            store = filled(files, self.root)
            log = store.take_offline("orders", 0, "it is being moved")
            assert log is not None
            assert log.incarnation is not None
            log.close(clean=False)
            store.put_aside("orders", 0, log.incarnation, START_MS)

        def check(self, files: FaultyFiles) -> None:
            raise AssertionError("is not called")

    for at, root in each_call(tmp_path, PuttingAside):
        files = FaultyFiles(root, Fault(at, None, kept))
        with contextlib.suppress(PowerCut):
            PuttingAside(root).run(files)
        after = files.crash(Random(at))
        found = [path for path in root.glob("data/lost+found/orders-0/*") if path.name.endswith(str(START_MS))]
        assert len(found) + (root / "data" / "orders-0").is_dir() <= 1
        if found:
            assert b"".join(path.read_bytes() for path in sorted(found[0].glob("*.meta"))) == b"".join(ALL)
            store = opened(after, root)
            assert not store.losses
            store.close()
