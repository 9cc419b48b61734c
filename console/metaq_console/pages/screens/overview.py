"""The first screen: is everything all right, what moves, what is behind."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response

from metaq_console.cluster.values import GroupRow, TopicRow
from metaq_console.pages.screens.plots import Plot, plot
from metaq_console.pages.screens.queries import query_overview
from metaq_console.pages.visit import Problem, Visit

SHOWN: Final = 5
"""Groups and topics that the overview shows."""


async def overview(visit: Visit) -> Response:
    """Show the whole cluster on one screen."""
    cluster = visit.console.cluster
    brokers, _, rows = await asyncio.gather(
        visit.ask("brokers", cluster.brokers(), None),
        _check_servers(visit),
        visit.ask("all_topics", cluster.all_topics(), None),
    )
    busiest = [] if rows is None else sorted(rows, key=lambda row: (row.in_per_s or 0, row.messages or 0), reverse=True)
    if rows is None:
        page = await visit.ask("first topics", cluster.topics(count=SHOWN), None)
        busiest = [] if page is None else list(page.rows)
    return visit.page(
        "overview.html",
        "overview",
        is_live=True,
        brokers=brokers,
        totals=None if rows is None else _totals(rows),
        traffic=_traffic(visit),
        groups=await most_behind(visit),
        topics=busiest[:SHOWN],
        queries=query_overview(visit),
    )


async def most_behind(visit: Visit) -> list[GroupRow]:
    """Return the groups with the largest lag, as last sampled."""
    history = visit.console.history
    found = []
    series = history.keys()
    for key in series:
        if key.kind == "group" and key.figure == "lag":
            values = history.points(key).values
            found.append((values[-1] if values else 0.0, key.name))
    found.sort(key=lambda each: (-each[0], each[1]))
    unit = visit.console.cluster.system.unit
    return [
        GroupRow(group=name, members=None, topics=(), partitions=0, lag=int(behind), unit=unit)
        for behind, name in found[:SHOWN]
    ]


async def _check_servers(visit: Visit) -> None:
    """Say which servers report trouble. Each page says which ones do not answer."""
    findings = await visit.ask("findings", visit.console.cluster.findings(), [])
    silent = set(map(str, visit.console.cluster.watch.silences))
    visit.problems += [
        Problem(visit.t("no answer"), f"{one.what}: {one.detail}")
        for one in findings
        if one.level == "fail" and not silent.intersection(one.what.split())
    ]


def _totals(rows: list[TopicRow]) -> dict[str, Any]:
    return {
        "topics": len(rows),
        "messages": sum(row.messages or 0 for row in rows),
        "bytes": sum(row.bytes or 0 for row in rows),
        "in_per_s": sum(row.in_per_s or 0.0 for row in rows),
        "out_bytes_per_s": sum(row.out_bytes_per_s or 0.0 for row in rows),
    }


def _traffic(visit: Visit) -> Plot | None:
    history = visit.console.history
    series = history.keys()
    keys = [key for key in series if key.kind == "cluster" and key.figure == "in_per_s"]
    return plot(history, *((key.name or visit.t("Messages in"), key) for key in keys[:5])) if keys else None
