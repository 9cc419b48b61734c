"""The Spark queries that a console knows, and the last verdict on each.

A query is known by its checkpoint folder, which an argument named, or by events that its listener posts. Looks at it
are taken in the background, one query after the other, so that a page shows the last verdict at once. The number of
reported queries is bounded: the one that was silent for longest is forgotten first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from metaq.net.clock import SYSTEM_CLOCK, wall_clock_ms
from metaq_console.cluster.history import History, SeriesKey
from metaq_console.cluster.questions import Questions
from metaq_console.errors import RequestFailed

QUERIES_MAX: Final = 100
"""Queries that listeners reported."""
EVENTS_MAX: Final = 500
"""Events that one post may have."""
LOOK_S: Final = 30.0
"""Deadline of one look."""
PAUSE_S: Final = 3.0
"""Pause between two rounds of looks."""
PAUSE_SHARE: Final = 4
"""The pause is at least so many times as long as the round took."""
_log = logging.getLogger(__name__)


class Diagnosed(Protocol):
    """The result of a look; ``metaq_spark.diagnosis`` describes its tree."""

    def tree(self) -> dict[str, Any]: ...


class QueryWatch(Protocol):
    """Looks at one query again and again, and keeps what it saw."""

    def look(self) -> Diagnosed: ...


class EventLog(Protocol):
    """What listeners posted, by the id of the query."""

    def add(self, events: object, /) -> object: ...

    def queries(self) -> Mapping[str, Mapping[str, Any]]: ...

    def events(self, query_id: str) -> Sequence[Mapping[str, Any]]: ...


MakeWatch = Callable[[str, Callable[[], Sequence[Mapping[str, Any]]]], QueryWatch]
"""(checkpoint folder, or "" if only events are known; the events) -> the watch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRow:
    """A query. ``key`` names it in addresses. ``look``: the tree of the last look; ``error``: why there is none."""

    key: str
    title: str
    checkpoint: str | None
    query_id: str | None
    look: Mapping[str, Any] | None
    error: str | None


@dataclass(slots=True)
class _Known:
    """One query."""

    key: str
    checkpoint: str
    query_id: str | None
    name: str | None
    watch: QueryWatch | None = None
    look: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def title(self) -> str:
        return self.name or (Path(self.checkpoint).name if self.checkpoint else "") or self.key


class QueryBoard:
    """The queries of one process; for the event loop's thread."""

    def __init__(
        self,
        checkpoints: Sequence[Path],
        questions: Questions,
        history: History,
        make_watch: MakeWatch,
        log: EventLog | None,
        missing: str | None = None,
    ) -> None:
        """``missing``: why queries cannot be looked at here, such as a package that is not installed."""
        self._questions, self._history = questions, history
        self._make_watch, self._log, self.missing = make_watch, log, missing
        self._known = {key: _Known(key, key, None, None) for key in map(str, checkpoints)}
        self._named = frozenset(self._known)

    def rows(self) -> list[QueryRow]:
        """Return all queries: first the ones in folders, then the ones that listeners reported."""
        self._take_reported()
        return [_row(one) for one in self._known.values()]

    def row(self, key: str) -> QueryRow:
        """Return a query.

        Raises:
            RequestFailed: There is none of that key (404).
        """
        self._take_reported()
        known = self._known.get(key)
        if known is None:
            raise RequestFailed(404, "query_not_found", f"there is no query {key[:200]!r}")
        return _row(known)

    def post(self, events: object) -> None:
        """Take what a listener posts.

        Raises:
            RequestFailed: It has another form, or queries cannot be looked at here (409).
        """
        if self._log is None:
            raise RequestFailed(409, "not_installed", self.missing or "queries cannot be looked at here")
        try:
            self._log.add(events)
        except (ValueError, TypeError, KeyError) as error:
            raise RequestFailed(409, "invalid_value", f"events: {error}") from None
        self._take_reported()

    async def run(self) -> None:
        """Look at all queries, for ever."""
        while True:
            began_s = SYSTEM_CLOCK.monotonic()
            await self.look_at_all()
            took_s = SYSTEM_CLOCK.monotonic() - began_s
            await asyncio.sleep(max(PAUSE_S, min(60.0, took_s * PAUSE_SHARE)))

    async def look_at_all(self) -> None:
        """Look at each query once. What fails is said in its row."""
        self._take_reported()
        for known in list(self._known.values()):
            await self._look(known)

    async def _look(self, known: _Known) -> None:
        def look() -> dict[str, Any]:
            if known.watch is None:
                known.watch = self._make_watch(known.checkpoint, lambda: self._events(known))
            return known.watch.look().tree()

        try:
            tree = await self._questions.ask(look, what=f"query {known.title!r}", within_s=LOOK_S)
        except Exception as error:
            known.error = str(error) or type(error).__name__
            _log.debug("query %s", known.key, exc_info=error)
            return
        known.look, known.error = tree, None
        known.name = tree.get("name") or known.name
        known.query_id = tree.get("query_id") or known.query_id
        self._keep(known, tree)

    def _keep(self, known: _Known, tree: Mapping[str, Any]) -> None:
        at_ms = wall_clock_ms()
        lag, progress = tree.get("lag") or {}, tree.get("progress") or {}
        for figure, value in (
            ("lag_messages", lag.get("messages")),
            ("lag_bytes", lag.get("bytes")),
            ("rows_per_s", progress.get("processed_rows_per_s")),
        ):
            if value is not None:
                self._history.add(SeriesKey("query", known.key, figure), float(value), at_ms)

    def _events(self, known: _Known) -> Sequence[Mapping[str, Any]]:
        if self._log is None or known.query_id is None:
            return ()
        return self._log.events(known.query_id)

    def _take_reported(self) -> None:
        """Make entries for the queries of new events; one that names the folder of an entry belongs to it."""
        if self._log is None:
            return
        reported = sorted(self._log.queries().items(), key=lambda each: each[1].get("last_at_ms") or 0)[-QUERIES_MAX:]
        for query_id, about in reported:
            checkpoint = local_folder(about.get("checkpoint"))
            known = self._of(query_id, checkpoint)
            if known is None:
                known = self._known[query_id] = _Known(query_id, checkpoint, query_id, None)
            elif checkpoint and not known.checkpoint:
                known.checkpoint, known.watch = checkpoint, None
            known.query_id = query_id
            known.name = about.get("name") or known.name
        newest = {query_id for query_id, _ in reported}
        for key in [key for key in self._known if key not in self._named and key not in newest]:
            del self._known[key]

    def _of(self, query_id: str, checkpoint: str) -> _Known | None:
        for known in self._known.values():
            if known.query_id == query_id or (checkpoint and known.checkpoint == checkpoint):
                return known
        return None


def local_folder(checkpoint: object) -> str:
    """Return the path of a checkpoint on this machine; blank for one elsewhere, or none."""
    if not isinstance(checkpoint, str):
        return ""
    parts = urlsplit(checkpoint)
    if parts.scheme == "file":
        return unquote(parts.path).rstrip("/")
    return checkpoint.rstrip("/") if checkpoint.startswith("/") else ""


def _row(known: _Known) -> QueryRow:
    return QueryRow(
        key=known.key,
        title=known.title,
        checkpoint=known.checkpoint or None,
        query_id=known.query_id,
        look=known.look,
        error=known.error,
    )
