"""Reads the transaction journal of a Java broker, to find the XA branches that are prepared in it.

The files ``redo.N`` are read in the order of N. A file is a sequence of records: a big-endian length, then a protocol
buffer ``TxCommand``. The record of a commit is followed by a list of where the messages were stored, of the length that
the record gives::

    TxCommand              1 kind: 1 a message, 2 a step    2 content
    AppendMessageCommand   1 message id                     2 the ``put`` as received, with its body
    TransactionOperation   1 kind (see ``_Step``)           2 was prepared    3 key    4 bytes after the record
    of each partition      offset int64, length, checksum, bytes of the name (int32 each), name TOPIC-PARTITION

All records of a transaction are in the file in which it began, and the record of a commit is written when the messages
are stored. So a branch that is prepared here and not ended is one that RECOVER of the Java broker lists.

Source: metamorphosis-server 1.4.6.2, its files and the TransactionCommands it documents; docs/migration.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

from metaq.errors import MetaqError
from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame
from metaq.model import Xid, parse_transaction_id
from metaq_broker.log.files.files import Files
from metaq_broker.transactions.transaction import PartitionKey

_REDO: Final = re.compile(r"redo\.(\d+)")
_NAMES: Final = re.compile(r"redo\.\d+|checkpoint\.\d+|heuristic\.log")
_OUTCOMES_NAME: Final = "heuristic.log"
_OUTCOME: Final = b"XATransactionId"
"""The name of a class that appears in a Java-serialized map of outcomes exactly if the map is not empty."""

_LENGTH: Final = struct.Struct(">i")
_PLACE: Final = struct.Struct(">qiii")
_MESSAGE: Final = 1


class _Step(IntEnum):
    PREPARE = 1
    COMMIT = 2
    ROLL_BACK = 3
    COMMIT_LOCAL = 4
    ROLL_BACK_LOCAL = 5


class JavaJournalDamaged(MetaqError):
    """A record is whole but cannot be decoded, so everything after it is unknown."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        self.path, self.offset, self.reason = path, offset, reason
        super().__init__(path, offset, reason)

    def __str__(self) -> str:
        return (
            f"{self.path}, of a Java broker, cannot be read at offset {self.offset} ({self.reason}); restore it, or "
            "move it away, which gives up the branches that are prepared in it"
        )


@dataclass(frozen=True, slots=True)
class JavaMessage:
    """One message of a branch, as the frame that it will be."""

    partition_key: PartitionKey
    frame: bytes


@dataclass(frozen=True, slots=True)
class StoredUnit:
    """What a commit has stored in one partition, and where."""

    partition_key: PartitionKey
    offset: int
    end: int


@dataclass(slots=True)
class JavaJournal:
    """The contents of the files ``names``. ``torn_bytes`` counts the bytes of cut records at the ends of files.

    ``unfinished`` transactions were neither prepared nor ended. ``has_outcomes``: there are outcomes of operators.
    """

    names: list[str]
    prepared: dict[Xid, list[JavaMessage]] = field(default_factory=dict)
    stored_units: list[StoredUnit] = field(default_factory=list)
    unfinished: int = 0
    torn_bytes: int = 0
    has_outcomes: bool = False


def read_java_journal(files: Files, directory: Path) -> JavaJournal | None:
    """Return the journal of a Java broker in ``directory``, ``None`` without one (blocking).

    Raises:
        JavaJournalDamaged: A record cannot be read.
        OSError: A file cannot be read.
    """
    names = sorted(name for name in files.listdir(directory) if _NAMES.fullmatch(name))
    if not names:
        return None
    journal = JavaJournal(names)
    reader = _Reader(journal)
    numbered = [(int(match[1]), name) for name in names if (match := _REDO.fullmatch(name))]
    for _, name in sorted(numbered):
        reader.read(directory / name, files.read_bytes(directory / name))
    journal.prepared = {_xid(key): messages for key, messages in reader.prepared.items()}
    journal.unfinished = len(reader.begun)
    if _OUTCOMES_NAME in names:
        journal.has_outcomes = _OUTCOME in files.read_bytes(directory / _OUTCOMES_NAME)
    return journal


class _Reader:
    """Replays the steps of transactions. ``begun``: the messages of the transactions that are neither prepared nor
    ended.
    """

    def __init__(self, journal: JavaJournal) -> None:
        self._journal = journal
        self.begun: dict[str, list[JavaMessage]] = {}
        self.prepared: dict[str, list[JavaMessage]] = {}

    def read(self, path: Path, data: bytes) -> None:
        position = 0
        while position < len(data):
            end = self._end_of(data, position)
            if end is None:
                self._journal.torn_bytes += len(data) - position
                return
            try:
                end = self._visit(data[position + _LENGTH.size : end], data, end)
            except (ValueError, KeyError, IndexError, struct.error) as error:
                raise JavaJournalDamaged(path, position, str(error) or type(error).__name__) from error
            position = end

    @staticmethod
    def _end_of(data: bytes, position: int) -> int | None:
        """Return the end of the record at ``position``; ``None`` if its rest is missing or was never written."""
        if len(data) - position < _LENGTH.size:
            return None
        length = int(_LENGTH.unpack_from(data, position)[0])
        end = position + _LENGTH.size + length
        return None if (length <= 0 and not any(data[position:])) or end > len(data) else end

    def _visit(self, record: bytes, data: bytes, end: int) -> int:
        """Process a record that ends at ``end``; return the end of the bytes that belong to it, at or after ``end``.
        """
        command = _fields(record)
        content = _fields(_bytes(command[2]))
        if command[1] == _MESSAGE:
            key, message = _message(_number(content[1]), _bytes(content[2]))
            self.begun.setdefault(key, []).append(message)
            return end
        size = _number(content.get(4, 0))
        if size < 0 or end + size > len(data):
            raise ValueError("its list of stored messages is cut")
        self._step(_Step(_number(content[1])), _bytes(content[3]).decode(), bool(content.get(2)))
        self._journal.stored_units += _stored_units(data[end : end + size])
        return end + size

    def _step(self, step: _Step, key: str, was_prepared: bool) -> None:
        if step is _Step.PREPARE and key in self.begun:
            _xid(key)
            self.prepared[key] = self.begun.pop(key)
        elif step in (_Step.COMMIT, _Step.COMMIT_LOCAL):
            (self.prepared if was_prepared else self.begun).pop(key, None)
        elif step in (_Step.ROLL_BACK, _Step.ROLL_BACK_LOCAL):
            (self.begun if key in self.begun else self.prepared).pop(key, None)


def _xid(key: str) -> Xid:
    xid = parse_transaction_id(key)
    if not isinstance(xid, Xid):
        raise ValueError(f"{key} is prepared, and is no XA key")
    return xid


def _message(message_id: int, put: bytes) -> tuple[str, JavaMessage]:
    """Decode a ``put`` of a transaction; return the transaction's key and the message."""
    line, _, body = put.partition(b"\r\n")
    word, topic, partition, length, flag, *_, key, _opaque = line.decode().split(" ")
    if word != "put" or int(length) != len(body):
        raise ValueError("it is no put")
    parse_transaction_id(key)
    frame = encode_frame(message_id, int(flag), body, checksum(body))
    return key, JavaMessage((topic, int(partition)), frame)


def _stored_units(data: bytes) -> Iterator[StoredUnit]:
    position = 0
    while position < len(data):
        offset, length, _, name_bytes = _PLACE.unpack_from(data, position)
        position += _PLACE.size + name_bytes
        topic, _, partition = data[position - name_bytes : position].decode().rpartition("-")
        yield StoredUnit((topic, int(partition)), offset, offset + length)


# ---- protocol buffers


def _fields(data: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message by their numbers."""
    found: dict[int, int | bytes] = {}
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value, position = _varint(data, position)
        if tag & 7 == 0:
            found[tag >> 3] = value
        elif tag & 7 == 2 and position + value <= len(data):
            found[tag >> 3] = data[position : position + value]
            position += value
        else:
            raise ValueError(f"field {tag >> 3} is no number and no text")
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            break
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value, position


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("text where a number is expected")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text is expected")
    return value
