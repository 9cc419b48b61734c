"""How messages are numbered when the index of the oldest segment is lost, and older segments were removed before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.retention.archive import RemovalJob
from metaq_broker.log.retention.policy import Removal
from metaq_broker.log.segments.index import RECORD_BYTES
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from stored import FOLDER, SMALL, START_MS, QuickFiles, contents, frames, message_id, open_log

from metaq.formats.frames import HEADER_BYTES, encode_frame

COUNT = 157
ORDERS = ("orders", 0)


def open_store(root: Path, files: QuickFiles | FaultyFiles | None = None) -> LogStore:
    return LogStore.open(files or QuickFiles(), ManualClock(START_MS), root / "data", lambda topic: SMALL)


def orders(store: LogStore) -> PartitionLog:
    return store.get_or_create(*ORDERS)


def stored_and_retired(root: Path, *, segments: int | None) -> dict[int, int]:
    """A partition whose oldest segments were removed, ``segments`` of them or all that can be, after a kill.

    Return the ordinals of the kept messages by their offsets.
    """
    store = open_store(root)
    log = orders(store)
    offsets = [log.append([each]) for each in frames(COUNT)]
    log.sync()
    store.note_ends(store.ends())
    finished = [each for each in log.segments() if each.read_only][:segments]
    RemovalJob(QuickFiles(), Removal.DELETE, log.forget_segments(len(finished))).run()
    assert log.start_offset > 0
    kept = {at: number for number, at in enumerate(offsets) if at >= log.start_offset}
    assert 5 < len(kept) < COUNT
    store.close(clean=False)
    return kept


def numbers(log: PartitionLog) -> dict[int, int]:
    return {offset: log.ordinal(offset) for offset in contents(log)}


def indexes(root: Path) -> list[Path]:
    return sorted((root / "data" / FOLDER).glob("*.index"))


def remove(path: Path) -> None:
    path.unlink()


def damage_header(path: Path) -> None:
    path.write_bytes(bytes(RECORD_BYTES) + path.read_bytes()[RECORD_BYTES:])


def cut_to_header(path: Path) -> None:
    os.truncate(path, RECORD_BYTES)


def cut_inside_the_first_entry(path: Path) -> None:
    os.truncate(path, RECORD_BYTES + 10)


def damage_first_entry(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[RECORD_BYTES : 2 * RECORD_BYTES] = bytes(RECORD_BYTES)
    path.write_bytes(content)


def old_copy(path: Path) -> None:
    os.truncate(path, 2 * RECORD_BYTES)


def make_empty(path: Path) -> None:
    os.truncate(path, 0)


LOSSES = [
    remove,
    damage_header,
    cut_to_header,
    cut_inside_the_first_entry,
    damage_first_entry,
    old_copy,
    make_empty,
]


@pytest.mark.parametrize("segments", [2, None], ids=["some kept", "one kept"])
@pytest.mark.parametrize("lose", LOSSES)
def test_numbers_are_learnt_from_the_noted_end(
    lose: Callable[[Path], None], segments: int | None, tmp_path: Path
) -> None:
    kept = stored_and_retired(tmp_path, segments=segments)
    for path in indexes(tmp_path):
        lose(path)
    log = orders(open_store(tmp_path))
    assert numbers(log) == kept
    assert log.end_ordinal == COUNT
    assert log.recovery.renumbered is None


def test_the_noted_end_may_be_before_the_last_message(tmp_path: Path) -> None:
    kept = stored_and_retired(tmp_path, segments=None)
    for path in indexes(tmp_path):
        path.unlink()
    log = open_store(tmp_path).get(*ORDERS)
    assert log is not None
    log.append(frames(5, COUNT))
    log.sync()  # noted is the end before
    for path in indexes(tmp_path):
        path.unlink()
    os.unlink(tmp_path / "data" / ".lock")
    again = orders(open_store(tmp_path))
    assert kept.items() <= numbers(again).items()
    assert again.end_ordinal == COUNT + 5


def test_numbers_go_on_where_the_end_is_lost_as_well(tmp_path: Path) -> None:
    kept = stored_and_retired(tmp_path, segments=None)
    segment = max((tmp_path / "data" / FOLDER).glob("*.meta"))
    last = max(kept)
    os.truncate(segment, last - int(segment.stem))
    indexes(tmp_path)[-1].unlink()
    log = orders(open_store(tmp_path))
    assert log.end_ordinal == COUNT, "no number is given twice"
    assert {at: number for at, number in kept.items() if at != last} == numbers(log)


def lose_notes(root: Path) -> None:
    (root / "data" / "durable-ends").unlink()


def damage_notes(root: Path) -> None:
    (root / "data" / "durable-ends").write_bytes(b"metaq-durable-ends 1\n")


def note_another_partition(root: Path) -> None:
    path = root / "data" / FOLDER / "incarnation"
    path.unlink()
    log = open_log(root / "other")
    log.append(frames(1))
    log.sync()
    (root / "other" / FOLDER / "incarnation").rename(path)


@pytest.mark.parametrize("lose", [lose_notes, damage_notes, note_another_partition])
def test_unknown_numbers_are_above_all_that_were_given(lose: Callable[[Path], None], tmp_path: Path) -> None:
    kept = stored_and_retired(tmp_path, segments=None)
    (tmp_path / "other").mkdir()
    lose(tmp_path)
    for path in indexes(tmp_path):
        path.unlink()
    store = open_store(tmp_path)
    log = orders(store)
    found = numbers(log)
    assert found.keys() == kept.keys()
    first = min(found.values())
    assert first >= COUNT, "a queue offset that was committed before leads to the start"
    assert sorted(found.values()) == list(range(first, first + len(kept)))
    assert log.recovery.renumbered == first
    assert any("numbered" in sentence for sentence in log.recovery.warnings())
    store.close(clean=False)
    again = orders(open_store(tmp_path))
    assert numbers(again) == found, "once only"
    assert again.recovery.renumbered is None


def test_the_shortest_messages_are_numbered_above_all_that_were_given(tmp_path: Path) -> None:
    shortest = [encode_frame(message_id(number), 0, b"") for number in range(100)]
    assert {len(each) for each in shortest} == {HEADER_BYTES}
    log = open_log(tmp_path, SMALL)
    log.append(shortest)
    log.sync()
    RemovalJob(QuickFiles(), Removal.DELETE, log.forget_segments(1)).run()
    log.close(clean=False)
    for path in (tmp_path / FOLDER).glob("*.index"):
        path.unlink()
    assert open_log(tmp_path, SMALL).ordinal(0) == len(shortest)


# ---- what retention leaves behind


@pytest.mark.parametrize("removal", [Removal.DELETE, Removal.ARCHIVE])
def test_a_power_cut_after_retention_keeps_the_numbers(removal: Removal, tmp_path: Path) -> None:
    """Nothing but the log itself is left: no notes of ends, and of the indexes only what was synced."""
    numbered = 0
    for seed in range(40):
        root = tmp_path / str(seed)
        root.mkdir()
        files = FaultyFiles(root)
        log = open_log(root, SMALL, files=files)
        offsets = [log.append([each]) for each in frames(COUNT)]
        log.sync()
        finished = sum(each.read_only for each in log.segments())
        count = 1 + seed % finished
        log.first_entry(count).run()
        RemovalJob(files, removal, log.forget_segments(count)).run()
        kept = {at: number for number, at in enumerate(offsets) if at >= log.start_offset}
        again = open_log(root, SMALL, files=files.crash(Random(seed)))
        assert numbers(again) == kept
        numbered += again.recovery.renumbered is None
    assert numbered == 40


def test_power_cut_at_every_call_of_retention(tmp_path: Path) -> None:
    def retire(files: FaultyFiles, root: Path, at: int | None) -> tuple[dict[int, int], FaultyFiles]:
        log = open_log(root, SMALL, files=files)
        offsets = [log.append([each]) for each in frames(COUNT)]
        log.sync()
        before = len(files.calls)
        if at is not None:
            files.fault = Fault(at, None)
        try:
            for _ in range(3):
                log.first_entry(1).run()
                RemovalJob(files, Removal.DELETE, log.forget_segments(1)).run()
        except PowerCut:
            pass
        calls = len(files.calls) - before
        given = {at: number for number, at in enumerate(offsets)}
        return (given, files) if at is not None else ({calls: calls}, files)

    (tmp_path / "count").mkdir()
    (calls,), _ = retire(FaultyFiles(tmp_path / "count"), tmp_path / "count", None)
    assert calls > 9
    for at in range(1, calls + 1):
        root = tmp_path / str(at)
        root.mkdir()
        given, files = retire(FaultyFiles(root), root, at)
        again = open_log(root, SMALL, files=files.crash(Random(at)))
        assert numbers(again).items() <= given.items()
        assert again.end_ordinal == COUNT


def test_segments_stay_until_the_next_one_has_its_name(tmp_path: Path) -> None:
    """Or a crash would leave no segment at all."""
    log = open_log(tmp_path, SMALL)
    log.append(frames(COUNT))
    log.sync()
    log.begin_segment()
    finished = len(log.segments()) - 1
    assert log.removable == finished - 1
    with pytest.raises(ValueError, match="cannot forget"):
        log.forget_segments(finished)
    log.sync()
    assert log.removable == finished
