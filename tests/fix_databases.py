"""Fixtures that run real database servers, for ``tests/databases``.

They run if ``METAQ_DATABASES`` is set, as ``make test-databases`` does. Without it, and where a server or a driver is
not on this machine, the tests are skipped and say why.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from metaq.client.sql_offsets import DbApiOffsets, dbapi
from peers.databases.servers import SERVERS, DatabaseServer, MariaServer
from peers.maven import Unavailable

ONLY_IF_ASKED: Final = pytest.mark.skipif(
    not os.environ.get("METAQ_DATABASES"),
    reason="METAQ_DATABASES is not set (make test-databases; docs/testing.md, Databases)",
)
"""Mark of all tests that use these fixtures."""


def _started(name: str) -> Iterator[DatabaseServer]:
    with tempfile.TemporaryDirectory(prefix=f"metaq-{name}-", ignore_cleanup_errors=True) as folder:
        server = SERVERS[name](Path(folder))
        try:
            server.__enter__()
        except Unavailable as reason:
            pytest.skip(str(reason))
        yield server
        server.kill()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[DatabaseServer]:
    """PostgreSQL, one for the session. Use ``database``."""
    yield from _started("postgresql")


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[DatabaseServer]:
    """MariaDB, one for the session. Use ``database``, or ``mariadb``."""
    yield from _started("mariadb")


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[DatabaseServer]:
    """MySQL, one for the session. Use ``database``."""
    yield from _started("mysql")


class Database:
    """A server and one of its drivers; each test has a table of its own."""

    def __init__(self, server: DatabaseServer, driver: str, table: str) -> None:
        self.server, self.driver, self.table = server, driver, table
        self._storages: list[DbApiOffsets] = []

    def connect(self) -> Any:
        return self.server.connect(self.driver)

    def storage(self, **options: Any) -> DbApiOffsets:
        """A storage as a program makes it: driver and notation are found out."""
        self._storages.append(dbapi(self.connect, self.table, **options))
        return self._storages[-1]

    def rows(self) -> list[tuple[object, ...]]:
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(f"SELECT * FROM {self.table} ORDER BY 3, 1, 2")
            return [tuple(row) for row in cursor.fetchall()]
        finally:
            connection.close()

    def drop(self) -> None:
        for storage in self._storages:
            storage.close()
        self._storages.clear()
        self.server.start()
        connection = self.connect()
        connection.cursor().execute(f"DROP TABLE IF EXISTS {self.table}")
        connection.commit()
        connection.close()


DRIVERS = [
    ("postgresql", "psycopg"),
    ("postgresql", "pg8000"),
    ("mariadb", "pymysql"),
    ("mariadb", "mysql.connector"),
    ("mysql", "pymysql"),
    ("mysql", "mysql.connector"),
]


@pytest.fixture(params=DRIVERS, ids=lambda row: "-".join(row))
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Each server with each of its drivers, and a table that MetaQ's Java client would find."""
    name, driver = request.param
    server: DatabaseServer = request.getfixturevalue(f"{name}_server")
    try:
        importlib.import_module(driver)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing} (pip install 'metaq-spark[databases]')")
    made = Database(server, driver, "meta_topic_partition_group_offset")
    made.drop()
    made.storage().create_table()
    yield made
    made.drop()


@pytest.fixture
def mariadb(mariadb_server: DatabaseServer) -> Iterator[tuple[Database, str]]:
    """MariaDB by one driver, and what Java's driver takes."""
    assert isinstance(mariadb_server, MariaServer)
    pytest.importorskip("pymysql")
    made = Database(mariadb_server, "pymysql", "meta_topic_partition_group_offset")
    made.drop()
    made.storage().create_table()
    yield made, mariadb_server.jdbc_url
    made.drop()
