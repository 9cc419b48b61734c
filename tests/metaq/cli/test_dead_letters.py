"""``metaq dlq`` on a RocketMQ cluster; parked messages of MetaQ are in ``test_cli_groups``."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.dead_letters import DeadMessages
from metaq.model import Partition
from metaq.testing.rocketmq_server import ScriptedCluster
from metaq.testing.rocketmq_store import WRITE

Run = Callable[..., tuple[int, str, str]]

DEAD = "%DLQ%billing"
QUEUE = Partition("broker-a", 0)


@pytest.fixture
def dead(cluster: ScriptedCluster) -> ScriptedCluster:
    """Three dead letters of the topic "orders"."""
    cluster.create_topic(DEAD, 1)
    for number in range(3):
        properties = {"RETRY_TOPIC": "orders", "KEYS": f"k{number}", "UNIQ_KEY": f"u{number}", "color": "red"}
        cluster.append(DEAD, QUEUE, [b"%d" % number], tag="hot", properties={**properties, "DELAY": "3"}, store_ms=1000)
    return cluster


def sent(rocketmq: str, command: Run, topic: str = "orders") -> list[dict[str, object]]:
    rows = command("-c", rocketmq, "consume", topic, "--json")[1].splitlines()
    return sorted(map(json.loads, rows), key=lambda row: str(row["value"]))


def test_they_are_listed(dead: ScriptedCluster, rocketmq: str, command: Run) -> None:
    status, out, _ = command("-c", rocketmq, "dlq", "list", "billing")
    assert (status, [row.split() for row in out.splitlines()][:2]) == (
        0,
        [
            ["number", "topic", "moved", "attempts", "message_id"],
            ["broker-a:0:0", "orders", "1970-01-01T00:00:01.000Z", "0", "u0"],
        ],
    )
    row = json.loads(command("-c", rocketmq, "dlq", "list", "billing", "broker-a:0:2", "--json")[1])
    assert (row["number"], row["value"], row["attribute"]) == ("broker-a:0:2", "2", "hot")


def test_they_are_sent_again_and_stay(dead: ScriptedCluster, rocketmq: str, command: Run) -> None:
    status, _, err = command("-c", rocketmq, "dlq", "resend", "billing", "broker-a:0:2", "broker-a:0:0")
    assert (status, err) == (0, "2 messages sent again; they stay in %DLQ%billing\n")
    first, last = sent(rocketmq, command)
    assert (first["value"], last["value"], first["attribute"]) == ("0", "2", "hot")
    properties = first["properties"]
    assert isinstance(properties, dict)
    assert (properties["KEYS"], properties["color"]) == ("k0", "red")
    assert properties["UNIQ_KEY"] != "u0"
    assert {"DELAY", "RETRY_TOPIC"} & set(properties) == set(), "it is not delayed again"
    assert command("-c", rocketmq, "dlq", "resend", "billing", "--all")[2].startswith("3 messages sent again")
    assert len(sent(rocketmq, command)) == 5


def test_what_is_moved_there_meanwhile_is_not_sent_again(dead: ScriptedCluster, rocketmq: str) -> None:
    with RocketMQ(rocketmq.removeprefix("rocketmq://")) as mq:
        for count, _ in enumerate(DeadMessages(mq, "billing"), 1):
            assert count <= 3, "it does not end"
            dead.append(DEAD, QUEUE, [b"again"])


def test_the_groups_own_topic_keeps_the_original_one(dead: ScriptedCluster, rocketmq: str, command: Run) -> None:
    dead.create_topic("%RETRY%billing", 1)
    command("-c", rocketmq, "dlq", "resend", "billing", "--all", "--topic", "%RETRY%billing")
    rows = sent(rocketmq, command, "%RETRY%billing")
    assert [row["properties"]["RETRY_TOPIC"] for row in rows] == ["orders"] * 3  # type: ignore[index]
    assert sent(rocketmq, command) == []


def test_what_cannot_be_done_is_said(dead: ScriptedCluster, rocketmq: str, command: Run) -> None:
    for arguments, status, says in [
        (["discard", "billing", "--all"], 2, "removes messages of %DLQ%billing by their age only"),
        (["resend", "billing"], 2, "dlq resend: name numbers, or --all"),
        (["resend", "billing", "broker-a:0:9"], 2, "%DLQ%billing has no message broker-a:0:9"),
        (["resend", "billing", "7"], 2, "expected BROKER:QUEUE:OFFSET"),
        (["list", "others"], 1, "topic '%DLQ%others' does not exist"),
    ]:
        found = command("-c", rocketmq, "dlq", *arguments)
        assert (found[0], says in found[2]) == (status, True), found
    dead.create_topic(DEAD, 1, perm=WRITE)
    status, _, err = command("-c", rocketmq, "dlq", "list", "billing")
    assert (status, "metaq alter '%DLQ%billing' --permissions rw allows it" in err) == (2, True)
