"""Elements of a batch: the messages in the body of a send with ``batch``, back to back.

::

    size i32 | magic i32 = 0 | body CRC i32 = 0 | flag i32 | body length i32 | body | properties length i16 | properties

Topic, queue and times are in the send. Each element has its own properties, including UNIQ_KEY; the properties of the
send apply to all.

Source: docs/remoting-protocol.md, "Elements of a batch".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from metaq.errors import CorruptRecord, FieldError
from metaq.formats.rocketmq.properties import BYTES_MAX
from metaq.model import Buffer

_HEAD: Final = struct.Struct(">iiiii")
_PROPERTIES: Final = struct.Struct(">H")

OVERHEAD_BYTES: Final = _HEAD.size + _PROPERTIES.size
"""Bytes of an element beside its body and its properties."""


class BatchElement(NamedTuple):
    """A message of a batch; ``properties`` is in RocketMQ's text form."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(elements: Iterable[BatchElement]) -> bytes:
    """Return ``elements`` as the body of a send.

    Raises:
        FieldError: The properties of an element do not fit.
    """
    parts: list[bytes] = []
    for body, properties, flag in elements:
        if len(properties) > BYTES_MAX:
            raise FieldError("a message", "properties", f"{len(properties)} bytes", f"at most {BYTES_MAX} bytes")
        size = OVERHEAD_BYTES + len(body) + len(properties)
        parts += (
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _PROPERTIES.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(data: Buffer) -> list[BatchElement]:
    """Decode the elements in ``data``.

    Raises:
        CorruptRecord: ``data`` is not a batch.
    """
    data = bytes(data)
    elements, at = [], 0
    while at < len(data):
        if len(data) - at < OVERHEAD_BYTES:
            raise CorruptRecord("batch", at, 0, f"{len(data) - at} bytes are not a whole element")
        size, _, _, flag, length = _HEAD.unpack_from(data, at)
        end, body_end = at + size, at + _HEAD.size + length
        if size < OVERHEAD_BYTES or end > len(data):
            raise CorruptRecord("batch", at, 0, f"its size is {size}, with {len(data) - at} bytes there")
        if length < 0 or body_end + _PROPERTIES.size > end:
            raise CorruptRecord("batch", at, size, f"its body of {length} bytes reaches beyond it")
        properties_at = body_end + _PROPERTIES.size
        (properties_length,) = _PROPERTIES.unpack_from(data, body_end)
        if properties_at + properties_length > end:
            raise CorruptRecord("batch", at, size, f"its properties of {properties_length} bytes reach beyond it")
        body, properties = data[at + _HEAD.size : body_end], data[properties_at : properties_at + properties_length]
        elements.append(BatchElement(body, properties, flag))
        at = end
    return elements
