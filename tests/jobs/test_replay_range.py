"""Replays: what they are called, what they read, and a real one, run twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker
from plain_client import put_all, stored
from pyspark.sql import SparkSession
from replay_range import dry_run, parse_arguments, read_options, replay_name, run

from metaq.model import Message, Partition
from metaq.operate.mirror.targets import TooFewPartitions

BASE = ["--brokers", "h:1", "--topic", "orders", "--to-topic", "again"]


def test_options_of_the_read() -> None:
    times = parse_arguments(
        [*BASE, "--from-time", "2026-11-20T06:00:00Z", "--to-time", "1795156200000", "--types", "a,b"]
    )
    assert read_options(times) == {
        "brokers": "h:1",
        "subscribe": "orders",
        "startingTimestamp": "2026-11-20T06:00:00Z",
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": "1795156200000",
        "messageTypes": "a,b",
    }
    offsets = parse_arguments([*BASE, "--from-offsets", "{}", "--to-offsets", "latest"])
    assert read_options(offsets) == {
        "brokers": "h:1",
        "subscribe": "orders",
        "startingOffsets": "{}",
        "endingOffsets": "latest",
    }


def test_the_same_replay_has_the_same_name() -> None:
    latest = ["--to-offsets", "latest"]
    name = replay_name(parse_arguments([*BASE, *latest]))
    assert name == replay_name(parse_arguments([*latest, "--fold", *BASE]))
    others = [
        ["--types", "a"],
        ["--to-brokers", "h:2"],
        ["--from-time", "5"],
        ["--from-offsets", "5"],
        ["--to-topic", "b"],
    ]
    names = {replay_name(parse_arguments([*BASE, *latest, *other])) for other in others}
    assert len(names | {name}) == 6
    assert replay_name(parse_arguments([*BASE, *latest, "--name", "by-hand"])) == "by-hand"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (BASE, "one of the arguments --to-time --to-offsets is required"),
        ([*BASE, "--to-time", "5", "--from-time", "5", "--from-offsets", "6"], "not allowed with argument --from-time"),
        (["--brokers", "h:1", "--to-time", "5"], "required: --topic, --to-topic"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_a_replay_whose_range_has_grown_was_written_before(
    spark: SparkSession, dev_broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    put_all(dev_broker.address, "orders", 0, [Message(b"first")])
    latest = [*BASE, "--brokers", str(dev_broker.address), "--to-offsets", "latest"]
    derived, named = parse_arguments(latest), parse_arguments([*latest, "--name", "mine"])
    for replay in (derived, named):
        run(spark, replay)
        assert f"{replay_name(replay)}: the messages are in topic again once" in capsys.readouterr().out
    run(spark, named)
    put_all(dev_broker.address, "orders", 0, [Message(b"second")])
    run(spark, derived)
    printed = capsys.readouterr()
    for replay in (derived, named):
        assert f"{replay_name(replay)} was written before, with 1 rows for topic again; nothing was" in printed.out
    assert "replay_range: done: 0 rows in, 0 rows out, " in printed.err
    with pytest.raises(ValueError, match=r"mine was written before, with 1 rows .* To write them, choose another"):
        run(spark, named)
    assert stored(dev_broker.address, "again") == {0: [Message(b"first")] * 2}


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_replays(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = start_broker("dev", tmp_path / "home", "--port", "0", "--partitions", "3").address
    away = start_broker("dev", tmp_path / "away", "--port", "0", "--partitions", "2").address
    messages = {
        index: [Message(f"{index}-{n}".encode(), "odd" if n % 2 else None) for n in range(50)] for index in (0, 2)
    }
    offsets = {index: put_all(home, "orders", index, of_one) for index, of_one in messages.items()}
    start = json.dumps({"orders": {"0-0": offsets[0][10], "0-2": -2}})
    end = json.dumps({"orders": {"0-0": -1, "0-2": offsets[2][20]}})
    base = ["--brokers", str(home), "--topic", "orders"]
    part = ["--from-offsets", start, "--to-offsets", end]
    expected = {0: messages[0][10:], 2: messages[2][:20]}

    replay = parse_arguments([*base, *part, "--to-topic", "again"])
    assert dry_run(spark, replay) == {Partition(0, 0): 40, Partition(0, 2): 20}
    reported = capsys.readouterr().out
    assert f"orders/0-0: 40 messages, offsets {offsets[0][10]} to {offsets[0][-1]}, times 20" in reported
    assert "60 messages in all; nothing was written" in reported
    assert stored(home, "again") == {}

    run(spark, replay)
    run(spark, replay)
    assert stored(home, "again") == expected
    run(spark, parse_arguments([*base, *part, "--to-topic", "again", "--name", "once-more", "--types", "odd"]))
    odd = {index: [message for message in of_one if message.attribute == "odd"] for index, of_one in expected.items()}
    assert stored(home, "again") == {index: expected[index] + odd[index] for index in (0, 2)}

    # into the same topic, and by time to other brokers, by place
    run(spark, parse_arguments([*base, *part, "--to-topic", "orders"]))
    assert stored(home, "orders") == {index: messages[index] + expected[index] for index in (0, 2)}
    abroad = [
        *base,
        "--to-topic",
        "orders",
        "--to-brokers",
        str(away),
        "--from-time",
        "0",
        "--to-time",
        "2100-01-01T00:00:00Z",
    ]
    with pytest.raises(TooFewPartitions, match="3 partitions at the source, only 2 at the target"):
        run(spark, parse_arguments(abroad))
    run(spark, parse_arguments([*abroad, "--fold"]))
    [(index, copied)] = stored(away, "orders").items()
    assert index == 0
    for of_one in stored(home, "orders").values():
        assert [message for message in copied if message in of_one] == of_one
