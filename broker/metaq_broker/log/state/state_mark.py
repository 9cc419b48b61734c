"""Records outside the state file how recent it is, so that an older copy of the file is noticed.

The state file counts, under a key of its own, every start, every clean stop, and every minute in which something
changed. File ``rocketmq-mark`` in the data folder also has that count, and is replaced atomically after each::

    metaq-state-mark 1
    COUNT NUMBERS      the state file has counted to COUNT at least; numbers of partitions below NUMBERS may be in use
    crc32 XXXXXXXX     of all lines before, 8 hex digits

A state file with a lower count is an older copy. The log may contain partition numbers that were given since, so
numbers are never given from the state file alone: messages would be confused. A missing or damaged mark has no effect.

Source: docs/log-format.md, "State file".
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from threading import Lock
from typing import Final

from metaq.errors import MetaqError
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal
from metaq_broker.log.state.state_table import StateTable

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "rocketmq-mark"
KEY: Final = "state/count"
NUMBERS_AT_ONCE: Final = 64
"""Partition numbers that are reserved in advance, and skipped at a restart."""

NOTE_S: Final = 60.0

_TITLE: Final = "metaq-state-mark 1"


class StateMark:
    """The mark of ``table``. Created by ``open``; for the running event loop."""

    def __init__(self, files: Files, path: Path, table: StateTable, count: int, numbers: int) -> None:
        self._files, self._path, self.table = files, path, table
        self._noted_s = 0.0
        self._lock = Lock()
        counted = _number(table.get(KEY))
        self.behind: Final = max(0, count - counted)
        """How much lower the state file's count is than the mark's; 0 unless the file is an older copy."""
        self._count = self._written = max(count, counted)
        self._numbers = numbers
        self._seen = -1

    @classmethod
    def open(cls, files: Files, folder: Path, table: StateTable) -> StateMark:
        """Read the mark of ``table``, the state file in ``folder`` (blocking)."""
        path = folder / FILE_NAME
        count = numbers = 0
        try:
            if files.exists(path):
                [line] = unseal(_TITLE, files.read_bytes(path))
                count, numbers = map(int, line.split(" "))
        except (ValueError, OSError) as error:
            _LOG.warning("the mark of the state file is not used", extra={"fields": {"path": path, "reason": error}})
        return cls(files, path, table, count, numbers)

    @property
    def first_number(self) -> int:
        """Partition numbers below this one may be in use."""
        return self._numbers

    def note_sometimes(self, now_s: float) -> None:
        """Call ``note`` every minute; ``now_s`` is monotonic."""
        if now_s - self._noted_s >= NOTE_S:
            self._noted_s = now_s
            self.note()

    def note(self) -> None:
        """Increase the count if something has changed since the last time; to be called at the start."""
        if self.table.changes == self._seen:
            return
        self._count += 1
        count, loop = self._count, asyncio.get_running_loop()

        def counted(error: Exception | None) -> None:
            if error is None and not loop.is_closed():
                loop.run_in_executor(None, self._write_quietly, count)

        try:
            self.table.put(KEY, str(count).encode(), counted)
        except (MetaqError, ValueError) as error:  # the table is full, or closed
            _LOG.warning("the state file does not count", extra={"fields": {"reason": error}})
        self._seen = self.table.changes

    def close(self) -> None:
        """Increase the count once more if something has changed, and close the table (blocking)."""
        if self.table.changes != self._seen:
            self._count += 1
            try:
                self.table.put(KEY, str(self._count).encode())
            except (MetaqError, ValueError):
                self._count -= 1
        self.table.close()
        if self.table.failure is None:
            self._write_quietly(self._count)

    def reserve(self, number: int) -> None:
        """Reserve this partition number and some above it durably (blocking, for most numbers not).

        Raises:
            OSError: The disk refuses.
        """
        if number >= self._numbers:
            with self._lock:
                self._write(self._written, number + NUMBERS_AT_ONCE)

    def _write_quietly(self, count: int) -> None:
        with self._lock:
            if count <= self._written:
                return
            try:
                self._write(count, self._numbers)
            except OSError as error:
                fields = {"path": self._path, "reason": error}
                _LOG.warning("the mark of the state file is not written", extra={"fields": fields})

    def _write(self, count: int, numbers: int) -> None:
        self._files.write_atomic(self._path, seal(_TITLE, [f"{count} {numbers}"]))
        self._written, self._numbers = count, numbers


def _number(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() else 0
