"""The broker's own log lines: on standard error, one line an event, as text or as JSON.

A caller writes ``log.info("words", extra={"fields": {"peer": ...}})``. The words are fixed, so that events can be found
and counted; variable parts are fields::

    text   2026-01-31T12:00:00.123Z INFO app: ready address=127.0.0.1:8123     values with blanks are quoted
    json   {"time": "2026-01-31T12:00:00.123Z", "level": "INFO", "source": "app", "event": "ready",
            "address": "127.0.0.1:8123"}                                       on one line

Events that clients can cause, and harmless ones, are limited to ``LINES_MAX`` of a kind in ``WINDOW_S``; the field
``suppressed`` of the next line of that kind says how many were left out.

Source: docs/administration.md, "The log".
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final

from metaq_broker.clock import Clock

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")

LINES_MAX: Final = 50
"""Limit on lines of one kind in a window."""

WINDOW_S: Final = 10.0
KINDS_MAX: Final = 1000
"""Limit on kinds that are counted separately; the oldest is forgotten."""

CLIENT_CAUSED: Final = (
    *("metaq_broker.serve", "metaq_broker.text", "metaq_broker.operate.control"),
    *(
        f"metaq_broker.rocketmq.{part}"
        for part in (
            *("session", "dispatcher", "access", "sends", "messages", "pulls"),
            *("groups", "delays", "half_messages", "administration"),
        )
    ),
)
"""Loggers whose warnings are limited as well."""

_PACKAGE: Final = "metaq_broker."
_BARE: Final = re.compile(r"[^\s\"=]+")
_ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\r": "\\r", "\n": "\\n"})


class KeyValueFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = [f"{_moment(record)} {record.levelname} {_logger_name(record)}: {record.getMessage()}"]
        words += [f"{key}={_value(value)}" for key, value in _fields(record).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line; a field with a reserved name gets a trailing ``_``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname,
            "source": _logger_name(record),
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        for key, value in _fields(record).items():
            line[f"{key}_" if key in line else key] = value
        return json.dumps(line, default=str)


class RateLimit(logging.Filter):
    """Passes important lines, and ``LINES_MAX`` other lines of a kind in ``WINDOW_S``."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written; may add the field ``suppressed`` to it."""
        if record.levelno > logging.INFO and not record.name.startswith(CLIENT_CAUSED):
            return True
        kind, now = (record.name, str(record.msg)), self._clock.monotonic()
        window = self._windows.get(kind)
        if window is None or now - window.begun >= WINDOW_S:
            suppressed = self._begin(kind, now)
            if suppressed:
                record.fields = {**_fields(record), "suppressed": suppressed}
            return True
        window.lines += 1
        return window.lines <= LINES_MAX

    def _begin(self, kind: tuple[str, str], now: float) -> int:
        before = self._windows.pop(kind, None)
        if len(self._windows) >= KINDS_MAX:
            del self._windows[next(iter(self._windows))]
        self._windows[kind] = _Window(now)
        return max(0, before.lines - LINES_MAX) if before is not None else 0


class _Window:
    __slots__ = ("begun", "lines")

    def __init__(self, begun: float) -> None:
        self.begun, self.lines = begun, 1


def log_to_stderr(level: str, form: str = "text") -> None:
    """Send all log lines of ``level`` (one of ``LEVELS``) and above to standard error, in the format ``form``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else KeyValueFormatter())
    handler.addFilter(RateLimit(Clock()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _logger_name(record: logging.LogRecord) -> str:
    return record.name.removeprefix(_PACKAGE)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def _value(value: object) -> str:
    text = str(value)
    return text if _BARE.fullmatch(text) else f'"{text.translate(_ESCAPED)}"'
