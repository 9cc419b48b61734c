"""Moving a query: the batch that is added, over brokers in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from checkpoints import CONF, commit, offset, plan, query

from metaq.backends.metaq.pool import SessionPool
from metaq.errors import ConnectionFailed, ExtensionMissing
from metaq.formats.frames import encode_frame
from metaq.model import Address, Partition, TopicPartition
from metaq.testing.memory import MemoryBroker, MemoryPartition, MemoryTransport
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.options import NOTATION, parse_broker_options
from metaq_spark.checkpoint.folder import CheckpointFolderError, add_batch, read_checkpoint
from metaq_spark.checkpoint.move import AfterBatch, Choice, Move, check_movable, plan_drop, plan_move
from metaq_spark.checkpoint.report import move_text, move_tree
from metaq_spark.errors import OptionError
from metaq_spark.options.positions import Earliest, Latest, Position, Timestamps

FRAME = 22
"""Every message has two bytes."""
NOW_MS = 50_000
A0, A1, B0 = (TopicPartition(t, Partition(0, n)) for t, n in (("a", 0), ("a", 1), ("b", 0)))
OLD = "0" * 32


@dataclass
class Harness:
    """A broker with ``a`` (two partitions) and ``b``, ten messages each, and the folder of a query that reads them."""

    folder: Path
    extensions: frozenset[str] | None = None
    broker: MemoryBroker = field(init=False)

    def __post_init__(self) -> None:
        more = {} if self.extensions is None else {"extensions": self.extensions}
        self.broker = MemoryBroker({"a": 2, "b": 1}, segment_bytes_max=4 * FRAME, **more)
        for where in (A0, A1, B0):
            for n in range(10):
                self.store(where).append(encode_frame(n, 0, b"%02d" % n))
        address = Address("b", 1)
        pool = SessionPool(transport=MemoryTransport({address: self.broker}))
        options = parse_broker_options({"brokers": str(address), "retries": "0"})
        self.cluster = Cluster(options, pool)

    def store(self, where: TopicPartition) -> MemoryPartition:
        return self.broker.partition(where.topic, where.partition.index)

    def incarnation_of(self, where: TopicPartition) -> str:
        return self.store(where).incarnation

    def incarnations(self, *partitions: TopicPartition) -> dict[str, dict[str, str]]:
        tree: dict[str, dict[str, str]] = {}
        for where in partitions:
            tree.setdefault(where.topic, {})[str(where.partition)] = self.incarnation_of(where)
        return tree

    def move(self, position: Position | AfterBatch, choice: Choice = Choice()) -> Move:  # noqa: B008 - a frozen value
        return plan_move(read_checkpoint(self.folder), self.cluster, position, choice, NOW_MS)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """A query with a stranger's source before its own, after three batches."""
    harness = Harness(tmp_path)
    (tmp_path / "metadata").write_text('{"id":"query-id"}')
    for batch_id, n in enumerate((2, 4, 6)):
        known = {"a": {"0-0": n * FRAME, "0-1": FRAME}, "b": {"0-0": n * FRAME}}
        incarnations = harness.incarnations(A0, A1, B0)
        if batch_id == 0:
            known, incarnations = {"a": {"0-0": n * FRAME}, "b": known["b"]}, harness.incarnations(A0, B0)
        plan(tmp_path, batch_id, json.dumps({"logOffset": batch_id}), offset(incarnations=incarnations, **known))
        commit(tmp_path, batch_id)
    return harness


def steps(move: Move) -> dict[str, tuple[int | None, int]]:
    """Every partition with the messages before it was moved and after."""
    return {
        str(step.where): (None if step.start is None else step.start // FRAME, step.end // FRAME) for step in move.steps
    }


def test_the_batch_that_is_added(harness: Harness) -> None:
    move = harness.move(Earliest())
    assert move.batch.batch_id == 3
    assert move.batch.metadata == {"batchWatermarkMs": 9, "batchTimestampMs": NOW_MS, "conf": CONF}
    stranger, ours = move.batch.lines.values()
    assert stranger == '{"logOffset": 2}'
    assert json.loads(ours) == {
        "v": 2,
        "topics": {"a": {"0-0": 0, "0-1": 0}, "b": {"0-0": 0}},
        "incarnations": harness.incarnations(A0, A1, B0),
        "moved": True,
    }
    assert steps(move) == {"a/0-0": (6, 0), "a/0-1": (1, 0), "b/0-0": (6, 0)}


def test_time_does_not_go_back(harness: Harness) -> None:
    plan(harness.folder, 2, "-", offset(a={"0-0": 0}), metadata='{"batchTimestampMs": 90000, "batchWatermarkMs": 70}')
    assert harness.move(Latest()).batch.metadata == {"batchTimestampMs": 90_000, "batchWatermarkMs": 70}


@pytest.mark.parametrize(
    ("position", "choice", "expected"),
    [
        (Latest(), Choice(), {"a/0-0": (6, 10), "a/0-1": (1, 10), "b/0-0": (6, 10)}),
        (Latest(), Choice(topic="b"), {"b/0-0": (6, 10)}),
        (Latest(), Choice(source="2"), {"a/0-0": (6, 10), "a/0-1": (1, 10), "b/0-0": (6, 10)}),
        (Earliest(), Choice(topic="a", partitions=frozenset({A1})), {"a/0-1": (1, 0)}),
        (NOTATION.position('{"a": {"0-0": 66}}'), Choice(), {"a/0-0": (6, 3)}),
        (NOTATION.position('{"a": {"0-0": -2, "0-1": -1}}'), Choice(topic="a"), {"a/0-0": (6, 0), "a/0-1": (1, 10)}),
        (NOTATION.position('{"b": {"0-0": 132}}'), Choice(), {"b/0-0": (6, 6)}),
        (AfterBatch(1), Choice(), {"a/0-0": (6, 4), "a/0-1": (1, 1), "b/0-0": (6, 4)}),
        # Batch 1 has noted a/0-1: what is before that is older than the query.
        (AfterBatch(0), Choice(topic="a"), {"a/0-0": (6, 2), "a/0-1": (1, 1)}),
    ],
)
def test_where_partitions_go(
    harness: Harness, position: Position | AfterBatch, choice: Choice, expected: dict[str, tuple[int, int]]
) -> None:
    move = harness.move(position, choice)
    assert steps(move) == expected
    topics = json.loads(move.batch.lines["1"])["topics"]
    want = {"a/0-0": 6, "a/0-1": 1, "b/0-0": 6} | {where: end for where, (_, end) in expected.items()}
    assert {f"{t}/{p}": at // FRAME for t, ps in topics.items() for p, at in ps.items()} == want


@pytest.mark.parametrize(
    ("position", "choice", "words"),
    [
        (
            NOTATION.position('{"a": {"0-0": 67}}'),
            Choice(),
            "offset 67 of a/0-0 is inside a message; the message starts at 66",
        ),
        (NOTATION.position('{"a": {"0-0": 221}}'), Choice(), "offset 221 of a/0-0 is outside of what the broker holds"),
        (
            NOTATION.position('{"a": {"0-7": 0}}'),
            Choice(),
            "a/0-7 is no partition that the query reads and that was chosen",
        ),
        (NOTATION.position('{"a": {"0-0": 0}}'), Choice(topic="b"), "a/0-0 is no partition that the query reads"),
        (Latest(), Choice(topic="nosuch"), "no partition of the query is selected"),
        (Latest(), Choice(source="1"), "its sources that read MetaQ are: 2"),
        (Latest(), Choice(source="3"), "its sources that read MetaQ are: 2"),
        (AfterBatch(9), Choice(), "batch 9 is not there; it has 0 to 2"),
    ],
)
def test_moves_that_cannot_be_made(
    harness: Harness, position: Position | AfterBatch, choice: Choice, words: str
) -> None:
    with pytest.raises((OptionError, CheckpointFolderError)) as caught:
        harness.move(position, choice)
    assert words in str(caught.value)


def test_back_to_what_is_gone(harness: Harness) -> None:
    harness.store(A0).drop_segments(1)
    with pytest.raises(OptionError, match=r"offset 44 of a/0-0 is outside of .* \[88, 220\); move to earliest"):
        harness.move(AfterBatch(0), Choice(topic="a"))
    assert steps(harness.move(Earliest(), Choice(topic="a"))) == {"a/0-0": (6, 4), "a/0-1": (1, 0)}


def test_a_partition_that_was_made_again(harness: Harness) -> None:
    old = harness.incarnation_of(A0)
    new = harness.broker.recreate("a", 0)
    new.append(encode_frame(1, 0, b"zz"))
    with pytest.raises(OptionError, match="a/0-0 was deleted and made again since batch 1"):
        harness.move(AfterBatch(1))
    move = harness.move(Earliest(), Choice(topic="a"))
    assert steps(move) == {"a/0-0": (None, 0), "a/0-1": (1, 0)}
    incarnations = json.loads(move.batch.lines["1"])["incarnations"]
    assert (incarnations["a"]["0-0"], incarnations["b"]["0-0"]) == (new.incarnation, harness.incarnation_of(B0))
    assert old != new.incarnation
    assert (move.steps[0].back, move.steps[0].skipped) == (0, 0)


def test_back_to_before_a_partition_that_was_noted_and_made_again(harness: Harness) -> None:
    harness.broker.recreate("a", 1).append(encode_frame(1, 0, b"zz"))
    assert steps(harness.move(AfterBatch(0), Choice(topic="a"))) == {"a/0-0": (6, 2), "a/0-1": (None, 0)}


def test_back_to_before_a_partition_whose_beginning_is_gone(harness: Harness) -> None:
    harness.store(A1).drop_segments(1)
    move = harness.move(AfterBatch(0), Choice(topic="a", partitions=frozenset({A1})))
    assert steps(move) == {"a/0-1": (1, 4)}


def test_a_partition_that_no_named_broker_holds(harness: Harness) -> None:
    del harness.broker.partitions["a", 1]
    with pytest.raises(OptionError, match="no broker that is named holds a/0-1"):
        harness.move(Earliest())
    assert steps(harness.move(Earliest(), Choice(topic="b"))) == {"b/0-0": (6, 0)}


def test_a_broker_that_is_away(harness: Harness) -> None:
    harness.broker.kill()
    with pytest.raises(ConnectionFailed, match="broker b:1"):
        harness.move(Earliest())


def test_on_a_java_broker_all_but_times(tmp_path: Path) -> None:
    harness = Harness(tmp_path, frozenset())
    query(tmp_path, offset(a={"0-0": 44}), offset(a={"0-0": 88}))
    assert steps(harness.move(AfterBatch(0))) == {"a/0-0": (4, 2)}
    assert json.loads(harness.move(Latest()).batch.lines["0"])["incarnations"] == {}
    with pytest.raises(OptionError, match="offset 67 of a/0-0 is inside a message; the message starts at 66"):
        harness.move(NOTATION.position('{"a": {"0-0": 67}}'))
    with pytest.raises(ExtensionMissing, match="does not offer 'timestamp'"):
        harness.move(Timestamps(of_all_ms=5))


def stateful(folder: Path) -> None:
    (folder / "state" / "0").mkdir(parents=True)


def planned(folder: Path) -> None:
    plan(folder, 3, "-", offset(a={"0-0": 200}))


def moved(folder: Path) -> None:
    plan(folder, 3, "-", offset(moved=True, a={"0-0": 0}))


def uncommitted(folder: Path) -> None:
    for file in (folder / "commits").iterdir():
        file.unlink()


def nothing(folder: Path) -> None:
    """An ordinary checkpoint."""


@pytest.mark.parametrize(
    ("prepare", "given", "words"),
    [
        ([nothing], {}, None),
        ([stateful], {}, "the query is stateful"),
        ([stateful], {"keep_state": True}, None),
        ([planned], {}, "batch 3 is planned and not committed; start the query once, so that it finishes it, or give"),
        ([planned], {"abandon_planned": True}, None),
        ([planned, stateful], {"keep_state": True, "abandon_planned": True}, "start the query once, so that it finish"),
        ([moved], {"abandon_planned": True, "keep_state": True}, "the query is moved already and has not run since"),
        ([uncommitted], {"abandon_planned": True}, "no batch is committed yet"),
    ],
)
def test_what_may_be_moved(
    harness: Harness, prepare: list[Callable[[Path], None]], given: dict[str, bool], words: str | None
) -> None:
    for step in prepare:
        step(harness.folder)
    asked = {"keep_state": False, "abandon_planned": False} | given
    expected = nullcontext() if words is None else pytest.raises(CheckpointFolderError, match=words)
    with expected:
        check_movable(read_checkpoint(harness.folder), **asked)


def test_a_planned_batch_that_is_given_up_keeps_its_number(harness: Harness) -> None:
    planned(harness.folder)
    checkpoint = read_checkpoint(harness.folder)
    move = harness.move(AfterBatch(1), Choice(topic="b"))
    assert move.batch.batch_id == 4
    assert json.loads(move.batch.lines["1"])["topics"]["a"] == {"0-0": 6 * FRAME, "0-1": FRAME}  # as committed
    reported: dict[str, Any] = move_tree(checkpoint, move, done=False)
    assert (reported["abandoned_batch"], reported["done"]) == (3, False)
    assert "Batch 3 was planned and is given up." in move_text(reported)
    assert "Nothing was changed." in move_text(reported)
    add_batch(checkpoint, move.batch)
    assert "batch 4 reads nothing" in move_text(move_tree(checkpoint, move, done=True))
    assert read_checkpoint(harness.folder).planned == move.batch


def test_a_topic_is_dropped_without_asking_a_broker(harness: Harness) -> None:
    checkpoint = read_checkpoint(harness.folder)
    move = plan_drop(checkpoint, Choice(topic="b"), NOW_MS)
    assert [(step.where, step.start, step.end) for step in move.steps] == [(B0, 6 * FRAME, None)]
    stranger, ours = move.batch.lines.values()
    assert stranger == json.dumps({"logOffset": 2})
    tree = json.loads(ours)
    assert tree["topics"] == {"a": {"0-0": 6 * FRAME, "0-1": FRAME}}
    assert (tree["incarnations"], tree["moved"]) == (harness.incarnations(A0, A1), True)
    reported = move_text(move_tree(checkpoint, move, done=False))
    assert "b/0-0" in reported
    assert "dropped" in reported
    assert "read from its first\nmessage" in reported
    move = plan_drop(checkpoint, Choice(topic="a", partitions=frozenset({A1})), NOW_MS)
    assert [step.where for step in move.steps] == [A1]
    with pytest.raises(CheckpointFolderError, match="no partition of the query is selected"):
        plan_drop(checkpoint, Choice(topic="nosuch"), NOW_MS)


def test_all_that_a_source_reads_is_not_dropped(tmp_path: Path) -> None:
    folder = query(tmp_path, offset(orders={"broker-a:0": 3}))
    with pytest.raises(CheckpointFolderError, match="source 1 reads nothing else; delete it to begin with other top"):
        plan_drop(read_checkpoint(folder), Choice(topic="orders"), NOW_MS)


def named_batches(folder: Path, *batches: dict[str, str]) -> None:
    """Committed batches of a query that names its sources."""
    for number, lines in enumerate(batches):
        plan(folder, number, *(f"{name}:{line}" for name, line in lines.items()), form="v2")
        commit(folder, number)


def test_a_named_source_is_moved_and_the_others_stay(harness: Harness, tmp_path: Path) -> None:
    harness.folder = folder = tmp_path / "named"
    a, b = (offset(incarnations=harness.incarnations(one), **{one.topic: {"0-0": 4 * FRAME}}) for one in (A0, B0))
    named_batches(folder, {"as": a}, {"files": '{"logOffset":0}', "as": a, "bs": b})
    metadata = json.dumps({"batchTimestampMs": 5, "sourceMetadataInfo": {}, "controlBatchInfo": {"operationType": "x"}})
    plan(folder, 1, f"bs:{b}", 'files:{"logOffset":0}', f"as:{a}", form="v2", metadata=metadata)
    move = harness.move(Latest(), Choice(source="bs"))
    assert steps(move) == {"b/0-0": (4, 10)}
    assert [step.source for step in move.steps] == ["bs"]
    assert (move.batch.offsets.form, move.batch.lines["as"]) == ("v2", a)
    assert move.batch.lines["files"] == '{"logOffset":0}'
    assert move.batch.metadata == {"batchTimestampMs": NOW_MS, "sourceMetadataInfo": {}, "batchWatermarkMs": 9}
    add_batch(read_checkpoint(folder), move.batch)
    assert (folder / "offsets" / "2").read_text().startswith('v2\n{"batchTimestampMs":50000,')
    with pytest.raises(CheckpointFolderError, match="its sources that read MetaQ are: as, bs"):
        harness.move(Latest(), Choice(source="1"))
    with pytest.raises(CheckpointFolderError, match="batch 0 says nothing of source bs"):
        harness.move(AfterBatch(0))
    assert steps(harness.move(AfterBatch(0), Choice(source="as"))) == {"a/0-0": (4, 4)}


def test_offsets_are_for_the_sources_that_read_their_partitions(harness: Harness, tmp_path: Path) -> None:
    harness.folder = folder = tmp_path / "named"
    named_batches(folder, {"as": offset(a={"0-0": 4 * FRAME}), "bs": offset(b={"0-0": 4 * FRAME})})
    assert steps(harness.move(NOTATION.position('{"b": {"0-0": 66}}'))) == {"b/0-0": (4, 3)}
    both = NOTATION.position('{"a": {"0-0": 22}, "b": {"0-0": 66}}')
    assert steps(harness.move(both)) == {"a/0-0": (4, 1), "b/0-0": (4, 3)}
    with pytest.raises(OptionError, match="a/0-0 is no partition that the query reads and that was chosen"):
        harness.move(both, Choice(source="bs"))


def test_a_source_whose_first_batch_is_given_up_begins_anew(harness: Harness, tmp_path: Path) -> None:
    """It is not written into the batch that moves the query, so Spark asks it where it begins."""
    harness.folder = folder = tmp_path / "named"
    a, b = offset(a={"0-0": 4 * FRAME}), offset(b={"0-0": 4 * FRAME})
    named_batches(folder, {"as": a})
    plan(folder, 1, f"as:{a}", f"bs:{b}", form="v2")
    move = harness.move(Latest())
    assert list(move.batch.lines) == ["as"]
    with pytest.raises(CheckpointFolderError, match="no partition of the query is selected"):
        plan_drop(read_checkpoint(folder), Choice(topic="b"), NOW_MS)
