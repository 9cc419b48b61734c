"""Converts MetaQ's frames into RocketMQ's records, for the response to a pull. One pass, no I/O.

A frame of a RocketMQ client (``stored_form``) becomes the record that RocketMQ would store. Any other frame is a
message of a MetaQ client: its attribute, up to a byte 2 and ``TAG_BYTES_MAX`` bytes, becomes the tag, its only
property; its time of birth is the store time, its born host 0.0.0.0:0, and all other fields are 0.

Source: docs/log-format.md, "Messages of RocketMQ clients".
"""

from __future__ import annotations

import struct
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metaq.formats.checksum import CHECKSUM_MASK, crc32
from metaq.formats.frames import FLAG_ATTRIBUTE, intact, walk
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT
from metaq.formats.rocketmq.hosts import IPV4_BYTES, IPV6_BYTES
from metaq.formats.rocketmq.properties import BYTES_MAX, TAGS
from metaq.formats.rocketmq.records import MAGIC_V1, MAGIC_V2, TOPIC_BYTES_MAX_V1, read_record
from metaq.formats.rocketmq.sys_flags import STORE_HOST_IPV6
from metaq.formats.stored_form import HEAD_BYTES_MIN, SEPARATOR, STORED_FORM, fields_fit, head_end
from metaq.model import Buffer

TAG_BYTES_MAX: Final = 32_000
"""Limit on bytes of a MetaQ message's attribute that become the tag: properties have a limit."""

FRAME_BYTES: Final = 2048
"""Assumed size of a frame, until one was read."""

_LENGTH: Final = struct.Struct(">i")
_U16: Final = struct.Struct(">H")
_TAGS_NAME: Final = f"{TAGS}\x01".encode()
_IPV4_FIELDS_BYTES: Final = 36
_KIND_IPV4: Final = ord("4")
_NOWHERE: Final = bytes(IPV4_BYTES)


class FrameRun(NamedTuple):
    """Whole frames back to back, in ``data``: the messages with the queue offsets ``[start, end)``.

    The first frame is at ``physical_offset``, the others follow. ``known_ms`` is the store time of messages whose ids
    contain none; ``store_host`` (8 or 20 bytes) is the address of their broker.
    """

    start: int
    end: int
    data: Buffer
    physical_offset: int
    known_ms: int
    store_host: bytes


class Wanted(NamedTuple):
    """Limits on the records to make: at least one if possible, then up to the given number and bytes.

    At most ``looked_at_max`` messages are scanned. ``tags``: only messages with one of them, ``None`` = all.
    ``condition``: only messages whose properties satisfy it.
    """

    messages_max: int
    bytes_max: int
    looked_at_max: int
    tags: Container[bytes] | None = None
    condition: Callable[[Mapping[str, str]], bool] | None = None

    @property
    def picks(self) -> bool:
        """Whether messages are filtered."""
        return self.tags is not None or self.condition is not None


@dataclass(slots=True)
class Collected:
    """The resulting ``records``: each element has one, or several back to back; there are ``count`` of them.

    ``record_bytes``: in total. ``looked_at`` messages were scanned. ``is_full``: a limit was reached.
    """

    wanted: Wanted
    records: list[bytes] = field(default_factory=list)
    count: int = 0
    record_bytes: int = 0
    looked_at: int = 0
    is_full: bool = False


class QueueRecords:
    """Creates the records of one queue of the broker at ``store_host`` (8 or 20 bytes).

    ``magic`` and ``queue_id`` are in every record, ``ends`` is ``store_host`` and, after it, the topic with its
    length. ``has_plain_host``: it is an IPv4 address. ``frame_bytes``: approximate size of a frame of this queue.
    """

    def __init__(self, topic: str, queue_id: int, store_host: bytes) -> None:
        name = topic.encode()
        is_short = len(name) <= TOPIC_BYTES_MAX_V1
        self.magic: Final = MAGIC_V1 if is_short else MAGIC_V2
        self._topic = (bytes((len(name),)) if is_short else _U16.pack(len(name))) + name
        self.queue_id: Final = queue_id
        self.frame_bytes = FRAME_BYTES
        self._store_host = store_host
        self.ends: Final = store_host + self._topic
        self.has_plain_host: Final = len(store_host) == IPV4_BYTES
        layouts = [struct.Struct(f">iIIi4sqq{12 + born}sq{len(store_host)}s12si") for born in (IPV4_BYTES, IPV6_BYTES)]
        behind_bytes = len(self._topic) + _U16.size
        self._ipv4_born, self._ipv6_born = [(layout, layout.size + behind_bytes) for layout in layouts]

    def of_run(
        self, run: bytes, offset: int, ordinal: int, physical_base: int, known_ms: int, into: Collected, where: str
    ) -> int:
        """Convert the frames of a run that begins at ``offset`` with the message ``ordinal``.

        Return how many bytes at the front of the run were processed, 0 if it has no whole frame. The physical offset of
        a message is its offset plus ``physical_base``. ``known_ms`` is the store time of messages whose id has none.
        ``where`` names the run in errors.

        Raises:
            CorruptFrame: The first frame is damaged. Later damage ends the conversion.
        """
        at = 0
        messages_max, bytes_max, looked_at_max, tags, condition = into.wanted
        records, count, record_bytes, looked_at = into.records, into.count, into.record_bytes, into.looked_at
        for end, message_id, flag, checksum, body in intact(run):
            store_ms = (message_id >> TIME_SHIFT) + EPOCH_MS if message_id >= 0 else known_ms
            record = self._record(flag, body, checksum, ordinal, physical_base + offset + at, store_ms, tags)
            if record is not None and (condition is None or condition(read_record(record).property_map())):
                if count and record_bytes + len(record) > bytes_max:
                    into.is_full = True
                    break
                records.append(record)
                count += 1
                record_bytes += len(record)
            at, ordinal, looked_at = end, ordinal + 1, looked_at + 1
            if count >= messages_max or looked_at >= looked_at_max:
                into.is_full = True
                break
        into.count, into.record_bytes, into.looked_at = count, record_bytes, looked_at
        if not at and not into.is_full:
            next(walk(run, offset, where=where), None)  # raises why the first frame is not intact, unless it is cut
        return at

    def _record(
        self,
        flag: int,
        body: bytes,
        checksum: int,
        ordinal: int,
        physical: int,
        store_ms: int,
        tags: Container[bytes] | None,
    ) -> bytes | None:
        """Return the record of a frame's body, ``None`` if its tag is not one of ``tags``."""
        if flag & STORED_FORM == STORED_FORM and len(body) >= _LENGTH.size:
            # Fast path without a copy of the attribute, for nearly all frames: from a RocketMQ client with an IPv4
            # address.
            payload_at = _LENGTH.size + _LENGTH.unpack_from(body)[0]
            tag_end = body.find(SEPARATOR, _LENGTH.size, payload_at)
            head_at, end = tag_end + 2, tag_end + HEAD_BYTES_MIN
            if tag_end > 0 and end <= payload_at <= len(body) and body[head_at - 1] == _KIND_IPV4:
                if tags is not None and body[_LENGTH.size : tag_end] not in tags:
                    return None
                try:
                    fields = a2b_base64(body[head_at:end], strict_mode=True)
                except Base64Error:
                    fields = b""
                if fields_fit(fields, HEAD_BYTES_MIN):
                    return self._joined(fields, body[end:payload_at], body[payload_at:], ordinal, physical, store_ms)
        return self._unusual(flag, body, checksum, ordinal, physical, store_ms, tags)

    def _unusual(
        self,
        flag: int,
        body: bytes,
        checksum: int,
        ordinal: int,
        physical: int,
        store_ms: int,
        tags: Container[bytes] | None,
    ) -> bytes | None:
        if not flag & FLAG_ATTRIBUTE or len(body) < _LENGTH.size:
            return self._foreign(b"", body, checksum, ordinal, physical, store_ms) if tags is None else None
        payload_at = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        if not _LENGTH.size <= payload_at <= len(body):
            return self._foreign(b"", body, checksum, ordinal, physical, store_ms) if tags is None else None
        attribute = body[_LENGTH.size : payload_at]
        tag_bytes = attribute.find(SEPARATOR)
        if flag & STORED_FORM == STORED_FORM and tag_bytes >= 0 and (end := head_end(attribute, tag_bytes)) >= 0:
            if tags is not None and attribute[:tag_bytes] not in tags:
                return None
            try:
                fields = a2b_base64(attribute[tag_bytes + 2 : end], strict_mode=True)
            except Base64Error:
                fields = b""
            if fields_fit(fields, end - tag_bytes):
                return self._joined(fields, attribute[end:], body[payload_at:], ordinal, physical, store_ms)
        tag = tag_of_attribute(attribute)
        if tags is not None and tag not in tags:
            return None
        return self._foreign(tag, body[payload_at:], None, ordinal, physical, store_ms)

    def _foreign(
        self, tag: bytes, body: bytes, checksum: int | None, ordinal: int, physical: int, store_ms: int
    ) -> bytes:
        fields = struct.pack(f">iiq{IPV4_BYTES}siq", 0, 0, store_ms, _NOWHERE, 0, 0)
        properties = _TAGS_NAME + tag if tag else b""
        return self._joined(fields, properties, body, ordinal, physical, store_ms, checksum)

    def _joined(
        self,
        fields: bytes,
        properties: bytes,
        body: bytes,
        ordinal: int,
        physical: int,
        store_ms: int,
        checksum: int | None = None,
    ) -> bytes:
        if len(properties) > BYTES_MAX:  # no broker stores this; a record could not express the length
            properties = properties[:BYTES_MAX]
        body_bytes, topic = len(body), self._topic
        layout, front_bytes = self._ipv4_born if len(fields) == _IPV4_FIELDS_BYTES else self._ipv6_born
        head = layout.pack(
            front_bytes + body_bytes + len(properties),
            self.magic,
            crc32(body) & CHECKSUM_MASK if checksum is None else checksum,
            self.queue_id,
            fields[:4],
            ordinal,
            physical,
            fields[4:-12] if self.has_plain_host else _with_ipv6(fields[4:-12]),
            store_ms,
            self._store_host,
            fields[-12:],
            body_bytes,
        )
        return b"".join((head, body, topic, _U16.pack(len(properties)), properties))


def tag_of_attribute(attribute: bytes) -> bytes:
    """Return the tag for the attribute of a MetaQ message."""
    tag = attribute.partition(SEPARATOR)[0]
    if len(tag) <= TAG_BYTES_MAX:
        return tag
    return tag[:TAG_BYTES_MAX].decode("utf-8", "ignore").encode()


def _with_ipv6(fields: bytes) -> bytes:
    """Return the fields from the sys flag on, with the bit for an IPv6 store host."""
    return (int.from_bytes(fields[:4]) | STORE_HOST_IPV6).to_bytes(4) + fields[4:]
