"""Payloads that identify their sender and show alterations.

::

    payload = producer "/" sequence "/" length "|" filler crc      crc = 8 hex digits of the CRC-32 of all before it

The filler is what storage and parsers mishandle most easily: zeros (as in a torn tail), line ends and commands, and
frames inside the frame.
"""

from __future__ import annotations

import re
import zlib
from typing import Final, NamedTuple

from metaq.formats.frames import encode_frame

CRC_BYTES: Final = 8
PAYLOAD_BYTES_MIN: Final = 64
"""Bytes of the longest head and of the checksum."""

_HEAD: Final = re.compile(rb"([a-z0-9.-]{1,24})/(\d{1,10})/(\d{1,10})\|")
_FILLERS: Final = (
    b"\x00",
    b"\r\nput trap 0 4 0 1\r\nvalue 20 7\r\n",
    encode_frame(7, 0, b"a frame inside a frame"),
    encode_frame(0, 0, b""),
    bytes(range(256)),
)


class MessageKey(NamedTuple):
    """Identifies a message: the ``sequence``-th of ``producer`` (1 to 24 of ``a-z0-9.-``)."""

    producer: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.sequence}"


class PayloadFault(Exception):
    """A payload that was not sent in this form."""


def make_payload(key: MessageKey, length: int) -> bytes:
    """Return the payload of ``key``, ``length`` (>= ``PAYLOAD_BYTES_MIN``) bytes; deterministic."""
    head = f"{key}/{length}|".encode()
    unit = _FILLERS[key.sequence % len(_FILLERS)]
    free = length - len(head) - CRC_BYTES
    if free < 0:
        raise ValueError(f"payload of {length} bytes is too short for {key}")
    content = head + (unit * (free // len(unit) + 1))[:free]
    return content + b"%08x" % zlib.crc32(content)


def read_payload(payload: bytes) -> MessageKey:
    """Return the key in a payload.

    Raises:
        PayloadFault: It is cut, altered, or not from ``make_payload``.
    """
    head = _HEAD.match(payload)
    if head is None:
        raise PayloadFault(f"{len(payload)} bytes that begin with {payload[:40]!r} are no payload of this test")
    key = MessageKey(head[1].decode(), int(head[2]))
    if len(payload) != int(head[3]):
        raise PayloadFault(f"payload of {key} has {len(payload)} bytes and says {int(head[3])}")
    if payload[-CRC_BYTES:] != b"%08x" % zlib.crc32(payload[:-CRC_BYTES]):
        raise PayloadFault(f"payload of {key} fails its checksum")
    return key
