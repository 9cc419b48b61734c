"""Messages that groups rejected, and sending chosen ones again, with a result for each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import FormData
from starlette.responses import Response

from metaq_console.cluster.values import DeadLetter, ResendResult
from metaq_console.errors import RequestFailed
from metaq_console.pages.decoders import Decoded, preview
from metaq_console.pages.visit import Visit

SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A row of the table."""

    letter: DeadLetter
    preview: Decoded


async def dead_letters(visit: Visit) -> Response:
    """Show the dead letters of a group, once one is chosen."""
    return await _page(visit, visit.given("group"), None)


async def resend(visit: Visit, form: FormData) -> Response:
    """Send chosen dead letters again, and show what became of each."""
    group, topic = str(form.get("group", "")), str(form.get("topic", "")).strip()
    numbers = [str(one) for one in form.getlist("number")]
    results: list[ResendResult] | None = None
    try:
        if not numbers:
            raise RequestFailed(400, "invalid_value", visit.t("No message is selected."))
        results = await visit.console.cluster.resend(group, numbers, topic or None)
    except RequestFailed as error:
        visit.fail(error)
    return await _page(visit, group, results)


async def _page(visit: Visit, group: str, results: list[ResendResult] | None) -> Response:
    cluster = visit.console.cluster
    names: list[str] = []
    with suppress(RequestFailed):  # a group can be typed in
        names = await cluster.group_names()
    found = None
    if group:
        found = await visit.ask(("dead letters", group), cluster.dead_letters(group, 0, SHOWN_MAX), None)
    return visit.page(
        "dead_letters.html",
        "dead",
        group=group,
        groups=names[:500],
        results=results,
        letters=None if found is None else [LetterRow(one, preview(one.message.data)) for one in found.rows],
        total=0 if found is None else found.total,
    )
