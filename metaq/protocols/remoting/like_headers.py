"""Fast parsing of headers that differ from an earlier one in three values only; see ``send_headers``,
``pull_headers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.errors import ProtocolError
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.json_header import read_json

KEPT_MAX: Final = 512
"""Most cached headers: one for each client, topic and queue."""

KEPT_BYTES_MAX: Final = 2048
"""Longest header that is cached."""

OPAQUE: Final = b'"opaque":'

_OPAQUE_DIGITS_MAX: Final = 9
_ZERO: Final = ord("0")

FieldBytes = tuple[bytes, bytes, bytes, bytes]
"""The parts of a header before, between and behind two values and the opaque."""


class SharedFields:
    """Fields that several headers share. ``header`` caches the reader's parsed header."""

    __slots__ = ("fields", "header")

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields
        self.header: object = None


def is_opaque(digits: bytes) -> bool:
    """Return whether this is a usual opaque: a JSON number that is not long."""
    return digits.isdigit() and len(digits) <= _OPAQUE_DIGITS_MAX and (digits[0] != _ZERO or len(digits) == 1)


def proven(
    field_bytes: FieldBytes, names: tuple[str, str], values: tuple[str, str], others: tuple[str, str]
) -> RemotingCommand | None:
    """Return the command of a header with these parts, if only two fields and the opaque are between them.

    The header is parsed completely, with ``values`` in the fields ``names``, and again with ``others``.
    """
    try:
        like, unlike = read_json(_joined(field_bytes, values, 5), b""), read_json(_joined(field_bytes, others, 9), b"")
    except ProtocolError:
        return None
    changed = {**like.ext, **dict(zip(names, others, strict=True))}
    same = RemotingCommand(like.code, changed, b"", 9, like.flag, like.remark, like.language, like.version)
    found = tuple(map(like.ext.get, names)), like.opaque
    return like if unlike == same and found == (values, 5) else None


def _joined(field_bytes: FieldBytes, values: tuple[str, str], opaque: int) -> bytes:
    between = (values[0].encode(), values[1].encode(), b"%d" % opaque, b"")
    return b"".join(part for pair in zip(field_bytes, between, strict=True) for part in pair)
