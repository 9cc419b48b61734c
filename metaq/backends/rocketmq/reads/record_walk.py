"""One pass over the records in a pull's response: which belong to a range, and whether they are valid.

The fields that are read, by their distance from a record's first byte; hosts are IPv4 (8 bytes) unless the flags say
that they are IPv6 (20 bytes)::

    0  i32 record bytes     12  i32 queue id      36  i32 flags: 0x10 born host, 0x20 store host are IPv6
    4  i32 magic            20  i64 queue offset  48      born host, i64 store time (ms), store host, 12 bytes,
                                                          i32 body bytes, body, topic bytes (i8, or i16 in version 2),
                                                          topic, i16 property bytes, properties

The decoder of the records verifies checksums.

Source: docs/remoting-protocol.md, "Stored records".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from metaq.model import Buffer

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
RECORD_BYTES_MIN: Final = 91
"""A record with two IPv4 hosts and empty fields."""

_HEAD: Final = struct.Struct(">iIiiiqqi")
_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_BORN_HOST: Final = 48
_V4_BODY_BYTES: Final = 84
_BORN_V6: Final = 0x10
_STORE_V6: Final = 0x20
_INNER_BATCH: Final = 0x80
_UNUSUAL: Final = _BORN_V6 | _STORE_V6 | _INNER_BATCH
_V6_MORE: Final = 12


class WantedRecords(NamedTuple):
    """Records of ``topic`` (full name, encoded) and ``queue_id`` with offsets in ``[start, end)``."""

    topic: bytes
    queue_id: int
    start: int
    end: int


class MeasuredRecords(NamedTuple):
    """``data[begin:stop]`` are ``records`` whole, wanted records. Earlier ones are older, later ones newer.

    ``first`` and ``last`` are their first and last offset, if there are any. ``problem`` describes the fault of the
    record at ``stop``, if any. ``ends_early``: that record is faulty; the fault is reported when the record is
    requested.
    """

    begin: int
    stop: int
    records: int
    first: int
    last: int
    problem: str | None = None
    ends_early: bool = False


Measure = Callable[[memoryview, WantedRecords], MeasuredRecords]


def measure_records(data: memoryview, wanted: WantedRecords) -> MeasuredRecords:
    """Find the wanted records in a pull's response: whole records in ascending order of their offsets."""
    topic, queue_id, start, end = wanted
    position = begin = count = 0
    first = last = -1
    problem = None
    size = len(data)
    while position < size:
        if size - position < RECORD_BYTES_MIN:
            problem = f"it is cut after {size - position} bytes"
            break
        record_bytes, magic, _, of_queue, _, offset, _, flags = _HEAD.unpack_from(data, position)
        problem = _misfit(magic, record_bytes, size - position) or _foreign(
            data, position, position + record_bytes, magic, flags, topic
        )
        if problem is None and of_queue != queue_id:
            problem = f"it is of queue {of_queue}"
        if problem is None and offset <= last:
            problem = f"its offset {offset} follows {last}"
        if problem is not None or offset >= end:
            break
        position += record_bytes
        last = offset
        if offset < start:
            begin = position
        else:
            first = first if count else offset
            count += 1
    return MeasuredRecords(begin, position, count, first, last, problem)


def _misfit(magic: int, record_bytes: int, available: int) -> str | None:
    if RECORD_BYTES_MIN <= record_bytes <= available and magic in (MAGIC_V1, MAGIC_V2):
        return None
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"its magic is {magic:08x}"
    if record_bytes > available:
        return f"it is cut after {available} of {record_bytes} bytes"
    return f"its length is {record_bytes}, below {RECORD_BYTES_MIN}"


def _foreign(data: memoryview, position: int, end: int, magic: int, flags: int, topic: bytes) -> str | None:
    """Return the fault in the lengths or the topic of the record from ``position`` to ``end``, if any."""
    at = position + _V4_BODY_BYTES
    if flags & _UNUSUAL:
        if flags & _INNER_BATCH:
            return "it holds a batch of messages, which is not supported"
        at += _V6_MORE * ((flags & _BORN_V6 != 0) + (flags & _STORE_V6 != 0))
    width = 1 if magic == MAGIC_V1 else 2
    if at + 4 + width > end:
        return "its hosts do not fit into it"
    body_bytes = _I32.unpack_from(data, at)[0]
    at += 4 + body_bytes
    if body_bytes < 0 or at + width > end:
        return f"its body of {body_bytes} bytes does not fit into it"
    topic_bytes = data[at] if width == 1 else _I16.unpack_from(data, at)[0]
    at += width
    if topic_bytes < 0 or at + topic_bytes + 2 > end:
        return f"its topic of {topic_bytes} bytes does not fit into it"
    name = data[at : at + topic_bytes]
    if name != topic:
        return f"it is of topic {bytes(name[:255]).decode(errors='replace')!r}"
    at += topic_bytes
    properties_bytes = _I16.unpack_from(data, at)[0]
    fits = properties_bytes >= 0 and at + 2 + properties_bytes <= end
    return None if fits else f"its properties of {properties_bytes} bytes do not fit into it"


def store_times(data: Buffer) -> Iterator[tuple[int, int]]:
    """Yield queue offset and store time (ms) of each record in ``data``, whole records that were measured."""
    position = 0
    while position < len(data):
        record_bytes, _, _, _, _, offset, _, flags = _HEAD.unpack_from(data, position)
        host = _BORN_HOST + (20 if flags & _BORN_V6 else 8)
        yield offset, _I64.unpack_from(data, position + host)[0]
        position += record_bytes
