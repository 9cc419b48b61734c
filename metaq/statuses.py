"""MetaQ's status codes, the same numbers as in HTTP: a row for each, which docs/protocol.md shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Status:
    """What a code means, what it answers, and whether the same request may succeed later."""

    code: int
    meaning: str
    sent_for: str
    retryable: bool


STATUSES: Final[dict[int, Status]] = {}
"""Each code with its row."""


def _status(code: int, meaning: str, sent_for: str, *, retryable: bool = False) -> int:
    STATUSES[code] = Status(code, meaning, sent_for, retryable)
    return code


CONTINUE: Final = _status(100, "report the message types; sent to a client that did not after 301", "`fetch`")
OK: Final = _status(200, "done", "everything but `get`")
MOVED: Final = _status(
    301, "continue at another offset, given in the text; or report the message types", "`get`, `fetch`"
)
BAD_REQUEST: Final = _status(
    400, "MAXSIZE is not positive, or types or an offset are not allowed", "`get`, `fetch`, `messageType`"
)
FORBIDDEN: Final = _status(403, "this partition is closed", "`put`, `get`")
NOT_MASTER: Final = "NotMaster: "
"""In the text of a 403 from a member of a pair that is not its master."""
NOT_FOUND: Final = _status(404, "no message there (yet)", "`get`, `offset`")
CONFLICT: Final = _status(
    409, "a later batch has been decided; another consumer has the id", "`decide` and `group`, our broker only"
)
FAILED: Final = _status(500, "failed; the text gives the reason", "`put`, `mput`, transactions")
NOT_STARTED: Final = "has not been started"
"""In the text of a 500 to a step of a transaction that the broker does not know."""
UNAVAILABLE: Final = _status(
    503,
    "no thread is free, or not supported by this broker",
    "any request to a busy Java broker; for example `sync` to a broker that is not a slave",
    retryable=True,
)
