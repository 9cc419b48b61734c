"""The application: routes, and what every request passes first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from metaq_console.api.operations import failure_answer
from metaq_console.api.routes import api_routes
from metaq_console.console import Console
from metaq_console.errors import RequestFailed
from metaq_console.java.routes import java_routes
from metaq_console.security.guard import guarded


def create_app(console: Console, pages: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application for ``console``; ``pages`` are routes beside the API."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with console.running():
            yield

    return Starlette(
        routes=[*api_routes(console), *java_routes(console), *pages],
        middleware=guarded(console.settings),
        exception_handlers={HTTPException: _http_failure, RequestFailed: _failure},
        lifespan=lifespan,
    )


def _failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestFailed)
    return failure_answer(error)


def _http_failure(request: Request, error: Exception) -> Response:
    """Answer a request that no route takes."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        failure = RequestFailed(405, "method_not_allowed", f"{request.method}: allowed here is {allowed}")
    else:
        failure = RequestFailed(error.status_code, "not_found", f"{request.url.path[:200]}: there is nothing here")
    answer = failure_answer(failure)
    answer.headers.update(error.headers or {})
    return answer
