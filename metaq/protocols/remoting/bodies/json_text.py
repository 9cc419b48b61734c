"""JSON as Java's fastjson writes it: objects may have bare numbers, and even objects, for keys.

Standard JSON is read by the standard library. Where that finds such a key, all of them are put into quotation marks
first, outside of texts, in one pass. That takes a microsecond for a character, where other threads wait too, so a
server allows it for small bodies only.

Source: docs/remoting-protocol.md, "JSON bodies".
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from metaq.errors import FieldError
from metaq.model import Buffer

VALUES_MAX: Final = 1_000_000
"""Values in one body. A value takes much more memory than its bytes: this bounds it."""

_BARE_KEY: Final = "Expecting property name"
"""How the message of the standard library's error begins where a key is not in quotation marks."""

_UNUSUAL_KEYS: Final = re.compile(
    r'"(?:[^"\\]|\\.)*+"?'  # a text: passed over. One without an end goes to the end: looked at once, not at each quote
    r"|(?<![0-9])(?P<number>-?[0-9]++)(?=\s*+:)"  # not begun in the middle: that would be as often as it has digits
    r'|(?P<object>\{(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+\})(?=\s*+:)',
    re.DOTALL,
)


def load_json(data: Buffer, body: str, bare_keys_bytes_max: int | None = None) -> Any:
    """Return what ``data`` says. Keys come out as texts, an object that is a key as its JSON.

    Where ``data`` has more than ``bare_keys_bytes_max`` bytes, it must be standard JSON.

    Raises:
        FieldError: ``data`` is no JSON, or more than ``VALUES_MAX`` values; ``body`` is how the error calls it.
    """
    data = bytes(data)
    if len(data) > VALUES_MAX and data.count(b",") + data.count(b"[") + data.count(b"{") > VALUES_MAX:
        raise FieldError(body, "body", f"{len(data)} bytes", f"JSON of at most {VALUES_MAX} values")
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
