"""The dashboard in front of a Java MetaQ broker: every screen opens, and the numbers are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from console_screens import asked, opened, paths
from fix_broker import wait_until
from fix_browser import Dashboard

from metaq import MetaQ
from metaq.model import Address, TopicPartition

pytest.importorskip("starlette")


def test_every_screen_and_its_numbers(
    java_broker: Address, java_place: TopicPartition, start_dashboard: Callable[..., Dashboard]
) -> None:
    topic, where = java_place.topic, java_place.partition
    with MetaQ(str(java_broker)) as mq:
        producer = mq.producer()
        [sent, *_] = producer.send_many(topic, [f"order {number}" for number in range(20)], partition=where)
        dashboard = start_dashboard(str(java_broker))
        for path in paths(topic, "no-group", str(where), sent.offset):
            page = opened(dashboard.url, path)
            assert "<h1" in page, path
        before = messages_of(dashboard, topic)
        producer.send_many(topic, ["one more", "and another"], partition=where)
        [described] = [one for one in mq.cluster.describe(topic) if one.partition == where]
    wait_until(lambda: messages_of(dashboard, topic) == before + 2, "a page that was asked before has the new ones")

    def range_there() -> tuple[int, int]:
        rows = asked(dashboard.url, f"/v1/topics/{topic}/partitions")
        [row] = [one for one in rows if one["partition"] == str(where)]
        return row["start"], row["end"]

    wait_until(lambda: range_there() == (described.start, described.end), "its range, too")
    at = f"offset={sent.offset}&partition={where}"
    found = asked(dashboard.url, f"/v1/topics/{topic}/messages?{at}&contains=order+7")
    assert [one["value"] for one in found["messages"]] == ["order 7"]
    assert "and another" in opened(dashboard.url, f"/topic/messages?topic={topic}&partition={where}")
    [broker] = asked(dashboard.url, "/v1/stats")
    assert broker["name"] == str(where.broker)


def messages_of(dashboard: Dashboard, topic: str) -> int:
    """How many messages of the topic the page has."""
    count: int = asked(dashboard.url, f"/v1/topics/{topic}")["messages"]
    return count
