"""Spark queries in a real Chromium: why one stands still, by its checkpoint folder and by what its listener posts."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checkpoints import offset, plan, query
from fix_browser import Dashboard, picture

from metaq.net.clock import wall_clock_ms
from metaq.testing.broker_process import BrokerProcess

if TYPE_CHECKING:
    from fix_browser import OpenPage

pytestmark = [pytest.mark.process, pytest.mark.browser]

QUERY_ID, RUN_ID = "query-id", "run-1"
PHASES = {"addBatch": 2600, "commitOffsets": 40, "latestOffset": 90, "queryPlanning": 60, "triggerExecution": 3000}
QUARTER_S = 900


def checkpoint(folder: Path, broker: BrokerProcess) -> Path:
    """A query that has read half of a topic; its batch with the rest has been running for a quarter of an hour."""
    with broker.client() as mq:
        mq.producer().send_many("orders", [f"order {number}" for number in range(2000)])
        (partition,) = mq.cluster.describe("orders")
        half = [message.offset for message in mq.browse("orders")][1000]
    where = str(partition.partition)
    about = {"orders": {where: partition.incarnation or ""}}
    query(folder, *[offset(incarnations=about, orders={where: half})] * 5)  # type: ignore[arg-type]
    plan(folder, 5, offset(incarnations=about, orders={where: partition.end}))  # type: ignore[arg-type]
    began_s = wall_clock_ms() / 1000 - QUARTER_S
    for number, each in enumerate(sorted(folder.rglob("*"))):
        os.utime(each, (began_s - 60 + number, began_s - 60 + number))
    os.utime(folder / "offsets" / "5", (began_s, began_s))
    return folder


def posted(folder: Path) -> list[dict[str, Any]]:
    """What a listener of the query has posted until now."""
    now_ms = wall_clock_ms()

    def event(kind: str, ago_s: int, **more: object) -> dict[str, Any]:
        return {"v": 1, "event": kind, "at_ms": now_ms - ago_s * 1000, "id": QUERY_ID, "runId": RUN_ID, **more}

    def progress(batch: int, ago_s: int) -> dict[str, Any]:
        at = datetime.datetime.fromtimestamp(now_ms / 1000 - ago_s, datetime.UTC)
        report = {
            "id": QUERY_ID, "runId": RUN_ID, "name": "orders-to-lake", "batchId": batch, "numInputRows": 200,
            "timestamp": at.strftime("%Y-%m-%dT%H:%M:%S.000Z"), "inputRowsPerSecond": 20.0,
            "processedRowsPerSecond": 66.0, "durationMs": PHASES, "stateOperators": [], "sources": [],
        }  # fmt: skip
        return event("progress", ago_s, progress=report)

    started = event("started", QUARTER_S + 60, name="orders-to-lake", driver={"host": "h", "pid": 1, "app": "a"})
    status = {"message": "Processing new data", "isDataAvailable": True, "isTriggerActive": True}
    trigger = "ProcessingTimeTrigger(10000)"
    now = event("status", 1, status=status, trigger=trigger, checkpoint=folder.as_uri())
    return [started, *(progress(batch, QUARTER_S + 50 - 10 * batch) for batch in range(5)), now]


def test_it_is_seen_in_a_minute_why_a_query_stands_still(
    open_page: OpenPage, metaq_broker: BrokerProcess, start_dashboard: Callable[..., Dashboard], tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="the verdicts need the extra spark")
    folder = checkpoint(tmp_path / "orders-to-lake", metaq_broker)
    dashboard = start_dashboard(metaq_broker.cluster, "--checkpoint", str(folder))
    page = open_page(f"{dashboard.url}/")
    page.get_by_role("link", name="orders-to-lake").wait_for()
    answer = page.request.post(f"{dashboard.url}/v1/queries/events", data=posted(folder))
    assert answer.json() == {"events": 7}
    page.locator(".pill", has_text="stuck").wait_for()
    picture(page, "overview")
    page.get_by_role("link", name="orders-to-lake").click()
    assert "Batch 5 has been running for 15 min" in page.locator(".verdict").inner_text()
    assert page.locator(".advice").inner_text().startswith("What to do:")
    assert page.locator(".phases dt").all_inner_texts() == [
        "addBatch",
        "latestOffset",
        "queryPlanning",
        "commitOffsets",
    ]
    page.locator(".plot canvas").wait_for()
    picture(page, "query")
    page.request.post(f"{dashboard.url}/v1/queries/events", data=posted(folder)[-1:])  # its driver still runs
    page.get_by_role("link", name="中文").click()
    page.locator(".say", has_text="批次用时远超平常").wait_for()
    assert page.locator(".advice").inner_text().startswith("建议： 请查看该批次在做什么")
    page.get_by_role("link", name="English").click()
    page.get_by_title("Show the next messages of the query").click()
    assert "order 1000" in page.locator("#rows tr").first.inner_text()


def test_a_query_elsewhere_is_known_by_its_listener(
    open_page: OpenPage, metaq_broker: BrokerProcess, start_dashboard: Callable[..., Dashboard]
) -> None:
    pytest.importorskip("pyspark", reason="the verdicts need the extra spark")
    dashboard = start_dashboard(metaq_broker.cluster)
    page = open_page(f"{dashboard.url}/queries")
    assert "/v1/queries/events" in page.locator("main").inner_text()
    events = [event for event in posted(Path("/elsewhere")) if event["event"] != "status"]
    assert page.request.post(f"{dashboard.url}/v1/queries/events", data=events).ok
    page.get_by_role("link", name="orders-to-lake").click()
    page.locator(".verdict").wait_for()
    assert page.request.post(f"{dashboard.url}/v1/queries/events", data=[{"event": "what"}]).status == 409
