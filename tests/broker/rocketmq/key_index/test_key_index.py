"""The index of keys: what is found, and what a restart, damage and retention make of it."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.rocketmq.key_index import key_index
from metaq_broker.rocketmq.key_index.key_index import KeyIndex, key_hash
from metaq_broker.rocketmq.key_index.run_file import BLOCK_BYTES, Covered, encode_entry
from metaq_broker.testing import Fault, FaultyFiles
from waiting import in_loop

ALWAYS = 1 << 62


class IndexedLog:
    """A log of which only the ends are known, and its index of keys, in ``folder``."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.folder = folder / "keys"
        self.ends: dict[tuple[str, int], int] = {}
        self.start(files)

    def start(self, files: Files | None = None) -> None:
        self.index = KeyIndex.open(files or Files(), self.folder, self.ends.copy)
        self.index.watch_from_now()

    def put(self, *keys: str, topic: str = "orders", partition: int = 0, time_ms: int = 1000) -> int:
        """Store a message; return its ordinal, which is its place, too."""
        ordinal = self.ends.get((topic, partition), 0)
        self.ends[topic, partition] = ordinal + 1
        entries = [encode_entry(key_hash(topic, key), ordinal, time_ms) for key in keys]
        self.index.add(topic, partition, ordinal, ordinal + 1, entries)
        return ordinal

    async def put_in_files(self, first: str, last: str) -> None:
        """Store two messages: the first one's entries go to a file, those of the last are still in memory."""
        self.put(first)
        await self.index.flush()
        self.put(last)

    def put_old(self, key: str, ordinal: int, first: int, end: int) -> None:
        """Store the entry of an older message; the index knows all of ``first`` to ``end`` now."""
        self.index.add_old(Covered("orders", 0, first, end), [encode_entry(key_hash("orders", key), ordinal, 5)])

    async def places(self, key: str, topic: str = "orders", count: int = 100) -> list[int]:
        return [each.place for each in await self.index.find(topic, key, 0, ALWAYS, count)]

    def gaps(self, first: int, end: int, topic: str = "orders") -> list[tuple[int, int]]:
        return self.index.coverage().gaps(topic, 0, first, end)

    def paths(self) -> list[Path]:
        """The files of the index, the oldest first."""
        return sorted(self.folder.iterdir())

    async def restart(self, files: Files | None = None) -> None:
        await self.index.close()
        self.start(files)

    def restart_after_kill(self) -> None:
        self.index._thread.shutdown()
        self.start()


@asynccontextmanager
async def indexed(folder: Path, files: Files | None = None) -> AsyncIterator[IndexedLog]:
    """A log with its index, which is closed in the end."""
    made = IndexedLog(folder, files)
    yield made
    await made.index.close()


@in_loop
async def test_found_in_memory_and_in_files_latest_first(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        first = log.put("a", "b", time_ms=1)
        await log.index.flush()
        second = log.put("a", time_ms=2)
        log.put("a", topic="bills", time_ms=3)
        assert await log.places("a") == [second, first]
        assert await log.places("b") == [first]
        assert await log.places("c") == []
        assert await log.places("a", count=1) == [second]
        assert [each.place for each in await log.index.find("orders", "a", 0, 1, 10)] == [first]
        assert [each.place for each in await log.index.find("orders", "a", 2, 9, 10)] == [second]
        assert log.index.latest.time_ms == 3


@in_loop
async def test_a_restart_knows_what_was_written(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        log.put("a")
        await log.restart()
        assert await log.places("a") == [0]
        assert log.gaps(0, 1) == []


@in_loop
async def test_what_was_only_in_memory_is_a_gap_after_a_kill(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        await log.put_in_files("a", "b")
        log.put("c")
        log.restart_after_kill()
        assert await log.places("b") == []
        assert log.gaps(0, log.ends["orders", 0]) == [(1, 3)]
        log.put("d")  # not a gap: it was reported
        assert log.gaps(0, log.ends["orders", 0]) == [(1, 3)]
        log.put_old("b", 1, first=1, end=3)
        assert log.gaps(0, log.ends["orders", 0]) == []
        assert await log.places("b") == [1]


@in_loop
async def test_messages_without_keys_leave_no_gaps(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        log.ends["plain", 0] = 500
        log.put("a")
        log.ends["orders", 0] += 100
        log.put("b")
        await log.index.close()
        log.ends["plain", 0] = 700
        log.start()
        assert log.gaps(0, 102) == []
        assert log.gaps(0, 700, "plain") == [(500, 700)]


@in_loop
async def test_files_without_entries_are_joined(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        for end in range(1, 6):
            log.ends["plain", 0] = end
            await log.index.flush()
        assert len(log.paths()) == 1
        await log.restart()
        assert log.gaps(0, 5, "plain") == []


@in_loop
async def test_a_full_memory_becomes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MEMORY_ENTRIES", 50)
    async with indexed(tmp_path) as log:
        for number in range(1000):
            log.put(f"k{number}", f"u{number}", time_ms=number)
            if number % 20 == 0:
                await log.index.flush()
        await log.index.flush()
        for number in range(0, 1000, 7):
            assert await log.places(f"k{number}") == [number]
            assert await log.places(f"u{number}") == [number]
        assert len(log.paths()) > 10


@in_loop
async def test_a_damaged_file_is_removed_and_its_messages_are_gaps(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        await log.put_in_files("a", "b")
        await log.index.close()
        first, _ = log.paths()
        content = bytearray(first.read_bytes())
        content[-BLOCK_BYTES + 3] ^= 1
        first.write_bytes(content)
        log.start()
        assert await log.places("b") == [1]
        assert await log.places("a") == []
        assert log.gaps(0, 2) == [(0, 1)]
        assert not first.exists()
        await log.index.close()
        foreign = log.folder / "000000000099.keys"
        foreign.write_bytes(b"nothing of ours")
        log.start()
        assert not foreign.exists()


@in_loop
async def test_the_whole_index_can_be_lost(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        log.ends["orders", 0] = 3
        assert log.gaps(1, 3) == [(1, 3)]


@in_loop
async def test_retention_takes_files_whose_messages_are_all_gone(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        await log.put_in_files("a", "b")
        await log.index.flush()
        log.index.drop_before({("orders", 0): 1})
        assert await log.places("a") == []
        assert await log.places("b") == [1]
        log.index.drop_before({})
        assert await log.places("b") == []


@in_loop
async def test_a_disk_that_refuses_is_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    async with indexed(tmp_path, files) as log:
        log.put("a")
        files.fault = Fault(1, errno.ENOSPC, calls=frozenset({"pwrite"}))
        await log.index.flush()
        assert await log.places("a") == [0]
        log.put("b")
        await log.index.flush()
        await log.restart(files.restart())
        assert (await log.places("a"), await log.places("b")) == ([0], [1])


@in_loop
async def test_messages_that_are_missed_are_a_gap_until_they_are_read(tmp_path: Path) -> None:
    async with indexed(tmp_path) as log:
        log.put("a")
        log.ends["orders", 0] = 3
        log.index.missed(Covered("orders", 0, 1, 3))
        log.put("b")
        await log.restart()
        assert log.gaps(0, 4) == [(1, 3)]
        log.put_old("c", 2, first=1, end=3)
        assert log.gaps(0, 4) == []
        assert await log.places("c") == [2]


@in_loop
async def test_a_file_that_knows_more_messages_than_there_are_is_built_anew(tmp_path: Path) -> None:
    """An older copy of the log was restored: other messages get the ordinals that the file knows."""
    async with indexed(tmp_path) as log:
        await log.put_in_files("a", "b")
        await log.index.close()
        log.ends["orders", 0] = 1
        log.start()
        assert log.gaps(0, 1) == []
        log.put("c")
        log.restart_after_kill()
        assert log.gaps(0, 2) == [(1, 2)]


@in_loop
async def test_a_memory_that_is_dropped_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MEMORY_ENTRIES", 1)
    files = FaultyFiles(tmp_path)
    async with indexed(tmp_path, files) as log:
        files.fault = Fault(1, errno.ENOSPC, calls=frozenset({"pwrite"}), lasting=True)
        for number in range(10):
            log.put(f"k{number}")
            await log.index.flush()
        dropped = [number for gap in log.gaps(0, 10) for number in range(*gap)]
        assert len(dropped) == 10 - key_index.FULL_MEMORIES_MAX
        files.fault = None
        await log.index.flush()
        for number in dropped:
            log.put_old(f"k{number}", number, first=number, end=number + 1)
            await log.index.flush()
        await log.restart(files.restart())
        assert log.gaps(0, 10) == []
        assert [await log.places(f"k{number}") for number in range(10)] == [[number] for number in range(10)]


@in_loop
async def test_topics_that_clients_ask_about_are_not_kept(tmp_path: Path) -> None:
    log, names = IndexedLog(tmp_path), 20
    tracemalloc.start()
    try:
        for number in range(names):
            assert await log.places("a", topic=f"{number}" * 500_000) == []
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < names * 500_000 / 4
