"""Operations about Spark queries: the last verdict on each, and what their listeners post."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from metaq_console.api.operations import ApiCall, ApiOperation, text
from metaq_console.api.schemas import Length
from metaq_console.queries.board import EVENTS_MAX, QueryRow

_KEY: Final = text("key", "only this query", least=1, most=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriesJson:
    """Spark queries that the server knows. ``missing``: why it cannot look at them."""

    queries: tuple[QueryRow, ...]
    missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsAnswer:
    """How many events were taken."""

    events: int


async def _queries(call: ApiCall) -> QueriesJson:
    board, key = call.console.queries, call["key"]
    rows = board.rows() if key is None else [board.row(key)]
    return QueriesJson(queries=tuple(rows), missing=board.missing)


async def _events(call: ApiCall) -> EventsAnswer:
    call.console.queries.post(list(call.body))
    return EventsAnswer(events=len(call.body))


OPERATIONS: Final = (
    ApiOperation(
        method="GET", path="/v1/queries", name="list_queries",
        text="Spark queries, with the last verdict on each: is it moving, and if not, why.",
        handle=_queries, answer=QueriesJson, parameters=(_KEY,),
    ),
    ApiOperation(
        method="POST", path="/v1/queries/events", name="post_events",
        text="Progress of queries, as `ProgressListener` of `metaq_spark.diagnosis.listener` posts it. Changes nothing "
             "in the cluster, so it needs no `--write`.",
        handle=_events, answer=EventsAnswer, body=Annotated[tuple[Mapping[str, Any], ...], Length(1, EVENTS_MAX)],
        body_bytes_max=8 << 20,
    ),
)  # fmt: skip
