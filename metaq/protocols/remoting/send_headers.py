"""Fast parsing of JSON headers of sends that differ from an earlier one in three values only, as one producer's do.

A header is cut at the values that vary: the time of birth ("g"), the properties ("i"), the opaque. If the parts between
them equal an earlier header's, all other fields are the same and need not be parsed. Before parts are cached, a header
with the same parts and other values is parsed completely and must have these values in these fields, so the result is
always the same as with ``read_json``.
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
"""Start of the headers that are handled here: sends with short names, written by fastjson."""

_BORN, _PROPERTIES = b',"g":"', b',"i":"'
_BORN_BYTES, _OPAQUE_BYTES = len(_BORN), len(OPAQUE)
_BORN_DIGITS_MAX: Final = 18

_Cut = tuple[FieldBytes, str, str, int]
"""The four parts of a header, and the values between them."""


class LikeFields(dict[str, str]):
    """Fields of a header that differs from earlier ones only in ``born`` and ``properties``.

    ``shared`` is the same object for all such headers.
    """

    __slots__ = ("born", "properties", "shared")

    born: str
    properties: str
    shared: SharedFields


class SendHeaders:
    """A cache of send headers."""

    def __init__(self) -> None:
        self._kept: dict[FieldBytes, tuple[RemotingCommand, SharedFields]] = {}

    def read(self, header: bytes, body: bytes) -> RemotingCommand:
        """Return the command with this header, as ``read_json`` does."""
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
    """Cut a header; return ``None`` if it has another form or unusual values."""
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
        return None  # it has other escapes, or characters that JSON requires to be escaped
    field_bytes = (
        header[:born_at],
        header[born_end:properties_at],
        header[properties_end:opaque_at],
        header[opaque_end:],
    )
    return field_bytes, born.decode(), properties, int(opaque)


SENDS: Final = SendHeaders()
"""The cache of this process."""
