"""The archive as a whole, against a real broker: batches, what a dead run leaves, checks that find what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import archive_topics
import pytest
from archive_manifests import ArchiveError, PlannedRange
from archive_topics import ARCHIVE_SCHEMA, Archive, measure, parse_arguments, read_options, transform, verify
from chispa.dataframe_comparer import assert_df_equality
from fix_broker import RunningBroker, StartBroker
from older_archive import to_older_form
from plain_client import frames, put_all
from pyspark.sql import SparkSession

from metaq.model import Message, OffsetRange, Partition, TopicPartition

ODD = [Message(b"\xff\x00", "a"), Message(b""), Message(b"x", ""), Message("é".encode(), "é=1")]


def test_options_of_a_read_name_exactly_the_ranges() -> None:
    ranges = [
        PlannedRange(TopicPartition(topic, Partition(0, index)), None, OffsetRange(index, 100 + index))
        for topic, index in (("orders", 3), ("orders", 10), ("paid", 0))
    ]
    assert {name: json.loads(value) for name, value in read_options(ranges).items()} == {
        "assign": {"orders": ["0-3", "0-10"], "paid": ["0-0"]},
        "startingOffsets": {"orders": {"0-3": 3, "0-10": 10}, "paid": {"0-0": 0}},
        "endingOffsets": {"orders": {"0-3": 103, "0-10": 110}, "paid": {"0-0": 100}},
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--verify"], "required: --output"),
        (["--output", "o"], "to archive, --brokers and one of --topics and --pattern are needed; to check, --verify"),
        (["--output", "o", "--brokers", "h:1"], "to archive, --brokers and one of"),
        (["--output", "o", "--pattern", "("], "--pattern: '(': not a regular expression"),
        (["--output", "o", "--every-seconds", "0"], "--every-seconds: '0': expected a number of seconds of at least 1"),
        (["--output", "o", "--partition-bytes-max", "1x"], "'1x': expected a number of bytes of at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert said in capsys.readouterr().err


def test_sizes() -> None:
    sizes = {"7": 7, "2k": 2048, "3M": 3 << 20, "1g": 1 << 30}
    for text, expected in sizes.items():
        assert (
            parse_arguments(["--output", "o", "--verify", "--partition-bytes-max", text]).partition_bytes_max
            == expected
        )


@pytest.mark.spark
def test_transform_counts_messages_and_their_bytes_at_the_broker(spark: SparkSession) -> None:
    rows = [
        ("orders", 0, 1, 0, 1, None, None, b"12345", "f"),
        ("orders", 0, 1, 25, 1, None, "é", b"", "f"),
        ("orders", 0, 1, 51, 1, None, "\ufffd", b"1", "f"),
        ("orders", 0, 1, 77, 1, None, "", b"1", "g"),
    ]
    archived = spark.createDataFrame(rows, f"{ARCHIVE_SCHEMA}, file string")
    expected = [("orders", 0, 1, "f", 3, 0, 51, 25 + 26 + 28, 1), ("orders", 0, 1, "g", 1, 77, 77, 25, 0)]
    columns = (
        "topic string, broker_id int, partition int, file string, messages bigint, first_offset bigint, "
        "last_offset bigint, frame_bytes bigint, replaced_attributes bigint"
    )
    assert_df_equality(
        transform(archived), spark.createDataFrame(expected, columns), ignore_nullable=True, ignore_row_order=True
    )


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_archive(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "archive"
    with pytest.raises(
        ArchiveError, match=r"--output: there is no manifest in .*/archive/manifests, so nothing is archived"
    ):
        verify(spark, str(folder))
    source = start_broker("dev", tmp_path / "one", "--port", "0", "--partitions", "2").address
    put_all(source, "orders", 0, ODD * 30)
    put_all(source, "orders", 1, ODD)
    put_all(source, "left-out", 0, ODD)
    chosen = ["--output", str(folder), "--pattern", "orders|007", "--partition-bytes-max", "2k"]
    arguments = parse_arguments([*chosen, "--brokers", str(source)])
    assert Archive(spark, arguments).catch_up() == 2
    to_older_form(folder, 1)
    assert Archive(spark, arguments).catch_up() == 0
    assert verify(spark, str(folder)) == []

    # a run that died while it wrote its files
    for left in ("batch=00000001/too-late", "batch=00000002", "batch=00000002/run", "batch=00000009"):
        spark.sql("select 1 a").write.parquet(str(folder / "data" / left))
    assert "batch 9 has files, and the last manifest is 1" in verify(spark, str(folder))
    assert "batch 2 has files and no manifest: it is being written, or the next run" in capsys.readouterr().out
    shutil.rmtree(folder / "data" / "batch=00000009")
    put_all(source, "orders", 1, ODD)
    put_all(source, "007", 0, ODD)
    assert Archive(spark, arguments).catch_up() == 1
    assert verify(spark, str(folder)) == []
    assert "3 batches, 132 messages, 0 problems" in capsys.readouterr().out
    rows = spark.read.parquet(str(folder / "data")).collect()
    assert {row.batch for row in rows} == {0, 1, 2}
    found = {(row.topic, row.partition, row.offset): (row.message_id, row.attribute, bytes(row.value)) for row in rows}
    assert found == {
        (topic, index, frame.offset): (frame.message_id, frame.message.attribute, frame.message.payload)
        for topic in ("007", "orders")
        for index, of_one in frames(source, topic).items()
        for frame in of_one
    }

    # other incarnations of the same partitions
    source = start_broker("dev", tmp_path / "two", "--port", "0", "--partitions", "2").address
    put_all(source, "orders", 0, ODD)
    again = [*chosen, "--brokers", str(source)]
    with pytest.raises(ArchiveError, match="orders/0-0, offsets 0 to 0: deleted and made anew; what came after"):
        Archive(spark, parse_arguments(again)).catch_up()
    assert Archive(spark, parse_arguments([*again, "--accept-loss"])).catch_up() == 1
    assert verify(spark, str(folder)) == []
    assert "noted as lost: orders/0-0, offsets 0 to 0: deleted and made anew" in capsys.readouterr().out

    # what is taken away is found
    manifests = folder / "manifests"
    taken = json.loads((manifests / "00000001.json").read_text())["ranges"][0]
    (folder / "data" / "batch=00000001" / taken["files"][0]).unlink()
    (manifests / "00000000.json").unlink()
    problems = verify(spark, str(folder))
    assert problems[0] == "manifest 0 is missing"
    assert f"batch 1: orders/0-0: file {taken['files'][0]} is missing, or holds nothing of it" in problems
    with pytest.raises(ArchiveError, match="not in order, so nothing is added to it: manifest 0 is missing"):
        Archive(spark, parse_arguments(again))


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_a_second_run_leaves_the_batches_of_the_first_alone(
    spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "archive")
    arguments = parse_arguments(["--output", folder, "--topics", "twice", "--brokers", str(dev_broker.address)])
    first, second, third = (Archive(spark, arguments) for _ in range(3))

    def while_the_first_is_faster(*of_second: Any) -> Any:
        monkeypatch.undo()
        assert first.catch_up() == 1
        return measure(*of_second)

    put_all(dev_broker.address, "twice", 0, ODD)
    monkeypatch.setattr(archive_topics, "measure", while_the_first_is_faster)
    for late in (second, third):
        with pytest.raises(FileExistsError, match=r"/00000000\.json is there already: does the job run twice\?"):
            late.catch_up()
        put_all(dev_broker.address, "twice", 0, ODD)
        assert verify(spark, folder) == []
        assert spark.read.schema(ARCHIVE_SCHEMA).parquet(f"{folder}/data").count() == len(ODD)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_a_broker_that_was_put_back_to_an_older_copy(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    def archive(broker: RunningBroker) -> int:
        arguments = ["--output", str(tmp_path / "archive"), "--topics", "orders", "--brokers", str(broker.address)]
        return Archive(spark, parse_arguments(arguments)).catch_up()

    data, put_back = tmp_path / "data", tmp_path / "copy"
    broker = start_broker("dev", data, "--port", "0", "--partitions", "1")
    put_all(broker.address, "orders", 0, ODD)
    broker.stop()
    shutil.copytree(data, put_back)
    broker = start_broker("dev", data, "--port", "0", "--partitions", "1")
    put_all(broker.address, "orders", 0, [Message(b"read")])
    assert archive(broker) == 1
    (entry,) = json.loads((tmp_path / "archive" / "manifests" / "00000000.json").read_text())["ranges"]
    assert len(entry["last"]) == 32
    put_all(broker.address, "orders", 0, [Message(b"more")])
    assert archive(broker) == 1
    broker.stop()
    broker = start_broker("dev", put_back, "--port", "0", "--partitions", "1")
    put_all(broker.address, "orders", 0, [Message(b"come"), Message(b"else"), Message(b"too")])
    with pytest.raises(ArchiveError, match=r"orders/0-0, offset .*: the message before it is not the one that was arc"):
        archive(broker)
