"""How a page looks to its visitor: language and colours, from cookies or else from what the browser prefers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from metaq_console.pages.texts import CHINESE, ENGLISH, LANGUAGES, Language, preferred

THEMES: Final = {"auto": "like the browser", "light": "light", "dark": "dark"}
"""Colours, with the text that names them."""
LANGUAGE_COOKIE, THEME_COOKIE = "metaq_language", "metaq_theme"
COOKIE_AGE_S: Final = 365 * 86_400


@dataclass(frozen=True, slots=True)
class Look:
    """A language and a theme, and the ones that a click changes to."""

    language: Language
    theme: str

    @property
    def theme_name(self) -> str:
        return THEMES[self.theme]

    @property
    def next_theme(self) -> str:
        names = list(THEMES)
        return names[(names.index(self.theme) + 1) % len(names)]

    @property
    def next(self) -> Language:
        """The other language."""
        return LANGUAGES[ENGLISH if self.language.code == CHINESE else CHINESE]


def look_of(request: Request) -> Look:
    """Return the look for a request."""
    code = request.cookies.get(LANGUAGE_COOKIE, "")
    language = LANGUAGES.get(code) or LANGUAGES[preferred(request.headers.get("accept-language", ""))]
    theme = request.cookies.get(THEME_COOKIE, "")
    return Look(language, theme if theme in THEMES else "auto")
