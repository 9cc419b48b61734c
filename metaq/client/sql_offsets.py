"""Offsets of consumer groups in a database: MetaQ's own table, through any DB-API driver (PEP 249).

A Java consumer with ``MysqlOffsetStorage`` and this client continue from each other's rows. Columns: ``topic``,
``partition`` (``0-1``), ``group_id``, ``offset`` (the next byte to fetch), ``msg_id`` (the last message consumed, -1:
none). The first three form the primary key.

Source: docs/client.md, "Where offsets are stored".
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from metaq.discovery.zk_layout import GroupOffset, is_unchanged
from metaq.errors import StoreFailed
from metaq.model import TopicPartition

TABLE: Final = "meta_topic_partition_group_offset"
"""Default table name of MetaQ's Java client."""

INCARNATIONS: Final = "partition_incarnations"
"""Table in an SQLite file that stores which incarnation of a partition an offset belongs to."""

_BACKTICKS: Final = ("mysql", "pymysql", "MySQLdb", "mariadb")
"""Drivers of databases that quote names with backticks; all others use double quotes."""

_STRICT: Final = "SET SESSION sql_mode = CONCAT_WS(',', NULLIF(@@SESSION.sql_mode, ''), 'STRICT_ALL_TABLES')"
"""By default MySQL may truncate values that do not fit into their column: two groups with long names would share a row.
"""

_COLUMNS: Final = ("topic", "partition", "group_id")
_PARAMETERS: Final[Mapping[str, Callable[[int], str]]] = {
    "qmark": lambda number: "?",
    "format": lambda number: "%s",
    "pyformat": lambda number: "%s",
    "numeric": lambda number: f":{number}",
    "named": lambda number: f":{number}",
}
"""The placeholder of the nth value (from 1) in a statement. Source: PEP 249, paramstyle. Values are passed in order."""


class DbApiOffsets:
    """Offsets in ``table``, over a connection that ``connect`` opens on demand and after a failure.

    ``paramstyle`` and ``quote`` default to the values of the driver's module.

    Raises:
        ValueError: ``table`` is not a plain name, or ``paramstyle`` is not one of PEP 249.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str = TABLE,
        *,
        paramstyle: str | None = None,
        quote: str | None = None,
        name: str | None = None,
    ) -> None:
        if not all(part.isidentifier() for part in table.split(".")):
            raise ValueError(f"table {table!r}: expected a name, or schema.name, of letters, digits and underscores")
        if paramstyle is not None and paramstyle not in _PARAMETERS:
            raise ValueError(f"paramstyle {paramstyle!r}: expected one of {', '.join(_PARAMETERS)}")
        self._connect, self._table, self._name = connect, table, name or f"table {table}"
        self._paramstyle, self._quote = paramstyle, quote
        self._connection: Any = None

    def create_table(self) -> None:
        """Create the table if it does not exist. MetaQ's Java client expects it to exist."""
        with self._cursor() as cursor:
            names = self._quoted("topic", "partition", "group_id", "offset", "msg_id")
            types = ("VARCHAR(255)", "VARCHAR(32)", "VARCHAR(191)", "BIGINT", "BIGINT")
            columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in zip(names, types, strict=True))
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}, PRIMARY KEY ({', '.join(names[:3])}))"
            )

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        found: dict[TopicPartition, GroupOffset] = {}
        with self._cursor() as cursor:
            for where in partitions:
                if (row := self._select(cursor, group, where)) is not None:
                    found[where] = GroupOffset(int(row[0]), int(row[1]))
        return found

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Save all offsets in one transaction."""
        with self._cursor() as cursor:
            self._save(cursor, group, offsets)

    def _save(self, cursor: Any, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        update, insert = self._statements()
        for where, at in offsets.items():
            values = (at.offset, at.message_id, where.topic, str(where.partition), group)
            cursor.execute(update, values)
            # MySQL counts changed rows only: 0 also if the row exists and has these values.
            if cursor.rowcount < 1 and self._select(cursor, group, where) is None:
                cursor.execute(insert, values)

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        """Compare and update each row in one statement; all rows in one transaction."""
        changed: dict[TopicPartition, GroupOffset | None] = {}
        with self._cursor() as cursor:
            update, insert = self._statements()
            (offset,) = self._quoted("offset")
            update += f" AND {offset} = {self._parameter(6)}"
            for where, at in offsets.items():
                values = (at.offset, at.message_id, where.topic, str(where.partition), group)
                if (before := expected.get(where)) is not None:
                    cursor.execute(update, (*values, before.offset))
                    if cursor.rowcount >= 1:
                        continue
                row = self._select(cursor, group, where)
                if row is None:
                    cursor.execute(insert, values)
                elif not is_unchanged(there := GroupOffset(int(row[0]), int(row[1])), None, at):
                    changed[where] = there
        return changed

    def _statements(self) -> tuple[str, str]:
        """Return the statements that update and insert an offset; both take their values in the same order."""
        offset, message_id, *key = self._quoted("offset", "msg_id", *_COLUMNS)
        columns = ", ".join([offset, message_id, *key])
        update = (
            f"UPDATE {self._table} SET {offset} = {self._parameter(1)}, {message_id} = {self._parameter(2)} "
            f"WHERE {self._condition(3)}"
        )
        return update, f"INSERT INTO {self._table} ({columns}) VALUES ({self._parameters(5)})"

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # of any driver; the connection is given up in any case
                connection.close()

    def _select(self, cursor: Any, group: str, where: TopicPartition) -> Sequence[Any] | None:
        offset, message_id = self._quoted("offset", "msg_id")
        cursor.execute(
            f"SELECT {offset}, {message_id} FROM {self._table} WHERE {self._condition(1)}",
            (where.topic, str(where.partition), group),
        )
        row: Sequence[Any] | None = cursor.fetchone()
        return row

    def _condition(self, first: int) -> str:
        names = self._quoted(*_COLUMNS)
        return " AND ".join(f"{name} = {self._parameter(first + at)}" for at, name in enumerate(names))

    def _parameters(self, count: int) -> str:
        return ", ".join(self._parameter(number) for number in range(1, count + 1))

    def _parameter(self, number: int) -> str:
        return _PARAMETERS[self._paramstyle or "qmark"](number)

    def _quoted(self, *names: str) -> list[str]:
        quote = self._quote or '"'
        return [f"{quote}{name}{quote}" for name in names]

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """Return a cursor in a new transaction. Any error of the driver closes the connection."""
        is_new = False
        try:
            if self._connection is None:
                self._connection = self._connect()
                self._learn_driver(type(self._connection).__module__)
                is_new = True
            cursor = self._connection.cursor()
            try:
                if is_new and self._quote == "`":
                    cursor.execute(_STRICT)
                yield cursor
                self._connection.commit()
            finally:
                cursor.close()
        except Exception as error:  # PEP 249 has no base class that all drivers share
            self.close()
            raise StoreFailed(self._name, f"{type(error).__name__}: {error}") from error

    def _learn_driver(self, module: str) -> None:
        """Choose placeholders and quotes for the driver with connections of a class in ``module``."""
        if self._paramstyle is None:
            parts = module.split(".")
            modules = (sys.modules.get(".".join(parts[:count])) for count in range(len(parts), 0, -1))
            styles = (getattr(one, "paramstyle", None) for one in modules)
            self._paramstyle = next((style for style in styles if style in _PARAMETERS), "qmark")
        if self._quote is None:
            self._quote = "`" if module.partition(".")[0] in _BACKTICKS else '"'


class SqliteOffsets(DbApiOffsets):
    """Offsets in the SQLite file at ``path``, durable when ``save`` returns. Programs may share it.

    A second table of the file has the incarnations of partitions.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(self._open, paramstyle="qmark", quote='"', name=str(path))

    def incarnations(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        found: dict[TopicPartition, str] = {}
        with self._cursor() as cursor:
            for where in partitions:
                cursor.execute(
                    f'SELECT incarnation FROM {INCARNATIONS} WHERE topic = ? AND "partition" = ? AND group_id = ?',
                    (where.topic, str(where.partition), group),
                )
                if (row := cursor.fetchone()) is not None and row[0] is not None:
                    found[where] = row[0]
        return found

    def save_incarnations(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        incarnations: Mapping[TopicPartition, str | None],
    ) -> None:
        with self._cursor() as cursor:
            self._save(cursor, group, offsets)
            for where, incarnation in incarnations.items():
                cursor.execute(
                    f"INSERT OR REPLACE INTO {INCARNATIONS} VALUES (?, ?, ?, ?)",
                    (where.topic, str(where.partition), group, incarnation),
                )

    def has_offsets(self, group: str) -> bool:
        """Whether any offset of ``group`` is stored."""
        with self._cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {TABLE} WHERE group_id = ? LIMIT 1", (group,))
            return cursor.fetchone() is not None

    def forget(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Remove the offsets of ``group`` in ``partitions``."""
        with self._cursor() as cursor:
            for table in (TABLE, INCARNATIONS):
                statement = f'DELETE FROM {table} WHERE topic = ? AND "partition" = ? AND group_id = ?'
                for where in partitions:
                    cursor.execute(statement, (where.topic, str(where.partition), group))

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(
                f'CREATE TABLE IF NOT EXISTS {TABLE} (topic TEXT NOT NULL, "partition" TEXT NOT NULL, '
                'group_id TEXT NOT NULL, "offset" INTEGER NOT NULL, msg_id INTEGER NOT NULL, '
                'PRIMARY KEY (topic, "partition", group_id))'
            )
            connection.execute(
                f'CREATE TABLE IF NOT EXISTS {INCARNATIONS} (topic TEXT NOT NULL, "partition" TEXT NOT NULL, '
                'group_id TEXT NOT NULL, incarnation TEXT, PRIMARY KEY (topic, "partition", group_id))'
            )
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def sqlite(path: str | Path) -> SqliteOffsets:
    """Return a storage in an SQLite file, which is created when it is first needed."""
    return SqliteOffsets(Path(path))


def dbapi(
    connect: Callable[[], Any], table: str = TABLE, *, paramstyle: str | None = None, quote: str | None = None
) -> DbApiOffsets:
    """Return a storage in a database: ``connect`` opens a connection of any DB-API driver."""
    return DbApiOffsets(connect, table, paramstyle=paramstyle, quote=quote)
