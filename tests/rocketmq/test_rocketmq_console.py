"""The dashboard in front of real RocketMQ: every screen opens, and the numbers are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from console_screens import asked, opened, paths
from fix_broker import wait_until
from fix_browser import Dashboard

from metaq import RocketMQ
from metaq.client.rocketmq.records import RocketMessage
from peers.rocketmq.servers import Cluster

pytest.importorskip("starlette")
pytestmark = pytest.mark.slow

ORDERS, READ = 30, 12


def test_every_screen_and_its_numbers(
    rocketmq: Cluster, rocketmq_topic: Callable[..., str], start_dashboard: Callable[..., Dashboard]
) -> None:
    topic = rocketmq_topic(queues=2)
    group = f"readers-of-{topic}"
    with RocketMQ(rocketmq.name_servers) as mq:
        mq.producer().send_many(topic, [RocketMessage(data=f"order {number}", tag="paid") for number in range(ORDERS)])
        wait_until(lambda: sum(one.messages for one in mq.cluster.describe(topic)) == ORDERS, "all are indexed")
        (first, *_) = mq.browse(topic)
        with mq.consumer(group, [topic], start="earliest", auto_ack=False) as consumer:
            taken = consumer.fetch(max_messages=READ, timeout=60)
            consumer.commit()
    dashboard = start_dashboard("rocketmq://" + rocketmq.name_servers.replace(";", ","))
    for path in paths(topic, group, str(first.partition), first.offset):
        page = opened(dashboard.url, path)
        assert "<h1" in page, path
    assert topic in opened(dashboard.url, f"/topics?q={topic}")
    assert "order 0" in opened(dashboard.url, f"/topic/messages?topic={topic}&text=order+0")
    row = asked(dashboard.url, f"/v1/topics/{topic}")
    assert (row["topic"], row["messages"], row["partitions"]) == (topic, ORDERS, 2)
    rows = asked(dashboard.url, f"/v1/topics/{topic}/partitions")
    assert sum(one["messages"] for one in rows) == ORDERS
    found = asked(dashboard.url, f"/v1/topics/{topic}/messages?contains=order+7&from=earliest")
    assert [one["value"] for one in found["messages"]] == ["order 7"]
    lags = asked(dashboard.url, f"/v1/groups/{group}")["lag"]
    assert sum(one["lag"] for one in lags if one["topic"] == topic) == ORDERS - len(taken)
    [broker] = asked(dashboard.url, "/v1/stats")
    assert broker["name"] == "broker-a"
