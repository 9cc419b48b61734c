"""Exactly-once writes inside Spark, against a broker process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_spark import Topic, for_each_batch, spark_environment
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.model import Address

pytestmark = [pytest.mark.spark, pytest.mark.process]

RETRIES = Path(__file__).with_name("exactly_once_retries.py")


def copy(source: Topic, target: Topic, folder: Path) -> StreamingQuery:
    """Run a stream from topic to topic to the end of what is there."""
    rows = source.stream(maxBytesPerTrigger="3k").select("value")
    query = target.append_all(rows, folder, delivery="exactly_once")
    assert query.awaitTermination(120)
    return query


def prepared(topic: Topic) -> list[str]:
    """The branches that lie prepared on the broker."""
    with closing(Session.connect(Address.parse(topic.servers))) as session:
        return [str(key) for key in TransactionSteps(session).recover()]


def forget(folder: Path, log: str) -> None:
    """Drop the last entry of a checkpoint's log: ``commits`` or ``offsets``."""
    last = max((entry for entry in (folder / "checkpoint" / log).iterdir() if entry.name.isdigit()), key=batch_of)
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def batch_of(entry: Path) -> int:
    return int(entry.name)


def test_a_stream_from_topic_to_topic(topic: Topic, tmp_path: Path) -> None:
    target = topic.named(topic.name + "-target")
    expected = [f"{n:04}" for n in range(500)]
    topic.put(*expected)
    copy(topic, target, tmp_path)
    assert target.stored() == expected
    forget(tmp_path, "commits")  # as if the driver had died before it noted the batch as done
    topic.put("more")
    copy(topic, target, tmp_path)
    assert (target.stored(), prepared(topic)) == ([*expected, "more"], [])


def test_an_older_copy_of_a_checkpoint_is_refused(topic: Topic, tmp_path: Path) -> None:
    target = topic.named(topic.name + "-target")
    topic.put(*[f"{n:04}" for n in range(500)])
    copy(topic, target, tmp_path)
    for log in ("commits", "commits", "offsets"):
        forget(tmp_path, log)
    with pytest.raises(PySparkException, match=r"comes too late: batch \d+ has been decided\. Another run went on"):
        copy(topic, target, tmp_path)
    assert len(target.stored()) == 500


@pytest.mark.long
def test_a_checkpoint_one_batch_behind_does_not_drop_new_rows(topic: Topic, tmp_path: Path) -> None:
    """As a restored backup has it, or a driver's machine that lost power: Spark does not fsync a local checkpoint."""
    target = topic.named(topic.name + "-target")
    for payload in ("a", "b"):
        topic.put(payload)
        copy(topic, target, tmp_path)
    for log in ("commits", "offsets"):
        forget(tmp_path, log)
    topic.put("c")
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"batch 1 of query .* was written before .*restore the newest one"):
            copy(topic, target, tmp_path)
    assert (target.stored(), prepared(topic)) == (["a", "b"], [])


@pytest.mark.long
def test_a_copied_checkpoint_does_not_drop_the_rows_of_the_second_query(topic: Topic, tmp_path: Path) -> None:
    one, other = topic.named(topic.name + "-t"), topic.named(topic.name + "-u")
    topic.put("a")
    copy(topic, one, tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "second" / "checkpoint")
    topic.put("b")
    copy(topic, one, tmp_path)
    with pytest.raises(PySparkException, match=r"batch 1 of query .* was written before .*a checkpoint of its own"):
        copy(topic, other, tmp_path / "second")
    assert (one.stored(), prepared(topic)) == (["a", "b"], [])


@pytest.mark.long
@pytest.mark.slow
def test_tasks_that_fail_and_are_run_again(topic: Topic, tmp_path: Path) -> None:
    target = topic.named(topic.name + "-target")
    topic.put(*[f"{n:02}" for n in range(12)])
    topic.put(*[f"{n:02}" for n in range(12, 24)], partition=1)
    command = [sys.executable, str(RETRIES), topic.servers, topic.name, target.name, str(tmp_path)]
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=os.environ | spark_environment(), timeout=800)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-5000:]
    assert sorted(path.name for path in tmp_path.glob("met-*")) == ["met-10"]
    assert (target.stored(), prepared(topic)) == ([f"{n:02}" for n in range(24)], [])


class Breakdown(Exception):
    """Raised by a test's own code inside ``foreachBatch``."""


def split(source: Topic, targets: list[Topic], folder: Path, breakdown_after: int, named: bool = True) -> None:
    """Write the numbers of a stream to the first target, then to the second; break down after one of the writes."""

    def write(frame: DataFrame, batch_id: int) -> None:
        for number, target in enumerate(targets):
            name = {"txnAppId": f"{source.name[:40]}-{number}", "txnVersion": str(batch_id)} if named else {}
            target.write(frame.select("value"), delivery="exactly_once", **name)
            if number == breakdown_after:
                raise Breakdown(f"after write {number}")

    for_each_batch(source.stream(), write, folder)


@pytest.mark.long
def test_writes_inside_foreach_batch(topic: Topic, tmp_path: Path) -> None:
    targets = [topic.named(f"{topic.name}-{number}") for number in range(2)]
    topic.put("a", "b")
    for number in range(2):
        with pytest.raises(PySparkException, match=f"after write {number}"):
            split(topic, targets, tmp_path, breakdown_after=number)
        assert [target.stored() for target in targets[: number + 1]] == [["a", "b"]] * (number + 1)
    topic.put("c")
    split(topic, targets, tmp_path, breakdown_after=99)
    assert [target.stored() for target in targets] == [["a", "b", "c"]] * 2
    topic.put("d")
    with pytest.raises(PySparkException, match=r"a write inside foreachBatch needs the options txnAppId .* txnVersion"):
        split(topic, targets, tmp_path, breakdown_after=99, named=False)
    assert ([target.stored() for target in targets], prepared(topic)) == ([["a", "b", "c"]] * 2, [])


def test_a_named_write_that_is_repeated_with_other_rows(topic: Topic) -> None:
    def write(value: str, target: Topic = topic, **options: str) -> None:
        rows = topic.spark.createDataFrame([(value,)], "value string")
        target.write(rows, delivery="exactly_once", txnAppId=f"{topic.name[:40]}-daily", txnVersion="1", **options)

    write("a")
    write("a")
    with pytest.raises(PySparkException, match=r"txnVersion 1 of .* was written before.*under a new txnVersion"):
        write("b")
    with pytest.raises(PySparkException, match=r"txnVersion 1 of .* was written before.*a txnAppId of its own"):
        write("a", topic.named(topic.name + "-u"))
    write("b", repeatedBatch="accept")
    assert (topic.stored(), prepared(topic)) == (["a"], [])


def test_batch_writes(topic: Topic) -> None:
    rows = topic.spark.createDataFrame([(str(n),) for n in range(6)], "value string").repartition(3)

    def write(frame: DataFrame, **options: Any) -> None:
        topic.write(frame, delivery="exactly_once", **options)

    topic.put("first")
    with pytest.raises(PySparkException, match="3 cannot be written"):
        write(rows.selectExpr("if(value = '3', raise_error('3 cannot be written'), value) value"))
    assert (topic.stored(), prepared(topic)) == (["first"], [])
    write(rows)
    expected = [*map(str, range(6)), "first"]
    assert (topic.stored(), prepared(topic)) == (expected, [])
    for _ in range(2):
        write(topic.frame([("again",)], "value string"), txnAppId=topic.name[:40], txnVersion="7")
    with pytest.raises(PySparkException, match=r"txnVersion 6 of txnAppId \S+ is refused: txnVersion 7 of txnAppId"):
        write(rows, txnAppId=topic.name[:40], txnVersion="6")
    assert (topic.stored(), prepared(topic)) == (sorted([*expected, "again"]), [])
