"""A small durable table of texts and bytes, kept in memory and in one file: offsets, settings, positions.

``put`` and ``delete`` change the memory at once. One thread writes: everything that was changed until a commit begins
goes into one append and one fsync, then the callbacks run. A change without a callback is written within a second;
several of one key may become one record.

When the file has grown to a multiple of what it holds, the next commit writes all entries into a fresh file, which
takes the name in one step. The same is done at the start, at the end, and after a failure: what a failed write or fsync
left of a file is never trusted again, and a fresh file holds everything. Until that works, changes that wait are
answered with ``StateNotWritten``, and it is tried again every second.

Source: docs/log-format.md, "State file".
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from metaq_broker.log.files.errors import StateFull, StateNotWritten
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_records import (
    FILE_HEADER_BYTES,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    decode_state,
    encode_changes,
    encode_state,
)

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "rocketmq-state"
"""Of the table in a broker's data folder."""

WRITE_AFTER_S: Final = 0.5
"""How long a change that nobody waits for waits for others: so that it is on the disk within a second."""

RETRY_S: Final = 1.0
"""Between two attempts to write to a disk that refuses."""

ENTRY_BYTES: Final = 128
"""What an entry takes in memory beside its key and its value, about."""

STATE_BYTES_MAX: Final = 64 << 20
"""What all entries may take, each counted with ``ENTRY_BYTES`` more."""

OWN_SHARE: Final = 16
"""One part in so many of it is for the broker's own entries: clients must not be able to stop what it does."""

COMPACT_FACTOR: Final = 2
COMPACT_BYTES_MIN: Final = 1 << 20
"""A fresh file is written when the file is larger than this, and than this many times what the entries take."""

OnDurable = Callable[[Exception | None], None]
"""Called once, on the loop: ``None`` when the change is on the disk, ``StateNotWritten`` when that is not known."""


class Timer(Protocol):
    """A call that was scheduled for later."""

    def cancel(self) -> None:
        """Make it never happen."""


class CommitDriver(Protocol):
    """The thread that writes, and the clock."""

    def run(self, job: Callable[[], None], finished: Callable[[], None]) -> None:
        """Run ``job``, which raises nothing, in the thread, then ``finished`` on the loop."""

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` on the loop, never before this returns."""

    def close(self) -> None:
        """Wait until the thread has run what it was given. The call of ``finished`` may come later, or never."""


class LoopDriver:
    """The driver in a running event loop, with a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state-table")

    def run(self, job: Callable[[], None], finished: Callable[[], None]) -> None:
        self._loop.run_in_executor(self._thread, job).add_done_callback(lambda _: finished())

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_s, callback)

    def close(self) -> None:
        self._thread.shutdown(wait=True)


class StatePart(NamedTuple):
    """``data``: bytes of the file ``number`` from ``position`` on, which was durable up to ``size`` at that moment.

    At ``size`` ends what was written in one step: all up to there is what the table was at some moment, no more and
    no less.
    """

    number: int
    position: int
    size: int
    data: bytes


@dataclass(slots=True, eq=False)
class _StateFile:
    """The open file: nothing is trusted behind ``size``, everything before it is on the disk."""

    fd: int
    number: int
    size: int


@dataclass(slots=True, eq=False)
class _Commit:
    """One write: ``changes`` at the end of ``file``, or all ``entries`` into a fresh file, which then is ``file``."""

    files: Files
    path: Path
    file: _StateFile | None
    changes: dict[str, bytes | None]
    entries: dict[str, bytes] | None
    waiting: list[OnDurable]
    error: OSError | None = None
    ended: bool = False

    def run(self) -> None:
        """Write (blocking); what went wrong is in ``error``."""
        try:
            if self.entries is None:
                self._append()
            else:
                self._rewrite(self.entries)
        except OSError as error:
            self.error = error

    def _append(self) -> None:
        assert self.file is not None
        file = self.file
        if self.files.identity(file.fd) != self.files.identity_of(self.path):
            raise OSError(errno.ESTALE, "the file was replaced or renamed by another program")
        data = encode_changes(file.number, file.size, file.size, self.changes.items())
        self.files.pwrite(file.fd, data, file.size)
        self.files.fdatasync(file.fd)
        file.size += len(data)

    def _rewrite(self, entries: dict[str, bytes]) -> None:
        number = secrets.randbits(64)
        data = encode_state(number, entries)
        scratch = self.path.with_name(self.path.name + ".tmp")
        fd = self.files.open_append(scratch)
        try:
            self._fill(fd, data)
            self.files.rename(scratch, self.path)
            self.files.fsync_dir(self.path.parent)
        except OSError:
            with suppress(OSError):
                self.files.close(fd)
            raise
        old, self.file = self.file, _StateFile(fd, number, len(data))
        if old is not None:
            with suppress(OSError):
                self.files.close(old.fd)

    def _fill(self, fd: int, data: bytes) -> None:
        try:
            self.files.truncate(fd, 0)
            self.files.pwrite(fd, data, 0)
            self.files.fsync(fd)
        except OSError:
            with suppress(OSError):  # give back what it took: the disk may be full
                self.files.truncate(fd, 0)
            raise


class StateTable:
    """Used on the event loop; keys and values are limited by ``state_records``."""

    def __init__(
        self, files: Files, path: Path, values: dict[str, bytes], driver: CommitDriver, bytes_max: int
    ) -> None:
        """For ``open``."""
        self.path = path
        self._files, self._driver, self._bytes_max = files, driver, bytes_max
        self._values = values
        self._bytes = sum(_entry_bytes(key, value) for key, value in values.items())
        self._changes: dict[str, bytes | None] = {}
        self._waiting: list[OnDurable] = []
        self._file: _StateFile | None = None
        self._commit: _Commit | None = None
        self._timer: Timer | None = None
        self._timer_is_short = self._closed = False
        self._rewrite_due = True
        self.changes = 0
        """How many there were since it was opened."""
        self.failure: str | None = None
        """Why the last write failed; ``None`` if it did not."""

    @classmethod
    def open(cls, files: Files, path: Path, driver: CommitDriver, *, bytes_max: int = STATE_BYTES_MAX) -> StateTable:
        """Read the file, or begin an empty one (blocking). ``bytes_max`` limits keys and values together.

        A file that cannot be rewritten now, such as on a full disk, is rewritten later.

        Raises:
            StateDamaged: The file is not what was written. Nothing was changed.
            OSError: It cannot be read.
        """
        values: dict[str, bytes] = {}
        if files.exists(path):
            values, cut_bytes = decode_state(path, files.read_bytes(path))
            if cut_bytes:
                fields = {"path": path, "bytes": cut_bytes}
                _LOG.warning("state file: a torn write was cut off", extra={"fields": fields})
        table = cls(files, path, values, driver, bytes_max)
        table._write_here()
        if table.failure is not None:
            table._start_timer(RETRY_S)
        return table

    # ---- reading

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, ``None`` without one."""
        return self._values.get(key)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the entries whose keys begin with ``prefix``, those of this moment, in no particular order."""
        found = [(key, value) for key, value in self._values.items() if key.startswith(prefix)]
        return iter(found)

    @property
    def size_bytes(self) -> int:
        """What the entries take, as limited by ``bytes_max``."""
        return self._bytes

    @property
    def clients_bytes_max(self) -> int:
        """What the entries may take before those of clients are refused."""
        return self._bytes_max - self._bytes_max // OWN_SHARE

    def part(self, number: int, position: int, bytes_max: int) -> StatePart | None:
        """Return what is on the disk behind ``position`` of file ``number``, from the first record on of another file.

        ``None``: not at this moment, since a fresh file is being written. Raises ``OSError``.
        """
        file = self._file
        if file is None or (self._commit is not None and self._commit.entries is not None):
            return None
        size = file.size
        if number != file.number or not FILE_HEADER_BYTES <= position <= size:
            position = FILE_HEADER_BYTES
        data = self._files.pread(file.fd, min(bytes_max, size - position), position) if position < size else b""
        return StatePart(file.number, position, size, data)

    # ---- changing

    def replace(self, entries: Mapping[str, bytes], on_durable: OnDurable) -> None:
        """Have these entries and no others, in one step also for a crash. ``bytes_max`` is not looked at.

        Raises:
            ValueError: The table is closed.
        """
        self._check("", b"")
        self._values, self._changes = dict(entries), {}
        self._bytes = sum(_entry_bytes(key, value) for key, value in self._values.items())
        self._rewrite_due = True
        self.changes += 1
        self.when_durable(on_durable)

    def put(self, key: str, value: bytes, on_durable: OnDurable | None = None, *, is_of_clients: bool = False) -> None:
        """Set the value of a key; ``is_of_clients``: there are as many of its kind as clients want.

        Raises:
            StateFull: The table would take too much; it may still become smaller.
            ValueError: Key or value is too long, or the table is closed.
        """
        self._check(key, value)
        old = self._values.get(key)
        grown = _entry_bytes(key, value) - (0 if old is None else _entry_bytes(key, old))
        bytes_max = self.clients_bytes_max if is_of_clients else self._bytes_max
        if grown > 0 and self._bytes + grown > bytes_max:
            raise StateFull(key, bytes_max)
        self._bytes += grown
        self._values[key] = value
        self._changed(key, value, on_durable)

    def delete(self, key: str, on_durable: OnDurable | None = None) -> None:
        """Take a key away; nothing changes without one.

        Raises:
            ValueError: The table is closed.
        """
        self._check(key, b"")
        old = self._values.pop(key, None)
        if old is not None:
            self._bytes -= _entry_bytes(key, old)
            self._changed(key, None, on_durable)
        elif on_durable is not None:
            self.when_durable(on_durable)

    def when_durable(self, on_durable: OnDurable) -> None:
        """Call back when everything that was changed until now is on the disk."""
        self._waiting.append(on_durable)
        self._start_timer(0)

    def close(self) -> None:
        """Write what is not written yet, and close the file (blocking). Callbacks run before this returns."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._driver.close()
        if self._commit is not None:
            self._ended(self._commit)
        self._rewrite_due = True
        self._write_here()
        if self.failure is not None:
            _LOG.error("state file: not written at the end", extra={"fields": {"path": self.path}})
        if self._file is not None:
            with suppress(OSError):
                self._files.close(self._file.fd)

    def _check(self, key: str, value: bytes) -> None:
        if self._closed:
            raise ValueError(f"state file {self.path} is closed")
        if len(key.encode()) > KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
            limits = f"keys up to {KEY_BYTES_MAX} bytes and values up to {VALUE_BYTES_MAX} are possible"
            raise ValueError(f"state entry {key[:80]!r} of {len(value)} bytes: {limits}")

    def _changed(self, key: str, value: bytes | None, on_durable: OnDurable | None) -> None:
        self._changes[key] = value
        self.changes += 1
        if on_durable is None:
            self._start_timer(WRITE_AFTER_S)
        else:
            self.when_durable(on_durable)

    # ---- commits

    def _start_timer(self, delay_s: float) -> None:
        """Have a commit begin after ``delay_s``; 0 is when the loop has done what it is at."""
        if self._commit is not None or self._closed:
            return  # its end starts the next
        if self.failure is not None and self._timer is not None:
            return  # tried again soon; more attempts would not help a disk that refuses
        short = delay_s == 0
        if self._timer is not None:
            if self._timer_is_short or not short:
                return
            self._timer.cancel()
        self._timer, self._timer_is_short = self._driver.schedule(delay_s, self._begin), short

    def _begin(self) -> None:
        self._timer = None
        if not (self._changes or self._rewrite_due):
            self._notify(self._waiting)
            return
        commit = self._commit = self._next_commit()
        self._driver.run(commit.run, lambda: self._ended(commit))

    def _next_commit(self) -> _Commit:
        file, large = self._file, max(COMPACT_BYTES_MIN, COMPACT_FACTOR * self._bytes)
        whole = file is None or self._rewrite_due or file.size > large
        self._rewrite_due = False
        changes, self._changes = self._changes, {}
        waiting, self._waiting = self._waiting, []
        return _Commit(self._files, self.path, file, changes, dict(self._values) if whole else None, waiting)

    def _write_here(self) -> None:
        commit = self._commit = self._next_commit()
        commit.run()
        self._ended(commit)

    def _ended(self, commit: _Commit) -> None:
        """Note how a commit went, and tell who waited. The driver and ``close`` may both say so."""
        if commit.ended:
            return
        commit.ended, self._commit, self._file = True, None, commit.file
        self._rewrite_due |= commit.error is not None
        self._note(commit.error)
        self._notify(commit.waiting)
        if self.failure is not None:
            self._start_timer(RETRY_S)
        elif self._waiting:
            self._start_timer(0)
        elif self._changes:
            self._start_timer(WRITE_AFTER_S)

    def _notify(self, waiting: list[OnDurable]) -> None:
        """Call back everybody in the list, and empty it first: they may ask for more."""
        calls = list(waiting)
        waiting.clear()
        for on_durable in calls:
            try:
                on_durable(None if self.failure is None else StateNotWritten(self.path, self.failure))
            except Exception:  # one of many callers; the others are called all the same
                _LOG.exception("state file: a callback failed")

    def _note(self, error: OSError | None) -> None:
        reason = None if error is None else str(error)
        if reason != self.failure:
            fields = {"path": self.path, "reason": reason}
            if reason is None:
                _LOG.warning("state file: it can be written again", extra={"fields": fields})
            else:
                _LOG.error("state file: not written, trying again", extra={"fields": fields})
        self.failure = reason


def _entry_bytes(key: str, value: bytes) -> int:
    return ENTRY_BYTES + len(key) + len(value)
