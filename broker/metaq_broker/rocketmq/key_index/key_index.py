"""Finds messages by topic and key.

New entries are kept in memory, ``MEMORY_ENTRIES`` at most; a full memory becomes a file of sorted entries
(``run_file``), written by a thread. Files are never changed. Each records the messages that it covers. So after a
restart it is known which messages are missing, because they were in memory or in lost or damaged files. They are read
from the log and added again (``gaps``), so an index is never lost: without its files it is rebuilt.

A hash represents topic and key; an entry may belong to another key with the same hash, or to a deleted message. The
caller compares the message itself.

Used on the event loop; files are written and searched by one thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Final

from metaq.formats.checksum import crc32
from metaq_broker.log.files.files import Files
from metaq_broker.rocketmq.key_index.coverage import Coverage, Partition
from metaq_broker.rocketmq.key_index.run_file import (
    SUFFIX,
    Covered,
    Entry,
    IndexRun,
    RunDamaged,
    decode_entry,
    encode_entry,
    find_in_run,
    open_run,
    write_run,
)

_LOG: Final = logging.getLogger(__name__)

MEMORY_ENTRIES: Final = 1 << 15
FULL_MEMORIES_MAX: Final = 4
"""Limit on memories that wait to be written. Beyond it, the oldest is dropped; its messages are read again later."""

Ends = Callable[[], Mapping[Partition, int]]
"""Returns, for all partitions, the ordinals below which ``add`` was called for every message that has keys."""


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key of a topic, 32 bits: a CRC, for it is quick, and others are compared by the text."""
    return crc32(key.encode("utf-8", "replace"), _seed(topic))


def _seed(topic: str) -> int:
    return crc32(topic.encode("utf-8", "replace"))


topic_seed: Final = lru_cache(maxsize=10_000)(_seed)
"""Returns the initial value of the hashes of a stored topic's keys. What a client asks about may have any length, and
is not kept.
"""


class _Memory:
    """Encoded entries that are not in a file yet, and their coverage.

    For each partition, all messages from ``first`` to the next one to add, except ``missing``; ``old`` was read again.
    """

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.first: dict[Partition, int] = {}
        self.missing, self.old = Coverage(), Coverage()

    def coverage(self, seen: Mapping[Partition, int]) -> Coverage:
        """Return the coverage when the partitions end at ``seen``."""
        covered = Coverage(self.old)
        for queue, first in self.first.items():
            for low, high in self.missing.gaps(*queue, first, seen[queue]):
                covered.add(Covered(*queue, low, high))
        return covered


class KeyIndex:
    """The index. Made by ``open``."""

    def __init__(self, files: Files, folder: Path, runs: Iterable[IndexRun], ends: Ends) -> None:
        self._files, self._folder, self._ends = files, folder, ends
        self._runs = list(runs)
        self._memory = _Memory()
        self._full: list[tuple[_Memory, Coverage]] = []
        self._writing: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="key-index")
        self._seen: dict[Partition, int] = {}
        self._number = max((int(run.path.stem) for run in self._runs), default=0)
        self._latest = Entry(0, 0, 0)

    @classmethod
    def open(cls, files: Files, folder: Path, ends: Ends) -> KeyIndex:
        """Open or create the index in ``folder`` (blocking). Damaged files are removed.

        Raises:
            OSError: The folder cannot be created or read.
        """
        files.make_folders(folder)
        runs = []
        for name in files.listdir(folder):
            path = folder / name
            if path.suffix != SUFFIX or not path.stem.isdecimal():
                if name.endswith(f"{SUFFIX}.tmp"):
                    files.unlink(path)
                continue
            try:
                runs.append(open_run(files, path))
            except (RunDamaged, ValueError, TypeError) as error:
                _LOG.warning("index of keys: a damaged file is rebuilt", extra={"fields": {"reason": error}})
                files.unlink(path)
        return cls(files, folder, runs, ends)

    # ---- adding

    def add(self, topic: str, partition: int, first: int, end: int, entries: Iterable[bytes]) -> None:
        """Add the encoded entries of messages with the ordinals from ``first`` to below ``end``.

        Messages between these and the previous ones have no keys, because this is called for all that have.
        """
        queue, memory, seen = (topic, partition), self._memory, self._seen
        memory.entries.extend(entries)
        last = seen.get(queue, 0)
        if queue not in memory.first:
            memory.first[queue] = min(first, last)
        if end > last:
            seen[queue] = end
        if len(memory.entries) >= MEMORY_ENTRIES:
            self._begin_memory()

    def add_old(self, covered: Covered, entries: Iterable[bytes]) -> None:
        """Add entries that were read from the log to fill a gap."""
        self._memory.entries.extend(entries)
        self._memory.old.add(covered)
        if len(self._memory.entries) >= MEMORY_ENTRIES:
            self._begin_memory()

    def missed(self, covered: Covered) -> None:
        """Record a gap: messages that may have keys, and for which ``add`` will not be called."""
        self._memory.missing.add(covered)

    def watch_from_now(self) -> None:
        """From now on ``add`` is called for every message with keys; existing messages may have gaps.

        A file that covers more messages than exist belongs to another log, as after an older copy of the data was
        restored. It is removed: other messages get these ordinals.
        """
        ends = self._seen = dict(self._ends())
        for run in list(self._runs):
            if any(each.end > ends.get((each.topic, each.partition), each.end) for each in run.coverage):
                fields = {"path": run.path}
                _LOG.warning("index of keys: a file of other messages is rebuilt", extra={"fields": fields})
                self._remove(run)

    def coverage(self) -> Coverage:
        """Return of which messages all keys are known now."""
        known = Coverage(each for run in self._runs for each in run.coverage)
        for coverage in (*(coverage for _, coverage in self._full), self._memory.coverage(self._seen)):
            for each in coverage:
                known.add(each)
        return known

    @property
    def latest(self) -> Entry:
        """The entry added last, zeros if there is none in memory."""
        return decode_entry(self._memory.entries[-1]) if self._memory.entries else self._latest

    # ---- writing

    def _begin_memory(self) -> None:
        for queue, end in self._ends().items():  # stored messages that were not added have no keys
            self._memory.first.setdefault(queue, self._seen.get(queue, 0))
            self._seen[queue] = max(end, self._seen.get(queue, 0))
        self._latest = self.latest
        self._full.append((self._memory, self._memory.coverage(self._seen)))
        self._memory = _Memory()
        if len(self._full) > FULL_MEMORIES_MAX:
            self._full.pop(0 if self._writing is None else 1)
            _LOG.error("index of keys: not written, some keys are not found until their messages are read again")
        self._write_next()

    def _write_next(self) -> None:
        if self._writing is not None or not self._full:
            return
        full, loop = self._full[0], asyncio.get_running_loop()
        empty = [run for run in self._runs if not run.count]
        coverage = Coverage([*full[1], *(each for run in empty for each in run.coverage)])
        self._writing = loop.create_future()
        written = loop.run_in_executor(self._thread, self._write, full[0].entries, coverage, self._next_path())

        def done(future: asyncio.Future[IndexRun]) -> None:
            waiting, self._writing = self._writing, None
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
            if future.cancelled():
                return
            if (error := future.exception()) is not None:
                _LOG.error("index of keys: a file cannot be written", extra={"fields": {"reason": error}})
                return  # tried again with the next one
            self._runs.append(future.result())
            self._full.remove(full)
            for run in empty:
                self._remove(run)
            self._write_next()

        written.add_done_callback(done)

    def _write(self, entries: list[bytes], coverage: Coverage, path: Path) -> IndexRun:
        return write_run(self._files, path, sorted(entries), coverage)

    def _next_path(self) -> Path:
        self._number += 1
        return self._folder / f"{self._number:012d}{SUFFIX}"

    async def flush(self) -> None:
        """Write the entries in memory; return when they are written or the disk has refused them."""
        ends = self._ends()
        if self._memory.entries or self._memory.old or any(end > self._seen.get(each, 0) for each, end in ends.items()):
            self._begin_memory()
        self._write_next()
        while self._writing is not None:
            await self._writing

    async def close(self) -> None:
        """Write the entries in memory, and end the thread."""
        await self.flush()
        self._thread.shutdown(wait=True)

    # ---- searching

    async def find(self, topic: str, key: str, begin_ms: int, end_ms: int, count: int) -> list[Entry]:
        """Return at most ``count`` entries that may be of messages with this key, the latest first."""
        wanted = key_hash(topic, key)
        memories, front = [*(memory for memory, _ in self._full), self._memory], encode_entry(wanted, 0, 0)[:4]
        found = [decode_entry(each) for memory in memories for each in memory.entries if each.startswith(front)]
        runs = [run for run in self._runs if run.count and run.first_ms <= end_ms and run.last_ms >= begin_ms]
        if runs:
            loop = asyncio.get_running_loop()
            in_files, damaged = await loop.run_in_executor(self._thread, self._find_in, runs, wanted)
            found += in_files
            for run in damaged:
                self._remove(run)
        by_place = {each.place: each for each in found if begin_ms <= each.time_ms <= end_ms}
        return sorted(by_place.values(), key=lambda each: (each.time_ms, each.place), reverse=True)[:count]

    def _find_in(self, runs: Iterable[IndexRun], wanted: int) -> tuple[list[Entry], list[IndexRun]]:
        found, damaged = [], []
        for run in runs:
            try:
                found += find_in_run(self._files, run, wanted)
            except (RunDamaged, OSError) as error:
                _LOG.warning("index of keys: a damaged file is rebuilt", extra={"fields": {"reason": error}})
                damaged.append(run)
        return found, damaged

    def _remove(self, run: IndexRun) -> None:
        """Remove a file; its coverage becomes a gap again."""
        if run not in self._runs:
            return
        self._runs.remove(run)
        try:
            self._files.unlink(run.path)
        except OSError as error:
            _LOG.error("index of keys: a file cannot be removed", extra={"fields": {"reason": error}})

    def drop_before(self, starts: Mapping[Partition, int]) -> None:
        """Remove files whose messages are all deleted: below the first ordinal of their partition, or without a
        partition.
        """
        for run in list(self._runs):
            if all(each.end <= starts.get((each.topic, each.partition), each.end) for each in run.coverage):
                self._remove(run)
