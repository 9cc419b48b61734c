"""What brokers say about themselves, read from recorded replies of the Java broker and from texts like ours."""

from __future__ import annotations

import json

import pytest
from recordings import METAQ

from metaq.discovery.stats import (
    BrokerInfo,
    parse_broker,
    parse_incarnations,
    parse_offsets,
    parse_settings,
    parse_topics,
)
from metaq.errors import ProtocolError
from metaq.model import OffsetRange, PartitionState

GOLDEN = METAQ / "01_core.jsonl"


def recorded(label: str, last: bool = False) -> str:
    """The text of the first (or last) recorded reply whose label starts so."""
    entries = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    matching = [entry for entry in entries if entry["label"].startswith(label)]
    reply = bytes.fromhex(matching[-1 if last else 0]["reply_hex"])
    return reply.partition(b"\r\n")[2].decode()


def test_the_java_broker_says_who_it_is() -> None:
    assert parse_broker(recorded("stats no args")) == BrokerInfo(3, slave=False)


def test_the_java_brokers_topics_without_patterns() -> None:
    assert parse_topics(recorded("stats topics")) == ["meta-test", "slow", "test"]
    assert parse_topics(recorded("stats topics", last=True)) == ["test", "wild-1", "meta-test", "slow"]


def test_the_java_brokers_offsets() -> None:
    assert parse_offsets(recorded("stats offsets")) == {}
    assert parse_offsets(recorded("stats offsets", last=True)) == {
        ("test", 0): OffsetRange(0, 23),
        ("wild-1", 0): OffsetRange(0, 23),
        ("meta-test", 0): OffsetRange(0, 147),
    }


@pytest.mark.parametrize(
    ("topic", "count"),
    [("test", 2), ("meta-test", 1), ("slow", 1), ("wild-1", 2), ("wild", 2), ("wild*", 2), ("tame-1", 0), ("", 0)],
)
def test_the_java_brokers_partition_counts(topic: str, count: int) -> None:
    assert parse_settings(recorded("stats config")).partition_count(topic) == count


INI = """\ufeff; comment with = and [brackets]
[system]
brokerId = 1
  numPartitions = 2 * 2
acceptPublish=true
; numPartitions=9
# numPartitions=9
zeichen=\udce4\udcf6
nonsense

[zookeeper]
numPartitions=77

[topic=blank]
numPartitions=
[topic=own]
numPartitions=7
[topic=shut]
acceptPublish=False
[topic=dev.*]
numPartitions=9
[topic=broken]
numPartitions=many
"""


@pytest.mark.parametrize(
    ("topic", "count"),
    [("blank", 4), ("own", 7), ("shut", 0), ("dev.x", 4), ("dev.", 4), ("devx", 0), ("zookeeper", 0)],
)
def test_settings_of_a_topic(topic: str, count: int) -> None:
    assert parse_settings(INI.replace("\n", "\r\n")).partition_count(topic) == count


def test_a_broker_that_accepts_everything_but_what_is_shut() -> None:
    settings = parse_settings(
        "[system]\nnumPartitions=3\nacceptPublish=false\n[topic=*]\n[topic=open]\nacceptPublish=true\n"
    )
    assert [settings.partition_count(topic) for topic in ("anything", "open")] == [0, 3]


def test_an_answer_is_read_once_for_all_topics() -> None:
    assert parse_settings("".join(INI)) is parse_settings("".join(INI))
    assert parse_settings(INI + "[topic=new]\n").partition_count("new") > 0


def test_a_count_that_is_no_number_is_named() -> None:
    with pytest.raises(ProtocolError, match="numPartitions='many' for topic 'broken'"):
        parse_settings(INI).partition_count("broken")


@pytest.mark.parametrize(
    ("parse", "text", "what"),
    [
        (parse_broker, "STATS\r\npid 7\r\nEND\r\n", "no broker_id"),
        (parse_broker, "STATS\r\nbroker_id x\r\nEND\r\n", "no broker_id"),
        (parse_broker, "hello", "not STATS ... END"),
        (parse_topics, "STATS\r\na partitions 1", "not STATS ... END"),
        (parse_offsets, "END\r\nSTATS", "not STATS ... END"),
        (parse_offsets, "STATS\r\na part x min_offset 0 max_offset 0\r\nEND", "cannot be read"),
        (parse_settings, "key=value", r"no \[system\] section"),
    ],
)
def test_answers_that_make_no_sense(parse, text: str, what: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ProtocolError, match=what):
        parse(text)


INCARNATION = "0123456789abcdef" * 2


def test_incarnations_with_what_can_be_read() -> None:
    text = f"STATS\r\norders 0 {INCARNATION} 24 80\r\norders 12 - 0 0\r\nEND\r\n"
    assert parse_incarnations(text) == {
        ("orders", 0): PartitionState(OffsetRange(24, 80), INCARNATION),
        ("orders", 12): PartitionState(OffsetRange(0, 0), None),
    }


@pytest.mark.parametrize(
    "line",
    [
        "incarnations",  # a Java broker takes the word for a topic
        "orders 0",
        f"orders 0 {INCARNATION}",
        f"orders 0 {INCARNATION[1:]} 0 0",
        f"orders 0 {INCARNATION.upper()} 0 0",
        f"orders -1 {INCARNATION} 0 0",
        f"orders 0 {INCARNATION} 0 0 0",
    ],
)
def test_a_line_of_incarnations_that_makes_no_sense(line: str) -> None:
    with pytest.raises(ProtocolError, match="a line of stats incarnations"):
        parse_incarnations(f"STATS\r\n{line}\r\nEND\r\n")
