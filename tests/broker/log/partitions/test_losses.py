"""Partitions that lost their end: no offset is given out again, what is missing is quarantined and not forgotten.

The dangers are an offset that a reader knows and that gets another message, and a loss of which nothing is said.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from examples import spread
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import ReadMoved
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from stored import FOLDER, SMALL, START_MS, QuickFiles, by_offset, contents, frames

from metaq.model import OffsetRange

COUNT = 60


def open_store(path: Path, files: Files | None = None) -> LogStore:
    return LogStore.open(files or QuickFiles(), ManualClock(START_MS), path, lambda topic: SMALL)


def only(store: LogStore) -> PartitionLog:
    (log,) = store.logs()
    return log


def fill(path: Path, *, clean: bool, noted: bool = True) -> tuple[int, str]:
    """Put messages into a partition of several segments and stop; return its end and its incarnation."""
    store = open_store(path)
    log = store.get_or_create("orders", 0)
    log.append(frames(COUNT))
    log.sync()
    assert log.incarnation is not None
    assert log.segment_count > 3
    if noted:
        store.note_ends(store.ends())
    end, incarnation = log.end_offset, log.incarnation
    store.close(clean)
    return end, incarnation


def segments(path: Path) -> list[Path]:
    return sorted((path / FOLDER).glob("*.meta"))


def shorten(path: Path) -> None:
    newest = segments(path)[-1]
    newest.write_bytes(newest.read_bytes()[:-150])


def without_newest(path: Path) -> None:
    segments(path)[-1].unlink()


def without_newest_and_index(path: Path) -> None:
    newest = segments(path)[-1]
    newest.unlink()
    newest.with_suffix(".index").unlink()


def without_three(path: Path) -> None:
    for segment in segments(path)[-3:]:
        segment.unlink()


def empty_newest(path: Path) -> None:
    segments(path)[-1].write_bytes(b"")


LOSSES = [shorten, without_newest, without_newest_and_index, without_three, empty_newest]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_a_lost_end_is_quarantined_and_the_log_goes_on_behind_it(
    lose: Callable[[Path], None], clean: bool, tmp_path: Path
) -> None:
    end, incarnation = fill(tmp_path, clean=clean)
    lose(tmp_path)
    left = sum(segment.stat().st_size for segment in segments(tmp_path))
    store = open_store(tmp_path)
    log = only(store)
    assert log.end_offset == log.readable_end == end
    kept = contents(log)
    assert kept.items() < by_offset(frames(COUNT)).items()
    (hole,) = [each for each in log.quarantined if each.end == end]
    assert log.read(hole.start, 100) == ReadMoved(end)
    # An exact end keeps the partition's incarnation; where readers may know more, it gets another one.
    assert (log.incarnation == incarnation) == clean
    (loss,) = store.losses
    assert (loss.folder, loss.start, loss.end) == (FOLDER, left, end)
    new = frames(5, 200)
    assert log.append(new) == end
    log.sync()
    assert log.ordinal(end) == COUNT
    store.close()
    for _ in range(2):  # nothing of it is found again, nothing is forgotten
        store = open_store(tmp_path)
        assert contents(only(store)) == kept | by_offset(new, end)
        assert only(store).ordinal(end) == COUNT
        assert store.losses == (loss,)
        assert only(store).recovery.lost is None
        store.close()


def test_without_notes_the_indexes_are_used_after_a_kill(tmp_path: Path) -> None:
    end, incarnation = fill(tmp_path, clean=False, noted=False)
    (tmp_path / "durable-ends").unlink()
    without_newest(tmp_path)
    store = open_store(tmp_path)
    assert end - SMALL.index_interval_bytes < only(store).end_offset <= end
    assert only(store).incarnation != incarnation
    assert len(store.losses) == 1
    store.close()


def test_an_old_mark_of_a_clean_stop_suffices_alone(tmp_path: Path) -> None:
    """A broker of an older version left no other notes."""
    end, incarnation = fill(tmp_path, clean=True)
    (tmp_path / "durable-ends").unlink()
    without_newest_and_index(tmp_path)
    store = open_store(tmp_path)
    assert (only(store).end_offset, only(store).incarnation) == (end, incarnation)
    store.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_folder_that_was_restored_from_an_older_copy(clean: bool, tmp_path: Path) -> None:
    fill(tmp_path, clean=True)
    shutil.copytree(tmp_path / FOLDER, tmp_path / "copy")
    store = open_store(tmp_path)
    only(store).append(frames(40, COUNT))
    only(store).sync()
    store.note_ends(store.ends())
    end = only(store).end_offset
    store.close(clean)
    shutil.rmtree(tmp_path / FOLDER)
    (tmp_path / "copy").rename(tmp_path / FOLDER)
    store = open_store(tmp_path)
    assert only(store).end_offset == end
    assert contents(only(store)) == by_offset(frames(COUNT))
    assert [loss.end for loss in store.losses] == [end]
    store.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_all_segments_gone(clean: bool, tmp_path: Path) -> None:
    end, incarnation = fill(tmp_path, clean=clean)
    for segment in segments(tmp_path):
        segment.unlink()
    store = open_store(tmp_path)
    assert only(store).end_offset == 0
    only(store).append(frames(3))
    only(store).sync()
    assert only(store).incarnation != incarnation
    assert [(loss.start, loss.end) for loss in store.losses] == [(0, end)]
    assert "new incarnation" in store.losses[0].reason
    store.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_the_whole_folder_gone(clean: bool, tmp_path: Path) -> None:
    end, incarnation = fill(tmp_path, clean=clean)
    shutil.rmtree(tmp_path / FOLDER)
    store = open_store(tmp_path)
    assert list(store.logs()) == []
    assert [(loss.folder, loss.end) for loss in store.losses] == [(FOLDER, end)]
    log = store.get_or_create("orders", 0)
    log.append(frames(3))
    log.sync()
    assert log.incarnation != incarnation
    store.close()
    store = open_store(tmp_path)
    assert len(store.losses) == 1
    assert contents(only(store)) == by_offset(frames(3))
    store.close()


def test_what_the_broker_itself_deletes_or_moves_is_not_lost(tmp_path: Path) -> None:
    fill(tmp_path, clean=True)
    store = open_store(tmp_path)
    store.get_or_create("orders", 1).append(frames(3))
    store.get_or_create("orders", 1).sync()
    ends = store.ends()
    store.note_ends(ends)
    for index in (0, 1):
        log = store.take_offline("orders", index, "it leaves")
        assert log is not None
        log.close(clean=False)
    store.delete_folder("orders", 0)
    store.remove_entry("orders", 0)
    store.rename_folder("orders", 1, 4)
    store.remove_entry("orders", 1)
    store.note_ends(ends)  # taken before, written after
    store.bring_online(store.open_again("orders", 4))
    store.close(clean=False)
    store = open_store(tmp_path)
    assert [(log.topic, log.index) for log in store.logs()] == [("orders", 4)]
    assert store.losses == ()
    store.close()


def test_the_first_segments_may_go(tmp_path: Path) -> None:
    """That is what retention does, and readers of their offsets are told where messages go on."""
    fill(tmp_path, clean=True)
    segments(tmp_path)[0].unlink()
    store = open_store(tmp_path)
    assert only(store).start_offset > 0
    assert store.losses == ()
    store.close()


def test_a_loss_stays_until_it_is_acknowledged(tmp_path: Path) -> None:
    fill(tmp_path, clean=True)
    without_newest(tmp_path)
    open_store(tmp_path).close()
    store = open_store(tmp_path)
    assert len(store.losses) == 1
    assert store.acknowledge("orders", 0)
    assert not store.acknowledge("orders", 0)
    assert store.losses == ()
    store.close(clean=False)
    store = open_store(tmp_path)
    assert store.losses == ()
    store.close()


def test_an_index_of_other_bytes_is_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    store = LogStore.open(QuickFiles(), ManualClock(START_MS), tmp_path / "a", lambda topic: SMALL)
    store.get_or_create("orders", 0).append(frames(9, 500))
    store.get_or_create("orders", 1).append(frames(5))
    store.close()
    index = f"{0:020d}.index"
    shutil.copy(tmp_path / "a" / "orders-0" / index, tmp_path / "a" / "orders-1" / index)
    (tmp_path / "a" / "clean-shutdown").unlink()
    store = open_store(tmp_path / "a")
    log = store.get("orders", 1)
    assert log is not None
    assert contents(log) == by_offset(frames(5))
    assert store.losses == ()
    store.close()


def test_a_shortened_segment_is_found_when_it_is_reopened(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    log = store.get_or_create("orders", 0)
    log.append(frames(COUNT))
    log.sync()
    end, incarnation = log.end_offset, log.incarnation
    shorten(tmp_path)
    report = log.reopen()
    assert report.lost is not None
    assert (log.end_offset, log.incarnation) == (end, incarnation)
    assert log.quarantined[-1].end == end
    assert log.append(frames(1, COUNT)) == end
    store.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("lose", [shorten, without_newest], ids=lambda lose: lose.__name__)
def test_a_power_cut_at_every_call_of_the_repair(lose: Callable[[Path], None], clean: bool, tmp_path: Path) -> None:
    def harmed(root: Path) -> int:
        root.mkdir()
        end, _ = fill(root, clean=clean)
        lose(root)
        return end

    counted = tmp_path / "count"
    end = harmed(counted)
    files = FaultyFiles(counted)
    open_store(counted, files)
    assert len(files.calls) > 10
    for at in spread(range(1, len(files.calls) + 1)):
        root = tmp_path / str(at)
        harmed(root)
        files = FaultyFiles(root, Fault(at, None))
        with pytest.raises(PowerCut):
            open_store(root, files)
        store = open_store(root, files.crash(Random(at)))
        assert only(store).end_offset == end, at
        assert {loss.end for loss in store.losses} == {end}, at
        assert contents(only(store)).items() < by_offset(frames(COUNT)).items()
        assert OffsetRange(only(store).quarantined[-1].start, end) == only(store).quarantined[-1]
        store.close()


def test_an_index_without_its_segment_is_proof_by_itself(tmp_path: Path) -> None:
    end, incarnation = fill(tmp_path, clean=False)
    (tmp_path / "durable-ends").unlink()
    newest = segments(tmp_path)[-1]
    newest.unlink()
    index = newest.with_suffix(".index")
    index.write_bytes(index.read_bytes()[:64])
    store = open_store(tmp_path)
    assert only(store).incarnation != incarnation
    assert int(newest.stem) < only(store).end_offset <= end
    assert len(store.losses) == 1
    store.close()
