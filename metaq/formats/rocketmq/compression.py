"""Compressed bodies.

zlib comes with Python. LZ4 (frame format) and ZSTD need a package, ``lz4`` or ``zstandard``, when a message uses them;
or the caller passes its own decompressors, as the connector does with pyarrow's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from metaq.errors import CodecMissing, CorruptRecord
from metaq.formats.rocketmq.sys_flags import COMPRESSED, COMPRESSION

BODY_BYTES_MAX: Final = 128 << 20
"""Limit on a body after decompression, unless the caller says otherwise. Producers do not send more than a broker
accepts, 4 MiB by default.
"""

LEVEL: Final = 5
"""Compression level of a Java client."""


class Compression(IntEnum):
    """The codec in a ``sys_flag``: its bits ``COMPRESSION``, moved down by 8. 0 is also zlib, from older clients."""

    ZLIB_UNNAMED = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


Decompressor = Callable[[bytes, int], bytes]
"""(compressed body, limit) -> the body; anything beyond ``limit`` bytes may be omitted.

Raises an exception of any class if the body is not compressed this way, or is cut off.
"""

Decompressors = Mapping[Compression, Decompressor]


def _inflate(body: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, bytes_max)
    if not inflater.eof and len(data) < bytes_max:
        raise ValueError("cut off")
    return data


def _lz4(body: bytes, bytes_max: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise CodecMissing("LZ4", "lz4") from None
    decompressor = lz4.frame.LZ4FrameDecompressor()
    data: bytes = decompressor.decompress(body, max_length=bytes_max)
    if not decompressor.eof and len(data) < bytes_max:
        raise ValueError("cut off")
    return data


def _zstd(body: bytes, bytes_max: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise CodecMissing("ZSTD", "zstandard") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).decompressobj()
    parts, missing = [], bytes_max
    for start in range(0, len(body), _STEP_BYTES):
        parts.append(decompressor.decompress(body[start : start + _STEP_BYTES]))
        missing -= len(parts[-1])
        if missing <= 0:
            break
    if not decompressor.eof and missing > 0:
        raise ValueError("cut off")
    return b"".join(parts)


_WINDOW_BYTES_MAX: Final = 128 << 20
_STEP_BYTES: Final = 64  # three bytes may expand to 128 KiB: small steps limit the excess

INSTALLED: Final[Decompressors] = {
    Compression.ZLIB_UNNAMED: _inflate,
    Compression.ZLIB: _inflate,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
"""The decompressors of this module. Packages are imported on first use."""


def decompress(
    body: bytes, sys_flag: int, decompressors: Decompressors = INSTALLED, bytes_max: int = BODY_BYTES_MAX
) -> bytes:
    """Return the decompressed body, or ``body`` itself if ``sys_flag`` says that it is not compressed.

    Raises:
        CodecMissing: The body needs a package that is not installed.
        CorruptRecord: The body is not compressed as ``sys_flag`` says, or exceeds ``bytes_max``.
    """
    if not sys_flag & COMPRESSED:
        return body
    number = (sys_flag & COMPRESSION) >> 8
    if number not in Compression.__members__.values():
        raise CorruptRecord("body", 0, len(body), f"its codec has the unknown number {number}")
    codec = Compression(number)
    try:
        data = decompressors.get(codec, INSTALLED[codec])(body, bytes_max + 1)
    except CodecMissing:
        raise
    except Exception as error:
        raise CorruptRecord("body", 0, len(body), f"{codec.name} cannot decompress it: {error}") from None
    if len(data) > bytes_max:
        raise CorruptRecord("body", 0, len(body), f"decompressed it is longer than {bytes_max} bytes")
    return data


def compress(body: bytes, level: int = LEVEL) -> tuple[bytes, int]:
    """Return the body compressed with zlib, and its bits for ``sys_flag``, as a Java client sends it."""
    return zlib.compress(body, level), COMPRESSED | Compression.ZLIB << 8
