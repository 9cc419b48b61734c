"""Who is connected: how many connections each broker has, and the running consumers of the groups."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from metaq_console.cluster.values import ClientRow
from metaq_console.errors import RequestFailed
from metaq_console.pages.visit import Visit

GROUPS_MAX: Final = 100
"""Groups that are asked for their consumers."""
CONNECTIONS: Final = "curr_connections"
"""MetaQ's name of the figure."""


@dataclass(frozen=True, slots=True)
class BrokerConnections:
    """How many connections a broker has."""

    name: str
    count: int


async def clients(visit: Visit) -> Response:
    """Show the connections and the running consumers."""
    cluster = visit.console.cluster
    brokers = await visit.ask("brokers", cluster.brokers(), [])
    names = await visit.ask("group names", cluster.group_names(), [])
    found = await asyncio.gather(*(cluster.clients(name) for name in names[:GROUPS_MAX]), return_exceptions=True)
    rows: list[ClientRow] = []
    for each in found:
        if isinstance(each, RequestFailed):
            visit.fail(each)
        elif isinstance(each, BaseException):
            raise each
        else:
            rows += each
    return visit.page(
        "clients.html",
        "clients",
        is_live=True,
        connections=[
            BrokerConnections(one.name, int(count))
            for one in brokers
            if (count := one.figures.get(CONNECTIONS, "")).isdecimal()
        ],
        rows=rows[:500],
        is_cut=len(names) > GROUPS_MAX,
        groups_read=min(len(names), GROUPS_MAX),
    )
