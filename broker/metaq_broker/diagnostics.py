"""The broker's own log lines: on standard error, one line an event, ``key=value`` after the words.

A caller writes ``log.info("words", extra={"fields": {"peer": ...}})``; values with blanks are quoted.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")

_BARE = re.compile(r"[^\s\"=]+")


class KeyValueFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO app: ready address=127.0.0.1:8123``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one event, with the traceback behind it if there is one."""
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        place = record.name.removeprefix("metaq_broker.")
        words = [f"{moment}Z {record.levelname} {place}: {record.getMessage()}"]
        fields = getattr(record, "fields", {})
        words += [f"{key}={_value(value)}" for key, value in fields.items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def log_to_stderr(level: str) -> None:
    """Send all log lines of ``level`` (one of ``LEVELS``) and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _value(value: object) -> str:
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "\\r").replace("\n", "\\n") + '"'
