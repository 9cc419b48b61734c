"""Records of RocketMQ for tests, made field by field, so that any of them can lie."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

MAGIC = {1: -626843481, 2: -626843477}


def properties_text(pairs: Mapping[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode("utf-8", "surrogateescape")


def record(
    body: bytes = b"hello",
    *,
    offset: int = 0,
    topic: bytes = b"orders",
    queue_id: int = 3,
    properties: bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    physical: int = 77,
    born_ms: int = 1_700_000_000_000,
    stored_ms: int = 1_700_000_000_123,
    reconsume_times: int = 0,
    version: int = 1,
    crc: int | None = None,
    magic: int | None = None,
    size: int | None = None,
    born_ip: bytes = b"\x0a\x01\x02\x03",
    store_ip: bytes = b"\x7f\0\0\1",
) -> bytes:
    sys_flag |= 0x10 * (len(born_ip) == 16) | 0x20 * (len(store_ip) == 16)
    width = ">b" if version == 1 else ">h"
    stored_crc = zlib.crc32(body) & 0x7FFFFFFF if crc is None else crc
    behind = (
        struct.pack(">iiiqqiq", stored_crc, queue_id, flag, offset, physical, sys_flag, born_ms)
        + born_ip + struct.pack(">iq", 54321, stored_ms)
        + store_ip + struct.pack(">iiqi", 10911, reconsume_times, 0, len(body))
        + body + struct.pack(width, len(topic)) + topic + struct.pack(">h", len(properties)) + properties
    )  # fmt: skip
    total = len(behind) + 8 if size is None else size
    return struct.pack(">ii", total, MAGIC[version] if magic is None else magic) + behind
