"""Stops puts before a disk is full, so that acknowledged work can be completed and reads continue.

A folder becomes ``low`` when less than a minimum is free, until a somewhat higher amount is free again::

                    less than the minimum free, or a write found no space
        enough  ─────────────────────────────────────────────────────────▶  low
                ◀─────────────────────────────────────────────────────────
                    at least the resume amount free (and 5 s since no space was found)

Free space is read every ``check_interval_ms``, ten times as often when it is scarce; never per put. While a folder is
low, puts into it are refused, and so are PREPARE, COMMIT in one phase and puts of transactions. The remaining space is
for earlier promises: COMMIT of prepared transactions, decisions, rollbacks, the journal. Reads continue.

Source: docs/operations.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq_broker.background import begin_work, stop_work
from metaq_broker.clock import Clock
from metaq_broker.log.files.files import DiskSpace, Files

_LOG: Final = logging.getLogger(__name__)

DEFAULT_FREE_BYTES_MIN: Final = 256 << 20
"""The default minimum on disks of ten times that and more; on smaller ones it is a tenth."""

FULL_HOLD_S: Final = 5.0
"""How long a folder stays low after a write found no space, whatever free space the system reports."""

SCARCE_FACTOR: Final = 8
"""Below this many minimums, free space is read ``SCARCE_SPEED`` times as often."""

SCARCE_SPEED: Final = 10


RunInWorker = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking function in another thread and returns its result or raises its exception."""


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Minimum and resume amount in bytes; ``None``: the default, see ``of``. A minimum of 0 disables the guard."""

    free_bytes_min: int | None = None
    free_bytes_resume: int | None = None
    check_interval_ms: int = 1000

    def of(self, total_bytes: int) -> tuple[int, int]:
        """Return minimum and resume amount for a disk of this size.

        Defaults: ``DEFAULT_FREE_BYTES_MIN``, but at most a tenth of the disk; and a quarter more than the minimum.
        """
        minimum = self.free_bytes_min
        if minimum is None:
            minimum = min(DEFAULT_FREE_BYTES_MIN, total_bytes // 10)
        resume = self.free_bytes_resume
        return minimum, max(minimum, minimum + minimum // 4 if resume is None else resume)


@dataclass(slots=True)
class GuardedFolder:
    """The last known state of a folder. ``times_low`` counts since the broker's start; ``reason`` is set while low.

    ``gone``: why it, or a file in it, is no longer the one of the broker's start (see ``folder_watch``).
    """

    path: str
    free_bytes: int = 0
    free_bytes_min: int = 0
    free_bytes_resume: int = 0
    times_low: int = 0
    reason: str | None = None
    full_at_s: float | None = None
    gone: str | None = None

    @property
    def low(self) -> bool:
        """Whether puts are refused because space is scarce."""
        return self.reason is not None

    @property
    def refusal(self) -> str | None:
        """Why puts are refused; ``None`` if they are not."""
        return self.gone or self.reason


class DiskGuard:
    """Implements ``Space``. Used on one event loop."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        limits: DiskLimits,
        paths: Iterable[str],
        run_in_worker: RunInWorker = asyncio.to_thread,
    ) -> None:
        """``paths``: the folders to guard, absolute; if a folder does not exist yet, its nearest parent is read."""
        self.low = False
        self._files, self._clock = files, clock
        self._limits = limits
        self._run_in_worker = run_in_worker
        self._folders: dict[str, GuardedFolder] = {}
        self._task: asyncio.Task[None] | None = None
        self.guard(paths)

    # ---- start and stop

    def start(self) -> None:
        """Check regularly until ``stop``. (Call ``check`` once before the first put.)"""
        if self._limits.free_bytes_min != 0:
            self._task = begin_work(self._keep_looking(), "disk guard")

    async def stop(self) -> None:
        """Stop checking; the states of folders stay."""
        await stop_work(self._task)

    def guard(self, paths: Iterable[str]) -> None:
        """Guard exactly these folders from now on; folders that were guarded already keep their state."""
        self._folders = {path: self._folders.get(path) or GuardedFolder(path) for path in paths}
        self._sum_up()

    def folders(self) -> list[GuardedFolder]:
        """Return the last known state of every folder, by path."""
        return [self._folders[path] for path in sorted(self._folders)]

    # ---- Space

    def refusal(self, path: str) -> str | None:
        folder = self._folders.get(path)
        return None if folder is None else folder.refusal

    def ran_out(self, path: str) -> None:
        folder = self._folders.get(path)
        if folder is not None and self._limits.free_bytes_min != 0:
            folder.full_at_s = self._clock.monotonic()
            self._set_low(folder, f"disk is full: no space is left in {path}; puts are refused until there is")

    def note_missing(self, path: str, reason: str | None) -> None:
        """Record why the folder ``path`` is no longer the one of the start; ``None``: it is that one again."""
        folder = self._folders.get(path)
        if folder is None or folder.gone == reason:
            return
        folder.gone = reason
        if reason is None:
            _LOG.warning("puts are accepted again, the folder is back", extra={"fields": {"path": path}})
        else:
            _LOG.error("puts are refused, files are gone", extra={"fields": {"path": path, "reason": reason}})
        self._sum_up()

    # ---- looking

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self.pause_s())
            await self.check()

    def pause_s(self) -> float:
        """Return the seconds until the disks are looked at again: fewer while space is scarce."""
        scarce = any(each.low or each.free_bytes < SCARCE_FACTOR * each.free_bytes_min for each in self.folders())
        return self._limits.check_interval_ms / 1000 / (SCARCE_SPEED if scarce else 1)

    async def check(self) -> None:
        """Read the free space of every folder's disk now. If it cannot be read, the state stays."""
        seen: dict[str, DiskSpace] = {}
        paths = list(self._folders)

        def look() -> None:
            for path in paths:
                with contextlib.suppress(OSError):
                    seen[path] = self._files.disk_space(Path(path))

        await self._run_in_worker(look)
        for path, space in seen.items():
            if path in self._folders:
                self._take_note(self._folders[path], space)

    def _take_note(self, folder: GuardedFolder, space: DiskSpace) -> None:
        folder.free_bytes = space.free_bytes
        folder.free_bytes_min, folder.free_bytes_resume = self._limits.of(space.total_bytes)
        enough = folder.free_bytes_resume if folder.low else folder.free_bytes_min
        if space.free_bytes < enough:
            self._set_low(folder, _nearly_full(folder))
        elif folder.low and not self._on_hold(folder):
            self._set_enough(folder)

    def _on_hold(self, folder: GuardedFolder) -> bool:
        return folder.full_at_s is not None and self._clock.monotonic() - folder.full_at_s < FULL_HOLD_S

    def _set_low(self, folder: GuardedFolder, reason: str) -> None:
        if not folder.low:
            folder.times_low += 1
            _LOG.warning("puts are refused, the disk is nearly full", extra={"fields": _fields(folder)})
        folder.reason = reason
        self._sum_up()

    def _set_enough(self, folder: GuardedFolder) -> None:
        folder.reason = folder.full_at_s = None
        _LOG.warning("puts are accepted again, the disk has space", extra={"fields": _fields(folder)})
        self._sum_up()

    def _sum_up(self) -> None:
        self.low = any(folder.refusal is not None for folder in self._folders.values())


def _nearly_full(folder: GuardedFolder) -> str:
    minimum, resume = folder.free_bytes_min, folder.free_bytes_resume
    rule = f"puts are refused below {minimum} (diskFreeMinBytes) until {resume} are free"
    return f"disk is nearly full: {folder.free_bytes} bytes are free in {folder.path}; {rule}"


def _fields(folder: GuardedFolder) -> dict[str, object]:
    return {
        "path": folder.path,
        "free_bytes": folder.free_bytes,
        "min_bytes": folder.free_bytes_min,
        "resume_bytes": folder.free_bytes_resume,
    }
