"""Reading a checkpoint folder, and adding a batch to it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checkpoints
import pytest
from checkpoints import CONF, commit, offset, plan, query

from metaq.formats.checkpoint_files import PlannedOffsets
from metaq.model import Partition, TopicPartition
from metaq_spark.checkpoint.folder import (
    CheckpointFolderError,
    MicroBatch,
    add_batch,
    local_folder,
    read_checkpoint,
    remove_planned,
)
from metaq_spark.checkpoint.sources import is_move, read_sources
from metaq_spark.errors import CheckpointError
from metaq_spark.offsets import Progress

P0 = TopicPartition("orders", Partition(0, 0))


def at(offset_: int) -> str:
    return offset(orders={"0-0": offset_})


def test_a_query_between_two_batches(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(query(tmp_path, at(21), at(42)))
    metadata = {"batchWatermarkMs": 5, "batchTimestampMs": 1001, "conf": CONF}
    assert checkpoint.committed == MicroBatch(1, PlannedOffsets("v1", metadata, {"0": at(42)}))
    assert (checkpoint.planned, checkpoint.next_batch_id, checkpoint.watermark_ms) == (None, 2, 9)
    assert (checkpoint.query_id, checkpoint.stateful, checkpoint.quiet_s < 600) == ("query-id", False, True)
    assert checkpoint.batch(0).lines == {"0": at(21)}
    with pytest.raises(CheckpointFolderError, match="batch 7 is not there; it has 0 to 1"):
        checkpoint.batch(7)
    (source,) = read_sources(checkpoint)
    assert (source.number, source.read_to, source.planned, source.format) == (1, Progress({P0: 42}), None, "metaq")


def test_a_query_that_stopped_in_a_batch(tmp_path: Path) -> None:
    plan(query(tmp_path, at(21)), 1, at(42))
    (tmp_path / "state" / "0").mkdir(parents=True)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.committed is not None
    assert checkpoint.planned is not None
    assert (checkpoint.committed.batch_id, checkpoint.planned.batch_id, checkpoint.next_batch_id) == (0, 1, 2)
    assert checkpoint.stateful
    (source,) = read_sources(checkpoint)
    assert (source.read_to, source.planned) == (Progress({P0: 21}), Progress({P0: 42}))


def test_a_query_that_stopped_in_its_first_batch(tmp_path: Path) -> None:
    plan(tmp_path, 0, at(42))
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.committed, checkpoint.query_id, checkpoint.next_batch_id) == (None, None, 1)
    (source,) = read_sources(checkpoint)
    assert (source.read_to, source.planned) == (Progress({}), Progress({P0: 42}))


def test_the_sources_of_others_are_shown_as_they_are(tmp_path: Path) -> None:
    plan(tmp_path, 0, '{"orders":{"0":12}}', "-", at(5), '{"logOffset":3}', "7", "not json")
    commit(tmp_path, 0)
    sources = read_sources(read_checkpoint(tmp_path))
    assert [source.format for source in sources] == [None, None, "metaq", None, None, None]
    assert sources[1].line == "-"


def test_sources_with_names(tmp_path: Path) -> None:
    """In any order of the file; one is added in the planned batch, one is removed."""
    plan(tmp_path, 0, f"orders:{at(5)}", 'files:{"logOffset":0}', form="v2")
    commit(tmp_path, 0)
    plan(tmp_path, 1, f"orders:{at(7)}", f"bills:{offset(bills={'0-0': 3})}", form="v2")
    bills, files, orders = read_sources(read_checkpoint(tmp_path))
    assert [one.label for one in (bills, files, orders)] == ["bills", "files", "orders"]
    assert [one.number for one in (bills, files, orders)] == [1, 2, 3]
    assert (bills.format, files.format, orders.format) == ("metaq", None, "metaq")
    assert (bills.read_to, orders.read_to, orders.planned) == (Progress({}), Progress({P0: 5}), Progress({P0: 7}))
    assert (files.line, files.planned) == ('{"logOffset":0}', None)


def test_form_2_without_names(tmp_path: Path) -> None:
    """Spark writes its numbers in any order; the tenth comes after the second."""
    lines = [f"{number}:{at(number)}" for number in range(11)]
    plan(tmp_path, 0, *reversed(lines), form="v2")
    commit(tmp_path, 0)
    sources = read_sources(read_checkpoint(tmp_path))
    assert [(one.label, one.read_to) for one in sources] == [(n + 1, Progress({P0: n})) for n in range(11)]


def test_a_batch_that_is_added_keeps_the_form(tmp_path: Path) -> None:
    plan(tmp_path, 0, f"orders:{at(5)}", "files:-", form="v2")
    commit(tmp_path, 0)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.committed is not None
    offsets = replace(checkpoint.committed.offsets, metadata={}, lines={"files": "-", "orders": at(0)})
    assert add_batch(checkpoint, MicroBatch(1, offsets)).read_text() == f"v2\n{{}}\nfiles:-\norders:{at(0)}"


def test_an_offset_of_a_newer_version_is_not_taken_for_an_unknown_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="newer metaq-spark"):
        read_sources(read_checkpoint(query(tmp_path, '{"v": 5, "topics": {}}')))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "there is no folder offsets in it; is this the checkpointLocation?"),
        (lambda folder: (folder / "offsets").mkdir(), "has not begun its first batch"),
        (lambda folder: (folder / "metadata").write_text('{"id":"query-id"}'), "has not begun its first batch"),
        (lambda folder: plan(folder, 0, at(1), form="v3"), "offsets/0 is in Spark's form 'v3', known is v1 and v2"),
        (lambda folder: plan(folder, 0, "orders", form="v2"), "offsets/0 holds 'orders' where the name of a source"),
        (lambda folder: plan(folder, 0, at(1), metadata="nonsense"), "offsets/0 holds 'nonsense' where JSON"),
        (lambda folder: plan(folder, 0, at(1), metadata="[]"), "offsets/0 holds '[]' where JSON"),
        (lambda folder: (plan(folder, 0), (folder / "offsets" / "0").write_text("v1\n")), "offsets/0 is cut off"),
        (lambda folder: (plan(folder, 0, at(1)), commit(folder, 1)), "commits/1 is there without offsets/1"),
        (
            lambda folder: (query(folder, at(1)), (folder / "commits" / "0").write_text("v4\n{}")),
            "commits/0 is in Spark's form 'v4', known is v1 and v2 and v3; leave the checkpoint to Spark",
        ),
        (
            lambda folder: (query(folder, at(1)), (folder / "commits" / "0").write_text('v3\n{"sinkMetadataMap":[]}')),
            "commits/0 holds '{\"sinkMetadataMap\":[]}', which is not what Spark writes",
        ),
        (
            lambda folder: (query(folder, at(1)), (folder / "metadata").write_text("[]")),
            "its file metadata does not have the id of a query",
        ),
    ],
)
def test_what_is_no_checkpoint_of_a_known_form(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    make(tmp_path)
    with pytest.raises(CheckpointFolderError) as caught:
        read_checkpoint(tmp_path)
    assert str(caught.value).startswith(f"checkpoint {tmp_path}: ")
    assert words in str(caught.value)


def test_a_batch_is_added_whole_and_taken_back(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(query(tmp_path, at(21), at(42)))
    before = checkpoints.files(tmp_path)
    (tmp_path / "offsets" / ".2.crc").write_bytes(b"of another file that had this name")
    os.chmod(tmp_path / "offsets" / "1", 0o640)
    lines = {"0": offset(moved=True, orders={"0-0": 0}), "1": "-"}
    batch = MicroBatch(2, PlannedOffsets("v1", {"batchTimestampMs": 7, "conf": CONF}, lines))
    path = add_batch(checkpoint, batch)
    assert path.read_text().split("\n") == [
        "v1",
        json.dumps({"batchTimestampMs": 7, "conf": CONF}, separators=(",", ":")),
        *lines.values(),
    ]
    assert checkpoints.files(tmp_path) == before | {"offsets/2": path.read_bytes()}
    again = read_checkpoint(tmp_path)
    assert again.planned == batch
    assert is_move(again.planned)
    assert not is_move(again.committed)
    remove_planned(again)
    assert checkpoints.files(tmp_path) == before


def test_a_new_file_can_be_read_by_whoever_reads_the_others(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(query(tmp_path, at(21)))
    os.chmod(tmp_path / "offsets" / "0", 0o604)
    assert add_batch(checkpoint, MicroBatch(1, PlannedOffsets("v1", {}, {}))).stat().st_mode & 0o777 == 0o604


def test_a_query_that_runs_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(query(tmp_path, at(21)))
    plan(tmp_path, 1, at(42))
    before = checkpoints.files(tmp_path)
    with pytest.raises(CheckpointFolderError, match="1 has just been planned: the query runs"):
        add_batch(checkpoint, MicroBatch(1, PlannedOffsets("v1", {}, {"0": at(0)})))
    assert checkpoints.files(tmp_path) == before


def test_nothing_is_taken_back_where_nothing_is_planned(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(query(tmp_path, at(21)))
    before = checkpoints.files(tmp_path)
    remove_planned(replace(checkpoint, planned=None))
    assert checkpoints.files(tmp_path) == before


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("here/it is", "here/it is"),
        ("/data/check#1", "/data/check#1"),
        ("file:/data/a%20b", "/data/a b"),
        ("file:///data/a", "/data/a"),
        ("file://localhost/data/a", "/data/a"),
        ("C:odd", "C:odd"),
    ],
)
def test_places_on_this_machine(place: str, folder: str) -> None:
    assert local_folder(place) == Path(folder)


@pytest.mark.parametrize("place", ["hdfs://nn:8020/ck", "s3a://bucket/ck", "file://elsewhere/ck"])
def test_places_in_other_file_systems(place: str) -> None:
    with pytest.raises(CheckpointFolderError, match="is another file system; copy the folder here"):
        local_folder(place)


def test_a_batch_that_is_planned_and_committed_while_the_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plain = query(tmp_path / "query", at(21)), Path.glob
    listed: list[Path] = []

    def glob(self: Path, pattern: str) -> list[Path]:
        found = list(plain(self, pattern))
        listed.append(self)
        if len(listed) == 1:
            plan(folder, 1, at(42))
            commit(folder, 1)
        return found

    monkeypatch.setattr(Path, "glob", glob)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.committed is not None
    assert checkpoint.committed.batch_id == 0
    assert checkpoint.planned is not None
    assert checkpoint.planned.batch_id == 1
