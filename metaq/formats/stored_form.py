"""The stored form of a RocketMQ message: a MetaQ frame whose attribute begins with the tag. Both protocols can read it.

The payload is exactly the message body, also for MetaQ clients that do not know this form. Fields that MetaQ does not
have are in the attribute, after the tag, as text, because attributes are UTF-8::

    size  part of the attribute
     n    tag                empty if there is none; never contains the byte 2
     1    byte 2
     1    "4" or "6"         whether the producer's address is of IPv4 or IPv6
    48    fields, base64     (64 with IPv6): the 36 or 48 bytes of the table below
     m    properties         RocketMQ's text of all properties, including TAGS, as received

    at   size  field of the fields
     0     4   flag                            the application's
     4     4   sys flag                        without the bit that the broker's address is of IPv6
     8     8   born timestamp, ms
    16     8   born host                       20 with IPv6; 4 or 16 bytes of IP, then 4 of port
    24     4   reconsume times
    28     8   prepared transaction offset

Such a frame has the flag bits 0 (MetaQ's: has an attribute) and 1. A frame with both bits whose attribute has another
form is a plain MetaQ message: MetaQ's clients may set any bit.

The other fields follow from the frame's position: queue offset = ordinal, store time = the id's time, topic and queue =
the partition, broker's address = the address of the answering broker.

Source: docs/log-format.md, "Messages of RocketMQ clients"; docs/adr/0032-one-log-for-two-protocols.md.
"""

from __future__ import annotations

import struct
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import Final, NamedTuple

from metaq.errors import FieldError
from metaq.formats.rocketmq.hosts import IPV4_BYTES, IPV6_BYTES
from metaq.formats.rocketmq.properties import TAGS, parse_properties
from metaq.formats.rocketmq.sys_flags import BORN_HOST_IPV6, STORE_HOST_IPV6

FLAG_ATTRIBUTE: Final = 1
"""Flag bit 0 of a frame: the body starts with an attribute block."""

FLAG_TAGGED: Final = 2
"""Flag bit 1: the attribute has the form of this module, if it parses as such."""

STORED_FORM: Final = FLAG_ATTRIBUTE | FLAG_TAGGED
"""The flag of a frame that holds a RocketMQ message."""

SEPARATOR: Final = b"\x02"
"""Follows the tag."""

HEAD_BYTES_MIN: Final = len(SEPARATOR) + 1 + 48
HEAD_BYTES_MAX: Final = len(SEPARATOR) + 1 + 64
"""Smallest and largest size of the head, the part between tag and properties."""

_IPV4_FIELDS: Final = struct.Struct(f">iiq{IPV4_BYTES}siq")
_IPV6_FIELDS: Final = struct.Struct(f">iiq{IPV6_BYTES}siq")
_KIND_IPV4, _KIND_IPV6 = b"4", b"6"
_HOSTS: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
_SYS_FLAG_LOW: Final = 7
"""Position of the byte of the sys flag with these bits."""
_TAGS_NAME: Final = f"{TAGS}\x01".encode()


class StoredFields(NamedTuple):
    """The fields in the attribute of a stored RocketMQ message. ``tag`` is empty if there is none.

    ``born_host`` has 8 or 20 bytes, see ``metaq.formats.rocketmq.hosts``; ``born_timestamp`` is in milliseconds.
    """

    tag: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int


def tag_of(properties: bytes) -> bytes:
    """Return the value of TAGS in a text of properties, empty if there is none; the last one counts."""
    at = properties.rfind(_TAGS_NAME)
    if at < 0:
        return b""
    if at and properties[at - 1] != SEPARATOR[0]:  # inside a value, or part of a longer name
        return parse_properties(properties).get(TAGS, "").encode()
    value = properties[at + len(_TAGS_NAME) :].partition(SEPARATOR)[0]
    return value or parse_properties(properties).get(TAGS, "").encode()


def encode_head(
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Return the head, the part between tag and properties; the same for all elements of a batch with the same flag.

    ``born_host`` sets the bits of ``sys_flag`` for IPv6 addresses.

    Raises:
        FieldError: A number does not fit, or ``born_host`` is not an address.
    """
    is_ipv6 = len(born_host) == IPV6_BYTES
    if not is_ipv6 and len(born_host) != IPV4_BYTES:
        raise FieldError("a message", "born host", f"{len(born_host)} bytes", f"{IPV4_BYTES} or {IPV6_BYTES} bytes")
    sys_flag = sys_flag & ~_HOSTS | BORN_HOST_IPV6 * is_ipv6
    layout = _IPV6_FIELDS if is_ipv6 else _IPV4_FIELDS
    try:
        fields = layout.pack(flag, sys_flag, born_timestamp, born_host, reconsume_times, prepared_transaction_offset)
    except struct.error as error:
        numbers = flag, sys_flag, born_timestamp, reconsume_times, prepared_transaction_offset
        raise FieldError("a message", "number", numbers, f"of the size of its field ({error})") from None
    return SEPARATOR + (_KIND_IPV6 if is_ipv6 else _KIND_IPV4) + b2a_base64(fields, newline=False)


def head_end(attribute: bytes, tag_bytes: int) -> int:
    """Return where the head after a tag of ``tag_bytes`` ends, -1 if there is none."""
    kind = attribute[tag_bytes + 1 : tag_bytes + 2]
    end = tag_bytes + (HEAD_BYTES_MIN if kind == _KIND_IPV4 else HEAD_BYTES_MAX)
    return end if end <= len(attribute) and kind in (_KIND_IPV4, _KIND_IPV6) else -1


def fields_fit(fields: bytes, head_bytes: int) -> bool:
    """Return whether the fields match the size of the head and its bits for IPv6."""
    if head_bytes == HEAD_BYTES_MIN:
        return len(fields) == _IPV4_FIELDS.size and not fields[_SYS_FLAG_LOW] & _HOSTS
    return len(fields) == _IPV6_FIELDS.size and fields[_SYS_FLAG_LOW] & _HOSTS == BORN_HOST_IPV6


def split_attribute(flag: int, attribute: bytes) -> StoredFields | None:
    """Parse the attribute of a frame with ``flag``; return ``None`` if it is not a RocketMQ message."""
    if flag & STORED_FORM != STORED_FORM:
        return None
    tag_bytes = attribute.find(SEPARATOR)
    if tag_bytes < 0 or (end := head_end(attribute, tag_bytes)) < 0:
        return None
    try:
        fields = a2b_base64(attribute[tag_bytes + 2 : end], strict_mode=True)
    except Base64Error:
        return None
    if not fields_fit(fields, end - tag_bytes):
        return None
    layout = _IPV4_FIELDS if end - tag_bytes == HEAD_BYTES_MIN else _IPV6_FIELDS
    own_flag, sys_flag, born_timestamp, born_host, reconsume_times, prepared = layout.unpack(fields)
    return StoredFields(
        attribute[:tag_bytes],
        attribute[end:],
        own_flag,
        sys_flag,
        born_timestamp,
        born_host,
        reconsume_times,
        prepared,
    )


def shown_attribute(flag: int, attribute: bytes) -> bytes | None:
    """Return the attribute of a frame with ``flag`` as users see it: the tag of a RocketMQ message, ``None`` without
    one.

    For any other message, the whole attribute.
    """
    fields = split_attribute(flag, attribute)
    return attribute if fields is None else fields.tag or None
