"""Records: messages as brokers store them and return them for a pull, back to back.

::

     0 size i32 | magic i32 | body CRC i32 | queue i32 | flag i32
    20 queue offset i64 | physical offset i64 | sys flag i32
    40 born timestamp i64 | born host 8 or 20
    56 store timestamp i64 | store host 8 or 20          from here on with IPv4 addresses
    72 reconsume times i32 | prepared transaction offset i64
    84 body length i32 | body
       topic length i8 (version 1) or i16 (version 2) | topic
       properties length i16 | properties

Numbers are big-endian, times in milliseconds. Hosts are 4 or 16 bytes of IP, as the sys flag says, and a port of 4. The
CRC is computed over the stored body, without its top bit.

``Record`` is a named tuple, not a dataclass, because a reader creates hundreds of thousands a second.

Source: docs/remoting-protocol.md, "Stored records".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from metaq.errors import CorruptRecord, FieldError
from metaq.formats.checksum import CHECKSUM_MASK, crc32
from metaq.formats.rocketmq.batches import decode_batch
from metaq.formats.rocketmq.compression import BODY_BYTES_MAX, INSTALLED, Decompressors, decompress
from metaq.formats.rocketmq.hosts import IPV6_BYTES, host_text
from metaq.formats.rocketmq.message_ids import offset_message_id
from metaq.formats.rocketmq.properties import BYTES_MAX, parse_properties
from metaq.formats.rocketmq.sys_flags import (
    BORN_HOST_IPV6,
    COMPRESSED,
    COMPRESSION,
    INNER_BATCH,
    NEED_UNWRAP,
    STORE_HOST_IPV6,
)
from metaq.model import Buffer

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""Only topics of more than 127 bytes need version 2, and only clients of 5.x read it."""
TOPIC_BYTES_MAX_V1: Final = 127

_HOSTS: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
_UP_TO_BODY: Final = {
    bits: struct.Struct(f">iIIiiqqiq{20 if bits & BORN_HOST_IPV6 else 8}sq{20 if bits & STORE_HOST_IPV6 else 8}siqi")
    for bits in (0, BORN_HOST_IPV6, STORE_HOST_IPV6, _HOSTS)
}
_IPV4: Final = _UP_TO_BODY[0]
_SIZE: Final = struct.Struct(">i")
_U16: Final = struct.Struct(">H")
SIZE_MIN: Final = _IPV4.size + 1 + _U16.size
"""Bytes of a record with IPv4 addresses and nothing of variable length."""


class Record(NamedTuple):
    """One message. ``body`` is as stored, possibly compressed; hosts are 8 or 20 bytes (``hosts.host_text``).

    ``properties`` is in text form. ``size`` and ``body_crc`` are set by decoding; encoding computes them.
    """

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    physical_offset: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    store_timestamp: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    size: int = 0

    def property_map(self) -> dict[str, str]:
        """Return names and values of the properties."""
        return parse_properties(self.properties)

    def value(self, decompressors: Decompressors = INSTALLED, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """Return the decompressed body.

        Raises:
            CodecMissing: The body needs a package that is not installed.
            CorruptRecord: It cannot be decompressed, or exceeds ``bytes_max``.
        """
        return decompress(self.body, self.sys_flag, decompressors, bytes_max)

    @property
    def offset_message_id(self) -> str:
        """The broker's id of the message."""
        return offset_message_id(self.store_host, self.physical_offset)

    @property
    def born_address(self) -> str:
        """The producer's address, ``host:port``."""
        return host_text(self.born_host)


def read_record(data: Buffer, at: int = 0, check_crc: bool = True) -> Record:
    """Return the record that begins at byte ``at``; the next one begins ``size`` bytes later.

    Set ``check_crc`` to false for the record in a transaction check, whose CRC may be 0.

    Raises:
        CorruptRecord: It is not a record, or its CRC is wrong. ``size`` of the error is the distance to the next
            record, 0 if unknown.
    """
    try:
        return _read(data if isinstance(data, bytes) else memoryview(data), at, check_crc)
    except struct.error:
        raise CorruptRecord("records", at, 0, f"{len(data) - at} bytes are not a whole record") from None


def _read(data: bytes | memoryview, at: int, check_crc: bool) -> Record:
    (size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, *rest) = _IPV4.unpack_from(data, at)
    end = at + size
    if size < SIZE_MIN or end > len(data):
        raise CorruptRecord("records", at, 0, f"its size is {size}, with {len(data) - at} bytes there")
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise CorruptRecord("records", at, size, f"its magic number is {magic:#010x}")
    layout = _IPV4
    if sys_flag & _HOSTS:
        layout = _UP_TO_BODY[sys_flag & _HOSTS]
        rest = list(layout.unpack_from(data, at)[8:])
    born, born_host, stored, store_host, reconsume_times, prepared_offset, length = rest
    body_at = at + layout.size
    topic_at = body_at + length
    topic_length, topic_at = _topic_length(data, topic_at, magic == MAGIC_V1, length, at, end)
    properties_at = topic_at + topic_length + _U16.size
    if properties_at > end:
        raise CorruptRecord("records", at, size, f"its topic of {topic_length} bytes reaches beyond it")
    (properties_length,) = _U16.unpack_from(data, properties_at - _U16.size)
    if properties_at + properties_length > end:
        raise CorruptRecord("records", at, size, f"its properties of {properties_length} bytes reach beyond it")
    body = bytes(data[body_at : body_at + length])
    if check_crc and (expected := crc32(body) & CHECKSUM_MASK) != crc:
        raise CorruptRecord("records", at, size, f"its CRC is {crc}, not {expected}")
    return Record(
        str(data[topic_at : topic_at + topic_length], "utf-8", "replace"),
        queue_id,
        queue_offset,
        body,
        bytes(data[properties_at : properties_at + properties_length]),
        flag,
        sys_flag,
        physical_offset,
        born,
        born_host,
        stored,
        store_host,
        reconsume_times,
        prepared_offset,
        crc,
        size,
    )


def _topic_length(
    data: bytes | memoryview, topic_at: int, short: bool, body_length: int, at: int, end: int
) -> tuple[int, int]:
    """Return the length of the topic after a body that ends at ``topic_at``, and where the topic begins."""
    if body_length < 0 or topic_at + 2 > end:
        raise CorruptRecord("records", at, end - at, f"its body of {body_length} bytes reaches beyond it")
    if not short:
        return _U16.unpack_from(data, topic_at)[0], topic_at + _U16.size
    length = data[topic_at]
    if length > TOPIC_BYTES_MAX_V1:
        raise CorruptRecord("records", at, end - at, f"its topic has the length {length - 256}")
    return length, topic_at + 1


def read_records(data: Buffer, check_crc: bool = True) -> Iterator[Record]:
    """Yield the records in ``data``.

    Raises:
        CorruptRecord: The next bytes are not a record. To continue after them, use ``read_record``.
    """
    data = bytes(data)
    at = 0
    while at < len(data):
        record = read_record(data, at, check_crc)
        at += record.size
        yield record


def encode_record(record: Record) -> bytes:
    """Return ``record`` as bytes. Its hosts set the bits for IPv6 in ``sys_flag``.

    Raises:
        FieldError: A field does not fit.
    """
    topic = record.topic.encode("utf-8", "replace")
    short = len(topic) <= TOPIC_BYTES_MAX_V1
    if len(topic) > BYTES_MAX or len(record.properties) > BYTES_MAX:
        field = "topic" if len(topic) > BYTES_MAX else "properties"
        value = topic if field == "topic" else record.properties
        raise FieldError("a record", field, f"{len(value)} bytes", f"at most {BYTES_MAX} bytes")
    hosts = BORN_HOST_IPV6 * (len(record.born_host) == IPV6_BYTES)
    hosts |= STORE_HOST_IPV6 * (len(record.store_host) == IPV6_BYTES)
    layout = _UP_TO_BODY[hosts]
    behind = (bytes((len(topic),)) if short else _U16.pack(len(topic))) + topic + _U16.pack(len(record.properties))
    try:
        head = layout.pack(
            layout.size + len(record.body) + len(behind) + len(record.properties),
            MAGIC_V1 if short else MAGIC_V2,
            crc32(record.body) & CHECKSUM_MASK,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.physical_offset,
            record.sys_flag & ~_HOSTS | hosts,
            record.born_timestamp,
            record.born_host,
            record.store_timestamp,
            record.store_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            len(record.body),
        )
    except struct.error as error:
        raise FieldError("a record", "number", record[1:14], f"of the size of its field ({error})") from None
    return b"".join((head, record.body, behind, record.properties))


def unwrapped(record: Record, decompressors: Decompressors = INSTALLED) -> list[Record]:
    """Return the messages of a record: itself, or the elements of its inner batch, which may be compressed as a whole.

    Raises:
        CodecMissing: The body needs a package that is not installed.
        CorruptRecord: The body is not a batch.
    """
    if not record.sys_flag & INNER_BATCH:
        return [record]
    sys_flag = record.sys_flag & ~(INNER_BATCH | NEED_UNWRAP | COMPRESSED | COMPRESSION)
    return [
        record._replace(
            queue_offset=record.queue_offset + index,
            body=element.body,
            properties=element.properties,
            flag=element.flag,
            sys_flag=sys_flag,
        )
        for index, element in enumerate(decode_batch(record.value(decompressors)))
    ]
