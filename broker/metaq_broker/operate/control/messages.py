"""The messages of the control socket: a line of JSON in UTF-8 for each request and each reply. No I/O.

::

    request   {"command": "close", "arguments": {"topic": "orders", "first": 0, "last": 3}}
    reply     {"result": {...}}
    reply     {"error": {"kind": "refused", "text": "one sentence"}}

Several requests may follow each other on one connection; each is answered before the next one is read.

Source: docs/administration.md, "The control socket".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from metaq.errors import MetaqError
from metaq.model import INT32_MAX, INT32_MIN

REQUEST_BYTES_MAX: Final = 1 << 16
"""Limit on a request line, with its end."""

REPLY_BYTES_MAX: Final = 1 << 28
"""Limit on a reply line."""

MALFORMED: Final = "malformed"
"""The request has another form, or names no command, or its arguments are wrong."""

REFUSED: Final = "refused"
"""The broker did not carry out the command, or only in part."""

FAILED: Final = "failed"
"""The broker has a bug; its log says more."""

Result = Mapping[str, Any]
"""The result of a command: any JSON value."""


class CommandRefused(MetaqError):
    """A command was not carried out. ``kind`` is one of the words above; ``text`` is one sentence for the operator."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text
        super().__init__(kind, text)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ControlRequest:
    command: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def encode_request(request: ControlRequest) -> bytes:
    return _line({"command": request.command, "arguments": dict(request.arguments)})


def decode_request(line: bytes) -> ControlRequest:
    """Parse the line of a request.

    Raises:
        CommandRefused: It is not a request.
    """
    document = _document(line)
    command, arguments = document.get("command"), document.get("arguments", {})
    if not isinstance(command, str) or not isinstance(arguments, dict) or document.keys() - {"command", "arguments"}:
        raise CommandRefused(MALFORMED, 'a request is {"command": "NAME", "arguments": {...}}')
    return ControlRequest(command, arguments)


def encode_result(result: Result) -> bytes:
    return _line({"result": result})


def encode_refusal(refused: CommandRefused) -> bytes:
    return _line({"error": {"kind": refused.kind, "text": refused.text}})


def decode_reply(line: bytes) -> dict[str, Any]:
    """Return the result in a reply.

    Raises:
        CommandRefused: The reply is an error, or it is not a reply.
    """
    document = _document(line)
    error, result = document.get("error"), document.get("result")
    if isinstance(error, dict):
        raise CommandRefused(str(error.get("kind")), str(error.get("text")))
    if not isinstance(result, dict):
        raise CommandRefused(MALFORMED, "the reply has neither a result nor an error")
    return result


def _line(document: Mapping[str, Any]) -> bytes:
    # Topic names from disk may have bytes that are not UTF-8; they are escaped.
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a number with thousands of digits, or too many brackets
        raise CommandRefused(MALFORMED, "it is not one line of JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise CommandRefused(MALFORMED, "it is not a JSON object")
    return document


RANGE_MAX: Final = 100_000
"""Limit on partitions in one command."""

_MISSING: Final = object()


class Arguments:
    """The arguments of one request. Take them one by one, then call ``end``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._left = dict(values)

    def text(self, name: str) -> str:
        """Take a text that is not empty.

        Raises:
            CommandRefused: It is missing, empty or no text.
        """
        value = self._left.pop(name, _MISSING)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, value, "a text")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self._left.get(name) is not None else self._left.pop(name, None)

    def number(self, name: str, low: int = INT32_MIN, high: int = INT32_MAX) -> int:
        """Take a whole number ``low..high``.

        Raises:
            CommandRefused: It is missing, or no such number.
        """
        value = self._left.pop(name, _MISSING)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, value, f"a whole number {low}..{high}")
        return value

    def flag(self, name: str) -> bool:
        """Take true or false; false if it is missing. Raises as ``text``."""
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def indexes(self) -> Sequence[int]:
        """Take ``first`` and ``last`` (missing: the same) and return the partition indexes from one to the other.

        Raises:
            CommandRefused: They are not a range, or are too many partitions.
        """
        first = self.number("first", 0)
        last = self.number("last", 0) if self._left.get("last") is not None else first
        self._left.pop("last", None)
        if not first <= last < first + RANGE_MAX:
            raise CommandRefused(
                MALFORMED, f"partitions {first}-{last}: expected FIRST-LAST, at most {RANGE_MAX} of them"
            )
        return range(first, last + 1)

    def end(self) -> None:
        """Check that no argument is left.

        Raises:
            CommandRefused: There is an argument that the command does not know.
        """
        if self._left:
            raise CommandRefused(MALFORMED, f"unknown argument {min(self._left)[:80]!r}")

    def _wrong(self, name: str, value: object, allowed: str) -> CommandRefused:
        given = "is missing" if value is _MISSING else f"is {str(value)[:80]!r}"
        return CommandRefused(MALFORMED, f"argument {name!r} {given}; expected {allowed}")
