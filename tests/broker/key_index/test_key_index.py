"""The index of keys: what is found, and what a restart, damage and retention make of it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from metaq_broker.key_index import key_index
from metaq_broker.key_index.key_index import KeyIndex, key_hash
from metaq_broker.key_index.run_file import BLOCK_BYTES, Covered, encode_entry
from metaq_broker.storage.files import Files
from metaq_broker.testing import Fault, FaultyFiles
from waiting import in_loop

ALWAYS = 1 << 62


class Log:
    """The ends of partitions."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}

    def __call__(self) -> dict[tuple[str, int], int]:
        return dict(self.ends)


def opened(folder: Path, log: Log, files: Files | None = None) -> KeyIndex:
    index = KeyIndex.open(Files() if files is None else files, folder / "keys", log)
    index.watch_from_now()
    return index


def put(index: KeyIndex, log: Log, *keys: str, topic: str = "orders", partition: int = 0, time_ms: int = 1000) -> int:
    """Store a message; return its ordinal, which is its place, too."""
    ordinal = log.ends.get((topic, partition), 0)
    log.ends[topic, partition] = ordinal + 1
    entries = [encode_entry(key_hash(topic, key), ordinal, time_ms) for key in keys]
    index.add(topic, partition, ordinal, ordinal + 1, entries)
    return ordinal


async def places(index: KeyIndex, key: str, topic: str = "orders", count: int = 100) -> list[int]:
    return [each.place for each in await index.find(topic, key, 0, ALWAYS, count)]


def gaps(index: KeyIndex, topic: str, partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return index.coverage().gaps(topic, partition, first, end)


@in_loop
async def test_found_in_memory_and_in_files_latest_first(tmp_path: Path) -> None:
    log = Log()
    index = opened(tmp_path, log)
    first = put(index, log, "a", "b", time_ms=1)
    await index.flush()
    second = put(index, log, "a", time_ms=2)
    put(index, log, "a", topic="bills", time_ms=3)
    assert await places(index, "a") == [second, first]
    assert await places(index, "b") == [first]
    assert await places(index, "c") == []
    assert await places(index, "a", count=1) == [second]
    assert [each.place for each in await index.find("orders", "a", 0, 1, 10)] == [first]
    assert [each.place for each in await index.find("orders", "a", 2, 9, 10)] == [second]
    assert index.latest.time_ms == 3
    await index.close()


@in_loop
async def test_a_restart_knows_what_was_written(tmp_path: Path) -> None:
    log = Log()
    index = opened(tmp_path, log)
    put(index, log, "a")
    await index.close()
    index = opened(tmp_path, log)
    assert await places(index, "a") == [0]
    assert gaps(index, "orders", 0, 0, 1) == []
    await index.close()


@in_loop
async def test_what_was_only_in_memory_is_a_gap_after_a_kill(tmp_path: Path) -> None:
    log = Log()
    index = opened(tmp_path, log)
    put(index, log, "a")
    await index.flush()
    put(index, log, "b")
    put(index, log, "c")
    index._thread.shutdown()
    index = opened(tmp_path, log)
    assert await places(index, "b") == []
    assert gaps(index, "orders", 0, 0, log.ends["orders", 0]) == [(1, 3)]
    put(index, log, "d")  # not a gap: it was reported
    assert gaps(index, "orders", 0, 0, log.ends["orders", 0]) == [(1, 3)]
    index.add_old(Covered("orders", 0, 1, 3), [encode_entry(key_hash("orders", "b"), 1, 5)])
    assert gaps(index, "orders", 0, 0, log.ends["orders", 0]) == []
    assert await places(index, "b") == [1]
    await index.close()


@in_loop
async def test_messages_without_keys_leave_no_gaps(tmp_path: Path) -> None:
    log = Log()
    index = opened(tmp_path, log)
    log.ends["plain", 0] = 500
    put(index, log, "a")
    log.ends["orders", 0] += 100
    put(index, log, "b")
    await index.close()
    log.ends["plain", 0] = 700
    index = opened(tmp_path, log)
    assert gaps(index, "orders", 0, 0, 102) == []
    assert gaps(index, "plain", 0, 0, 700) == [(500, 700)]
    await index.close()


@in_loop
async def test_files_without_entries_are_joined(tmp_path: Path) -> None:
    log = Log()
    index = opened(tmp_path, log)
    for end in range(1, 6):
        log.ends["plain", 0] = end
        await index.flush()
    assert len(list((tmp_path / "keys").iterdir())) == 1
    await index.close()
    assert gaps(opened(tmp_path, log), "plain", 0, 0, 5) == []


@in_loop
async def test_a_full_memory_becomes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MEMORY_ENTRIES", 50)

    log = Log()
    index = opened(tmp_path, log)
    for number in range(1000):
        put(index, log, f"k{number}", f"u{number}", time_ms=number)
        if number % 20 == 0:
            await index.flush()
    await index.flush()
    for number in range(0, 1000, 7):
        assert await places(index, f"k{number}") == [number]
        assert await places(index, f"u{number}") == [number]
    assert len(list((tmp_path / "keys").iterdir())) > 10
    await index.close()


@in_loop
async def test_a_damaged_file_is_removed_and_its_messages_are_gaps(tmp_path: Path) -> None:
    log = Log()
    index = opened(tmp_path, log)
    put(index, log, "a")
    await index.flush()
    put(index, log, "b")
    await index.close()
    first, _ = sorted((tmp_path / "keys").iterdir())
    content = bytearray(first.read_bytes())
    content[-BLOCK_BYTES + 3] ^= 1
    first.write_bytes(content)
    index = opened(tmp_path, log)
    assert await places(index, "b") == [1]
    assert await places(index, "a") == []
    assert gaps(index, "orders", 0, 0, 2) == [(0, 1)]
    assert not first.exists()
    await index.close()
    (tmp_path / "keys" / "000000000099.keys").write_bytes(b"nothing of ours")
    index = opened(tmp_path, log)
    assert not (tmp_path / "keys" / "000000000099.keys").exists()
    await index.close()


@in_loop
async def test_the_whole_index_can_be_lost(tmp_path: Path) -> None:
    log = Log()
    log.ends["orders", 0] = 3
    index = opened(tmp_path, log)
    assert gaps(index, "orders", 0, 1, 3) == [(1, 3)]
    await index.close()


@in_loop
async def test_retention_takes_files_whose_messages_are_all_gone(tmp_path: Path) -> None:
    log = Log()
    index = opened(tmp_path, log)
    put(index, log, "a")
    await index.flush()
    put(index, log, "b")
    await index.flush()
    index.drop_before({("orders", 0): 1})
    assert await places(index, "a") == []
    assert await places(index, "b") == [1]
    index.drop_before({})
    assert await places(index, "b") == []
    await index.close()


@in_loop
async def test_a_disk_that_refuses_is_tried_again(tmp_path: Path) -> None:
    log, files = Log(), FaultyFiles(tmp_path)
    index = opened(tmp_path, log, files)
    put(index, log, "a")
    files.fault = Fault(1, errno.ENOSPC, calls=frozenset({"pwrite"}))
    await index.flush()
    assert await places(index, "a") == [0]
    put(index, log, "b")
    await index.flush()
    await index.close()
    index = opened(tmp_path, log, files.restart())
    assert (await places(index, "a"), await places(index, "b")) == ([0], [1])
    await index.close()


@in_loop
async def test_messages_that_are_missed_are_a_gap_until_they_are_read(tmp_path: Path) -> None:
    log = Log()
    index = opened(tmp_path, log)
    put(index, log, "a")
    log.ends["orders", 0] = 3
    index.missed(Covered("orders", 0, 1, 3))
    put(index, log, "b")
    await index.close()
    index = opened(tmp_path, log)
    assert gaps(index, "orders", 0, 0, 4) == [(1, 3)]
    index.add_old(Covered("orders", 0, 1, 3), [encode_entry(key_hash("orders", "c"), 2, 5)])
    assert gaps(index, "orders", 0, 0, 4) == []
    assert await places(index, "c") == [2]
    await index.close()


@in_loop
async def test_a_file_that_knows_more_messages_than_there_are_is_built_anew(tmp_path: Path) -> None:
    """An older copy of the log was restored: other messages get the ordinals that the file knows."""

    log = Log()
    index = opened(tmp_path, log)
    put(index, log, "a")
    await index.flush()
    put(index, log, "b")
    await index.close()
    log.ends["orders", 0] = 1
    index = opened(tmp_path, log)
    assert gaps(index, "orders", 0, 0, 1) == []
    put(index, log, "c")
    index._thread.shutdown()  # a kill
    index = opened(tmp_path, log)
    assert gaps(index, "orders", 0, 0, 2) == [(1, 2)]
    await index.close()


@in_loop
async def test_a_memory_that_is_dropped_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MEMORY_ENTRIES", 1)

    log, files = Log(), FaultyFiles(tmp_path)
    index = opened(tmp_path, log, files)
    files.fault = Fault(1, errno.ENOSPC, calls=frozenset({"pwrite"}), lasting=True)
    for number in range(10):
        put(index, log, f"k{number}")
        await index.flush()
    dropped = [number for gap in gaps(index, "orders", 0, 0, 10) for number in range(*gap)]
    assert len(dropped) == 10 - key_index.FULL_MEMORIES_MAX
    files.fault = None
    await index.flush()
    for number in dropped:
        index.add_old(
            Covered("orders", 0, number, number + 1), [encode_entry(key_hash("orders", f"k{number}"), number, 1000)]
        )
        await index.flush()
    await index.close()
    index = opened(tmp_path, log, files.restart())
    assert gaps(index, "orders", 0, 0, 10) == []
    assert [await places(index, f"k{number}") for number in range(10)] == [[number] for number in range(10)]
    await index.close()
