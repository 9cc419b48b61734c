"""Rejected messages, stored on this machine until they are replayed or discarded.

They are in an SQLite file, so that a message is durable before its offset moves on, and several programs may share it.
Each system has its own table.

Source: docs/client.md, "When a handler fails".
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar

from metaq.client.records import Received
from metaq.errors import StoreFailed
from metaq.model import Partition
from metaq.net.clock import wall_clock_ms

PARKED_FILE: Final = "parked.sqlite"
"""File name in the folder of a cluster."""

M = TypeVar("M")
"""The message class of a system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked(Generic[M]):
    """A rejected message: ``reason`` is the last error, ``number`` its id in ``discard``."""

    number: int
    message: M
    reason: str
    parked_ms: int = field(compare=False)


class ParkedStore(ABC, Generic[M]):
    """The parked messages of ``group`` in the file at ``path``. Opens it for each call; any thread may use it.

    All methods raise ``StoreFailed`` if the file cannot be used.
    """

    table: ClassVar[str]
    schema: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """Names of the columns of a message, in the order of ``_values`` and ``_message``."""

    def __init__(self, path: str | Path, group: str) -> None:
        self._path, self._group = Path(path), group

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r}, group={self._group!r})"

    @abstractmethod
    def _values(self, message: M) -> tuple[object, ...]:
        """Return the column values of a message."""

    @abstractmethod
    def _message(self, values: tuple[object, ...]) -> M:
        """Return the message with these column values."""

    def park(self, message: M, reason: str) -> None:
        """Store a message durably; one that is stored already is not stored twice."""
        names = ("group_id", *self.columns, "reason", "parked_ms")
        values = (self._group, *self._values(message), reason[:1000], wall_clock_ms())
        with self._opened() as database:
            database.execute(
                f"INSERT OR IGNORE INTO {self.table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
                values,
            )

    def __len__(self) -> int:
        with self._opened() as database:
            counted = database.execute(f"SELECT count(*) FROM {self.table} WHERE group_id = ?", (self._group,))
            (count,) = counted.fetchone()
        return int(count)

    def __iter__(self) -> Iterator[Parked[M]]:
        """Yield the messages in the order in which they were parked, but none that is parked meanwhile."""
        with self._opened() as database:
            highest = f"SELECT coalesce(max(number), 0) FROM {self.table} WHERE group_id = ?"
            (end,) = database.execute(highest, (self._group,)).fetchone()
        last = 0
        while rows := self._between(last, end):
            for row in rows:
                yield row
                last = row.number

    def _between(self, number: int, end: int) -> list[Parked[M]]:
        with self._opened() as database:
            rows = database.execute(
                f"SELECT number, reason, parked_ms, {', '.join(self.columns)} FROM {self.table} "
                "WHERE group_id = ? AND number > ? AND number <= ? ORDER BY number LIMIT 100",
                (self._group, number, end),
            ).fetchall()
        return [
            Parked(number=row[0], reason=row[1], parked_ms=row[2], message=self._message(tuple(row[3:])))
            for row in rows
        ]

    def replay(self, handler: Callable[[M], object]) -> int:
        """Call ``handler`` with each message, and remove it when the handler returns; return how many.

        Messages that are parked meanwhile stay, such as one that the handler sends again and a consumer rejects again.
        A message whose handler raises stays; the error is raised, and later messages are not tried.
        """
        count = 0
        for parked in self:
            handler(parked.message)
            self.discard(parked.number)
            count += 1
        return count

    def take_due(self, topics: Sequence[str], pause_ms: int) -> Parked[M] | None:
        """Return the message of ``topics`` that has waited longest since it was parked or last returned here.

        ``None`` if none has waited ``pause_ms``. Of several programs on this machine only one gets a message.
        """
        if not self._path.exists():
            return None
        now_ms = wall_clock_ms()
        tried = f"coalesce((SELECT tried_ms FROM {self.table}_tried AS t WHERE t.number = p.number), 0)"
        waited = f"max(parked_ms, {tried})"
        with self._opened() as database:
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table}_tried (number INTEGER PRIMARY KEY, tried_ms INTEGER NOT NULL)"
            )
            database.execute("BEGIN IMMEDIATE")
            row = database.execute(
                f"SELECT number, reason, parked_ms, {', '.join(self.columns)} FROM {self.table} AS p "
                f"WHERE group_id = ? AND topic IN ({', '.join('?' * len(topics))}) AND {waited} <= ? "
                f"ORDER BY {waited}, {tried}, number LIMIT 1",  # of one millisecond: untried ones first
                (self._group, *topics, now_ms - pause_ms),
            ).fetchone()
            if row is None:
                return None
            database.execute(f"INSERT OR REPLACE INTO {self.table}_tried VALUES (?, ?)", (row[0], now_ms))
            database.execute(f"DELETE FROM {self.table}_tried WHERE number NOT IN (SELECT number FROM {self.table})")
        return Parked(number=row[0], reason=row[1], parked_ms=row[2], message=self._message(tuple(row[3:])))

    def discard(self, number: int) -> bool:
        """Remove a message; return whether there was one with that number."""
        with self._opened() as database:
            done = database.execute(
                f"DELETE FROM {self.table} WHERE group_id = ? AND number = ?", (self._group, number)
            )
            return done.rowcount > 0

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=10.0)) as database, database:
                database.execute("PRAGMA synchronous=FULL")
                database.execute(self.schema)
                for name in self._missing(database):  # the file is of an older version
                    try:
                        database.execute(f"ALTER TABLE {self.table} ADD COLUMN {name} TEXT")
                    except sqlite3.OperationalError:
                        if name in self._missing(database):  # no other program has just added it
                            raise
                yield database
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(f"parked messages in {self._path}", str(error)) from error

    def _missing(self, database: sqlite3.Connection) -> set[str]:
        return set(self.columns) - {row[1] for row in database.execute(f"PRAGMA table_info({self.table})")}

    @staticmethod
    def _integer(value: object) -> int:
        assert isinstance(value, int)
        return value


class ParkedMessages(ParkedStore[Received]):
    """The parked messages of a MetaQ group."""

    table = "parked"
    schema = """
CREATE TABLE IF NOT EXISTS parked (
    number INTEGER PRIMARY KEY AUTOINCREMENT, group_id TEXT NOT NULL, topic TEXT NOT NULL, part TEXT NOT NULL,
    position INTEGER NOT NULL, after INTEGER NOT NULL, message_id INTEGER NOT NULL, stored_ms INTEGER, attribute TEXT,
    body BLOB NOT NULL, reason TEXT NOT NULL, parked_ms INTEGER NOT NULL, properties TEXT,
    UNIQUE (group_id, topic, part, position, message_id)
)"""
    columns = ("topic", "part", "position", "after", "message_id", "stored_ms", "attribute", "body", "properties")

    def _values(self, message: Received) -> tuple[object, ...]:
        return (
            *(message.topic, str(message.partition), message.offset, message.end, message.message_id),
            *(message.timestamp_ms, message.attribute, message.data),
            None if message.properties is None else json.dumps(dict(message.properties)),
        )

    def _message(self, values: tuple[object, ...]) -> Received:
        topic, part, position, after, message_id, _, attribute, body, properties = values
        return Received(
            topic=str(topic),
            partition=Partition.parse_any(str(part)),
            offset=self._integer(position),
            end=self._integer(after),
            message_id=self._integer(message_id),
            attribute=None if attribute is None else str(attribute),
            data=body if isinstance(body, bytes) else b"",
            properties=None if properties is None else json.loads(str(properties)),
        )
