"""Turns the bytes of a message into text for a page: text, JSON, Chinese encodings, hex, and what is compressed.

Messages are anybody's bytes. What is shown is bounded (``SHOWN_CHARS``), decompression stops at ``INFLATED_MAX``, and
characters that a page could not show truthfully, such as NUL or the override of the direction of writing, become
visible signs (``visible``).
"""

from __future__ import annotations

import bz2
import json
import lzma
import unicodedata
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

SHOWN_CHARS: Final = 16 << 10
"""Characters of a value that a page shows."""
PREVIEW_CHARS: Final = 160
"""Characters of a value in a row of a table."""
INFLATED_MAX: Final = 1 << 20
"""Bytes that a compressed value is unpacked to; the rest is left out. In a row of a table ``TRIED_BYTES``."""
HEX_BYTES: Final = 1024
"""Bytes that the hexadecimal form shows."""
TRIED_BYTES: Final = 64 << 10
"""Bytes of a value that are looked at: enough for everything that is shown."""

_SIGNS: Final = {"\n", "\t"}
_UNSEEN: Final = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
"""Unicode's categories of characters without a glyph: controls, format characters, private and unassigned ones."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value as text. ``decoder`` names how it was read, ``packing`` what it was compressed with, or is empty.

    ``is_cut``: the value has more than is shown.
    """

    text: str
    decoder: str
    packing: str = ""
    is_cut: bool = False


class NotDecodable(ValueError):
    """The bytes are not what the decoder reads."""


def visible(text: str) -> str:
    """Return ``text`` with a sign for each character that has no glyph, or that changes how others are shown.

    The sign is the number of the character: NUL is ``[U+0000]``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_sign(one) for one in text)


def _sign(one: str) -> str:
    if one in _SIGNS or unicodedata.category(one) not in _UNSEEN:
        return one
    return f"[U+{ord(one):04X}]"


def decode(value: bytes, decoder: str = "auto", inflated_max: int = INFLATED_MAX) -> Decoded:
    """Return ``value`` as text, unpacked first if it is compressed; ``decoder`` is a name of ``DECODERS``.

    It is unpacked to ``inflated_max`` bytes at most. What the decoder cannot read is shown in hexadecimal.
    """
    plain, packing, is_cut = _unpacked(value, inflated_max)
    wanted = DECODERS.get(decoder, DECODERS["auto"])
    try:
        name, text = wanted(plain, is_cut)
    except NotDecodable:
        name, text = _hex(plain, is_cut)
    shown = visible(text[:SHOWN_CHARS])[:SHOWN_CHARS]
    is_whole = len(text) <= SHOWN_CHARS and len(plain) <= (HEX_BYTES if name == "hex" else TRIED_BYTES)
    return Decoded(shown, name, packing, is_cut or not is_whole)


def row_text(value: bytes, decoder: str = "auto") -> Decoded:
    """Return as ``decode`` what ``TRIED_BYTES`` of ``value``, packed and unpacked, say: a table has many rows."""
    return decode(value[:TRIED_BYTES], decoder, TRIED_BYTES)


def preview(value: bytes, decoder: str = "auto") -> Decoded:
    """Return the beginning of ``value`` in one line, for a row of a table."""
    found = row_text(value, decoder)
    line = " ".join(found.text[: 4 * PREVIEW_CHARS].split())
    is_cut = found.is_cut or len(value) > TRIED_BYTES or len(line) > PREVIEW_CHARS
    return Decoded(line[:PREVIEW_CHARS], found.decoder, found.packing, is_cut)


def _unpacked(value: bytes, most: int) -> tuple[bytes, str, bool]:
    """Return up to ``most`` bytes of the unpacked value, the name of the packing, and whether the rest was left out."""
    for packing in PACKINGS:
        if value.startswith(packing.magic):
            try:
                found = packing.unpack(value, most + 1)
            except (OSError, ValueError, EOFError, RuntimeError, zlib.error, lzma.LZMAError, ImportError):
                return value, "", False
            if found:  # a few bytes may look like the beginning of something compressed
                return found[:most], packing.name, len(found) > most
    return value, "", False


def _zlib(value: bytes, most: int) -> bytes:
    return zlib.decompressobj().decompress(value, most)


def _gzip(value: bytes, most: int) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(value, most)


def _bz2(value: bytes, most: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(value, most)


def _xz(value: bytes, most: int) -> bytes:
    return lzma.LZMADecompressor(memlimit=64 << 20).decompress(value, most)


def _lz4(value: bytes, most: int) -> bytes:
    unpacked: bytes = import_module("lz4.frame").LZ4FrameDecompressor().decompress(value, most)
    return unpacked


def _zstd(value: bytes, most: int) -> bytes:
    zstandard: Any = import_module("zstandard")
    try:
        with zstandard.ZstdDecompressor(max_window_size=8 << 20).stream_reader(value) as reader:
            unpacked: bytes = reader.read(most)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    return unpacked


@dataclass(frozen=True, slots=True)
class Packing:
    """A way to compress: the bytes that it begins with, and how so many bytes of it are unpacked."""

    name: str
    magic: tuple[bytes, ...]
    unpack: Callable[[bytes, int], bytes]


PACKINGS: Final = (
    Packing("gzip", (b"\x1f\x8b\x08",), _gzip),
    Packing("zlib", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), _zlib),
    Packing("bzip2", (b"BZh",), _bz2),
    Packing("xz", (b"\xfd7zXZ\x00",), _xz),
    Packing("lz4", (b"\x04\x22\x4d\x18",), _lz4),
    Packing("zstd", (b"\x28\xb5\x2f\xfd",), _zstd),
)
"""lz4 and zstd are unpacked where their Python packages are installed."""


def _auto(value: bytes, is_cut: bool) -> tuple[str, str]:
    """JSON, UTF-8, a Chinese encoding, or hexadecimal: the first that fits."""
    for attempt in (_json, _utf8, _utf16, _gb18030):
        try:
            name, text = attempt(value, is_cut)
        except NotDecodable:
            continue
        if name == "json" or _is_readable(text):
            return name, text
    return _hex(value, is_cut)


def _is_readable(text: str) -> bool:
    """Whether most characters have a glyph: bytes that are not text decode to controls and rare characters."""
    beginning = text[:4096]
    unseen = sum(one not in _SIGNS and one != "\r" and unicodedata.category(one) in _UNSEEN for one in beginning)
    return unseen * 10 <= len(beginning)


def _json(value: bytes, is_cut: bool) -> tuple[str, str]:
    beginning = value[:64].lstrip()
    if beginning[:1] not in (b"{", b"[") or is_cut or len(value) > INFLATED_MAX:
        raise NotDecodable
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        raise NotDecodable from None
    pieces, length = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(parsed):
        pieces.append(piece)
        length += len(piece)
        if length > SHOWN_CHARS:  # indented, all of it may have a thousand times as many characters as the value
            break
    return "json", "".join(pieces)


def _named(name: str, encoding: str) -> Callable[[bytes, bool], tuple[str, str]]:
    """Return a decoder of an encoding; of a long value the beginning, which may end inside a character."""

    def read(value: bytes, is_cut: bool) -> tuple[str, str]:
        beginning = value[:TRIED_BYTES]
        try:
            return name, beginning.decode(encoding)
        except UnicodeDecodeError as error:
            if (is_cut or len(value) > len(beginning)) and error.start >= len(beginning) - 4:
                return name, beginning[: error.start].decode(encoding)
            raise NotDecodable from None

    return read


_utf8, _gb18030, _big5 = _named("utf-8", "utf-8"), _named("gb18030", "gb18030"), _named("big5", "big5hkscs")
_utf16_any = _named("utf-16", "utf-16")


def _utf16(value: bytes, is_cut: bool) -> tuple[str, str]:
    if value[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise NotDecodable
    return _utf16_any(value, is_cut)


def _text(value: bytes, _: bool) -> tuple[str, str]:
    return "utf-8", value[:TRIED_BYTES].decode("utf-8", "replace")


def _hex(value: bytes, _: bool) -> tuple[str, str]:
    """Rows of 16 bytes: their offset, the bytes, and the letters among them."""
    rows = []
    for at in range(0, min(len(value), HEX_BYTES), 16):
        row = value[at : at + 16]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        rows.append(f"{at:06x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {letters}")
    return "hex", "\n".join(rows)


DECODERS: Final[dict[str, Callable[[bytes, bool], tuple[str, str]]]] = {
    "auto": _auto,
    "text": _text,
    "json": _json,
    "gb18030": _gb18030,
    "big5": _big5,
    "utf-16": _utf16_any,
    "hex": _hex,
}
"""Each decoder by the name that a page offers. GB18030 reads GBK and GB2312, too."""
