"""``metaq-spark diagnose`` with Spark's own UI as evidence, and with reports from an address: a driver of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from diagnosed_query import DiagnosedQuery
from fix_broker import RunningBroker, wait_until
from fix_spark import spark_environment
from pyspark.sql import SparkSession

from metaq_spark.diagnosis.diagnosis import Watch
from metaq_spark.diagnosis.report import Diagnosis

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

DRIVER = Path(__file__).with_name("diagnosed_ui_driver.py")
LONG_S = 120.0


@pytest.fixture
def query(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> Iterator[DiagnosedQuery]:
    made = DiagnosedQuery(spark, str(dev_broker.address), tmp_path / "query")
    with made.listening():
        yield made


@pytest.fixture
def reports_url(query: DiagnosedQuery) -> Iterator[str]:
    """An address that answers with what the listener has written."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            pass

    handler = partial(Quiet, directory=str(query.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/{query.reports.name}"
        server.shutdown()


def ui_of(query: DiagnosedQuery, pid: int) -> str | None:
    """Where a driver says that its UI is."""
    lines = query.reports.read_text().splitlines() if query.reports.exists() else []
    started = [event for line in lines if (event := json.loads(line))["event"] == "started"]
    return next((event["driver"]["ui"] for event in started if event["driver"].get("pid") == pid), None)


def test_tasks_settings_and_memory_of_a_real_driver(query: DiagnosedQuery, reports_url: str) -> None:
    """E5, E2, B5, and reports from an address"""
    query.put("first")
    query.start(query.stream().selectExpr("1 AS number", "CAST(value AS STRING) AS text").dropDuplicates(),
                availableNow=True).awaitTermination(120)  # fmt: skip
    command = [sys.executable, str(DRIVER), query.broker, str(query.checkpoint), str(query.reports)]
    log = query.folder / "driver.log"
    with log.open("w") as out, subprocess.Popen(
        command, env=os.environ | spark_environment(), stderr=out, stdin=subprocess.PIPE, text=True
    ) as driver:  # fmt: skip
        try:
            wait_until(lambda: ui_of(query, driver.pid), "the driver starts", LONG_S)
            address = ui_of(query, driver.pid)
            assert address is not None
            port = re.sub(r".*:", "", address)
            watch = Watch(
                query.checkpoint,
                options=query.reach,
                progress=reports_url,
                ui=f"http://127.0.0.1:{port}",
            )
            seen: list[Diagnosis] = []

            def finds(rule: str) -> bool:
                seen.append(watch.look())
                return rule in [one.rule for one in seen[-1].findings]

            def sentence(rule: str) -> str:
                return next(one.sentence for one in seen[-1].findings if one.rule == rule)

            wait_until(lambda: finds("E5"), "the setting without effect", LONG_S)
            assert sentence("E5").startswith("The state has 2 partitions since the first run; "), seen[-1].text()
            assert "spark.sql.shuffle.partitions=3 has no effect" in sentence("E5")
            assert seen[-1].figures["evidence"]["U"]["note"] == "1 cores"
            query.put("second", "third", "fourth", "fifth", "sixth")
            wait_until(lambda: finds("E2"), "the state fills the memory", LONG_S)
            assert "in the memory of executors that have" in sentence("E2"), seen[-1].text()
            wait_until(lambda: watch.look().verdict == "idle", "all is read", LONG_S)
            assert driver.stdin is not None
            driver.stdin.write("keep the core\n")
            driver.stdin.flush()
            wait_until(lambda: _running(f"http://127.0.0.1:{port}"), "the other job runs", LONG_S)
            query.put("seventh")
            wait_until(lambda: finds("B5") and seen[-1].verdict == "stuck", "no core is free", LONG_S)
            assert (seen[-1].rule, "no core is free" in seen[-1].sentence) == ("B5", True), seen[-1].text()
        finally:
            driver.kill()
            driver.wait(60)


def _running(ui: str) -> bool:
    from metaq_spark.diagnosis.spark_ui import read_ui

    return read_ui(ui, 10).running_tasks == 1
