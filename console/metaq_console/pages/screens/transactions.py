"""Transactions that are prepared, and what was decided about the batches of Spark queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from metaq_console.cluster.values import BrokerRow
from metaq_console.pages.visit import Visit

COUNTS: Final = {"begun": ("tx_begin", "tx_xa_begin"), "committed": ("tx_commit",), "rolled_back": ("tx_rollback",)}
"""MetaQ's names of the figures."""


async def transactions(visit: Visit) -> Response:
    """Show prepared branches and decisions."""
    cluster = visit.console.cluster
    is_asked = cluster.system.name == "metaq"
    brokers = await visit.ask("brokers", cluster.brokers(), [])
    found = await visit.ask("transactions", cluster.transactions(_query_ids(visit)), None) if is_asked else None
    return visit.page(
        "transactions.html",
        "transactions",
        is_live=True,
        is_asked=is_asked,
        counts=_counts(brokers) if is_asked else None,
        prepared=None if found is None else found.prepared,
        decisions=() if found is None else found.decisions,
    )


def _query_ids(visit: Visit) -> list[str]:
    return [row.query_id for row in visit.console.queries.rows() if row.query_id is not None]


def _counts(brokers: Sequence[BrokerRow]) -> dict[str, int | None]:
    """Return the sums over the brokers; ``None`` for a figure that a broker does not report."""
    return {name: _sum(brokers, figures) for name, figures in COUNTS.items()}


def _sum(brokers: Sequence[BrokerRow], figures: Sequence[str]) -> int | None:
    values = [one.figures.get(figure, "") for one in brokers for figure in figures]
    return sum(map(int, values)) if values and all(value.isdecimal() for value in values) else None
