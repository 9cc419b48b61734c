"""What headers have in common that differ in three values only: see ``send_headers`` and ``pull_headers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.errors import ProtocolError
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.json_header import read_json

KEPT_MAX: Final = 512
"""Headers that are kept: one for each client, topic and queue."""

KEPT_BYTES_MAX: Final = 2048
"""Of one header."""

OPAQUE: Final = b'"opaque":'

_OPAQUE_DIGITS_MAX: Final = 9
_ZERO: Final = ord("0")

FieldBytes = tuple[bytes, bytes, bytes, bytes]
"""What stands before, between and behind two values and the opaque."""


class SharedFields:
    """Fields that headers have in common. ``header`` is for who reads them: what it made of them."""

    __slots__ = ("fields", "header")

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields
        self.header: object = None


def is_opaque(digits: bytes) -> bool:
    """Say whether this is an opaque as usual: a number as JSON writes it, and not a long one."""
    return digits.isdigit() and len(digits) <= _OPAQUE_DIGITS_MAX and (digits[0] != _ZERO or len(digits) == 1)


def proven(
    field_bytes: FieldBytes, names: tuple[str, str], values: tuple[str, str], others: tuple[str, str]
) -> RemotingCommand | None:
    """Return the command of a header of these pieces, if nothing but two fields and the opaque is between them.

    The header is read as any other is, with ``values`` in the fields ``names``, and with ``others``.
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
