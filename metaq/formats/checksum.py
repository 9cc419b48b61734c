"""The checksum of a message body: CRC-32 with the top bit cleared, so that it is never negative as an int32.

Python code uses zlib's CRC-32, compiled loops the one of ``native_crc``, and the broker that one, too, for blocks of
many messages. isal's own ``crc32`` must not be called from the interpreter: on processors with AVX-512 it returns with
the upper halves of the vector registers in use, and after a single call all SSE instructions of the thread, including
the interpreter's, stay slower. A producer of 100-byte messages lost a fifth of its speed to that.
"""

from __future__ import annotations

import zlib
from typing import Final

from metaq.model import Buffer

CHECKSUM_MASK: Final = 0x7FFFFFFF

crc32: Final = zlib.crc32
"""CRC-32 without the mask, for callers that apply the mask in their own arithmetic."""


def checksum(body: Buffer) -> int:
    """Return the checksum of a whole body (attribute block and payload, not the header): 0..2**31-1."""
    return crc32(body) & CHECKSUM_MASK
