"""The listener over brokers in memory: what it asks, what it shows, and what it keeps from Spark."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fix_broker import wait_until
from metaq_harness import MemoryBrokers
from prometheus_client import CollectorRegistry

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdWorker
from metaq.protocols.text.commands import Command
from metaq.testing.memory import MemoryBroker
from metaq_spark.backends.metaq.lag_lookup import LagLookup
from metaq_spark.backends.metaq.options import parse_broker_options
from metaq_spark.errors import OptionError
from metaq_spark.lag.listener import MetaQLagListener

NOW_S = 1_800_000_000.0
DEADLINE_S = 60.0


class Harness(MemoryBrokers):
    """Two brokers with one topic, and a listener that asks them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(*(MemoryBroker({"orders": 2}, broker_id=n, **settings) for n in (0, 1)))

    def put(self, broker: int, index: int, *ages_s: float) -> int:
        """One message of 1 byte for each age, with ids that say so; returns the end."""
        store, ids = self.brokers[broker].partition("orders", index), IdWorker(broker)
        for age_s in ages_s:
            store.append(encode_frame(ids.next_id(int((NOW_S - age_s) * 1000)), 0, b"x"))
        return store.end

    def listener(self, **settings: Any) -> MetaQLagListener:
        options = {"brokers": "b0:1,b1:1"}
        listener = MetaQLagListener(options, **settings)
        listener._lookup = LagLookup(parse_broker_options(options), self.pool, now_s=lambda: NOW_S)
        return listener


def offset(**partitions: int) -> dict[str, Any]:
    return {"v": 1, "topics": {"orders": {name[1:].replace("_", "-"): at for name, at in partitions.items()}}}


def event(end: dict[str, Any], latest: dict[str, Any] | None = None, run: str = "run-1", **more: Any) -> Any:
    source = {"endOffset": end, "latestOffset": latest}
    tree = {"id": "id-1", "runId": run, "name": "copy", "batchId": 3, "sources": [source], "inputRowsPerSecond": 2.5}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(tree | more)))


def report(listener: MetaQLagListener, *events: Any) -> None:
    for each in events:
        listener.onQueryProgress(each)
    assert listener.drain(DEADLINE_S)


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample, as ``bytes orders/0-0``."""
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {
        " ".join([sample.name.removeprefix("metaq_spark_"), *list(sample.labels.values())]): sample.value
        for sample in samples
    }


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_bytes_messages_and_seconds(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.put(0, 0, 9.0, 5.0, 1.5)
    harness.put(1, 0, 7.0)
    caplog.set_level(logging.INFO)
    report(harness.listener(registry=registry), event(offset(p0_0=21, p1_0=21), processedRowsPerSecond=4))
    assert shown(registry) == {
        "lag_bytes copy orders 0-0": 42,
        "lag_messages copy orders 0-0": 2,
        "lag_seconds copy orders 0-0": 5.0,
        "lag_bytes copy orders 1-0": 0,
        "lag_messages copy orders 1-0": 0,
        "lag_seconds copy orders 1-0": 0.0,
        "input_rows_per_second copy": 2.5,
        "processed_rows_per_second copy": 4,
    }
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("metaq_spark.lag", logging.INFO)
    assert record.getMessage().startswith("query=copy batch=3 lag_bytes=42 lag_messages=2 lag_seconds=5.0 partitions=2")


def test_a_broker_whose_clock_is_ahead_tells_no_seconds(registry: CollectorRegistry) -> None:
    """A message that came minutes ago would seem to have just come, and a query that is behind to keep up."""
    harness = Harness()
    harness.put(0, 0, -400.0, -500.0)
    harness.put(1, 0, -1.0)
    report(harness.listener(registry=registry), event(offset(p0_0=0, p1_0=0)))
    assert {name: value for name, value in shown(registry).items() if "seconds copy" in name} == {
        "lag_seconds copy orders 1-0": 0.0
    }


def test_the_page_names_every_gauge(registry: CollectorRegistry) -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    MetaQLagListener(registry=registry)
    assert set(re.findall(r"metaq_spark_\w+_(?:bytes|messages|seconds|second)", page)) == {
        family.name for family in registry.collect()
    }


def test_a_java_broker_counts_nothing(registry: CollectorRegistry) -> None:
    harness = Harness(extensions=frozenset())
    harness.put(0, 0, 9.0)
    harness.brokers[1].partition("orders", 0).append(encode_frame(-5, 0, b"x"))  # its ids say nothing about time
    report(harness.listener(registry=registry), event(offset(p0_0=0, p1_0=0)))
    assert {name: value for name, value in shown(registry).items() if "orders" in name} == {
        "lag_bytes copy orders 0-0": 21,
        "lag_seconds copy orders 0-0": 9.0,
        "lag_bytes copy orders 1-0": 21,
    }


def test_without_brokers_bytes_come_from_the_progress(registry: CollectorRegistry) -> None:
    report(MetaQLagListener(registry=registry), event(offset(p0_0=21), offset(p0_0=63)))
    assert {name: value for name, value in shown(registry).items() if "orders" in name} == {
        "lag_bytes copy orders 0-0": 42
    }


def test_a_broker_that_is_away_costs_detail_and_one_line(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness()
    harness.put(0, 0, 9.0)
    harness.brokers[1].kill()
    listener = harness.listener(registry=registry)
    for _ in range(3):
        report(listener, event(offset(p0_0=0), offset(p0_0=21)))
    assert shown(registry)["lag_bytes copy orders 0-0"] == 21
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "a lag could not be computed in full: broker b1:1: connect failed" in warning.getMessage()
    harness.brokers[1].start()
    report(listener, event(offset(p0_0=0), offset(p0_0=21)))
    assert shown(registry)["lag_messages copy orders 0-0"] == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"runId": "r"}', '{"runId": "r", "sources": [1]}'])
def test_nothing_that_goes_wrong_reaches_spark(text: str, caplog: pytest.LogCaptureFixture) -> None:
    listener = MetaQLagListener()
    broken = SimpleNamespace(progress=SimpleNamespace(json=text))
    report(listener, broken, broken)
    assert len(caplog.records) == 1
    report(listener, event(offset(p0_0=0), offset(p0_0=21)))  # and the listener's thread still lives
    listener.onQueryTerminated(SimpleNamespace(runId="run-1"))


def test_what_a_query_no_longer_has_is_removed(registry: CollectorRegistry) -> None:
    listener = MetaQLagListener(registry=registry)
    report(listener, event(offset(p0_0=0, p0_1=0), offset(p0_0=21, p0_1=21)))
    report(listener, event(offset(p0_0=0), offset(p0_0=21), run="run-2", name="other"))
    report(listener, event(offset(p0_0=0), offset(p0_0=21)))
    assert [name for name in shown(registry) if "lag_bytes" in name] == [
        "lag_bytes copy orders 0-0",
        "lag_bytes other orders 0-0",
    ]
    listener.onQueryTerminated(SimpleNamespace(runId="run-1"))
    assert {name.split()[1] for name in shown(registry)} == {"other"}
    listener.onQueryTerminated(SimpleNamespace(runId="run-2"))
    listener.onQueryTerminated(SimpleNamespace(runId="never seen"))
    assert shown(registry) == {}
    report(listener, event(offset(p0_0=0), offset(p0_0=21), run="run-3"))  # the query was started again
    assert {name.split()[1] for name in shown(registry)} == {"copy"}


HeldUp = Callable[..., tuple[MetaQLagListener, threading.Event]]
"""Takes what a listener takes; gives it, and the event that lets its lookup go on."""


@pytest.fixture
def held_up() -> Iterator[HeldUp]:
    """Make a listener whose first lookup is under way, at a broker that answers only when told to go on."""
    harness, asked, go_on = Harness(), threading.Event(), threading.Event()
    harness.put(0, 0, 9.0)

    def wait(command: Command) -> None:
        asked.set()
        assert go_on.wait(DEADLINE_S)

    harness.brokers[0].before_command = wait

    def listening(**options: Any) -> tuple[MetaQLagListener, threading.Event]:
        listener = harness.listener(**options)
        listener.onQueryProgress(event(offset(p0_0=0), batchId=0))
        assert asked.wait(DEADLINE_S)
        return listener, go_on

    yield listening
    go_on.set()


def test_spark_never_waits_and_the_newest_progress_counts(held_up: HeldUp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    listener, go_on = held_up()
    for batch_id in range(1, 100):
        listener.onQueryProgress(event(offset(p0_0=0), batchId=batch_id))
    assert not listener.drain(0)
    go_on.set()
    assert listener.drain(DEADLINE_S)
    assert [record.getMessage().split()[1] for record in caplog.records] == ["batch=0", "batch=99"]


def test_a_lookup_that_ends_after_its_query_shows_nothing(held_up: HeldUp, registry: CollectorRegistry) -> None:
    listener, go_on = held_up(registry=registry)
    listener.onQueryTerminated(SimpleNamespace(runId="run-1"))
    go_on.set()
    assert listener.drain(DEADLINE_S)
    assert shown(registry) == {}


def test_the_last_progress_of_a_query_is_logged_though_it_has_ended(
    held_up: HeldUp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    listener, go_on = held_up()
    listener.onQueryProgress(event(offset(p0_0=0), batchId=1))
    listener.onQueryTerminated(SimpleNamespace(runId="run-1"))
    go_on.set()
    assert listener.drain(DEADLINE_S)
    assert [record.getMessage().split()[1] for record in caplog.records] == ["batch=0", "batch=1"]


def test_the_gauges_of_a_query_that_hangs_go_on(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.put(0, 0, 9.0)
    caplog.set_level(logging.INFO)
    listener = harness.listener(registry=registry, refresh_s=0.005)
    report(listener, event(offset(p0_0=0)))
    harness.put(0, 0, 1.0)
    wait_until(lambda: shown(registry)["lag_messages copy orders 0-0"] == 2, "a lag that grows")
    assert len(caplog.records) == 1  # the log is of progress only
    listener.onQueryTerminated(SimpleNamespace(runId="run-1"))
    assert shown(registry) == {}


def test_gauges_of_a_query_that_hangs_go_on_beside_a_busy_one(registry: CollectorRegistry) -> None:
    harness = Harness()
    harness.put(0, 0, 9.0)
    listener = harness.listener(registry=registry, refresh_s=0.5)
    report(listener, event(offset(p0_0=0), run="hangs", name="stuck"))
    harness.put(0, 0, 1.0)

    def grows() -> bool:
        listener.onQueryProgress(event(offset(p0_0=0), run="busy"))
        return shown(registry)["lag_messages stuck orders 0-0"] == 2

    wait_until(grows, "a lag that grows")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"brokers": "nonsense"}, "option brokers: 'nonsense'"),
        ({"connectTimeoutMs": "5"}, "option brokers: it is required"),
        ({"brokers": "b:1", "subscribe": "orders"}, "option subscribe: it says nothing about how to reach the brokers"),
        ({"brokers": "b:1", "requestTimeoutMs": "soon"}, "option requestTimeoutMs"),
    ],
)
def test_wrong_options_are_reported_at_once(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        MetaQLagListener(options)
    assert words in str(caught.value)


def test_gauges_need_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ModuleNotFoundError):
        MetaQLagListener(registry=object())  # type: ignore[arg-type]
    MetaQLagListener()
