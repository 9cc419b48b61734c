"""Consumer groups: all of them, one with its lag over time, and setting its offsets with a preview."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import FormData
from starlette.responses import Response

from metaq.net.clock import wall_clock_ms
from metaq_console.cluster.history import SeriesKey
from metaq_console.cluster.system import ReadStart
from metaq_console.cluster.values import ResetRow
from metaq_console.errors import RequestFailed
from metaq_console.pages.screens.paging import ROWS, Paging, page_number
from metaq_console.pages.screens.plots import plot, slope_per_s
from metaq_console.pages.screens.starts import read_time
from metaq_console.pages.visit import Visit

WINDOW_MS: Final = 120_000
"""Over how long the speed of a group is measured."""


async def groups(visit: Visit) -> Response:
    """Show a page of the groups."""
    text, number = visit.given("q"), page_number(visit)
    question = visit.console.cluster.groups(text=text, start=(number - 1) * ROWS, count=ROWS)
    found = await visit.ask(("groups", text, number), question, None)
    rows = [] if found is None else found.rows
    for row in rows:
        visit.console.sampler.watch_group(row.group)
    return visit.page(
        "groups.html",
        "groups",
        is_live=True,
        query=text,
        rows=rows,
        paging=Paging(number, 0 if found is None else found.total),
    )


async def group(visit: Visit) -> Response:
    """Show one group: where it is in each partition, and how its lag went."""
    name = visit.needed("group")
    console = visit.console
    console.sampler.watch_group(name)
    rows = await visit.ask(("lag", name), console.cluster.lag(name), None)
    members = await visit.ask(("members", name), console.cluster.members(name), None)
    series, now_ms = SeriesKey("group", name, "lag"), wall_clock_ms()
    return visit.page(
        "group.html",
        "groups",
        is_live=True,
        group=name,
        rows=rows,
        total=None if rows is None else sum(row.lag for row in rows),
        members=members,
        history=plot(console.history, (visit.t("lag"), series)),
        growth=slope_per_s(console.history, series, now_ms - WINDOW_MS),
        topics=sorted({row.topic for row in rows or ()}),
    )


async def reset_preview(visit: Visit) -> Response:
    """Show what setting the offsets of a group would change."""
    return await _reset_page(visit, visit.needed("group"), visit.needed("topic"), visit.needed("to"), False)


async def reset(visit: Visit, form: FormData) -> Response:
    """Set the offsets of a group, and show what was changed."""
    name, topic, to = (str(form.get(each, "")) for each in ("group", "topic", "to"))
    try:
        rows = await visit.console.cluster.reset(name, topic, reset_start(to))
    except RequestFailed as error:
        visit.fail(error)
        return await _reset_page(visit, name, topic, to, False)
    return _shown(visit, name, topic, to, rows, True)


async def _reset_page(visit: Visit, name: str, topic: str, to: str, done: bool) -> Response:
    rows: list[ResetRow] | None = None
    try:
        rows = await visit.console.cluster.plan_reset(name, topic, reset_start(to))
    except RequestFailed as error:
        visit.fail(error)
    return _shown(visit, name, topic, to, rows, done)


def _shown(visit: Visit, name: str, topic: str, to: str, rows: list[ResetRow] | None, done: bool) -> Response:
    return visit.page("reset.html", "groups", group=name, topic=topic, to=to, changes=rows, done=done)


def reset_start(text: str) -> ReadStart:
    """Parse where a group is to begin.

    Raises:
        RequestFailed: It has none of the forms that are allowed.
    """
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    return read_time(text, "to")
