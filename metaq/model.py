"""The nouns of the queue: messages, partitions, offset ranges and transaction names.

Values only, for both MetaQ and RocketMQ. In MetaQ an offset is the byte position of a frame's first byte in its
partition; in RocketMQ it is a message's number in its queue, without gaps. Names of partitions are tuples: they are
used as keys by the thousand, and a tuple's hash and order are computed in C.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

BROKER_ID_MAX = 1023
"""Broker ids take ten bits of every message id."""

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Buffer = bytes | bytearray | memoryview
"""Types accepted where bytes are only read."""

_UNIQUE = re.compile(r"[^ \t\r\n:]+")
_SESSION = re.compile(r"[^ \t\r\n:]+")
_BROKER_NAME = re.compile(r"[^\s\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a user: a payload and, optionally, one attribute string (``None`` = no attribute block).

    Raises:
        TypeError: The payload is not bytes, or the attribute not a string.
    """

    payload: bytes
    attribute: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.payload, Buffer):
            hint = "; encode it first: text.encode()" if isinstance(self.payload, str) else ""
            raise TypeError(f"payload of a message: expected bytes, got {type(self.payload).__name__}{hint}")
        if not isinstance(self.attribute, str | None):
            raise TypeError(f"attribute of a message: expected a string, got {type(self.attribute).__name__}")

    @staticmethod
    def require(given: object) -> None:
        """Check that an argument is a message.

        Raises:
            TypeError: It is something else.
        """
        if not isinstance(given, Message):
            raise TypeError(f"message: expected a Message such as Message(b'...'), got {type(given).__name__}")


class Partition(NamedTuple):
    """One partition (RocketMQ: queue) of a topic: the ``broker`` that has it, and its ``index`` >= 0 there.

    In MetaQ a broker is an id, 0..1023, and a partition prints as ``0-3``. In RocketMQ a broker is a name, and a queue
    prints as ``broker-a:3``. Partitions of one system have a total order; partitions of different systems are never
    compared.
    """

    broker: int | str
    index: int  # type: ignore[assignment]  # in place of the method of tuples

    def __str__(self) -> str:
        return f"{self.broker}:{self.index}" if isinstance(self.broker, str) else f"{self.broker}-{self.index}"

    @staticmethod
    def require(given: object) -> None:
        """Check that an argument is a partition; a plain tuple that compares equal is rejected.

        Raises:
            TypeError: It is something else.
        """
        if not isinstance(given, Partition):
            raise TypeError(f"partition {given!r}: expected a Partition, such as Partition(0, 1)")

    @property
    def broker_id(self) -> int:
        """The broker of a MetaQ partition.

        Raises:
            TypeError: This is a RocketMQ queue, whose broker has a name.
        """
        if not isinstance(self.broker, int):
            raise TypeError(f"queue {self}: expected a MetaQ partition, whose broker has an id")
        return self.broker

    @property
    def broker_name(self) -> str:
        """The broker of a RocketMQ queue.

        Raises:
            TypeError: This is a MetaQ partition, whose broker has an id.
        """
        if not isinstance(self.broker, str):
            raise TypeError(f"partition {self}: expected a RocketMQ queue, whose broker has a name")
        return self.broker

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Parse a MetaQ partition, ``"0-3"``.

        Raises:
            ValueError: The text is not two decimal numbers joined by a dash.
        """
        match = re.fullmatch(r"(\d+)-(\d+)", text)
        if match is None:
            raise ValueError(f"partition {text!r}: expected BROKER_ID-INDEX, for example 0-3")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def parse_queue(cls, text: str) -> Partition:
        """Parse a RocketMQ queue, ``"broker-a:3"``. The queue id follows the last colon.

        Raises:
            ValueError: There is no broker name, or no decimal number after the last colon.
        """
        name, _, queue_id = text.rpartition(":")
        if not _BROKER_NAME.fullmatch(name) or not re.fullmatch(r"[0-9]+", queue_id):
            raise ValueError(f"queue {text!r}: expected BROKER_NAME:QUEUE_ID, for example broker-a:3")
        return cls(name, int(queue_id))

    @classmethod
    def parse_any(cls, text: str) -> Partition:
        """Parse the name of a partition of either system; only queue names have a colon.

        Raises:
            ValueError: The text is neither.
        """
        return cls.parse_queue(text) if ":" in text else cls.parse(text)


class TopicPartition(NamedTuple):
    """A topic and one of its partitions. Prints as ``orders/0-3``."""

    topic: str
    partition: Partition

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Half-open range of offsets ``[start, end)``. A message belongs to the range that holds its offset."""

    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition: its readable range, and the incarnation that the range belongs to.

    ``incarnation``: 32 hex digits, created with the partition; if it changes, the partition was deleted and created
    again, and older offsets are not valid. ``None`` from a broker that does not report it, or not yet.
    """

    offsets: OffsetRange
    incarnation: str | None


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``host:port``, ``[ipv6]:port``, or the same after ``meta://``.

        Raises:
            ValueError: There is no host, or the port is not 1..65535.
        """
        match = re.fullmatch(r"(?:meta://)?(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:/,\[\]]+)):(\d{1,5})", text.strip())
        if match is None or not 1 <= int(match[3]) <= 65535:
            raise ValueError(f"broker address {text!r}: expected host:port, port 1..65535, for example 127.0.0.1:8123")
        return cls(match[1] or match[2], int(match[3]))


@dataclass(frozen=True, slots=True)
class LocalTransactionId:
    """``TX:SESSION:N``: a transaction that belongs to one connection. ``number`` fits int32.

    Source: docs/protocol.md, "Transactions".
    """

    session_id: str
    number: int

    def __str__(self) -> str:
        return f"TX:{self.session_id}:{self.number}"


@dataclass(frozen=True, slots=True)
class Xid:
    """``XID:FORMAT:GTRID:BQUAL:UNIQUE``: one branch of an XA transaction.

    Known to the whole broker, outlives connections. On the wire the two middle parts are hexadecimal.
    Source: docs/protocol.md, "Transactions".
    """

    format_id: int
    global_id: bytes
    branch: bytes
    unique: str

    def __str__(self) -> str:
        return f"XID:{self.format_id}:{self.global_id.hex()}:{self.branch.hex()}:{self.unique}"


TransactionId = LocalTransactionId | Xid


def parse_transaction_id(text: str) -> TransactionId:
    """Parse the transaction key of a command line.

    Raises:
        ValueError: Neither ``TX:SESSION:N`` nor ``XID:FORMAT:GTRID:BQUAL:UNIQUE``, or a number is outside int32.
    """
    parts = text.split(":")
    try:
        if parts[0] == "TX" and len(parts) == 3 and _SESSION.fullmatch(parts[1]):
            return LocalTransactionId(parts[1], _int32(parts[2]))
        if parts[0] == "XID" and len(parts) == 5 and _UNIQUE.fullmatch(parts[4]):
            return Xid(_int32(parts[1]), _from_hex(parts[2]), _from_hex(parts[3]), parts[4])
    except ValueError as error:
        raise ValueError(f"transaction key {text!r}: {error}") from None
    raise ValueError(f"transaction key {text!r}: expected TX:SESSION:N or XID:FORMAT:GTRID:BQUAL:UNIQUE")


def _from_hex(text: str) -> bytes:
    if not re.fullmatch(r"[0-9A-Fa-f]*", text):  # bytes.fromhex alone would accept blanks
        raise ValueError(f"{text!r} is not hexadecimal")
    return bytes.fromhex(text)


def _int32(text: str) -> int:
    value = int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else None
    if value is None or not INT32_MIN <= value <= INT32_MAX:
        raise ValueError(f"{text!r} is not a 32-bit number")
    return value
