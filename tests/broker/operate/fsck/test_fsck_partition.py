"""What fsck finds in damaged partitions, that a check changes nothing, and that one repair is enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from metaq_broker.clock import Clock, ManualClock
from metaq_broker.log.partitions.damage import Damage
from metaq_broker.operate.fsck.checker import Checker, CheckTask
from metaq_broker.operate.fsck.findings import Findings, IndexState, PartitionFindings
from metaq_broker.operate.fsck.partition import check_partition, repair_partition
from metaq_broker.operate.fsck.report import as_json, as_text, exit_status
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from stored import SMALL, START_MS, QuickFiles, drop_segments, frames
from stored_folder import COUNT, fill, flip, open_store, segments, served, snapshot


def run(root: Path, *, repair: bool = False, topics: frozenset[str] = frozenset()) -> Findings:
    return Checker(QuickFiles(), Clock(), CheckTask([root], root / "transactions", SMALL, topics, repair)).run()


def orders(findings: Findings) -> PartitionFindings:
    return next(partition for partition in findings.partitions if partition.topic == "orders")


def test_a_sound_folder_is_clean(tmp_path: Path) -> None:
    fill(tmp_path)
    before = snapshot(tmp_path)
    findings = run(tmp_path)
    assert exit_status(findings) == 0
    partition = orders(findings)
    assert (partition.messages, partition.segments) == (COUNT, len(segments(tmp_path)))
    assert (partition.start_offset, partition.end_offset) == (0, sum(map(len, frames(COUNT))))
    assert set(partition.indexes.values()) == {IndexState.COMPLETE}
    assert not partition.unsettled
    assert [*partition.problems(), *partition.notes()] == []
    run(tmp_path, repair=True)
    assert snapshot(tmp_path) == before


def test_what_a_kill_leaves_is_no_problem(tmp_path: Path) -> None:
    fill(tmp_path, clean=False)
    findings = run(tmp_path)
    assert (exit_status(findings), orders(findings).messages) == (0, COUNT)


def without_its_oldest_segments(root: Path) -> None:
    """Of the partition orders-0 no index is left either."""
    store = open_store(root)
    log = store.get_or_create("orders", 0)
    drop_segments(log, log.removable)
    store.close(clean=True)
    for path in (root / "orders-0").glob("*.index"):
        path.unlink()


def test_numbers_that_a_noted_end_tells_are_no_problem(tmp_path: Path) -> None:
    fill(tmp_path)
    without_its_oldest_segments(tmp_path)
    findings = run(tmp_path, repair=True)
    assert (exit_status(findings), orders(findings).renumbered) == (0, None)
    assert open_store(tmp_path).get_or_create("orders", 0).end_ordinal == COUNT


def test_numbers_that_nothing_tells_are_a_problem(tmp_path: Path) -> None:
    fill(tmp_path)
    without_its_oldest_segments(tmp_path)
    (tmp_path / "durable-ends").unlink()
    before = snapshot(tmp_path)
    findings = run(tmp_path)
    renumbered = orders(findings).renumbered
    assert renumbered is not None
    assert f"the queue is renumbered from {renumbered} on" in "".join(as_text(findings))
    assert exit_status(findings) == 1
    assert snapshot(tmp_path) == before
    assert run(tmp_path, repair=True).all_repaired
    assert exit_status(run(tmp_path)) == 0
    assert open_store(tmp_path).get_or_create("orders", 0).ordinal(0) == renumbered


def test_only_the_topics_asked_for_are_read(tmp_path: Path) -> None:
    fill(tmp_path)
    flip(segments(tmp_path)[0], 30)
    found = run(tmp_path, topics=frozenset({"payments"}))
    assert [partition.topic for partition in found.partitions] == ["payments"]
    assert exit_status(found) == 0


# ---- one kind of damage each: how it is made, and what is said


def torn(root: Path) -> None:
    with segments(root)[-1].open("ab") as file:
        file.write(frames(1, COUNT)[0][:-3])


def zeros(root: Path) -> None:
    with segments(root)[-1].open("ab") as file:
        file.write(bytes(4096))


def broken_body(root: Path) -> None:
    flip(segments(root)[1], 25)


def broken_body_in_the_tail(root: Path) -> None:
    flip(segments(root)[-1], 25)


def broken_index(root: Path) -> None:
    flip(segments(root)[0].with_suffix(".index"), 40)


def index_of_others(root: Path) -> None:
    first, second = (segments(root)[number].with_suffix(".index") for number in (0, 1))
    second.write_bytes(first.read_bytes())


def broken_quarantine(root: Path) -> None:
    (root / "orders-0" / "quarantine").write_bytes(b"nonsense")


def broken_incarnation(root: Path) -> None:
    flip(root / "orders-0" / "incarnation", 30)


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (torn, "torn tail: "),
    (zeros, "torn tail: 4096 bytes from offset"),
    (broken_body, "1 message(s): the checksum in its header does not match its body"),
    (broken_body_in_the_tail, "1 message(s): the checksum in its header does not match its body"),
    (broken_index, "the index of the segment that starts at 0 is damaged"),
    (index_of_others, "is damaged, or belongs to other bytes"),
    (broken_quarantine, "the quarantine file cannot be read"),
    (broken_incarnation, "the incarnation file cannot be read: its checksum does not match; readers that know"),
]


@pytest.mark.parametrize(("harm", "sentence"), DAMAGE, ids=[harm.__name__ for harm, _ in DAMAGE])
def test_damage_is_named_and_repaired_once(harm: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    fill(tmp_path)
    harm(tmp_path)
    before = snapshot(tmp_path)
    findings = run(tmp_path)
    assert snapshot(tmp_path) == before, "a check changed something"
    assert (exit_status(findings), findings.problem_count) == (1, 1)
    assert any(sentence in line for line in as_text(findings))
    repaired = run(tmp_path, repair=True)
    assert exit_status(repaired) == 1
    assert orders(repaired).repaired
    assert list(as_text(repaired))[-1].endswith("1 problem, all repaired")
    after = snapshot(tmp_path)
    assert exit_status(run(tmp_path)) == 0
    again = run(tmp_path, repair=True)
    assert (exit_status(again), orders(again).repaired) == (0, False)
    assert snapshot(tmp_path) == after
    assert len(served(tmp_path)) == orders(findings).messages >= COUNT - 1


def test_what_is_cut_is_kept(tmp_path: Path) -> None:
    fill(tmp_path)
    end = sum(map(len, frames(COUNT)))
    torn(tmp_path)
    assert orders(run(tmp_path, repair=True)).kept == [f"{end:020d}.cut"]
    kept = tmp_path / "orders-0" / f"{end:020d}.cut"
    assert kept.read_bytes() == frames(1, COUNT)[0][:-3]
    zeros(tmp_path)
    assert orders(run(tmp_path, repair=True)).kept == [f"{end:020d}.cut.1"]
    assert kept.read_bytes() == frames(1, COUNT)[0][:-3]
    assert len(served(tmp_path)) == COUNT


def test_a_segment_that_never_got_its_name_is_kept_aside(tmp_path: Path) -> None:
    fill(tmp_path)
    stray = tmp_path / "orders-0" / f"{999_999:020d}.meta.new"
    stray.write_bytes(b"".join(frames(3, 100)))
    findings = run(tmp_path, repair=True)
    assert exit_status(findings) == 0
    assert orders(findings).kept == [stray.name + ".cut"]
    assert not stray.exists()
    assert len(served(tmp_path)) == COUNT


def test_quarantined_damage_is_reported_but_no_problem_any_more(tmp_path: Path) -> None:
    fill(tmp_path)
    broken_body(tmp_path)
    run(tmp_path, repair=True)
    partition = orders(run(tmp_path))
    assert partition.damage == []
    assert [entry.messages for entry in partition.known] == [1]
    assert any(note.startswith("not served: [") for note in partition.notes())


def test_a_missing_index_is_made_again(tmp_path: Path) -> None:
    fill(tmp_path)
    before = snapshot(tmp_path)
    segments(tmp_path)[1].with_suffix(".index").unlink()
    findings = run(tmp_path)
    assert exit_status(findings) == 0
    assert list(orders(findings).notes()) == ["1 index missing"]
    run(tmp_path, repair=True)
    assert snapshot(tmp_path) == before


def test_a_folder_without_incarnation_is_sound(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "orders-0" / "incarnation").unlink()
    before = snapshot(tmp_path)
    findings = run(tmp_path, repair=True)
    assert (exit_status(findings), orders(findings).incarnation) == (0, None)
    assert list(orders(findings).notes()) == []
    assert snapshot(tmp_path) == before, "the next start makes one"


def test_the_incarnation_is_reported_and_a_repair_makes_another(tmp_path: Path) -> None:
    fill(tmp_path)
    former = orders(run(tmp_path)).incarnation
    assert former is not None
    broken_incarnation(tmp_path)
    assert orders(run(tmp_path)).incarnation is None
    made = orders(run(tmp_path, repair=True)).incarnation
    assert made not in (None, former)
    store = open_store(tmp_path)
    log = store.get("orders", 0)
    assert log is not None
    assert log.incarnation == made
    store.close()
    assert as_json(run(tmp_path))["folders"][0]["partitions"][0]["incarnation"] == made


def test_a_gap_is_a_problem_that_nothing_repairs(tmp_path: Path) -> None:
    fill(tmp_path)
    segments(tmp_path)[1].unlink()
    before = snapshot(tmp_path)
    findings = run(tmp_path, repair=True)
    assert "there is a gap" in str(orders(findings).refusal)
    assert (exit_status(findings), findings.all_repaired) == (1, False)
    assert snapshot(tmp_path) == before


def test_a_folder_without_segments_is_empty(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    findings = run(tmp_path)
    assert (orders(findings).messages, exit_status(findings)) == (0, 0)
    assert list((tmp_path / "orders-0").iterdir()) == []


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    fill(tmp_path)
    segment = segments(tmp_path)[0]
    segment.unlink()
    segment.mkdir()
    assert orders(run(tmp_path)).refusal is not None


def test_a_running_broker_writes_and_fsync_is_no_problem(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    log = store.get_or_create("orders", 0)
    log.append(frames(COUNT))
    log.sync()
    with segments(tmp_path)[-1].open("ab") as file:
        file.write(b"a write under way")
    findings = run(tmp_path)
    assert exit_status(findings) == 0
    assert findings.folders[0].owner is not None
    assert any("are being written" in note for note in orders(findings).notes())
    store.close(clean=False)


def test_json_says_the_same(tmp_path: Path) -> None:
    fill(tmp_path)
    torn(tmp_path)
    broken_body(tmp_path)
    document = as_json(run(tmp_path))
    partition = document["folders"][0]["partitions"][0]
    damage = orders(run(tmp_path)).damage[0]
    assert isinstance(damage, Damage)
    assert partition["state"] == "problem"
    assert partition["torn_tail"] == {"offset": sum(map(len, frames(COUNT))), "bytes": len(frames(1, COUNT)[0]) - 3}
    assert partition["damaged"] == [
        {"start": damage.start, "end": damage.end, "messages": 1, "reason": damage.reason, "quarantined": False}
    ]
    assert (document["version"], document["exit"], document["summary"]["problems"]) == (1, 1, 2)


# ---- accidents during a repair


def test_a_repair_that_is_cut_short_loses_nothing(tmp_path: Path) -> None:
    def harmed(root: Path) -> PartitionFindings:
        root.mkdir()
        fill(root)
        torn(root)
        broken_body(root)
        broken_index(root)
        return check_partition(root / "orders-0", SMALL)

    counting = tmp_path / "count"
    findings = harmed(counting)
    files = FaultyFiles(counting)
    repair_partition(files, SMALL, findings, ManualClock(START_MS))
    expected, tail = served(counting), frames(1, COUNT)[0][:-3]
    assert len(expected) == COUNT - 1
    assert len(files.calls) > 8
    for at in range(1, len(files.calls) + 1):
        root = tmp_path / str(at)
        findings = harmed(root)
        files = FaultyFiles(root, Fault(at, None))
        with pytest.raises(PowerCut):
            repair_partition(files, SMALL, findings, ManualClock(START_MS))
        files.crash(Random(at))
        run(root, repair=True)
        assert exit_status(run(root)) == 0
        assert any(path.read_bytes() == tail for path in (root / "orders-0").glob("*.cut*"))
        assert served(root) == expected
