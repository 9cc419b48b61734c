"""The JSON header (type 0): a command without its body as text, in the form that Java's fastjson writes and reads.

Parsing accepts what real clients send: missing and unknown keys, numbers, booleans and null in ``extFields``, numbers
as text, any language. Output has the same bytes as Java's.

Source: docs/remoting-protocol.md, "JSON header".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from metaq.errors import ProtocolError
from metaq.protocols.remoting.command import RemotingCommand

OPENINGS_MAX: Final = 65_536
"""Limit on opening braces and brackets in one header. A header has two objects; further braces are in texts, such as
properties.
"""
QUOTES_MAX: Final = 262_144
"""Limit on quotation marks in one header: many short texts take much more memory than their bytes."""

_SHORT_ESCAPES: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_ESCAPED: Final = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029]')
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT_ESCAPES.get(character) or f"\\u{ord(character):04X}"


def quoted(text: str) -> str:
    """Return ``text`` as a JSON string, with the escapes that fastjson uses."""
    return f'"{text}"' if _is_plain(text) else f'"{_ESCAPED.sub(_escape, text)}"'


def _is_plain(text: str) -> bool:
    """Whether ``text`` needs no escapes."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def _members(ext: Mapping[str, str]) -> str:
    """Return the members of a JSON object. Checking all texts together is much faster than checking each."""
    if _is_plain("".join([*ext, *ext.values()])):
        return ",".join([f'"{name}":"{value}"' for name, value in ext.items()])
    return ",".join([f"{quoted(name)}:{quoted(value)}" for name, value in ext.items()])


def write_json(command: RemotingCommand) -> bytes:
    """Return the header of ``command``. A lone surrogate becomes a question mark, as in Java."""
    ext = _members(command.ext)
    remark = "" if command.remark is None else f',"remark":{quoted(command.remark)}'
    language = f',"language":{quoted(command.language)}' if command.language else ""
    return (
        f'{{"code":{command.code:d},"extFields":{{{ext}}},"flag":{command.flag:d}{language},"opaque":{command.opaque:d}'
        f'{remark},"serializeTypeCurrentRPC":"JSON","version":{command.version:d}}}'
    ).encode("utf-8", "replace")


def read_json(header: bytes, body: bytes) -> RemotingCommand:
    """Return the command with this header.

    Raises:
        ProtocolError: ``header`` is not a JSON object, or a field is not valid.
    """
    fields = _load(header)
    language, remark = fields.get("language"), fields.get("remark")
    return RemotingCommand(
        _number(fields, "code", header),
        _ext(fields.get("extFields"), header),
        body,
        _number(fields, "opaque", header),
        _number(fields, "flag", header),
        None if remark is None else _text(remark),
        "" if language is None else _text(language),
        _number(fields, "version", header),
    )


def _load(header: bytes) -> dict[str, Any]:
    if len(header) > OPENINGS_MAX:
        if header.count(b"{") + header.count(b"[") > OPENINGS_MAX:
            raise ProtocolError(f"JSON header with more than {OPENINGS_MAX} objects and lists", header)
        if header.count(b'"') > QUOTES_MAX:
            raise ProtocolError(f"JSON header with more than {QUOTES_MAX} quotation marks", header)
    try:
        fields = _decoded(header.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"header is no JSON ({error})", header) from None
    if not isinstance(fields, dict):
        raise ProtocolError("header is no JSON object", header)
    return fields


class _Literal(str):
    """A number with a fraction or an exponent, in its original form: it is never used in arithmetic."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(parse_float=_Literal, parse_constant=_Literal)
_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = _DECODER.scan_once  # type: ignore[attr-defined]


def _decoded(text: str) -> Any:
    """Parse a JSON text without ``json``'s search for surrounding blanks, which costs as much as the rest.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else _DECODER.decode(text)


def _number(fields: dict[str, Any], name: str, header: bytes) -> int:
    """Return a field, 0 if it is missing."""
    value = fields.get(name)
    if type(value) is int and _INT32_MIN <= value <= _INT32_MAX:
        return value
    if value is None:
        return 0
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 11:
        value = int(value)
    if not isinstance(value, int) or not _INT32_MIN <= value <= _INT32_MAX:
        raise ProtocolError(f"header field {name!r} is {str(value)[:40]!r}, not a 32-bit number", header)
    return int(value)


def _ext(value: Any, header: bytes) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ProtocolError("header field 'extFields' is no JSON object", header)
    for each in value.values():
        if type(each) is not str:
            return {name: _text(item) for name, item in value.items() if item is not None}
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
