"""A record of RocketMQ in plain Python: its parts, its properties as pairs. ``record_kernels`` has the layout."""

from __future__ import annotations

import ipaddress
import struct
from typing import Final, NamedTuple

from metaq_spark.columns.rocketmq.checks import REASONS

_HEAD: Final = struct.Struct(">iiiiiqqiq")
_BEHIND_BODY: Final = struct.Struct(">iqi")
_MAGIC: Final = {-626843481: struct.Struct(">b"), -626843477: struct.Struct(">h")}
_SMALLEST: Final = 91
_BORN_HOST_V6, _STORE_HOST_V6, _INNER_BATCH = 0x10, 0x20, 0x80
_INNER_NUM: Final = b"INNER_NUM"


class Unusable(Exception):
    """The record at ``position`` cannot be used; ``own_offset`` is the queue offset that it has, -1 if it has none."""

    def __init__(self, position: int, own_offset: int, reason: str) -> None:
        self.position, self.own_offset, self.reason = position, own_offset, reason
        super().__init__(position, own_offset, reason)


class RecordParts(NamedTuple):
    """A record's parts; times in ms."""

    size: int
    queue_id: int
    flag: int
    offset: int
    physical_offset: int
    sys_flag: int
    checksum: int
    born_ms: int
    born_host: bytes
    stored_ms: int
    store_host: bytes
    reconsume_times: int
    body: bytes
    topic: bytes
    properties: bytes


def read_record(data: bytes, at: int) -> RecordParts:
    """The record at a position.

    Raises:
        Unusable: It is cut, its lengths contradict each other, or its magic is not a record's.
    """
    left = len(data) - at
    own_offset = int.from_bytes(data[at + 20 : at + 28], signed=True) if left >= 28 else -1
    size = int.from_bytes(data[at : at + 4], signed=True) if left >= _SMALLEST else 0
    if not _SMALLEST <= size <= left:
        raise Unusable(at, own_offset, REASONS["length"])
    record = data[at : at + size]
    _, magic, crc, queue_id, flag, offset, physical, sys_flag, born_ms = _HEAD.unpack_from(record)
    if magic not in _MAGIC:
        raise Unusable(at, own_offset, REASONS["magic"])
    try:
        born_end = 48 + (20 if sys_flag & _BORN_HOST_V6 else 8)
        host_end = born_end + 8 + (20 if sys_flag & _STORE_HOST_V6 else 8)
        reconsume_times, _, body_bytes = _BEHIND_BODY.unpack_from(record, host_end)
        body, at_name = _part(record, host_end + 16, body_bytes)
        width = _MAGIC[magic]
        topic, at_properties = _part(record, at_name + width.size, width.unpack_from(record, at_name)[0])
        length = struct.unpack_from(">h", record, at_properties)[0]
        properties, _ = _part(record, at_properties + 2, length)
    except (struct.error, IndexError):
        raise Unusable(at, own_offset, REASONS["length"]) from None
    return RecordParts(
        size, queue_id, flag, offset, physical, sys_flag, crc, born_ms, record[48:born_end],
        int.from_bytes(record[born_end : born_end + 8], signed=True), record[born_end + 8 : host_end],
        reconsume_times, body, topic, properties,
    )  # fmt: skip


def _part(record: bytes, start: int, length: int) -> tuple[bytes, int]:
    if length < 0 or start + length > len(record):
        raise IndexError
    return record[start : start + length], start + length


def parse_properties(raw: bytes) -> dict[bytes, bytes]:
    """The pairs of a properties string: each name once with its last value; pairs without name or value are left out.
    """
    pairs: dict[bytes, bytes] = {}
    for pair in raw.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            pairs[name] = value
    return pairs


def offsets_of(data: bytes, at: int) -> range:
    """The queue offsets that the record at a position has: several, if its body is a batch that was stored as one.

    Raises:
        Unusable: As ``read_record``.
    """
    record = read_record(data, at)
    count = parse_properties(record.properties).get(_INNER_NUM, b"") if record.sys_flag & _INNER_BATCH else b""
    return range(record.offset, record.offset + (max(1, int(count)) if count.isdigit() and len(count) < 10 else 1))


def host_text(raw: bytes) -> str:
    """A host, an IP address of 4 or 16 bytes and a port as an int32, as ``10.1.2.3:54321``; IPv6 in brackets."""
    address, port = ipaddress.ip_address(raw[:-4]), int.from_bytes(raw[-4:], signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
