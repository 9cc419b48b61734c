"""JSON as Java's fastjson writes it: objects may have bare numbers, and even objects, for keys.

The standard library parses standard JSON. If it finds such a key, all of them are quoted first, outside of texts, in
one pass. That takes a microsecond per character, during which other threads wait, so a server allows it for small
bodies only.

Source: docs/remoting-protocol.md, "JSON bodies".
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from metaq.errors import FieldError
from metaq.model import Buffer

VALUES_MAX: Final = 1_000_000
"""Limit on values in one body: a value takes much more memory than its bytes."""

_BARE_KEY: Final = "Expecting property name"
"""Start of the standard library's error for an unquoted key."""

_UNUSUAL_KEYS: Final = re.compile(
    r'"(?:[^"\\]|\\.)*+"?'  # skip a text; an unterminated one extends to the end, so it is scanned only once
    r"|(?<![0-9])(?P<number>-?[0-9]++)(?=\s*+:)"  # never match from the middle, which would repeat for each digit
    r'|(?P<object>\{(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+\})(?=\s*+:)',
    re.DOTALL,
)


def check_values(data: bytes, body: str) -> None:
    """Check that JSON, or data with JSON in it, has no more than ``VALUES_MAX`` values. Raises as ``load_json``."""
    if len(data) > VALUES_MAX and data.count(b",") + data.count(b"[") + data.count(b"{") > VALUES_MAX:
        raise FieldError(body, "body", f"{len(data)} bytes", f"JSON of at most {VALUES_MAX} values")


def load_json(data: Buffer, body: str, bare_keys_bytes_max: int | None = None) -> Any:
    """Parse ``data``. Keys become texts; an object that is a key becomes its JSON text.

    With more than ``bare_keys_bytes_max`` bytes, ``data`` must be standard JSON.

    Raises:
        FieldError: ``data`` is not JSON, or has more than ``VALUES_MAX`` values; ``body`` is its name in the error.
    """
    data = bytes(data)
    check_values(data, body)
    text = data.decode("utf-8", "replace")
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            is_large = bare_keys_bytes_max is not None and len(data) > bare_keys_bytes_max
            if is_large or not error.msg.startswith(_BARE_KEY):
                raise
            return json.loads(_UNUSUAL_KEYS.sub(_in_quotation_marks, text))
    except (ValueError, RecursionError):
        raise FieldError(body, "body", text, "JSON") from None


def _in_quotation_marks(match: re.Match[str]) -> str:
    if (number := match["number"]) is not None:
        return f'"{number}"'
    if (key := match["object"]) is not None:
        return json.dumps(key)
    return match[0]
