"""Messages that a consumer gave up on, kept on this machine until somebody replays or discards them.

An SQLite file, so that a message is on the disk before its offset moves on, and several programs may share it.

Source: docs/client.md, "When a handler fails".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from metaq.client.records import Received
from metaq.errors import StoreFailed
from metaq.model import Partition
from metaq.net.clock import wall_clock_ms

PARKED_FILE: Final = "parked.sqlite"
"""Its name in the folder of a cluster."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS parked (
    number INTEGER PRIMARY KEY AUTOINCREMENT, group_id TEXT NOT NULL, topic TEXT NOT NULL, part TEXT NOT NULL,
    position INTEGER NOT NULL, after INTEGER NOT NULL, message_id INTEGER NOT NULL, stored_ms INTEGER, attribute TEXT,
    body BLOB NOT NULL, reason TEXT NOT NULL, parked_ms INTEGER NOT NULL,
    UNIQUE (group_id, topic, part, position, message_id)
)"""
_COLUMNS: Final = "number, topic, part, position, after, message_id, stored_ms, attribute, body, reason, parked_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A message that was given up: ``reason`` is the last error, ``number`` its name in ``discard``."""

    number: int
    message: Received
    reason: str
    parked_ms: int = field(compare=False)


class ParkedMessages:
    """The parked messages of ``group`` in the file at ``path``. Opens it for each call; any thread may use it.

    All methods raise ``StoreFailed`` if the file cannot be used.
    """

    def __init__(self, path: Path, group: str) -> None:
        self._path, self._group = path, group

    def __repr__(self) -> str:
        return f"ParkedMessages({str(self._path)!r}, group={self._group!r})"

    def park(self, message: Received, reason: str) -> None:
        """Store a message durably; one that is there already stays once."""
        with self._opened() as database:
            database.execute(
                "INSERT OR IGNORE INTO parked (group_id, topic, part, position, after, message_id, stored_ms, "
                "attribute, body, reason, parked_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(self._group, message.topic, str(message.partition), message.offset, message.end),
                    *(message.message_id, message.timestamp_ms, message.attribute, message.data),
                    *(reason[:1000], wall_clock_ms()),
                ),
            )

    def __len__(self) -> int:
        with self._opened() as database:
            (count,) = database.execute("SELECT count(*) FROM parked WHERE group_id = ?", (self._group,)).fetchone()
        return int(count)

    def __iter__(self) -> Iterator[Parked]:
        """Yield the messages in the order in which they were parked."""
        last = 0
        while rows := self._after(last):
            for row in rows:
                yield row
                last = row.number

    def _after(self, number: int) -> list[Parked]:
        with self._opened() as database:
            rows = database.execute(
                f"SELECT {_COLUMNS} FROM parked WHERE group_id = ? AND number > ? ORDER BY number LIMIT 100",
                (self._group, number),
            ).fetchall()
        return [_parked(row) for row in rows]

    def replay(self, handler: Callable[[Received], object]) -> int:
        """Call ``handler`` with each message, and remove those that it returns for; return how many.

        A message for which it raises stays; its error is raised, those behind it were not tried.
        """
        count = 0
        for parked in self:
            handler(parked.message)
            self.discard(parked.number)
            count += 1
        return count

    def discard(self, number: int) -> bool:
        """Remove a message; return whether there was one of that number."""
        with self._opened() as database:
            done = database.execute("DELETE FROM parked WHERE group_id = ? AND number = ?", (self._group, number))
            return done.rowcount > 0

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=10.0)) as database, database:
                database.execute("PRAGMA synchronous=FULL")
                database.execute(_SCHEMA)
                yield database
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(f"parked messages in {self._path}", str(error)) from error


def _parked(row: tuple[object, ...]) -> Parked:
    number, topic, part, position, after, message_id, stored_ms, attribute, body, reason, parked_ms = row
    message = Received(
        topic=str(topic),
        partition=Partition.parse_any(str(part)),
        offset=_integer(position),
        end=_integer(after),
        message_id=_integer(message_id),
        timestamp_ms=None if stored_ms is None else _integer(stored_ms),
        attribute=None if attribute is None else str(attribute),
        data=body if isinstance(body, bytes) else b"",
    )
    return Parked(number=_integer(number), message=message, reason=str(reason), parked_ms=_integer(parked_ms))


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value
