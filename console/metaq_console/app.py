"""The application: routes, and what every request passes first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from metaq_console.api.operations import failure_answer
from metaq_console.api.routes import api_routes
from metaq_console.console import Console
from metaq_console.errors import RequestFailed, disconnected
from metaq_console.java.routes import java_routes
from metaq_console.pages.routes import Site, page_routes
from metaq_console.security.guard import guarded

API_PREFIX: Final = "/v1/"


def create_app(console: Console) -> Starlette:
    """Return the application for ``console``: the API, and the pages."""
    site = Site(console)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with console.running():
            yield

    return Starlette(
        routes=[*api_routes(console), *java_routes(console), *page_routes(site)],
        middleware=guarded(console.settings),
        exception_handlers={
            HTTPException: lambda request, error: _answer(site, request, _http_failure(request, error), error),
            RequestFailed: lambda request, error: _answer(site, request, error, None),
            ClientDisconnect: lambda request, error: failure_answer(disconnected()),
        },
        lifespan=lifespan,
    )


def _answer(site: Site, request: Request, failure: Exception, error: Exception | None) -> Response:
    """Return the failure as a page for a browser, else as JSON."""
    assert isinstance(failure, RequestFailed)
    is_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(API_PREFIX)
    answer = site.failure_page(request, failure) if is_page else failure_answer(failure)
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


def _http_failure(request: Request, error: Exception) -> RequestFailed:
    """Return the failure of a request that no route takes."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return RequestFailed(405, "method_not_allowed", f"{request.method}: allowed here is {allowed}")
    return RequestFailed(error.status_code, "not_found", f"{request.url.path[:200]}: there is nothing here")
