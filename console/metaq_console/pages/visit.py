"""One request for a page: its questions to the cluster, with what is shown when one has no answer, and its rendering.

A question that fails does not fail the page: the page says which one and why, and shows the last answer that there was,
with its time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from metaq.client.checkup.reach import reason_of
from metaq.net.clock import wall_clock_ms
from metaq_console.console import Console
from metaq_console.errors import RequestFailed
from metaq_console.pages.decoders import visible
from metaq_console.pages.display import moment
from metaq_console.pages.look import Look, look_of
from metaq_console.pages.rendering import render
from metaq_console.pages.texts import text

T = TypeVar("T")

REMEMBERED_MAX: Final = 200
"""Answers that are kept for the time when a question has none."""


class LastAnswers:
    """The last answer to each question, with its time; the oldest go first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()

    def keep(self, key: Hashable, answer: object) -> None:
        self._answers[key] = (wall_clock_ms(), answer)
        self._answers.move_to_end(key)
        while len(self._answers) > REMEMBERED_MAX:
            self._answers.popitem(last=False)

    def find(self, key: Hashable) -> tuple[int, Any] | None:
        return self._answers.get(key)


@dataclass(frozen=True, slots=True)
class Problem:
    """What a page says of a question without an answer."""

    pill: str
    text: Markup | str


@dataclass(slots=True)
class Visit:
    """One request for a page."""

    request: Request
    console: Console
    answers: LastAnswers
    csrf: str
    problems: list[Problem] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    """Codes of the failures that the page says."""
    old_ms: int | None = None
    """Time of the oldest answer that the page shows because a server is silent."""
    look: Look = field(init=False)

    def __post_init__(self) -> None:
        self.look = look_of(self.request)

    def t(self, english: str, **values: object) -> str:
        """Return a text in the language of the visitor."""
        return text(self.look.language.code, english, **values)

    def given(self, name: str, default: str = "") -> str:
        """Return a parameter of the query, without blanks around it."""
        return self.request.query_params.get(name, default).strip()

    def needed(self, name: str) -> str:
        """Return a parameter of the query as it is.

        Raises:
            RequestFailed: It is missing.
        """
        value = self.request.query_params.get(name, "")
        if not value:
            raise RequestFailed(400, "invalid_value", f"{self.request.url.path}: the parameter {name} is missing")
        return value

    async def ask(self, key: Hashable, question: Awaitable[T], default: T) -> T:
        """Return the answer to a question. Without one: the last one, else ``default``; and the page says why."""
        try:
            answer = await question
        except RequestFailed as error:
            found = self.answers.find(key)
            self._note(error, None if found is None else found[0])
            return default if found is None else found[1]
        self.answers.keep(key, answer)
        return answer

    def fail(self, error: RequestFailed | str) -> None:
        """Say on the page that something could not be done."""
        if isinstance(error, RequestFailed):
            self.codes.add(error.body.code)
        self.problems.append(Problem(self.t("failed"), visible(str(error))))

    def _note(self, error: RequestFailed, at_ms: int | None) -> None:
        """Note a question without an answer; what is shown is of ``at_ms``. A silent server has a line of its own."""
        self.codes.add(error.body.code)
        if str(error) in map(str, self.console.cluster.watch.away().values()):
            self.old_ms = self.old_ms if at_ms is None else min(at_ms, self.old_ms or at_ms)
            return
        sentence = Markup("{}").format(visible(str(error)))
        if at_ms is not None:
            sentence += Markup(". ") + self._shown_is_of(at_ms)
        retryable = error.body.retryable or error.status >= 500
        self.problems.append(Problem(self.t("no answer") if retryable else self.t("failed"), sentence))

    def _shown_is_of(self, at_ms: int) -> Markup:
        return Markup(self.t("What is shown is of {time}.", time=moment(at_ms)))

    def _silences(self) -> list[Problem]:
        """Return a line for each server that does not answer."""
        cluster, found = self.console.cluster, []
        left_out = cluster.system.left_out()
        for address, silence in cluster.watch.silences.items():
            why = Markup("{}").format(visible(reason_of(silence.error)))
            say = "{server} has not answered since {time}: {why}."
            sentence = Markup(self.t(say, server=escape(address), time=moment(silence.since_ms), why=why))
            if address in left_out:
                old = self.old_ms
                what = self.t("What it has is missing here.") if old is None else self._shown_is_of(old)
                sentence += Markup(" ") + what
            found.append(Problem(self.t("no answer"), sentence))
        return found

    @property
    def here(self) -> str:
        """The address of the page, without the host."""
        url = self.request.url
        return f"{url.path}?{url.query}" if url.query else url.path

    def link(self, **changes: object) -> str:
        """Return the address of this page with other parameters; ``None`` takes one away."""
        given: dict[str, object] = dict(self.request.query_params)
        given.update(changes)
        query = urlencode({name: value for name, value in given.items() if value is not None}, errors="replace")
        return f"{self.request.url.path}?{query}" if query else self.request.url.path

    def page(self, template: str, current: str = "", status: int = 200, **values: object) -> HTMLResponse:
        """Return a page."""
        found = [*self._silences(), *self.problems]
        return HTMLResponse(self.part(template, current=current, found=found, **values), status)

    def part(self, template: str, **values: object) -> str:
        """Return a rendered template."""
        system = self.console.cluster.system
        shared = {
            "t": self.t,
            "look": self.look,
            "here": self.here,
            "link": self.link,
            "csrf": self.csrf,
            "can_write": self.console.settings.write,
            "cluster": {"name": system.cluster, "system": "MetaQ" if system.name == "metaq" else "RocketMQ"},
            "unit": system.unit,
            "current": "",
            "is_live": False,
        }
        return render(template, {**shared, **values})
