"""The same requests in front of MetaQ and of RocketMQ: the bundled broker, as either of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from fix_broker import wait_until

from metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.testing.broker_process import BrokerProcess

if TYPE_CHECKING:
    from fix_console import StartConsole
    from starlette.testclient import TestClient

pytestmark = pytest.mark.process

DEAD = "%DLQ%"


@dataclass
class Side:
    """A console, a client of the same cluster, and a topic of the test's own."""

    system: str
    console: TestClient
    mq: MetaQ | RocketMQ
    topic: str
    group: str

    def get(self, path: str, status: int = 200) -> Any:
        answer = self.console.get(f"/v1/{path}")
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path: str, body: object, status: int = 200) -> Any:
        answer = self.console.post(f"/v1/{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def put(self, *messages: dict[str, object]) -> Any:
        return self.post(f"topics/{self.topic}/messages", {"messages": list(messages)})

    def values(self, query: str) -> list[str]:
        return [one["value"] for one in self.get(f"topics/{self.topic}/messages?{query}")["messages"]]

    def read_all(self, count: int) -> None:
        """Read the messages as a consumer of the group, which leaves it then."""
        with self.mq.consumer(self.group, [self.topic]) as consumer:
            got = 0
            while got < count:
                got += len(consumer.fetch(timeout=5))


@pytest.fixture(params=["metaq", "rocketmq"])
def side(request: pytest.FixtureRequest, metaq_broker: BrokerProcess, start_console: StartConsole) -> Side:
    system: str = request.param
    is_metaq = system == "metaq"
    cluster = metaq_broker.cluster if is_metaq else f"rocketmq://{metaq_broker.name_servers}"
    mq = metaq_broker.client() if is_metaq else metaq_broker.rocketmq()
    name = uuid4().hex[:8]
    return Side(system, start_console(cluster, write=True), mq, f"orders-{name}", f"billing-{name}")


def test_messages_are_put_read_and_found(side: Side) -> None:
    put = side.put({"value": "one tea", "attribute": "hot"}, {"value": "茶"}, {"value_base64": "/w=="})
    assert (put["failed"], [one["ok"] for one in put["results"]]) == (0, [True] * 3)
    assert sorted(side.values("limit=2&attribute=hot")) == ["one tea"]
    assert side.values("contains=%E8%8C%B6") == ["茶"]
    assert len(side.values("from=newest&limit=3")) == 3
    assert side.values("from=latest") == []
    message_id = put["results"][0]["message_id"]
    assert side.values(f"id={message_id}") == ["one tea"]


def test_topics_and_partitions(side: Side) -> None:
    side.put({"value": "one tea"}, {"value": "two scones"})
    page = side.get(f"topics?text={side.topic}")
    assert (page["total"], page["rows"][0]["topic"], page["rows"][0]["messages"]) == (1, side.topic, 2)
    assert side.get(f"topics/{side.topic}")["partitions"] == page["rows"][0]["partitions"]
    rows = side.get(f"topics/{side.topic}/partitions")
    assert sum(row["messages"] for row in rows) == 2
    assert side.get("topics/none-such", 404)["error"]["code"] == "topic_not_found"


def test_a_message_that_fails_does_not_stop_the_others(side: Side) -> None:
    put = side.put({"value": "one tea"}, {"value": "nowhere", "partition": "9-9" if side.system == "metaq" else "x:9"})
    assert (put["failed"], [one["ok"] for one in put["results"]]) == (1, [True, False])
    assert put["results"][1]["error"]
    assert side.values("") == ["one tea"]


def test_a_reader_goes_on_where_it_was_and_waits_for_messages(side: Side) -> None:
    side.put({"value": "one tea"})
    found = side.get(f"topics/{side.topic}/messages")
    query = "&".join(f"position={where}@{at}" for where, at in found["scan"]["positions"].items())
    assert side.values(query) == []
    side.put({"value": "two scones"})
    assert side.values(f"{query}&wait_s=30") == ["two scones"]


def test_a_group_its_lag_and_its_reset(side: Side) -> None:
    side.put(*({"value": f"order {number}"} for number in range(10)))
    side.read_all(10)
    wait_until(lambda: side.get(f"groups?text={side.group}")["rows"], "the group is listed")
    [row] = side.get(f"groups?text={side.group}")["rows"]
    assert (row["group"], row["lag"], row["error"]) == (side.group, 0, None)
    assert row["unit"] == ("bytes" if side.system == "metaq" else "messages")
    plan = side.post(f"groups/{side.group}/reset", {"topic": side.topic, "to": "earliest"})
    assert plan["dry_run"] is True
    assert all(change["to"] == 0 for change in plan["changes"])
    # With RocketMQ, its retry topic is there, too.
    lag = {one["topic"]: one["lag"] for one in side.get(f"groups/{side.group}/lag")}
    assert (lag[side.topic], sum(lag.values())) == (0, 0)
    done = side.post(f"groups/{side.group}/reset", {"topic": side.topic, "to": "earliest", "dry_run": False})
    assert done["dry_run"] is False

    def is_reset() -> bool:
        return sum(one["lag"] for one in side.get(f"groups/{side.group}/lag?topic={side.topic}")) > 0

    wait_until(is_reset, "the lag shows the reset")


def test_a_group_that_runs_is_not_reset(side: Side) -> None:
    side.put({"value": "one tea"})
    with side.mq.consumer(side.group, [side.topic]) as consumer:
        while not consumer.fetch(timeout=5):
            pass
        body = {"topic": side.topic, "to": "earliest", "dry_run": False}
        refused = side.post(f"groups/{side.group}/reset", body, 409)["error"]
    assert "has running consumers" in refused["message"]


def test_dead_letters_are_sent_again_with_a_result_for_each(side: Side) -> None:
    side.put({"value": "one tea"})
    if isinstance(side.mq, MetaQ):
        [message] = side.mq.browse(side.topic)
        side.mq.parked(side.group).park(message, "no milk")
    else:
        side.mq.producer().send(DEAD + side.group, "one tea", properties={"RETRY_TOPIC": side.topic})
    page = side.get(f"groups/{side.group}/dead-letters")
    assert (page["total"], page["rows"][0]["origin"], page["rows"][0]["message"]["value"]) == (1, side.topic, "one tea")
    number = page["rows"][0]["number"]
    body = {"numbers": [number, "x:0:77" if side.system == "rocketmq" else "77", number]}
    done = side.post(f"groups/{side.group}/dead-letters/resend", body)
    assert (done["failed"], [one["ok"] for one in done["results"]]) == (1, [True, False, True])
    assert done["results"][1]["error"]
    assert side.values("") == ["one tea", "one tea"]
    assert done["results"][0]["removed"] is (side.system == "metaq")


def test_brokers_and_their_health(side: Side) -> None:
    [broker] = side.get("stats")
    assert broker["role"] == "master"
    assert broker["uptime_s"] >= 0
    assert all(one["level"] == "ok" for one in side.get("health"))
    if side.system == "metaq":
        assert side.get("replication")[0]["role"] == "alone"
    else:
        assert side.get("replication", 409)["error"]["code"] == "not_supported_by_cluster"
