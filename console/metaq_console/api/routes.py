"""Routes of the API, made from the rows; an operation's failure gets the one form of failures."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq_console.api.metrics import metrics_answer
from metaq_console.api.openapi import document
from metaq_console.api.operations import ApiOperation, JsonAnswer, answer, failure_answer
from metaq_console.api.table import OPERATIONS
from metaq_console.console import Console
from metaq_console.errors import RequestFailed, failure_of

OPENAPI_PATH: Final = "/v1/openapi.json"
_log = logging.getLogger(__name__)


def api_routes(console: Console) -> list[Route]:
    """Return the routes of all operations, of their description, and of the metrics."""
    described = JsonAnswer(document(OPERATIONS))

    async def describe(request: Request) -> Response:
        return described

    async def measure(request: Request) -> Response:
        return metrics_answer(console)

    ordered = sorted(OPERATIONS, key=lambda one: one.path)
    by_path = [list(rows) for _, rows in groupby(ordered, lambda one: one.path)]
    routes = [Route(rows[0].path, _endpoint(rows, console), methods=[row.method for row in rows]) for rows in by_path]
    others = [Route(OPENAPI_PATH, describe, methods=["GET"]), Route("/metrics", measure, methods=["GET"])]
    return [*others, *routes]


def _endpoint(rows: Sequence[ApiOperation], console: Console) -> Callable[[Request], Awaitable[Response]]:
    by_method = {row.method: row for row in rows}

    async def respond(request: Request) -> Response:
        operation = by_method["GET" if request.method == "HEAD" else request.method]  # type: ignore[index]
        try:
            return await answer(operation, console, request)
        except RequestFailed as error:
            return failure_answer(error)
        except Exception as error:
            failure = failure_of(error)
            if failure.status == 500:
                _log.exception("%s failed", operation.name)
            return failure_answer(failure)

    return respond
