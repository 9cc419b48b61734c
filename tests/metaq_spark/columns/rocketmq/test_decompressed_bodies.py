"""The limit on decompressed bodies: a message that Spark can read is one that the client can read."""

from __future__ import annotations

import zlib

import pytest

from metaq.errors import CorruptRecord
from metaq.formats.rocketmq.compression import BODY_BYTES_MAX, decompress
from metaq_spark.columns.rocketmq.fields import decompressed

ZLIB = 0x301


def zeros(size: int) -> bytes:
    """``size`` zero bytes, compressed."""
    deflater = zlib.compressobj(1)
    step = bytes(1 << 20)
    parts = [deflater.compress(step[: min(len(step), size - at)]) for at in range(0, size, len(step))]
    return b"".join((*parts, deflater.flush()))


def test_connector_and_client_have_the_same_limit() -> None:
    allowed, too_long = zeros(BODY_BYTES_MAX), zeros(BODY_BYTES_MAX + 1)
    assert len(decompressed(allowed, ZLIB)) == BODY_BYTES_MAX
    assert len(decompress(allowed, ZLIB)) == BODY_BYTES_MAX
    with pytest.raises(ValueError, match=f"larger than {BODY_BYTES_MAX} bytes"):
        decompressed(too_long, ZLIB)
    with pytest.raises(CorruptRecord, match=f"longer than {BODY_BYTES_MAX} bytes"):
        decompress(too_long, ZLIB)
