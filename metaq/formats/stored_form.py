"""The stored form of a RocketMQ message: a MetaQ frame whose attribute begins with the tag. Both protocols read it.

The payload is the message body, so a MetaQ client that knows nothing of this gets it exactly. What MetaQ has no word
for travels in the attribute, behind the tag, as text, because attributes are UTF-8::

    size  part of the attribute
     n    tag                empty if there is none; never contains the byte 2
     1    byte 2
     1    "4" or "6"         whether the producer's address is of IPv4 or IPv6
    48    fields, base64     (64 with IPv6): the 36 or 48 bytes of the table below
     m    properties         RocketMQ's text of all properties, TAGS among them, as it came

    at   size  field of the fields
     0     4   flag                            the application's
     4     4   sys flag                        without the bit that the broker's address is of IPv6
     8     8   born timestamp, ms
    16     8   born host                       20 with IPv6; 4 or 16 bytes of IP, then 4 of port
    24     4   reconsume times
    28     8   prepared transaction offset

Such a frame has the flag bits 0 (MetaQ's: there is an attribute) and 1. A frame with both bits whose attribute is not
built like this is a plain MetaQ message: MetaQ's clients may set any bit.

What is not in the frame follows from where it is: queue offset = ordinal, store time = the id's, topic and queue = the
partition, broker's address = the address of the broker that answers.

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
"""Flag bit 1: the attribute is in the form of this module, if it is built like it."""

STORED_FORM: Final = FLAG_ATTRIBUTE | FLAG_TAGGED
"""The flag of a frame that holds a RocketMQ message."""

SEPARATOR: Final = b"\x02"
"""Stands behind the tag."""

HEAD_BYTES_MIN: Final = len(SEPARATOR) + 1 + 48
HEAD_BYTES_MAX: Final = len(SEPARATOR) + 1 + 64
"""What stands between tag and properties has at least and at most so many bytes."""

_IPV4_FIELDS: Final = struct.Struct(f">iiq{IPV4_BYTES}siq")
_IPV6_FIELDS: Final = struct.Struct(f">iiq{IPV6_BYTES}siq")
_KIND_IPV4, _KIND_IPV6 = b"4", b"6"
_HOSTS: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
_SYS_FLAG_LOW: Final = 7
"""Where the byte of the sys flag is that has these bits."""
_TAGS_NAME: Final = f"{TAGS}\x01".encode()


class StoredFields(NamedTuple):
    """What the attribute of a stored RocketMQ message says. ``tag`` is empty if there is none.

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
    if at and properties[at - 1] != SEPARATOR[0]:  # inside a value, or of a longer name
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
    """Return what stands between tag and properties. It is the same for all elements of a batch with the same flag.

    The bits of ``sys_flag`` for addresses of IPv6 are set by ``born_host``.

    Raises:
        FieldError: A number does not fit, or ``born_host`` is no address.
    """
    is_ipv6 = len(born_host) == IPV6_BYTES
    if not is_ipv6 and len(born_host) != IPV4_BYTES:
        raise FieldError("a message", "born host", f"{len(born_host)} bytes", f"{IPV4_BYTES} or {IPV6_BYTES} bytes")
    sys_flag = sys_flag & ~_HOSTS | BORN_HOST_IPV6 * is_ipv6
    layout = _IPV6_FIELDS if is_ipv6 else _IPV4_FIELDS
    numbers = flag, sys_flag, born_timestamp, reconsume_times, prepared_transaction_offset
    try:
        fields = layout.pack(flag, sys_flag, born_timestamp, born_host, reconsume_times, prepared_transaction_offset)
    except struct.error as error:
        raise FieldError("a message", "number", numbers, f"of the size of its field ({error})") from None
    return SEPARATOR + (_KIND_IPV6 if is_ipv6 else _KIND_IPV4) + b2a_base64(fields, newline=False)


def head_end(attribute: bytes, tag_bytes: int) -> int:
    """Return where the head behind a tag of so many bytes ends, -1 if there is none."""
    kind = attribute[tag_bytes + 1 : tag_bytes + 2]
    end = tag_bytes + (HEAD_BYTES_MIN if kind == _KIND_IPV4 else HEAD_BYTES_MAX)
    return end if end <= len(attribute) and kind in (_KIND_IPV4, _KIND_IPV6) else -1


def fields_fit(fields: bytes, head_bytes: int) -> bool:
    """Say whether the fields in a head of so many bytes are of its size, with the bits for IPv6 that belong to it."""
    if head_bytes == HEAD_BYTES_MIN:
        return len(fields) == _IPV4_FIELDS.size and not fields[_SYS_FLAG_LOW] & _HOSTS
    return len(fields) == _IPV6_FIELDS.size and fields[_SYS_FLAG_LOW] & _HOSTS == BORN_HOST_IPV6


def split_attribute(flag: int, attribute: bytes) -> StoredFields | None:
    """Return what the attribute of a frame with ``flag`` says, ``None`` if it is not of a RocketMQ message."""
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
    """Return what users see of the attribute of a frame with ``flag``: of a RocketMQ message the tag, ``None`` without.

    All of it of any other message.
    """
    fields = split_attribute(flag, attribute)
    return attribute if fields is None else fields.tag or None
