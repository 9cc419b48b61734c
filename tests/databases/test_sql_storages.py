"""Offsets in real databases: the contract of all storages, MetaQ's table, and servers that are killed or read-only."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fix_broker import wait_until
from fix_databases import ONLY_IF_ASKED, Database
from storage_contract import P0, P1, check_by_group_and_partition, check_save_if_unchanged

from metaq.client.groups.ownership.bounded import SLOW_S
from metaq.client.offsets import GroupOffset
from metaq.client.sql_offsets import dbapi
from metaq.errors import StoreFailed
from metaq.testing.memory_server import MemoryServer

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    ONLY_IF_ASKED,
]

HANGS = "(?i)does not answer|timed out|timeout"
FROZEN_MORE_S = 10.0
"""Beside the ``ANSWER_S`` of a call that hangs: 40 s in all."""

QUICK: dict[str, Any] = {"poll_max_s": 0.05, "retry_max_s": 0.01, "save_s": 0.1}


@pytest.fixture(autouse=True)
def sockets_of_drivers_are_collected(database: Database) -> Iterator[None]:
    """pg8000 leaves a socket open where the server does not answer when it connects."""
    yield
    gc.collect()


def test_what_was_saved_is_loaded_by_group_and_partition(database: Database) -> None:
    check_by_group_and_partition(database.storage())


def test_what_somebody_else_has_saved_is_not_replaced(database: Database) -> None:
    check_save_if_unchanged(database.storage())


def test_the_table_is_that_of_the_java_client(database: Database) -> None:
    storage = database.storage()
    storage.create_table()  # it is there already
    storage.save("g", {P1: GroupOffset(12, 34)})
    storage.close()
    assert database.rows() == [("orders", "0-1", "g", 12, 34)]
    connection = database.connect()
    cursor = connection.cursor()
    cursor.execute("SELECT column_name FROM information_schema.columns WHERE table_name = %s", (database.table,))
    names = {str(row[0]) for row in cursor.fetchall()}
    connection.close()
    assert names == {"topic", "partition", "group_id", "offset", "msg_id"}


def test_a_save_is_all_or_nothing(database: Database) -> None:
    storage = database.storage()
    storage.save("g", {P0: GroupOffset(1)})
    with pytest.raises(StoreFailed, match=database.table) as failed:
        storage.save("g", {P0: GroupOffset(2), P1: GroupOffset(2**80)})
    assert failed.value.retryable
    assert storage.load("g", [P0, P1]) == {P0: GroupOffset(1)}
    storage.close()


def test_two_that_save_the_first_offset_at_once_keep_one_row(database: Database) -> None:
    """The second one may be refused; the next try goes through, as a consumer's does."""
    barrier, problems = threading.Barrier(2, timeout=20), list[BaseException]()

    def save(offset: int) -> None:
        storage = database.storage()
        barrier.wait()
        for _ in range(20):
            try:
                storage.save("g", {P0: GroupOffset(offset), P1: GroupOffset(offset)})
                break
            except StoreFailed as error:
                problems.append(error)
        storage.close()

    threads = [threading.Thread(target=save, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    rows = database.rows()
    assert [row[:3] for row in rows] == [("orders", "0-0", "g"), ("orders", "0-1", "g")]
    assert {row[3] for row in rows} <= {1, 2}
    assert len(problems) < 20, problems


def test_a_name_with_anything_in_it_is_a_value(database: Database) -> None:
    group = 'it\'s; DROP TABLE "x" %s `?` :1'
    storage = database.storage()
    storage.save(group, {P0: GroupOffset(5, 6)})
    assert storage.load(group, [P0]) == {P0: GroupOffset(5, 6)}
    storage.close()


def test_a_killed_server_keeps_what_was_saved_and_the_same_storage_goes_on(database: Database) -> None:
    storage = database.storage()
    storage.save("g", {P0: GroupOffset(10, 1)})
    database.server.kill()
    for _ in range(2):
        with pytest.raises(StoreFailed) as failed:
            storage.save("g", {P0: GroupOffset(20, 2)})
        assert failed.value.retryable
    database.server.start()
    assert storage.load("g", [P0]) == {P0: GroupOffset(10, 1)}
    storage.save("g", {P0: GroupOffset(20, 2)})
    assert storage.load("g", [P0]) == {P0: GroupOffset(20, 2)}
    storage.close()


def test_a_group_reads_on_without_its_database_and_repeats_nothing(
    database: Database, metaq_memory: MemoryServer
) -> None:
    mq = metaq_memory.client()
    mq.producer().send_many("orders", [b"%d" % number for number in range(10)])
    with mq.consumer("g", ["orders"], offsets=database.storage(), **QUICK) as consumer:
        found = _read(consumer, 5)
        consumer.commit()
        ((*_, committed, _),) = database.rows()
        database.server.kill()
        found += _read(consumer, 3)
        with pytest.raises(StoreFailed):
            consumer.commit()
        database.server.start()
        assert _offset(database) >= committed
        wait_until(lambda: _offset(database) > committed, "what was settled meanwhile is saved by itself")
        found += _read(consumer, 2)
    assert found == [b"%d" % number for number in range(10)]
    mq.producer().send("orders", "later")
    with mq.consumer("g", ["orders"], offsets=database.storage(), **QUICK) as consumer:
        assert _read(consumer, 1) == [b"later"]


def test_a_frozen_database_is_logged_and_nothing_is_repeated(
    database: Database, metaq_memory: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It hangs longer than a call is waited for. A driver with a timeout of its own raises an error first."""

    def said() -> list[str]:
        return [one.getMessage() for one in caplog.records if re.search(HANGS, one.getMessage())]

    mq = metaq_memory.client()
    mq.producer().send_many("orders", [b"%d" % number for number in range(10)])
    with mq.consumer("g", ["orders"], offsets=database.storage(), **QUICK) as consumer:
        found = _read(consumer, 5)
        consumer.commit()
        committed = _offset(database)
        with database.server.frozen():
            found += _read(consumer, 3)
            wait_until(lambda: bool(said()), "the log says it", SLOW_S + 60)
            with pytest.raises(StoreFailed, match=HANGS):
                consumer.commit()
            time.sleep(FROZEN_MORE_S)
            assert consumer.paused is None, "messages are still delivered"
        wait_until(lambda: _offset(database) > committed, "what was settled meanwhile is saved by itself", 120)
        found += _read(consumer, 2)
    assert found == [b"%d" % number for number in range(10)]
    mq.producer().send("orders", "later")
    with mq.consumer("g", ["orders"], offsets=database.storage(), **QUICK) as consumer:
        assert _read(consumer, 1) == [b"later"]


def test_a_consumer_that_ends_beside_a_frozen_database_names_what_is_not_saved(
    database: Database, metaq_memory: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    mq = metaq_memory.client()
    mq.producer().send_many("orders", ["a", "b", "c"])
    with ExitStack() as stack:
        consumer = stack.enter_context(mq.consumer("g", ["orders"], offsets=database.storage(), **QUICK))
        _read(consumer, 1)
        consumer.commit()
        stack.enter_context(database.server.frozen())
        _read(consumer, 2)
        consumer.close()
        (error,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "the last positions are not saved, messages of orders" in error


def test_a_database_that_only_reads_stops_saving_and_not_reading(
    database: Database, metaq_memory: MemoryServer
) -> None:
    read_only = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
    if database.server.name in ("MariaDB", "MySQL"):
        read_only = "SET SESSION TRANSACTION READ ONLY"

    def connect() -> Any:
        connection = database.connect()
        connection.cursor().execute(read_only)
        connection.commit()
        return connection

    mq = metaq_memory.client()
    mq.producer().send_many("orders", ["a", "b"])
    with mq.consumer("g", ["orders"], offsets=dbapi(connect, database.table), **QUICK) as consumer:
        assert _read(consumer, 2) == [b"a", b"b"]
        with pytest.raises(StoreFailed, match=r"(?i)read.only"):
            consumer.commit()
    assert database.rows() == []
    with mq.consumer("g", ["orders"], offsets=database.storage(), **QUICK) as consumer:
        assert _read(consumer, 2) == [b"a", b"b"], "nothing was stored, so nothing is left out"


def _offset(database: Database) -> int:
    ((_, _, _, offset, _),) = database.rows()
    assert isinstance(offset, int)
    return offset


def _read(consumer: Any, count: int) -> list[bytes]:
    """Take messages one by one, each of which settles the one before, and the last one by hand."""
    found: list[bytes] = []
    while len(found) < count:
        found += [one.data for one in consumer.fetch(1, timeout=20)]
    return found
