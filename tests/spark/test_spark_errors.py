"""What a user sees when something is wrong: the sentence must survive the way through Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from examples import rarely
from fix_spark import Topic
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

pytestmark = [pytest.mark.spark, pytest.mark.process]

GONE = {"brokers": "127.0.0.1:1", "retries": "0", "connectTimeoutMs": "1000"}


def reported(caught: pytest.ExceptionInfo[Exception], *words: str) -> None:
    """The error says ``words``, and shows no frame of ours nor an error that led to it."""
    for word in words:
        assert word in str(caught.value)
    for trace in ("Traceback", 'File "', "During handling", "direct cause"):
        assert trace not in str(caught.value)


def test_a_wrong_option_is_reported_when_a_read_is_declared(topic: Topic) -> None:
    for declare in (topic.read, topic.stream):
        with pytest.raises(AnalysisException) as caught:
            declare(subscrib="x")
        reported(caught, "option subscrib", "did you mean subscribe")


def test_a_missing_option_is_reported_when_a_read_is_declared(topic: Topic) -> None:
    with pytest.raises(AnalysisException) as caught:
        topic.spark.read.format("metaq").options(subscribe=topic.name).load()
    reported(caught, "option brokers: it is required")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxBytesPerTrigger": "1m"}, ["option maxBytesPerTrigger", "for a streaming read, not for a batch read"]),
        (GONE, ["broker 127.0.0.1:1: connect failed", "check that a broker listens there"]),
        ({"startingOffsets": '{"TOPIC": {"3-0": 500}}'}, ["offset 500 of", "[0, 27)", "failOnDataLoss"]),
        *rarely(({"subscribe": "nobody-knows"}, ["topic 'nobody-knows' does not exist on 127.0.0.1", "topics there:"])),
    ],
)
def test_a_batch_read_that_cannot_be(topic: Topic, options: dict[str, str], words: list[str]) -> None:
    topic.put("payload")
    frame = topic.read(**{name: text.replace("TOPIC", topic.name) for name, text in options.items()})
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    reported(caught, *words)


def test_a_schema_cannot_be_asked_for(topic: Topic, tmp_path: Path) -> None:
    options = {"brokers": topic.servers, "subscribe": topic.name}
    with pytest.raises(PySparkException) as caught:
        topic.spark.read.format("metaq").schema("value string").options(**options).load().collect()
    reported(caught, "column value", "type string at place 1", "leave .schema(...) out")


def test_a_stream_that_cannot_start(topic: Topic, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException) as caught:
        topic.drain(topic.stream(**GONE), tmp_path)
    reported(caught, "broker 127.0.0.1:1: connect failed")


def test_a_checkpoint_of_data_that_is_gone(topic: Topic, tmp_path: Path) -> None:
    """What the checkpoint points to is beyond the partition's end, and stays so."""
    topic.put("1", "2", "3")
    topic.drain(topic.stream(), tmp_path)
    offsets = tmp_path / "checkpoint" / "offsets" / "0"
    reported_by_checkpoint = offsets.read_text()
    assert json.dumps({"topics": {topic.name: {"3-0": 63}}})[1:-1] in reported_by_checkpoint
    offsets.write_text(reported_by_checkpoint.replace(": 63", ": 9000"))
    (tmp_path / "checkpoint" / "offsets" / ".0.crc").unlink()
    with pytest.raises(StreamingQueryException) as caught:
        topic.drain(topic.stream(lossGraceMs="500ms"), tmp_path)
    reported(caught, "offset 9000 was to be read next", "the topic was deleted and made again", "failOnDataLoss")


@pytest.mark.long
def test_a_checkpoint_of_a_newer_version(topic: Topic, tmp_path: Path) -> None:
    topic.put("1")
    topic.drain(topic.stream(), tmp_path)
    offsets = tmp_path / "checkpoint" / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace('{"v": 3', '{"v": 5'))
    (tmp_path / "checkpoint" / "offsets" / ".0.crc").unlink()
    with pytest.raises(StreamingQueryException) as caught:
        topic.drain(topic.stream(), tmp_path)
    reported(caught, "written by a newer metaq-spark (form 5, known is 4); upgrade")


@pytest.mark.parametrize(
    ("row", "schema", "options", "words"),
    [
        ((1,), "value int", {}, ["column value: type int is not allowed; it must be binary or string"]),
        ((None,), "value string", {}, ["row 1 of the input of task", "column value is null"]),
        (("v",), "value string", {"topik": "x"}, ["option topik", "did you mean topic?"]),
        (("v",), "value string", GONE, ["broker 127.0.0.1:1: connect failed"]),
        *rarely(
            (("v", 1), "value string, price int", {}, ["column price: a write has no such column", "(string)"]),
            (("a",), "attribute string", {}, ["column value: it is required"]),
            (("v",), "value string", {"topic": "NONE"}, ["column topic: without the option topic"]),
            (("v",), "value string", {"subscribe": "x"}, ["option subscribe", "not for a batch write"]),
        ),
    ],
)
def test_a_write_that_cannot_be(
    topic: Topic, row: tuple[object, ...], schema: str, options: dict[str, str], words: list[str]
) -> None:
    frame = topic.frame([row], schema)
    given = {"brokers": topic.servers, "topic": topic.name} | options
    given = {name: text for name, text in given.items() if text != "NONE"}
    with pytest.raises(PySparkException) as caught:
        frame.write.format("metaq").mode("append").options(**given).save()
    reported(caught, *words)


def test_a_topic_cannot_be_overwritten(topic: Topic) -> None:
    writer = topic.frame([("v",)], "value string").write.format("metaq").option("brokers", topic.servers)
    with pytest.raises(AnalysisException) as caught:
        writer.mode("overwrite").option("topic", topic.name).save()
    reported(caught, 'a topic can only be appended to; use .mode("append")')


def test_a_topic_has_no_path(topic: Topic) -> None:
    writer = topic.frame([("v",)], "value string").write.format("metaq").option("brokers", topic.servers)
    with pytest.raises(AnalysisException) as caught:
        writer.mode("append").save(topic.name)
    reported(caught, "option path", "a topic has no path; use topic")


@pytest.mark.long
def test_a_message_above_the_broker_s_limit(topic: Topic) -> None:
    huge = topic.spark.range(1).selectExpr("repeat('x', 40 * 1024 * 1024) value")
    with pytest.raises(PySparkException) as caught:
        topic.write(huge)
    reported(caught, "refused put to", topic.name)
    topic.put("the broker goes on")
    assert topic.stored() == ["the broker goes on"]


def test_a_stream_into_a_wrong_column(topic: Topic, tmp_path: Path) -> None:
    topic.put("1")
    query = topic.append_all(topic.stream().select("value", "offset"), tmp_path)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    reported(caught, "column offset: a write has no such column")
