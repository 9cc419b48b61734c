"""MetaQ's status codes, the same numbers as in HTTP. Source: docs/protocol.md."""

from __future__ import annotations

OK, MOVED, BAD_REQUEST, FORBIDDEN, NOT_FOUND, FAILED, UNAVAILABLE = 200, 301, 400, 403, 404, 500, 503
