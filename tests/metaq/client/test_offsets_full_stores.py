"""Stores of this machine that are full or read-only: reading goes on, nothing is lost, and saving goes on later."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until

from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.client.offsets import FileOffsets, GroupOffset, OffsetStorage
from metaq.client.ordered import OrderedProducer
from metaq.client.sending.spool import SentNumbers, Spool
from metaq.client.sql_offsets import TABLE, DbApiOffsets, dbapi, sqlite
from metaq.errors import StoreFailed
from metaq.model import Message, Partition, TopicPartition
from metaq.testing.memory_server import MemoryServer

QUICK: dict[str, Any] = {"poll_max_s": 0.05, "retry_max_s": 0.01, "save_s": 0.05}
P0 = TopicPartition("orders", Partition(0, 0))

Broken = Callable[[Path], tuple[OffsetStorage, str, Callable[[], None]]]
"""A folder -> a storage that refuses to save, what it says, and what repairs it."""


class OnFullDisk(FileOffsets):
    """The file that is to replace the old one is written to a device that is full."""

    is_full = True

    def _merge(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        if self.is_full:
            self._path.with_name(self._path.name + ".new").symlink_to("/dev/full")
        super()._merge(group, offsets)


def full_disk(folder: Path) -> tuple[OffsetStorage, str, Callable[[], None]]:
    """A file on a disk that is full."""
    storage = OnFullDisk(folder / "offsets.json")

    def repair() -> None:
        storage.is_full = False

    return storage, "No space left on device", repair


def full_database(folder: Path) -> tuple[OffsetStorage, str, Callable[[], None]]:
    """SQLite may not add another page, which a row of another group needs."""
    path, limit = folder / "full.sqlite", [4]
    with sqlite(path)._cursor():
        pass

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False)
        connection.execute(f"PRAGMA max_page_count={limit[0]}")
        return connection

    fill_up(connect())
    storage = dbapi(connect)

    def repair() -> None:
        limit[0] = 1000
        storage.close()

    return storage, "database or disk is full", repair


def fill_up(database: sqlite3.Connection) -> None:
    """Add rows of another group until no more go in."""
    with closing(database), suppress(sqlite3.OperationalError):
        for number in range(10_000):
            database.execute(f"INSERT INTO {TABLE} VALUES ('t', '0-0', ?, 0, -1)", (f"{number:0100}",))
            database.commit()
        pytest.fail("it took everything")


def read_only_database(folder: Path) -> tuple[OffsetStorage, str, Callable[[], None]]:
    """SQLite's file is opened for reading only."""
    path, mode = folder / "readonly.sqlite", ["ro"]
    with sqlite(path)._cursor():
        pass
    storage: DbApiOffsets = dbapi(
        lambda: sqlite3.connect(f"file:{path}?mode={mode[0]}", uri=True, check_same_thread=False)
    )

    def repair() -> None:
        mode[0] = "rw"
        storage.close()

    return storage, "attempt to write a readonly database", repair


@pytest.mark.parametrize("broken", [full_disk, full_database, read_only_database])
def test_a_storage_of_offsets(metaq_memory: MemoryServer, tmp_path: Path, broken: Broken) -> None:
    mq = metaq_memory.client()
    mq.producer().send_many("orders", ["a", "b", "c"])
    storage, says, repair = broken(tmp_path)
    with mq.consumer("g", ["orders"], offsets=storage, **QUICK) as consumer:
        found = read(consumer, 2)
        with pytest.raises(StoreFailed, match=says) as failed:
            consumer.commit()
        assert failed.value.retryable
        found += read(consumer, 1)
        repair()
        wait_until(lambda: P0 in storage.load("g", [P0]), "what was settled is saved by itself")
    assert found == [b"a", b"b", b"c"]
    mq.producer().send("orders", "d")
    with mq.consumer("g", ["orders"], offsets=storage, **QUICK) as consumer:
        assert read(consumer, 1) == [b"d"], "nothing that was settled comes again"


def test_a_store_of_parked_messages_that_is_full(metaq_memory: MemoryServer, tmp_path: Path) -> None:
    """The message is not settled: after the disk was cleared it is delivered again, and nothing behind it was lost."""
    mq = metaq_memory.client()
    mq.producer().send_many("orders", ["bad", "good"])
    place = tmp_path / "parked.sqlite"
    place.symlink_to("/dev/full")
    seen: list[bytes] = []

    def handle(message: Delivery) -> None:
        seen.append(message.data)
        if message.data == b"bad":
            raise ValueError("no")
        consumer.stop()

    with (
        pytest.raises(StoreFailed, match="parked"),
        mq.consumer("g", ["orders"], max_attempts=1, parking=place, **QUICK) as consumer,
    ):
        consumer.run(handle)
    place.unlink()
    with mq.consumer("g", ["orders"], max_attempts=1, parking=place, **QUICK) as consumer:
        consumer.run(handle)
        assert [one.message.data for one in consumer.parked] == [b"bad"]
    assert seen == [b"bad", b"bad", b"good"]


def test_a_spool_that_is_full_refuses_and_forgets_nothing(metaq_memory: MemoryServer, tmp_path: Path) -> None:
    """An ordered producer whose partition is away and whose file cannot grow says so, for each message."""
    mq, spool = metaq_memory.client(), tmp_path / "spool.sqlite"
    with mq.ordered_producer({"orders": "0:1"}, spool) as producer:
        assert producer.send("orders", "first") is not None
        metaq_memory.kill()
        assert producer.send("orders", "waits") is None
        limit_pages(producer._spool, more=4)
        taken = send_until_full(producer)
        assert sum(producer.spooled.values()) == 1 + taken
        limit_pages(producer._spool, more=1000)
        metaq_memory.start()
        assert producer.recover(timeout=60)
    assert [one.data for one in mq.browse("orders")] == [b"first", b"waits", *[b"x" * 1000] * taken]


def test_messages_sent_from_a_read_only_spool_are_not_sent_again(
    metaq_memory: MemoryServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full when the broker is back, until after the producer was closed; the next one has space."""
    send_what_waits(metaq_memory, tmp_path / "spool.sqlite")
    mq = metaq_memory.client()
    with mq.ordered_producer({"orders": "0:1"}, tmp_path / "spool.sqlite", retry_s=0.05) as producer:
        assert producer.spooled == {}
        wait_until(lambda: not producer._spool._sent, "they are deleted")
        assert producer.send("orders", "last") is not None
    assert [one.data for one in mq.browse("orders")] == [b"0", b"1", b"2", b"last"]
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert [each for each in said if each.startswith("sent")] == ["sent messages cannot be deleted yet"]


def test_how_many_messages_of_a_spool_will_be_repeated_is_said(
    metaq_memory: MemoryServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither file can be written."""

    def write(*values: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(SentNumbers, "_write", write)
    send_what_waits(metaq_memory, tmp_path / "spool.sqlite")
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "will send 3 messages again" in said
    assert "No space left on device" in said


@pytest.mark.parametrize("has_second_file", [True, False], ids=["with", "without the second file"])
def test_what_was_sent_is_known_after_the_program_was_killed(tmp_path: Path, has_second_file: bool) -> None:
    """Also in a file that has no second one yet."""
    path, copy = tmp_path / "spool.sqlite", tmp_path / "copy.sqlite"
    spool = opened(path)
    for number in range(4):
        spool.add(P0, Message(b"%d" % number))
    if not has_second_file:
        spool.close()
        sent_path(path).unlink()
        spool.open()
    refuse_writing(spool)
    spool.remove(P0, [1, 2])
    spool.remove(P0, [3])
    shutil.copy(path, copy)
    shutil.copy(sent_path(path), sent_path(copy))
    spool.close()
    second = opened(copy)
    assert second.waiting(P0) == 1
    assert [message.payload for _, message in second.first(P0, 9)] == [b"3"]
    second.tidy()
    assert second._execute("SELECT body FROM waiting", ()) == [(b"3",)]
    second.close()


@pytest.mark.parametrize("content", [b"other", b"0"], ids=["other", "the same"])
def test_the_numbers_of_a_former_spool_do_not_count_for_a_new_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "spool.sqlite"
    spool = opened(path)
    spool.add(P0, Message(b"0"))
    refuse_writing(spool)
    spool.remove(P0, [1])
    spool.close()
    path.unlink()
    spool = opened(path)
    spool.add(P0, Message(content))
    spool.close()
    spool = opened(path)
    assert spool.waiting(P0) == 1
    spool.close()


def test_a_damaged_second_file_of_a_spool_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spool.sqlite"
    spool = opened(path)
    spool.add(P0, Message(b"0"))
    refuse_writing(spool)
    spool.remove(P0, [1])
    spool.close()
    content = sent_path(path).read_bytes()
    sent_path(path).write_bytes(content[:14] + b"\xff" + content[15:] + b"cut off")
    spool = opened(path)
    assert spool.waiting(P0) == 1
    refuse_writing(spool)
    spool.remove(P0, [1])
    spool.close()
    spool = opened(path)
    assert spool.waiting(P0) == 0
    spool.close()


def send_what_waits(server: MemoryServer, path: Path) -> None:
    """Have three messages wait, and send them while no row can be deleted."""
    with server.client().ordered_producer({"orders": "0:1"}, path, retry_s=0.05) as producer:
        server.kill()
        for number in range(3):
            assert producer.send("orders", str(number)) is None
        refuse_writing(producer._spool)
        server.start()
        assert producer.recover(timeout=60)
    assert [one.data for one in server.client().browse("orders")] == [b"0", b"1", b"2"]


def opened(path: Path) -> Spool:
    """Open a spool."""
    spool = Spool(path)
    spool.open()
    return spool


def sent_path(path: Path) -> Path:
    """The second file of a spool."""
    return path.with_name(path.name + ".sent")


def refuse_writing(spool: Any) -> None:
    """Have SQLite refuse every change, as on a disk that has no space for its journal."""
    with spool._lock:
        spool._database.execute("PRAGMA query_only=ON")


def send_until_full(producer: OrderedProducer) -> int:
    """Send messages that have to wait until one is refused; return how many were taken."""
    for taken in range(100):
        try:
            assert producer.send("orders", b"x" * 1000) is None
        except StoreFailed:
            return taken
    pytest.fail("it took everything")


def limit_pages(spool: Any, *, more: int) -> None:
    """Let the file of a spool grow by so many pages."""
    with spool._lock:
        (pages,) = spool._database.execute("PRAGMA page_count").fetchone()
        spool._database.execute(f"PRAGMA max_page_count={pages + more}")


def read(consumer: GroupConsumer, count: int) -> list[bytes]:
    """Take messages one by one."""
    found: list[bytes] = []
    while len(found) < count:
        found += [one.data for one in consumer.fetch(1, timeout=20)]
    return found
