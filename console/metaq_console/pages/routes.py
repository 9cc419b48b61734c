"""Routes of the pages: addresses, and what each request passes on its way to a screen."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from metaq_console.console import Console
from metaq_console.errors import RequestFailed, disconnected
from metaq_console.pages.look import COOKIE_AGE_S, LANGUAGE_COOKIE, THEME_COOKIE, THEMES
from metaq_console.pages.rendering import STATIC, templates
from metaq_console.pages.screens.clients import clients
from metaq_console.pages.screens.dead_letters import dead_letters, resend
from metaq_console.pages.screens.groups import group, groups, reset, reset_preview
from metaq_console.pages.screens.live import LiveStreams, live, live_stream
from metaq_console.pages.screens.messages import message, messages, next_step
from metaq_console.pages.screens.overview import overview
from metaq_console.pages.screens.queries import queries, query
from metaq_console.pages.screens.replication import replication
from metaq_console.pages.screens.topics import topic, topics
from metaq_console.pages.screens.transactions import transactions
from metaq_console.pages.texts import LANGUAGES
from metaq_console.pages.visit import LastAnswers, Visit
from metaq_console.security.tokens import COOKIE, Token

Show = Callable[[Visit], Awaitable[Response]]
Change = Callable[[Visit, FormData], Awaitable[Response]]

SCREENS: Final[dict[str, Show]] = {
    "/": overview,
    "/queries": queries,
    "/query": query,
    "/topics": topics,
    "/topic": topic,
    "/topic/messages": messages,
    "/topic/messages/next": next_step,
    "/topic/live": live,
    "/message": message,
    "/groups": groups,
    "/group": group,
    "/group/reset": reset_preview,
    "/dead-letters": dead_letters,
    "/transactions": transactions,
    "/replication": replication,
    "/clients": clients,
}
CHANGES: Final[dict[str, Change]] = {"/group/reset": reset, "/dead-letters": resend}
FIELDS_MAX: Final = 2000
"""Fields of a form."""
SESSION_COOKIE: Final = "metaq_session"
_log = logging.getLogger(__name__)


def page_routes(site: Site) -> list[BaseRoute]:
    """Return the routes of all pages and their static files."""
    return [
        *(
            Route(path, site.screen(show, CHANGES.get(path)), methods=["GET", *(["POST"] if path in CHANGES else [])])
            for path, show in SCREENS.items()
        ),
        Route("/topic/live/stream", site.screen(site.follow, None), methods=["GET"]),
        Route("/look", _look, methods=["GET"]),
        Route("/login", site.login, methods=["GET", "POST"]),
        Mount("/static", _KeptFiles(directory=STATIC)),
    ]


class Site:
    """What the pages of one process share."""

    def __init__(self, console: Console) -> None:
        self._console = console
        templates()  # compiled before the first request
        self._answers, self._streams = LastAnswers(), LiveStreams()
        self._secret = secrets.token_bytes(32)
        self._token = None if console.settings.token is None else Token(console.settings.token)

    def screen(self, show: Show, change: Change | None) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a screen."""

        async def respond(request: Request) -> Response:
            session = request.cookies.get(SESSION_COOKIE) or secrets.token_urlsafe(24)
            visit = self._visit(request, session)
            try:
                answer = await (self._changed(visit, change) if request.method == "POST" and change else show(visit))
            except Exception as error:
                answer = _problem(visit, error)
            if change is not None and SESSION_COOKIE not in request.cookies:
                answer.set_cookie(
                    SESSION_COOKIE, session, httponly=True, samesite="strict", secure=request.url.scheme == "https"
                )
            return answer

        return respond

    async def follow(self, visit: Visit) -> Response:
        """Return the stream of a topic."""
        return await live_stream(visit, self._streams)

    async def login(self, request: Request) -> Response:
        """Ask for the token, and keep in a cookie that it was given."""
        visit = self._visit(request)
        back, is_wrong = way_back(request.query_params.get("back", "/")), False
        if request.method == "POST":
            form = await _form(request)
            back = way_back(str(form.get("back", "/")))
            if self._token is None or self._token.is_secret(str(form.get("token", ""))):
                answer = RedirectResponse(back, 303)
                if self._token is not None:
                    is_secure = request.url.scheme == "https"
                    answer.set_cookie(
                        COOKIE, self._token.cookie_value, httponly=True, samesite="strict", secure=is_secure
                    )
                return answer
            is_wrong = True
        return visit.page("login.html", status=401 if is_wrong else 200, is_wrong=is_wrong, back=back)

    def failure_page(self, request: Request, failure: RequestFailed) -> Response:
        """Return the page for a request that failed before it reached a screen."""
        return _problem(self._visit(request), failure)

    def _visit(self, request: Request, session: str = "") -> Visit:
        return Visit(request, self._console, self._answers, self._csrf(session))

    async def _changed(self, visit: Visit, change: Change) -> Response:
        """Check that a form was made by a page of this process for this visitor, and carry it out."""
        if not self._console.settings.write:
            raise RequestFailed(
                403, "read_only", visit.t("This dashboard only shows. Start it with --write to change something.")
            )
        form = await _form(visit.request)
        if not hmac.compare_digest(str(form.get("csrf", "")).encode(), visit.csrf.encode()):
            raise RequestFailed(403, "old_form", visit.t("This form is too old. Open the page again."))
        return await change(visit, form)

    def _csrf(self, session: str) -> str:
        return hmac.new(self._secret, session.encode("utf-8", "replace"), sha256).hexdigest()


async def _form(request: Request) -> FormData:
    """Return the fields of a form, as browsers send them without files.

    Raises:
        RequestFailed: It has too many fields, or another form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        allowed = "expected application/x-www-form-urlencoded"
        raise RequestFailed(415, "wrong_content_type", f"Content-Type {kind[:80]!r}: {allowed}")
    try:
        text = (await request.body()).decode()
        fields: list[tuple[str, str | UploadFile]] = [
            *parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
        ]
    except ValueError as error:
        raise RequestFailed(400, "invalid_value", f"the form cannot be read: {error}") from None
    return FormData(fields)


def _problem(visit: Visit, error: Exception) -> Response:
    """Return the page for a request that failed."""
    failure = disconnected() if isinstance(error, ClientDisconnect) else error
    if not isinstance(failure, RequestFailed):
        _log.error("%s failed", visit.request.url.path, exc_info=error)
        failure = RequestFailed(
            500, "internal_error", f"{type(error).__name__}; the log of the dashboard has the details"
        )
    title = {404: "Not found", 403: "Not allowed"}.get(failure.status, "Something is wrong")
    return visit.page("problem.html", status=failure.status, title=title, sentence=str(failure), code=failure.status)


async def _look(request: Request) -> Response:
    """Keep a language or a theme in a cookie, and go back."""
    answer = RedirectResponse(way_back(request.query_params.get("back", "/")), 303)
    for name, cookie, allowed in (("lang", LANGUAGE_COOKIE, LANGUAGES), ("theme", THEME_COOKIE, THEMES)):
        value = request.query_params.get(name, "")
        if value in allowed:
            answer.set_cookie(cookie, value, max_age=COOKIE_AGE_S, samesite="lax", httponly=True)
    return answer


def way_back(path: str) -> str:
    """Return ``path`` if it is one of this server, else the first page: links must not lead to other sites."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if is_own else "/"


class _KeptFiles(StaticFiles):
    """Static files, which browsers keep: their addresses change with them."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        answer = super().file_response(*arguments, **named)
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer
