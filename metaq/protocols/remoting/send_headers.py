"""JSON headers of sends that differ from one that was read before in three values only, as those of one producer do.

A header is cut where the values are that vary: the time of birth ("g"), the properties ("i"), the opaque. If the pieces
between them are those of an earlier header, all other fields are that one's, and nothing else has to be read. Before
pieces are kept, a header of the same pieces with other values has been read as any other is, and had these values in
these fields, so what comes out is what ``read_json`` reads.
"""

from __future__ import annotations

from typing import Final

from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.json_header import read_json
from metaq.protocols.remoting.like_headers import (
    KEPT_BYTES_MAX,
    KEPT_MAX,
    OPAQUE,
    FieldBytes,
    SharedFields,
    is_opaque,
    proven,
)

FRONT: Final = b'{"code":310,'
"""What a header begins with that is looked at here: a send with short names, written by fastjson."""

_BORN, _PROPERTIES = b',"g":"', b',"i":"'
_BORN_BYTES, _OPAQUE_BYTES = len(_BORN), len(OPAQUE)
_BORN_DIGITS_MAX: Final = 18

_Cut = tuple[FieldBytes, str, str, int]
"""The four pieces of a header, and the values between them."""


class LikeFields(dict[str, str]):
    """Fields of a header that is like earlier ones: ``born`` and ``properties`` are this one's, all others are theirs.

    ``shared`` is the same object for all of them.
    """

    __slots__ = ("born", "properties", "shared")

    born: str
    properties: str
    shared: SharedFields


class SendHeaders:
    """``read`` does what ``read_json`` does."""

    def __init__(self) -> None:
        self._kept: dict[FieldBytes, tuple[RemotingCommand, SharedFields]] = {}

    def read(self, header: bytes, body: bytes) -> RemotingCommand:
        """Return the command of which ``header`` is the header. Raises as ``read_json``."""
        if not header.startswith(FRONT) or len(header) > KEPT_BYTES_MAX or (cut := _cut(header)) is None:
            return read_json(header, body)
        field_bytes, born, properties, opaque = cut
        kept = self._kept.get(field_bytes)
        if kept is None:
            self._keep(field_bytes)
            return read_json(header, body)
        like, shared = kept
        ext = LikeFields(shared.fields)
        ext["g"], ext["i"] = born, properties
        ext.born, ext.properties, ext.shared = born, properties, shared
        return RemotingCommand(
            like.code, ext, body, opaque, like.flag, like.remark, like.language, like.version, like.codec
        )

    def _keep(self, field_bytes: FieldBytes) -> None:
        if (like := proven(field_bytes, ("g", "i"), ("7", "P"), ("8", "Q"))) is not None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[field_bytes] = like, SharedFields(like.ext)


def _cut(header: bytes) -> _Cut | None:
    """Return the pieces of a header; ``None``: it has others, or values that are not as usual."""
    find = header.find
    born_at = find(_BORN) + _BORN_BYTES
    born_end = find(b'"', born_at)
    properties_at = find(_PROPERTIES, born_end) + len(_PROPERTIES)
    properties_end = find(b'"', properties_at)
    opaque_at = find(OPAQUE, properties_end) + _OPAQUE_BYTES
    opaque_end = find(b",", opaque_at)
    if not _BORN_BYTES < born_at < born_end < properties_at < properties_end < opaque_at < opaque_end:
        return None
    born, opaque = header[born_at:born_end], header[opaque_at:opaque_end]
    if not born.isdigit() or len(born) > _BORN_DIGITS_MAX or not is_opaque(opaque):
        return None
    text = header[properties_at:properties_end].decode("utf-8", "replace")
    properties = text.replace("\\u0001", "\x01").replace("\\u0002", "\x02")
    if "\\" in properties or not text.isprintable():
        return None  # it has other escapes, or what JSON wants to be escaped
    field_bytes = (
        header[:born_at],
        header[born_end:properties_at],
        header[properties_end:opaque_at],
        header[opaque_end:],
    )
    return field_bytes, born.decode(), properties, int(opaque)


SENDS: Final = SendHeaders()
"""Reads the headers of this process."""
