"""The token of a server: in the header ``Authorization``, or for browsers in a cookie that a login sets."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final

COOKIE: Final = "metaq_token"
_SCHEME: Final = "bearer "


class Token:
    """The secret that clients have to show. ``cookie_value`` is derived from it, so that a cookie does not have it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self.cookie_value: Final = hmac.new(self._secret, b"metaq console cookie", hashlib.sha256).hexdigest()

    def is_secret(self, given: str) -> bool:
        """Return whether a text is the secret; takes the same time whatever is wrong with it."""
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._secret)

    def is_in(self, headers: Mapping[str, str]) -> bool:
        """Return whether headers (lower case) have the secret, or the cookie."""
        given = headers.get("authorization", "")
        if given[: len(_SCHEME)].lower() == _SCHEME:
            return self.is_secret(given[len(_SCHEME) :].strip())
        cookie = _cookie(headers.get("cookie", ""))
        return cookie is not None and hmac.compare_digest(cookie.encode(), self.cookie_value.encode())


def _cookie(header: str) -> str | None:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value
