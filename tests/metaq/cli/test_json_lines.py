"""``produce --json``: what it reads, what it refuses, and that what ``consume --json`` prints comes back unchanged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from metaq import MetaQ, RocketMQ
from metaq.cli.json_lines import json_parser, keeping_partitions, partition_key
from metaq.cli.line_format import Line
from metaq.client.rocketmq.records import RocketMessage
from metaq.model import Address, Message, Partition
from metaq.testing.memory import MemoryBroker
from metaq.testing.rocketmq_server import ScriptedCluster

Run = Callable[..., tuple[int, str, str]]
BROKER = "127.0.0.1:8123"


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ('{"value": "é"}', Line("é".encode(), None, "all")),
        ('{"value_base64": "/w==", "attribute": "paid"}', Line(b"\xff", None, "paid")),
        ('{"value": "", "tag": "", "key": "a b"}', Line(b"", b"a b", "")),
        ('{"value": "v", "attribute": null, "tag": "hot", "partition": "0-1"}', Line(b"v", None, "hot", {}, "0-1")),
        (
            '{"topic": "t", "partition": "b:1", "offset": 7, "message_id": "00FF", "timestamp": null, "value": "v", '
            '"properties": {"TAGS": "hot", "KEYS": "k1 k2", "UNIQ_KEY": "00FF", "price": "3"}}',
            Line(b"v", b"k1 k2", "hot", {"price": "3"}, "b:1"),
        ),
        ('{"value": "v", "key": "mine", "attribute": "x", "properties": {"TAGS": "y", "KEYS": "z"}}',
         Line(b"v", b"mine", "x")),
        (" \t\r", None),
        ("", None),
    ],
)  # fmt: skip
def test_objects_are_read(line: str, read: Line | None) -> None:
    assert json_parser("all")(line.encode(), 1) == read


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"one tea", "it is no JSON object: Expecting value"),
        (b"[1]", "it is no JSON object: [1]"),
        (b'"\xff"', "byte 2 is not UTF-8"),
        (b'{"value": ' + b"[" * 100_000, "it is nested too deeply"),
        (b"{}", "expected value, a text, or value_base64"),
        (b'{"value": "a", "value_base64": "YQ=="}', "value and value_base64: expected one of them"),
        (b'{"value": {"a": 1}}', 'value: expected a text, got {"a": 1}'),
        (b'{"value": "\\ud800"}', "value: '\\ud800' is not a character"),
        (b'{"value_base64": "?"}', "value_base64: "),
        (b'{"value": "a", "atribute": "b"}', "unknown field 'atribute'; expected value, value_base64, key"),
        (b'{"value": "a", "attribute": "b", "tag": "c"}', "attribute 'b' and tag 'c': expected one of them"),
        (b'{"value": "a", "properties": ["b"]}', 'properties: expected an object, got ["b"]'),
        (b'{"value": "a", "properties": {"b": 1}}', "b: expected a text, got 1"),
        (b'{"value": "a", "properties": {"b": null}}', "property 'b': expected a text, got null"),
        (b'{"value": "a", "properties": {"\\ud800": "x"}}', "properties: '\\ud800' is not a character"),
        (b'{"value": "a", "partition": "x"}', "partition 'x': expected BROKER_ID-INDEX"),
    ],
)
def test_what_is_no_message_is_named(line: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=r"^line 7: ") as refused:
        json_parser(None)(line, 7)
    assert says in str(refused.value)


def test_partitions_are_kept_where_they_exist_and_order_where_they_do_not() -> None:
    here = [Partition(0, 0), Partition(0, 1), Partition(0, 2)]
    choose = keeping_partitions()

    def chosen(key: bytes | None = None, partition: str | None = None) -> Partition:
        return choose("t", here, partition_key(Line(b"", key, None, {}, partition)))

    assert [chosen(partition=f"0-{index}") for index in (2, 0, 1)] == [here[2], here[0], here[1]]
    assert len({chosen(partition="7-0", key=b"%d" % number) for number in range(20)}) == 1
    assert len({chosen(partition=f"7-{index}") for index in range(40)}) == 3
    assert len({chosen(key=b"k") for _ in range(20)}) == 1
    assert {chosen() for _ in range(3)} == set(here)


def test_a_topic_of_metaq_is_copied(memory: dict[Address, MemoryBroker], command: Run, tmp_path: Path) -> None:
    memory[Address.parse(BROKER)] = MemoryBroker({"orders": 4, "copy": 4, "small": 1})
    chance = random.Random(20)
    sent = [
        Message(chance.randbytes(chance.randrange(60)), chance.choice([None, "", "paid", "日本 é", "a\nb"]))
        for _ in range(500)
    ] + [Message(b""), Message(b"\n\r\x00"), Message("\u2028 \U0001f600".encode())]
    with MetaQ(BROKER) as mq:
        mq.producer().send_many("orders", sent)
        shown = tmp_path / "shown"
        shown.write_text(command("-c", BROKER, "consume", "orders", "--json")[1])
        for topic in ("copy", "small"):
            status, _, err = command("-c", BROKER, "produce", topic, "--json", str(shown))
            assert (status, err) == (0, f"{len(sent)} messages sent to {topic}\n")

        def stored(topic: str) -> list[tuple[Partition, str | None, bytes]]:
            return [(one.partition, one.attribute, one.data) for one in mq.browse(topic)]

        assert stored("copy") == stored("orders")
        assert [one[1:] for one in stored("small")] == [one[1:] for one in stored("orders")]


def test_a_topic_of_rocketmq_is_copied(
    cluster: ScriptedCluster, rocketmq: str, memory: dict[Address, MemoryBroker], command: Run, tmp_path: Path
) -> None:
    chance = random.Random(5)
    sent = [
        RocketMessage(
            data=chance.randbytes(chance.randrange(60)),
            tag=chance.choice([None, "hot", "日本"]),
            keys=chance.choice([(), ("a", "b"), ("é",)]),
            properties=chance.choice([{}, {"price": "3", "note": "a=b \u2028"}]),
        )
        for _ in range(200)
    ]
    cluster.create_topic("copy", queues=2)
    with RocketMQ(rocketmq.removeprefix("rocketmq://")) as mq:
        mq.producer().send_many("orders", sent)
        shown = tmp_path / "shown"
        shown.write_text(command("-c", rocketmq, "consume", "orders", "--json")[1])
        assert command("-c", rocketmq, "produce", "copy", "--json", str(shown))[::2] == (
            0, "200 messages sent to copy\n",
        )  # fmt: skip

        def stored(topic: str) -> list[tuple[Partition, RocketMessage]]:
            return [(one.partition, one.copy()) for one in mq.browse(topic)]

        assert stored("copy") == stored("orders")
    memory[Address.parse(BROKER)] = MemoryBroker({"orders": 1})
    status, _, err = command("-c", BROKER, "produce", "orders", "--json", str(shown))
    with_properties = sum(bool(one.properties) for one in sent)
    assert (status, err.splitlines()) == (
        0, ["200 messages sent to orders", f"{with_properties} messages had properties, which MetaQ does not store"],
    )  # fmt: skip


def test_a_line_that_is_no_message_ends_it_behind_those_before(
    rocketmq: str, memory: dict[Address, MemoryBroker], command: Run, tmp_path: Path
) -> None:
    memory[Address.parse(BROKER)] = MemoryBroker({"orders": 2})
    lines = tmp_path / "lines"
    for cluster, wrong, says in (
        (BROKER, "{}", "line 4: expected value, a text, or value_base64"),
        (rocketmq, '{"value": "x", "tag": "a|b"}', "line 4: tag 'a|b': expected a word without |"),
        (rocketmq, '{"value": "x", "properties": {"a": ""}}', "line 4: field 'property a' of a message is ''"),
    ):
        lines.write_text('{"value": "1"}\n\n{"value": "2"}\n' + wrong + '\n{"value": "3"}\n')
        status, out, err = command("-c", cluster, "produce", "orders", "--json", "-v", str(lines))
        assert status == 2
        assert err.startswith("2 messages sent to orders\nmetaq: " + says), err
        assert [json.loads(line)["topic"] for line in out.splitlines()] == ["orders", "orders"]
