"""A broker's registration at a name server: its topics, plain or compressed.

::

    compressed:  zlib of
        length i32 | data version as JSON
        count i32  | count times: length i32 | topic as text
        length i32 | list of filter servers as JSON
        count i32  | count times: length i32 | mapping of a static topic as JSON      from version 413 on

A topic as text is ``name reads writes perm filter-type``, with blanks between, and 5.x adds its attributes as JSON.

Source: docs/remoting-protocol.md, "Registration".
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from metaq.errors import FieldError
from metaq.model import Buffer
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.bodies.json_text import VALUES_MAX, check_values, load_json
from metaq.protocols.remoting.codes import VERSION_5
from metaq.protocols.remoting.wire_types import I32, I64

WRAPPER_ALONE_BELOW: Final = 37
"""Brokers of lower versions send only ``TopicConfigs``."""
INFLATED_BYTES_MAX: Final = 64 << 20
"""Longest registration after decompression."""

BARE_KEYS_BYTES_MAX: Final = 1 << 20
PART_BARE_KEYS_BYTES_MAX: Final = 1 << 16
"""Longest registration, and longest part of a compressed one, that may have unquoted keys."""

_NAME: Final = "RegisterBrokerBody"
_I32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion(JsonBody):
    """Time of the last change, in milliseconds, and the number of changes; ``state_version`` exists since 5.x."""

    timestamp: I64 = 0
    counter: I64 = 0
    state_version: I64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigBody(JsonBody):
    """One topic of a broker.

    ``perm``: 4 = read, 2 = write, 1 = template. ``topic_sys_flag``: 1 = unit, 2 = unit subscription.
    """

    topic_name: str
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: dict[str, str] | None = None

    def to_text(self) -> str:
        """Return the topic in the form of a compressed registration, without flags and order."""
        fields = (self.topic_name, self.read_queue_nums, self.write_queue_nums, self.perm, self.topic_filter_type)
        text = " ".join(map(str, fields))
        return f"{text} {json.dumps(self.attributes, separators=(',', ':'))}" if self.attributes else text

    @classmethod
    def from_text(cls, text: str) -> TopicConfigBody:
        """Parse the form of ``to_text``.

        Raises:
            FieldError: ``text`` has another form.
        """
        name, *fields = text.split(" ", 5)
        names = ("readQueueNums", "writeQueueNums", "perm", "topicFilterType")
        if len(fields) < len(names):
            raise FieldError(_NAME, "topic", text, "'name reads writes perm filter-type'")
        has_attributes = len(fields) > 4 and fields[4].strip()
        attributes = load_json(fields[4].encode(), _NAME, PART_BARE_KEYS_BYTES_MAX) if has_attributes else None
        return cls.from_value({"topicName": name, "attributes": attributes, **dict(zip(names, fields, strict=False))})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigs(JsonBody):
    """The topics of a broker by name. The response to 21, and part of a registration."""

    NAME = "TopicConfigSerializeWrapper"

    topic_config_table: dict[str, TopicConfigBody] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerBody(JsonBody):
    """The body of a registration."""

    topic_config_serialize_wrapper: TopicConfigs = field(default_factory=TopicConfigs)
    filter_server_list: tuple[str, ...] = ()


def read_registration(body: Buffer, compressed: bool, version: int) -> RegisterBrokerBody:
    """Return the registration of a broker whose command had ``version``. No body: no topics.

    Raises:
        FieldError: ``body`` is not a registration.
    """
    if not body:
        return RegisterBrokerBody()
    if version < WRAPPER_ALONE_BELOW:
        topics = TopicConfigs.from_json(body, BARE_KEYS_BYTES_MAX)
        return RegisterBrokerBody(topic_config_serialize_wrapper=topics)
    return _inflated(body) if compressed else RegisterBrokerBody.from_json(body, BARE_KEYS_BYTES_MAX)


def write_registration(registration: RegisterBrokerBody, compressed: bool, version: int) -> bytes:
    """Return ``registration`` as the body of a command with ``version``."""
    if not compressed:
        return registration.to_json()
    topics = registration.topic_config_serialize_wrapper
    parts = [_counted(topics.data_version.to_json()), _I32.pack(len(topics.topic_config_table))]
    parts += [_counted(topic.to_text().encode("utf-8", "replace")) for topic in topics.topic_config_table.values()]
    parts.append(_counted(json.dumps(list(registration.filter_server_list), separators=(",", ":")).encode()))
    if version >= VERSION_5:  # with mappings of static topics
        mappings = topics.topic_queue_mapping_info_map or {}
        parts.append(_I32.pack(len(mappings)))
        parts += [_counted(json.dumps(each, separators=(",", ":")).encode()) for each in mappings.values()]
    return zlib.compress(b"".join(parts), 9)


def _counted(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _inflated(body: Buffer) -> RegisterBrokerBody:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise FieldError(_NAME, "body", str(error), "a zlib stream") from None
    if not inflater.eof:
        allowed = f"a whole zlib stream of at most {INFLATED_BYTES_MAX} bytes when decompressed"
        raise FieldError(_NAME, "body", f"{len(body)} bytes", allowed)
    check_values(data, _NAME)
    parts = _Parts(data)
    limit = PART_BARE_KEYS_BYTES_MAX
    version = DataVersion.from_json(parts.text(), limit)
    table = {topic.topic_name: topic for topic in map(TopicConfigBody.from_text, parts.texts())}
    servers = load_json(parts.text(), _NAME, limit)
    mappings = [load_json(text.encode(), _NAME, limit) for text in parts.texts()] if parts.has_more else []
    infos = {str(each.get("topic")): each for each in mappings if isinstance(each, dict)}
    topics = TopicConfigs(topic_config_table=table, data_version=version, topic_queue_mapping_info_map=infos or None)
    plain = {"filterServerList": servers}
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=topics,
        filter_server_list=RegisterBrokerBody.from_value(plain).filter_server_list,
    )


class _Parts:
    """The decompressed body, part by part."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def _number(self) -> int:
        try:
            (number,) = _I32.unpack_from(self._data, self._at)
        except struct.error:
            raise FieldError(_NAME, "body", f"{len(self._data)} bytes", "a whole registration") from None
        self._at += _I32.size
        return int(number)

    def text(self) -> bytes:
        """The next part after its length."""
        length = self._number()
        if not 0 <= length <= len(self._data) - self._at:
            raise FieldError(_NAME, "length", length, f"at most the {len(self._data) - self._at} bytes that are left")
        self._at += length
        return self._data[self._at - length : self._at]

    def texts(self) -> Iterator[str]:
        """The next parts, after their count."""
        count = self._number()
        if not 0 <= count <= (len(self._data) - self._at) // _I32.size:
            raise FieldError(_NAME, "count", count, f"at most what {len(self._data) - self._at} bytes can hold")
        if count > VALUES_MAX:
            raise FieldError(_NAME, "count", count, f"at most {VALUES_MAX}")
        for _ in range(count):
            yield self.text().decode("utf-8", "replace")
