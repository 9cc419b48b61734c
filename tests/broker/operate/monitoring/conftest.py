"""Fixtures of the metrics tests: a port for them, a configuration, a broker, and what it exposes."""

from __future__ import annotations

import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, write_ini
from prometheus_client.parser import text_string_to_metric_families

from metaq.testing.ports import free_port


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def ini(tmp_path: Path, port: int) -> Path:
    topics = "[topic=orders]\n[topic=late]\nunflushThreshold=1000\nunflushInterval=100000\n"
    return write_ini(tmp_path, topics, brokerId=7, numPartitions=2, metricsPort=port)


@pytest.fixture
def scraped_names(broker: RunningBroker, port: int) -> set[str]:
    """Names of all metrics of the broker itself, as Prometheus has them."""
    with closing(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    return {name for name in names if not name.startswith("process_")}
