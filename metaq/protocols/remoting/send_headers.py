"""JSON headers of sends that differ from one that was read before in three values only, as those of one producer do.

A header is cut where the values are that vary: the time of birth ("g"), the properties ("i"), the opaque. If the pieces
between them are those of an earlier header, all other fields are that one's, and nothing else has to be read. Before
pieces are kept, a header of the same pieces with other values has been read as any other is, and had these values in
these fields, so what comes out is what ``read_json`` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.errors import ProtocolError
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.json_header import read_json

KEPT_MAX: Final = 512
"""Headers that are kept: one for each producer, topic and queue."""

KEPT_BYTES_MAX: Final = 2048
"""Of one header."""

FRONT: Final = b'{"code":310,'
"""What a header begins with that is looked at here: a send with short names, written by fastjson."""

_BORN, _PROPERTIES, _OPAQUE = b',"g":"', b',"i":"', b'"opaque":'
_BORN_BYTES, _OPAQUE_BYTES = len(_BORN), len(_OPAQUE)
_BORN_DIGITS_MAX, _OPAQUE_DIGITS_MAX = 18, 9
_ZERO: Final = ord("0")

_Pieces = tuple[bytes, bytes, bytes, bytes]
_Cut = tuple[_Pieces, str, str, int]
"""The four pieces of a header, and the values between them."""


class LikeFields(dict[str, str]):
    """Fields of a header that is like earlier ones: ``born`` and ``properties`` are this one's, all others are theirs.

    ``shared`` is the same object for all of them.
    """

    __slots__ = ("born", "properties", "shared")

    born: str
    properties: str
    shared: SharedFields


class SharedFields:
    """Fields that headers have in common. ``header`` is for who reads them: what it made of them."""

    __slots__ = ("fields", "header")

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields
        self.header: object = None


class SendHeaders:
    """See the module. ``read`` does what ``read_json`` does."""

    def __init__(self) -> None:
        self._kept: dict[_Pieces, tuple[RemotingCommand, SharedFields]] = {}

    def read(self, header: bytes, body: bytes) -> RemotingCommand:
        """Return the command of which ``header`` is the header. Raises as ``read_json``."""
        if not header.startswith(FRONT) or len(header) > KEPT_BYTES_MAX or (cut := _cut(header)) is None:
            return read_json(header, body)
        pieces, born, properties, opaque = cut
        kept = self._kept.get(pieces)
        if kept is None:
            self._keep(pieces)
            return read_json(header, body)
        like, shared = kept
        ext = LikeFields(shared.fields)
        ext["g"], ext["i"] = born, properties
        ext.born, ext.properties, ext.shared = born, properties, shared
        return RemotingCommand(
            like.code, ext, body, opaque, like.flag, like.remark, like.language, like.version, like.codec
        )

    def _keep(self, pieces: _Pieces) -> None:
        before_born, before_properties, before_opaque, behind = pieces
        probe = b"".join((before_born, b"7", before_properties, b"P", before_opaque, b"7", behind))
        other = b"".join((before_born, b"8", before_properties, b"Q", before_opaque, b"8", behind))
        try:
            like, unlike = read_json(probe, b""), read_json(other, b"")
        except ProtocolError:
            return
        if unlike == RemotingCommand(
            like.code, {**like.ext, "g": "8", "i": "Q"}, b"", 8, like.flag, like.remark, like.language, like.version
        ) and (like.ext.get("g"), like.ext.get("i"), like.opaque) == ("7", "P", 7):
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[pieces] = like, SharedFields(like.ext)


def _cut(header: bytes) -> _Cut | None:
    """Return the pieces of a header; ``None``: it has others, or values that are not as usual."""
    find = header.find
    born_at = find(_BORN) + _BORN_BYTES
    born_end = find(b'"', born_at)
    properties_at = find(_PROPERTIES, born_end) + len(_PROPERTIES)
    properties_end = find(b'"', properties_at)
    opaque_at = find(_OPAQUE, properties_end) + _OPAQUE_BYTES
    opaque_end = find(b",", opaque_at)
    if not _BORN_BYTES < born_at < born_end < properties_at < properties_end < opaque_at < opaque_end:
        return None
    born, opaque = header[born_at:born_end], header[opaque_at:opaque_end]
    if not born.isdigit() or not opaque.isdigit() or len(born) > _BORN_DIGITS_MAX or len(opaque) > _OPAQUE_DIGITS_MAX:
        return None
    text = header[properties_at:properties_end].decode("utf-8", "replace")
    properties = text.replace("\\u0001", "\x01").replace("\\u0002", "\x02")
    if "\\" in properties or not text.isprintable() or (opaque[0] == _ZERO and len(opaque) > 1):
        return None  # it has other escapes, what JSON wants to be escaped, or is no number in JSON
    pieces = header[:born_at], header[born_end:properties_at], header[properties_end:opaque_at], header[opaque_end:]
    return pieces, born.decode(), properties, int(opaque)


SENDS: Final = SendHeaders()
"""Reads the headers of this process."""
