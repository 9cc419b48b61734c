"""The spool of an ordered producer: a file of the messages that wait, and a note of which were sent.

A sent message is deleted. That needs space for SQLite's journal, which a full disk does not have. In that case the
number of the last sent message of each partition is written to a second file with the suffix ``.sent``. Its records
have a fixed length and are overwritten in place, which needs no space::

    12 bytes   partition: first bytes of the SHA-256 of its topic and name
     8 bytes   number of the last sent message; 0: no sent message may still be in the first file
     8 bytes   first bytes of the SHA-256 of that message: a number of another file is ignored
     4 bytes   CRC-32 of the bytes above

A record is created when the first message of its partition is spooled. All numbers are big-endian.

Source: docs/client.md, "In order, whatever happens".
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sqlite3
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from metaq.errors import StoreFailed
from metaq.model import Message, Partition, TopicPartition

_LOG: Final = logging.getLogger(__name__)

_FIELDS: Final = struct.Struct(">12sQ8s")
_CHECK: Final = struct.Struct(">I")
_RECORD_BYTES: Final = _FIELDS.size + _CHECK.size


class SentNumbers:
    """The second file of a spool. One thread at a time. All methods raise ``OSError``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._places: dict[bytes, int] = {}  # partition digest -> position of its record
        self._noted: dict[bytes, tuple[int, bytes]] = {}

    def open(self, *, is_new: bool) -> None:
        """Read the file, if there is one. ``is_new``: the first file is new, so this one's content is ignored."""
        self._places.clear()
        self._noted.clear()
        if is_new:
            self._path.unlink(missing_ok=True)
        try:
            self._file = open(self._path, "r+b", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            return
        content = self._file.read()
        for place in range(0, len(content) - _RECORD_BYTES + 1, _RECORD_BYTES):
            fields, check = content[place : place + _FIELDS.size], content[place + _FIELDS.size : place + _RECORD_BYTES]
            if check == _CHECK.pack(zlib.crc32(fields)):
                which, number, digest = _FIELDS.unpack(fields)
                self._places[which], self._noted[which] = place, (number, digest)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def noted(self, where: TopicPartition) -> tuple[int, bytes]:
        """Return number and digest of the last sent message; the number is 0 if it is unknown."""
        return self._noted.get(_which(where), (0, bytes(8)))

    def prepare(self, where: TopicPartition) -> None:
        """Create the record of a partition, so that ``note`` needs no space."""
        if _which(where) not in self._places:
            self._write(_which(where), 0, bytes(8))

    def note(self, where: TopicPartition, number: int, digest: bytes) -> None:
        """Store durably which message was sent last."""
        if self.noted(where) != (number, digest):
            self._write(_which(where), number, digest)

    def _write(self, which: bytes, number: int, digest: bytes) -> None:
        if self._file is None:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666))
            self._file = open(self._path, "r+b", buffering=0)  # noqa: SIM115
        file = self._file.fileno()
        place = self._places.get(which)
        if place is None:
            place = -(-os.fstat(file).st_size // _RECORD_BYTES) * _RECORD_BYTES  # skip a record that a crash cut off
        fields = _FIELDS.pack(which, number, digest)
        written = os.pwrite(file, fields + _CHECK.pack(zlib.crc32(fields)), place)
        if written != _RECORD_BYTES:
            raise OSError(f"{written} of {_RECORD_BYTES} bytes were written to {self._path}")
        os.fsync(file)
        self._places[which], self._noted[which] = place, (number, digest)


class Spool:
    """The spooled messages, in the SQLite file at ``path``; one program at a time. Thread-safe.

    All methods raise ``StoreFailed`` if the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.RLock()
        self._file_lock: IO[bytes] | None = None
        self._database: sqlite3.Connection | None = None
        self._counts: Counter[TopicPartition] = Counter()
        self._sent: dict[TopicPartition, int] = {}
        """The last removed message of each partition that may still be in the file, because it could not be changed."""
        self._sent_file = SentNumbers(Path(f"{path}.sent"))
        self._unnoted: Counter[TopicPartition] = Counter()
        """Sent messages, by partition, that neither file records as sent."""
        self._is_said = False

    def __repr__(self) -> str:
        return f"Spool({str(self._path)!r})"

    def open(self) -> None:
        """Open or create the file."""
        with self._lock:
            if self._database is not None:
                return
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file_lock = open(self._path.with_name(self._path.name + ".lock"), "ab")  # noqa: SIM115
                fcntl.flock(self._file_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._database = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
                self._database.execute("PRAGMA synchronous=FULL")
                has_table = self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'waiting'").fetchone()
                self._sent_file.open(is_new=not has_table)
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS waiting (number INTEGER PRIMARY KEY AUTOINCREMENT, "
                    "topic TEXT NOT NULL, part TEXT NOT NULL, attribute TEXT, body BLOB NOT NULL)"
                )
                for topic, part in self._database.execute("SELECT DISTINCT topic, part FROM waiting").fetchall():
                    self._find(TopicPartition(topic, Partition.parse(part)))
            except BlockingIOError:
                self.close()
                raise StoreFailed(str(self._path), "another program uses it") from None
            # ValueError, TypeError: rows in another form
            except (OSError, sqlite3.Error, ValueError, TypeError) as error:
                self.close()
                raise StoreFailed(str(self._path), str(error)) from error
            except BaseException:  # Ctrl-C: the caller has no object to close yet
                self.close()
                raise

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._sent_file.close()
            if self._file_lock is not None:
                self._file_lock.close()
            self._database = self._file_lock = None

    def waiting(self, where: TopicPartition) -> int:
        """Return how many messages are spooled for a partition."""
        with self._lock:
            return self._counts[where]

    def places(self) -> list[TopicPartition]:
        """Return the partitions that have spooled messages."""
        with self._lock:
            return sorted(where for where, count in self._counts.items() if count)

    def add(self, where: TopicPartition, message: Message) -> None:
        """Append a message durably."""
        with self._lock:
            with suppress(OSError):  # needed on a full disk only; if it is full already, ``repeated`` counts
                self._sent_file.prepare(where)
            values = (where.topic, str(where.partition), message.attribute, message.payload)
            self._execute("INSERT INTO waiting (topic, part, attribute, body) VALUES (?, ?, ?, ?)", values)
            self._counts[where] += 1

    def first(self, where: TopicPartition, count: int) -> list[tuple[int, Message]]:
        """Return the oldest messages of a partition, each with its number."""
        with self._lock:
            rows = self._execute(
                "SELECT number, attribute, body FROM waiting WHERE topic = ? AND part = ? AND number > ? "
                "ORDER BY number LIMIT ?",
                (where.topic, str(where.partition), self._sent.get(where, 0), count),
            )
        try:
            return [(number, Message(body, attribute)) for number, attribute, body in rows]
        except (TypeError, ValueError) as error:
            raise StoreFailed(str(self._path), f"a message for {where} cannot be read: {error}") from None

    def remove(self, where: TopicPartition, numbers: Sequence[int]) -> None:
        """Remove the oldest messages of a partition, up to the last of ``numbers``.

        They are not returned again even if neither file can be changed now; ``tidy`` retries the deletion.
        """
        with self._lock:
            self._counts[where] -= len(numbers)
            self._sent[where] = numbers[-1]
            self._unnoted[where] += len(numbers)
            self._erase(where)

    def tidy(self) -> None:
        """Delete removed messages that are still in the file."""
        with self._lock:
            failed: StoreFailed | None = None
            for where in list(self._sent):
                try:
                    self._erase(where)
                except StoreFailed as error:
                    failed = error
            if failed is not None:
                raise failed

    def repeated(self) -> int:
        """Return how many messages would be sent again if the program ended now."""
        with self._lock:
            return self._unnoted.total()

    def _find(self, where: TopicPartition) -> None:
        """Count the spooled messages of a partition. The caller holds the lock."""
        with suppress(OSError):  # as in ``add``
            self._sent_file.prepare(where)
        number, digest = self._sent_file.noted(where)
        if number and self._digest(where, number) == digest:
            self._sent[where] = number
        values = (where.topic, str(where.partition), self._sent.get(where, 0))
        ((count,),) = self._execute("SELECT count(*) FROM waiting WHERE topic = ? AND part = ? AND number > ?", values)
        self._counts[where] = count

    def _erase(self, where: TopicPartition) -> None:
        number = self._sent[where]
        try:
            values = (where.topic, str(where.partition), number)
            self._execute("DELETE FROM waiting WHERE topic = ? AND part = ? AND number <= ?", values)
        except StoreFailed as error:
            if not self._is_said:
                _LOG.warning("sent messages cannot be deleted yet: %s", error)
            self._is_said = True
            try:
                self._sent_file.note(where, number, self._digest(where, number))
            except OSError as second:
                raise StoreFailed(str(self._path), f"{error.reason}; {second}") from error
        else:
            self._is_said = False
            del self._sent[where]
        del self._unnoted[where]

    def _digest(self, where: TopicPartition, number: int) -> bytes:
        values = (where.topic, str(where.partition), number)
        found = self._execute("SELECT attribute, body FROM waiting WHERE topic = ? AND part = ? AND number = ?", values)
        return hashlib.sha256(repr(found).encode()).digest()[:8] if found else b""

    def _execute(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        if self._database is None:
            raise StoreFailed(str(self._path), "it is closed")
        try:
            with self._database:
                return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreFailed(str(self._path), str(error)) from error


def _which(where: TopicPartition) -> bytes:
    return hashlib.sha256(f"{where.topic}\0{where.partition}".encode()).digest()[:12]
