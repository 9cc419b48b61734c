"""Spark queries: the verdict on each, what led to it, and how far it is in each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from metaq_console.cluster.history import SeriesKey
from metaq_console.pages.findings import readings, unknowns
from metaq_console.pages.rendering import LEVELS
from metaq_console.pages.screens.plots import Plot, plot
from metaq_console.pages.visit import Problem, Visit
from metaq_console.queries.board import QueryRow

REMARKS: Final = frozenset({"new", "removed", "recreated", "ahead", "gone"})
"""Remarks on partitions that have a text in each language."""
WHOLE_BATCH: Final = "triggerExecution"
"""Spark's name of the time that a whole batch took; the other phases are parts of it."""


URGENCY: Final = ("bad", "warn", "live", "", "good")
"""Levels of verdicts, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a batch, and the longest of all, which is the length of the whole bar."""

    name: str
    ms: float
    most: float


def query_overview(visit: Visit) -> list[QueryRow]:
    """Return all queries, the most urgent first; the page says why they cannot be looked at, if there are some."""
    board = visit.console.queries
    rows = sorted(board.rows(), key=lambda row: (URGENCY.index(_level(row)), row.title))
    if rows and board.missing:
        visit.problems.append(Problem(visit.t("not known"), board.missing))
    return rows


def _level(row: QueryRow) -> str:
    if row.look is None:
        return LEVELS["looking" if row.error is None else "unknown"]
    return LEVELS.get(row.look["verdict"], "warn")


async def queries(visit: Visit) -> Response:
    """Show all queries, and how one is shown here."""
    settings = visit.console.settings
    url = visit.request.url
    headers = "" if settings.token is None else ', headers={"Authorization": "Bearer TOKEN"}'
    return visit.page(
        "queries.html",
        "queries",
        is_live=True,
        queries=query_overview(visit),
        events_url=f"{url.scheme}://{url.netloc}/v1/queries/events",
        events_headers=headers,
    )


async def query(visit: Visit) -> Response:
    """Show one query."""
    row = visit.console.queries.row(visit.needed("key"))
    if row.error is not None:
        visit.fail(row.error)
    history, unit = _history(visit, row)
    return visit.page(
        "query.html",
        "queries",
        is_live=True,
        title=row.title,
        look_at=row.look,
        readings=readings(row.look, visit.look.language.code),
        unknowns=unknowns(row.look, visit.look.language.code),
        phases=phases(row.look),
        partitions=[one for source in (row.look or {}).get("sources") or () for one in source["partitions"]],
        remarks=REMARKS,
        history=history,
        history_unit=unit,
    )


def phases(look: Mapping[str, Any] | None) -> list[Phase]:
    """Return the phases of the last batch, the longest first, without the sum of them."""
    progress = (look or {}).get("progress") or {}
    times = {name: ms for name, ms in (progress.get("phases_ms") or {}).items() if ms is not None}
    most = max([times.pop(WHOLE_BATCH, 0), *times.values(), 1])
    return [Phase(name, ms, most) for name, ms in sorted(times.items(), key=lambda each: (-each[1], each[0]))]


def _history(visit: Visit, row: QueryRow) -> tuple[Plot | None, str]:
    """Return the plot of the lag, in messages if they are known, and its unit."""
    for figure, unit in (("lag_messages", "messages"), ("lag_bytes", "bytes")):
        found = plot(visit.console.history, (visit.t("lag"), SeriesKey("query", row.key, figure)))
        if found is not None:
            return found, unit
    return None, ""
