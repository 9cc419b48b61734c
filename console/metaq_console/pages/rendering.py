"""Templates, and what all of them may use: filters, addresses, the list of screens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from metaq_console.pages.decoders import visible
from metaq_console.pages.display import FILTERS, NOTHING, number, rate, size
from metaq_console.pages.findings import reason

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"
EVERY_S: Final = 4
"""Seconds between two refreshes of a page."""

LEVELS: Final = {
    "idle": "good",
    "working": "live",
    "catching up": "live",
    "waiting": "",
    "not ours": "",
    "looking": "",
    "falling behind": "warn",
    "gone": "warn",
    "unknown": "warn",
    "stuck": "bad",
    "failed": "bad",
}
"""The colour of each verdict on a Spark query; ``looking``: there is none yet."""


@dataclass(frozen=True, slots=True)
class Screen:
    """An entry of the navigation."""

    name: str
    title: str
    path: str
    icon: str


SCREENS: Final = (
    Screen("overview", "Overview", "/", "overview"),
    Screen("queries", "Spark queries", "/queries", "queries"),
    Screen("topics", "Topics", "/topics", "topics"),
    Screen("groups", "Groups", "/groups", "groups"),
    Screen("dead", "Dead letters", "/dead-letters", "dead"),
    Screen("transactions", "Transactions", "/transactions", "transactions"),
    Screen("replication", "Replication", "/replication", "replication"),
    Screen("clients", "Clients", "/clients", "clients"),
)


@cache
def templates() -> Environment:
    """Return the templates of the pages, compiled: the first page is as fast as the next one.

    Values are escaped; a name that is not given is an error.
    """
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS, short=short)
    made.globals.update(
        url=url,
        static=static,
        screens=SCREENS,
        every_s=EVERY_S,
        lag=lag,
        query_lag=query_lag,
        reason=reason,
        rate_text=rate_text,
        verdict_level=lambda verdict: LEVELS.get(verdict, ""),
    )
    for name in made.list_templates():
        made.get_template(name)
    return made


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a page, or a part of one."""
    return templates().get_template(template).render(values)


def url(path: str, **parameters: object) -> str:
    """Return the address of a page. Names are parameters, not parts of the path: they may have slashes and dots."""
    query = urlencode({name: value for name, value in parameters.items() if value is not None}, errors="replace")
    return f"{path}?{query}" if query else path


@cache
def static(path: str) -> str:
    """Return the address of a static file; it changes with the file, so that browsers may keep it."""
    digest = hashlib.sha256((STATIC / path).read_bytes()).hexdigest()[:12]
    return f"/static/{path}?v={digest}"


def short(value: object, most: int = 120) -> str:
    """Return the beginning of a text that others chose, hidden characters shown."""
    shown = visible(str(value)[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}…"


def lag(value: float | None, unit: str) -> str:
    """Return a lag with its unit."""
    if value is None:
        return NOTHING
    return size(value) if unit == "bytes" else number(value)


def query_lag(value: Mapping[str, Any] | None) -> Markup | str:
    """Return the lag of a Spark query: messages, or bytes, whatever is known."""
    if value is None:
        return NOTHING
    if value.get("messages") is not None:
        return number(value["messages"])
    return size(value.get("bytes"))


def rate_text(value: float | None, unit: str) -> str:
    """Return a rate in its unit."""
    return size(value) if unit == "bytes" else rate(value)
