"""Fields of a record that are not stored as Spark gets them: compressed bodies, and hosts as bytes."""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from metaq.formats.rocketmq.compression import BODY_BYTES_MAX
from metaq_spark.columns.rocketmq.record import host_text

_TYPE_BITS: Final = 0x700
_CODECS: Final = {0x100: "lz4", 0x200: "zstd"}
_ZLIB: Final = (0, 0x300)


def decompressed(body: bytes, sys_flag: int) -> bytes:
    """Return the decompressed body of a record whose compressed bit is set.

    Raises:
        ValueError: The bytes are not compressed as the flag says, or exceed ``BODY_BYTES_MAX``.
    """
    kind = sys_flag & _TYPE_BITS
    if kind in _ZLIB:
        return _inflated(body)
    if kind not in _CODECS:
        raise ValueError(f"the body is compressed in a way that is not known (sysFlag {sys_flag:#x})")
    name = _CODECS[kind]
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), name) as stream:
            found = bytes(stream.read(BODY_BYTES_MAX + 1))
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"the body cannot be decompressed by {name}: {error}") from None
    return _limited(found)


def _inflated(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise ValueError(f"the body cannot be decompressed by zlib: {error}") from None
    if not inflater.eof and len(found) <= BODY_BYTES_MAX:
        raise ValueError("the body cannot be decompressed by zlib: it is cut")
    return _limited(found)


def _limited(found: bytes) -> bytes:
    if len(found) > BODY_BYTES_MAX:
        raise ValueError(f"the body would be larger than {BODY_BYTES_MAX} bytes when it is decompressed")
    return found


def host_texts(column: pa.Array) -> pa.Array:
    """A binary column of hosts as strings. There are few different ones, and each is written once."""
    encoded = column.dictionary_encode()
    texts = [host_text(raw) for raw in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)
