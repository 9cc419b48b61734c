"""What the console says of groups to Prometheus."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from metaq_console.api.metrics import METRICS, metrics_answer
from metaq_console.console import make_console
from metaq_console.settings import ConsoleSettings
from prometheus_client.parser import text_string_to_metric_families

from metaq.client.profile import Profile
from metaq.testing.broker_process import BrokerProcess


@pytest.mark.process
def test_lag_and_members_of_a_group(metaq_broker: BrokerProcess) -> None:
    mq = metaq_broker.client()
    mq.producer().send_many("orders", ["one tea", "two scones"])
    with mq.consumer('bil"ling', ["orders"]) as consumer:
        while not consumer.fetch(timeout=5):
            pass
    mq.producer().send("orders", "x" * 100)
    console = make_console(ConsoleSettings(profile=Profile(cluster=metaq_broker.cluster)))
    asyncio.run(console.sampler.sample())
    found = list(text_string_to_metric_families(bytes(metrics_answer(console).body).decode()))
    assert {one.name for one in found} == METRICS.keys()
    lag, members, age = found
    group = {"messaging_system": "metaq", "messaging_consumer_group_name": 'bil"ling'}
    assert [(one.labels, one.value) for one in lag.samples] == [
        (group | {"messaging_destination_name": "orders", "unit": "bytes"}, 120)
    ]
    assert [(one.labels, one.value) for one in members.samples] == [(group, 0)]
    assert age.samples[0].value >= 0
    console.cluster.system.close()


def test_the_page_has_every_metric() -> None:
    page = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []
