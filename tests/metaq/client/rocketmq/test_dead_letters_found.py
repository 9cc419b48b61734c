"""Dead letters of a RocketMQ group: found by number, and what is sent again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.dead_letters import DeadMessages, again, letter_number, origin_of
from metaq.model import Partition
from metaq.testing.rocketmq_server import ScriptedCluster

QUEUE = Partition("broker-a", 0)


@pytest.fixture
def letters() -> Iterator[DeadMessages]:
    """Those of the group billing: one that says its topic, and one that does not."""
    with ScriptedCluster({"broker-a": ()}) as cluster:
        cluster.create_topic("%DLQ%billing", 1)
        for number, properties in enumerate(({"RETRY_TOPIC": "orders", "DELAY": "3"}, {})):
            cluster.append("%DLQ%billing", QUEUE, [b"%d" % number], properties=properties)
        with RocketMQ(";".join(map(str, cluster.name_servers))) as mq:
            yield DeadMessages(mq, "billing")


def test_each_has_a_number_by_which_it_is_found(letters: DeadMessages) -> None:
    assert [letter_number(one) for one in letters] == ["broker-a:0:0", "broker-a:0:1"]
    assert letters.find("broker-a:0:1").data == b"1"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("5", "dead letter '5': expected BROKER:QUEUE:OFFSET"),
        ("broker-a:0:x", "expected BROKER:QUEUE:OFFSET"),
        ("broker-a:0:2", "%DLQ%billing has no message broker-a:0:2"),
        ("broker-a:7:0", "%DLQ%billing has no message broker-a:7:0"),
    ],
)
def test_a_number_of_none_is_refused(letters: DeadMessages, number: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        letters.find(number)


def test_it_goes_to_its_own_topic_or_to_a_named_one(letters: DeadMessages) -> None:
    first, second = letters
    assert (origin_of(first), origin_of(second)) == ("orders", None)
    topic, copy = again(first)
    assert (topic, copy.data, dict(copy.properties)) == ("orders", b"0", {})
    topic, copy = again(first, "%RETRY%billing")
    assert (topic, dict(copy.properties)) == ("%RETRY%billing", {"RETRY_TOPIC": "orders"})
    assert again(second, "orders")[0] == "orders"
    with pytest.raises(ValueError, match="dead letter broker-a:0:1 does not say its topic"):
        again(second)
