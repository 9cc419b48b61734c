"""Spark queries."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from metaq_console.pages.visit import Visit


def query_overview(visit: Visit) -> list[dict[str, Any]]:
    return []


async def queries(visit: Visit) -> Response:
    return visit.page("queries.html", "queries", is_live=True, queries=query_overview(visit), events_url="http://127.0.0.1:8120/v1/queries/events", events_headers="")


async def query(visit: Visit) -> Response:
    return visit.page("queries.html", "queries", is_live=True, queries=query_overview(visit))
