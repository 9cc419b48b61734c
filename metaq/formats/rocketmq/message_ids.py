"""The two ids of a message: the broker's, which contains its position, and the producer's (UNIQ_KEY).

::

    offset message id = hex of: broker's IP (4 or 16) | port i32 | physical offset i64             32 or 56 digits
    UNIQ_KEY          = hex of: producer's IP (4 or 16) | process i16 | number i32
                                | milliseconds since the local month began i32 | count i16         32 or 56 digits

Digits are upper case. Only tools interpret a UNIQ_KEY: any unique text is accepted.

Source: docs/remoting-protocol.md, "Message ids".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final, Self

from metaq.formats.rocketmq.hosts import IPV4_BYTES, IPV6_BYTES, host_text

_OFFSET: Final = struct.Struct(">q")
_DIGITS: Final = frozenset("0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True)
class OffsetMessageId:
    """The position of a message: the broker's address as in a record (8 or 20 bytes), and the byte offset in
    its log.
    """

    host: bytes
    physical_offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id.

        Raises:
            ValueError: ``text`` is not an id.
        """
        lengths = [2 * (length + _OFFSET.size) for length in (IPV4_BYTES, IPV6_BYTES)]
        if len(text) not in lengths or not _DIGITS.issuperset(text):
            raise ValueError(f"message id {text[:80]!r}; it must have {lengths[0]} or {lengths[1]} hexadecimal digits")
        data = bytes.fromhex(text)
        (offset,) = _OFFSET.unpack(data[-_OFFSET.size :])
        return cls(data[: -_OFFSET.size], offset)

    @property
    def address(self) -> str:
        """The broker's address, ``host:port``."""
        return host_text(self.host)

    def __str__(self) -> str:
        return offset_message_id(self.host, self.physical_offset)


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Return the text of the ``OffsetMessageId`` with these fields; faster than the class."""
    return (host + _OFFSET.pack(physical_offset)).hex().upper()


def month_start_ms(now_ms: int, zone: tzinfo | None = None) -> int:
    """Return when the month of ``now_ms`` began in ``zone``, ``None`` = the local one; both in milliseconds."""
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    return int(now.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000)


class UniqueKeys:
    """Generates the UNIQ_KEYs of one producer. Keys are unique up to 65,536 in a millisecond."""

    def __init__(self, ip: bytes, process: int, number: int) -> None:
        """``ip`` has 4 or 16 bytes; ``number`` (32 bits) distinguishes producers of one process."""
        self._producer = ip + struct.pack(">HI", process & 0xFFFF, number & 0xFFFFFFFF)
        self._count = 0

    def next(self, now_ms: int, month_ms: int) -> str:
        """Return another key; ``month_ms`` is when the month began."""
        self._count = self._count + 1 & 0xFFFF
        return (self._producer + struct.pack(">IH", now_ms - month_ms & 0xFFFFFFFF, self._count)).hex().upper()
