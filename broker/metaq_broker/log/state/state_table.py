"""A small durable table of texts and bytes, kept in memory and in one file: offsets, settings, positions.

``put`` and ``delete`` change the memory at once. One thread writes: all changes before a commit go into one append and
one fsync, then the callbacks run. A change without a callback is written within a second; several of one key may become
one record.

When the file has grown to a multiple of its entries, the next commit writes all entries to a new file, which replaces
the old one atomically. The same is done at the start, at the end, and after a failure: a file after a failed write or
fsync is never trusted again, and a new file has everything. Until that succeeds, waiting changes fail with
``StateNotWritten``, and it is tried again every second.

Source: docs/log-format.md, "State file".
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    STREAM_HEADER_BYTES,
    VALUE_BYTES_MAX,
    Generation,
    decode_state,
    encode_changes,
    encode_state,
)

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "rocketmq-state"
"""The name of the table's file in a broker's data folder."""

GROUPS_NAME: Final = "metaq-groups"
"""The name of the table with the consumer groups of MetaQ's clients."""

WRITE_AFTER_S: Final = 0.5
"""Seconds that a change without a callback waits for others: so that it is on disk within a second."""

RETRY_S: Final = 1.0
"""Seconds between two attempts to write after an error."""

ENTRY_BYTES: Final = 128
"""Approximate memory of an entry beside its key and its value."""

STATE_BYTES_MAX: Final = 64 << 20
"""Limit on all entries, each counted with ``ENTRY_BYTES`` more."""

OWN_SHARE: Final = 16
"""This fraction of the limit is for the broker's own entries: clients must not be able to stop the broker's work."""

COMPACT_FACTOR: Final = 2
COMPACT_BYTES_MIN: Final = 1 << 20
"""A new file is written when the file is larger than this, and than this many times its entries."""

OnDurable = Callable[[Exception | None], None]
"""Called once, on the loop: ``None`` when the change is on disk, ``StateNotWritten`` when that is not known."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class CommitDriver(Protocol):
    """The thread that writes, and the clock."""

    def run(self, job: Callable[[], None], finished: Callable[[], None]) -> None:
        """Run ``job``, which raises nothing, in the thread, then ``finished`` on the loop."""

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` on the loop, after this has returned."""

    def close(self) -> None:
        """Wait until the thread has run its jobs. ``finished`` may be called later, or never."""


class LoopDriver:
    """The driver on a running event loop, with a thread of its own."""

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

    ``size`` is the end of one write: the bytes before it are the table at one moment, completely.
    """

    number: int
    position: int
    size: int
    data: bytes


class StreamedCommits(Protocol):
    """In a pair, the stream that the table's files are: a commit counts when the other members have its bytes."""

    @property
    def incarnation(self) -> str: ...

    @property
    def start(self) -> int:
        """Where the table's first file begins in the stream."""

    def hold(self, end: int, then: Callable[[str | None], None]) -> None:
        """Call ``then`` on the loop when everything before ``end`` is confirmed, or with the reason why it never is."""


@dataclass(slots=True, eq=False)
class _StateFile:
    """The open file: everything before ``size`` is durable, everything after it is ignored.

    ``start``: the offset of its first byte in a replicated stream.
    """

    fd: int
    number: int
    size: int
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(slots=True, eq=False)
class _Commit:
    """One write: ``changes`` at the end of ``file``, or all ``entries`` to a new file, which then is ``file``.

    ``start`` is the offset of a new file in the stream.
    """

    files: Files
    path: Path
    file: _StateFile | None
    changes: dict[str, bytes | None]
    entries: dict[str, bytes] | None
    waiting: list[OnDurable]
    stream: StreamedCommits | None = None
    start: int = 0
    fresh: _StateFile | None = None
    error: OSError | None = None
    ended: bool = False

    def run(self) -> None:
        """Write (blocking); the error, if any, is in ``error``. A stream's new file gets its name by ``name_fresh``."""
        try:
            if self.entries is None:
                self._append()
            else:
                self._write_fresh(self.entries)
        except OSError as error:
            self.error = error
        if self.stream is None:
            self.name_fresh()

    @property
    def end(self) -> int:
        """Where the stream ends with this commit."""
        file = self.fresh or self.file
        return 0 if file is None else file.end

    def _append(self) -> None:
        assert self.file is not None
        file = self.file
        if self.files.identity(file.fd) != self.files.identity_of(self.path):
            raise OSError(errno.ESTALE, "the file was replaced or renamed by another program")
        data = encode_changes(file.number, file.size, file.size, self.changes.items())
        self.files.pwrite(file.fd, data, file.size)
        self.files.fdatasync(file.fd)
        file.size += len(data)

    def _write_fresh(self, entries: dict[str, bytes]) -> None:
        number = secrets.randbits(64)
        generation = None if self.stream is None else Generation(self.stream.incarnation, self.start)
        data = encode_state(number, entries, generation)
        fd = self.files.open_append(self._scratch)
        try:
            self._fill(fd, data)
        except OSError:
            with suppress(OSError):
                self.files.close(fd)
            raise
        self.fresh = _StateFile(fd, number, len(data), self.start)

    @property
    def _scratch(self) -> Path:
        return self.path.with_name(self.path.name + ".tmp")

    def name_fresh(self) -> None:
        """Let a new file that was written replace the old one (blocking); the error, if any, is in ``error``."""
        if self.fresh is None or self.error is not None:
            return
        try:
            self.files.rename(self._scratch, self.path)
            self.files.fsync_dir(self.path.parent)
        except OSError as error:
            self.error = error
            self._close(self.fresh)
        else:
            old, self.file = self.file, self.fresh
            self._close(old)
        self.fresh = None

    def _close(self, file: _StateFile | None) -> None:
        if file is not None:
            with suppress(OSError):
                self.files.close(file.fd)

    def _fill(self, fd: int, data: bytes) -> None:
        try:
            self.files.truncate(fd, 0)
            self.files.pwrite(fd, data, 0)
            self.files.fsync(fd)
        except OSError:
            with suppress(OSError):  # release its space: the disk may be full
                self.files.truncate(fd, 0)
            raise


class StateTable:
    """Used on the event loop; keys and values are limited by ``state_records``."""

    def __init__(
        self,
        files: Files,
        path: Path,
        values: dict[str, bytes],
        driver: CommitDriver,
        bytes_max: int,
        stream: StreamedCommits | None = None,
    ) -> None:
        self.path = path
        self._stream = stream
        self._next_start = 0 if stream is None else stream.start
        self._files, self._driver, self.bytes_max = files, driver, bytes_max
        self._values = values
        self._bytes = sum(_entry_bytes(key, value) for key, value in values.items())
        self._changes: dict[str, bytes | None] = {}
        self._waiting: list[OnDurable] = []
        self._file: _StateFile | None = None
        self._commit: _Commit | None = None
        self._timer: Timer | None = None
        self._timer_is_short = self._closed = self._shut = self._is_refused = False
        self._rewrite_due = True
        self.changes = 0
        """Number of changes since it was opened."""
        self.failure: str | None = None
        """Why the last write failed; ``None`` if it did not."""

    @classmethod
    def open(
        cls,
        files: Files,
        path: Path,
        driver: CommitDriver,
        *,
        bytes_max: int = STATE_BYTES_MAX,
        stream: StreamedCommits | None = None,
    ) -> StateTable:
        """Read the file, or create an empty one (blocking). ``bytes_max`` limits keys and values together.

        ``stream``: the table is a leader's in a pair, and commits count when they are confirmed there. A file that
        cannot be rewritten now, such as on a full disk, is rewritten later.

        Raises:
            StateDamaged: The file is damaged. Nothing was changed.
            OSError: It cannot be read.
        """
        values: dict[str, bytes] = {}
        if files.exists(path):
            values, cut_bytes = decode_state(path, files.read_bytes(path))
            if cut_bytes:
                fields = {"path": path, "bytes": cut_bytes}
                _LOG.warning("state file: a torn write was cut off", extra={"fields": fields})
        table = cls(files, path, values, driver, bytes_max, stream)
        table._write_here()
        if table.failure is not None:
            table._start_timer(RETRY_S)
        return table

    # ---- reading

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; ``None`` without one."""
        return self._values.get(key)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the current entries whose keys begin with ``prefix``, in no particular order."""
        found = [(key, value) for key, value in self._values.items() if key.startswith(prefix)]
        return iter(found)

    @property
    def size_bytes(self) -> int:
        """Size of the entries, which ``bytes_max`` limits."""
        return self._bytes

    @property
    def clients_bytes_max(self) -> int:
        """Above this size, entries of clients are refused."""
        return self.bytes_max - self.bytes_max // OWN_SHARE

    def part(self, number: int, position: int, bytes_max: int) -> StatePart | None:
        """Return durable bytes after ``position`` of file ``number``; of another file, from its first record on.

        ``None``: not at this moment, since a new file is being written. Raises ``OSError``.
        """
        file = self._file
        if file is None or (self._commit is not None and self._commit.entries is not None):
            return None
        size, first = file.size, FILE_HEADER_BYTES if self._stream is None else STREAM_HEADER_BYTES
        if number != file.number or not first <= position <= size:
            position = first
        data = self._files.pread(file.fd, min(bytes_max, size - position), position) if position < size else b""
        return StatePart(file.number, position, size, data)

    # ---- changing

    def replace(self, entries: Mapping[str, bytes], on_durable: OnDurable) -> None:
        """Replace all entries, atomically even in a crash. ``bytes_max`` is not checked.

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
        """Set the value of a key; ``is_of_clients``: clients determine the number of such entries.

        Raises:
            StateFull: The table would become too large; it may still shrink.
            ValueError: Key or value is too long, or the table is closed.
        """
        self._check(key, value)
        self._bytes = self._bytes_with(key, value, self._bytes, is_of_clients=is_of_clients)
        self._values[key] = value
        self._changed(key, value, on_durable)

    def check_all(
        self, entries: Mapping[str, bytes], *, deleted: Iterable[str] = (), is_of_clients: bool = False
    ) -> None:
        """Check that all ``entries`` can be put after the ``deleted`` ones are removed. Raises as ``put``."""
        gone = [(key, self._values[key]) for key in deleted if key in self._values]
        bytes_then = self._bytes - sum(_entry_bytes(key, value) for key, value in gone)
        for key, value in entries.items():
            self._check(key, value)
            bytes_then = self._bytes_with(key, value, bytes_then, is_of_clients=is_of_clients)

    def _bytes_with(self, key: str, value: bytes, bytes_before: int, *, is_of_clients: bool) -> int:
        """Return the size of all entries with this one. Raises ``StateFull``."""
        old = self._values.get(key)
        grown = _entry_bytes(key, value) if old is None else len(value) - len(old)
        bytes_max = self.clients_bytes_max if is_of_clients else self.bytes_max
        if grown > 0 and bytes_before + grown > bytes_max:
            raise StateFull(key, bytes_max)
        return bytes_before + grown

    def delete(self, key: str, on_durable: OnDurable | None = None) -> None:
        """Remove a key, if it exists.

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
        """Call back when all changes until now are durable."""
        self._waiting.append(on_durable)
        self._start_timer(0)

    def close(self) -> None:
        """Write the remaining changes, and close the file (blocking). Callbacks run before this returns."""
        if self._shut:
            return
        is_fenced, self._closed, self._shut = self._closed, True, True
        if self._timer is not None:
            self._timer.cancel()
        self._driver.close()
        if self._stream is not None:
            is_written = self._close_stream(is_fenced=is_fenced)
        else:
            if self._commit is not None:
                self._ended(self._commit)
            self._rewrite_due = True
            self._write_here()
            is_written = self.failure is None
        if not is_written:
            _LOG.error("state file: not written at the end", extra={"fields": {"path": self.path}})
        if self._file is not None:
            with suppress(OSError):
                self._files.close(self._file.fd)

    def _close_stream(self, *, is_fenced: bool) -> bool:
        """Append the last changes of a leader that stops. Nothing is acknowledged: the other members may lack them.

        Returns whether nothing has failed; a fenced member has nothing to write.
        """
        commit, self._commit = self._commit, None
        if commit is not None and not commit.ended:
            self._file = commit.file
            if commit.fresh is not None:
                with suppress(OSError):
                    self._files.close(commit.fresh.fd)
        waiting, self._waiting = self._waiting, []
        appends = self._file is not None and not self._rewrite_due and self.failure is None
        if commit is None and self._changes and appends and not is_fenced:
            self._write_here()
        failure = self.failure
        self._waiting = waiting
        self._refuse(commit, failure or "the broker is stopping")
        return failure is None or is_fenced

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
        """Begin a commit after ``delay_s``; 0 means at the end of the loop's current iteration."""
        if self._commit is not None or self._closed:
            return  # the end of a commit starts the next
        if self.failure is not None and self._timer is not None:
            return  # it is tried again soon; more attempts would not help
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
        self._driver.run(commit.run, lambda: self._written(commit))

    def _written(self, commit: _Commit) -> None:
        """Go on with a commit that is durable here: in a pair it counts when it is confirmed."""
        if self._stream is None or commit.error is not None or commit.ended:
            self._ended(commit)
        else:
            self._stream.hold(commit.end, lambda reason: self._released(commit, reason))

    def _released(self, commit: _Commit, reason: str | None) -> None:
        if reason is not None:
            self._refuse(commit, reason)
        elif commit.fresh is not None and not commit.ended:
            self._next_start = commit.end  # the others have it, even if it gets no name here
            self._driver.run(commit.name_fresh, lambda: self._ended(commit))
        else:
            self._ended(commit)

    def _refuse(self, commit: _Commit | None, reason: str) -> None:
        """Refuse what waits: it is not confirmed, and this broker does not lead any more."""
        self.failure, self._is_refused = reason, True
        if commit is not None and not commit.ended:
            commit.ended = True
            self._notify(commit.waiting)
        self._notify(self._waiting)

    def fence(self, reason: str) -> None:
        """Refuse everything that waits, now and from now on; nothing more is written. ``close`` follows."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._refuse(self._commit, reason)

    def _next_commit(self) -> _Commit:
        file, large = self._file, max(COMPACT_BYTES_MIN, COMPACT_FACTOR * self._bytes)
        whole = file is None or self._rewrite_due or file.size > large
        self._rewrite_due = False
        changes, self._changes = self._changes, {}
        waiting, self._waiting = self._waiting, []
        entries = dict(self._values) if whole else None
        start = self._next_start if file is None else max(file.end, self._next_start)
        return _Commit(self._files, self.path, file, changes, entries, waiting, self._stream, start)

    def _write_here(self) -> None:
        commit = self._commit = self._next_commit()
        commit.run()
        commit.name_fresh()
        self._ended(commit)

    def _ended(self, commit: _Commit) -> None:
        """Record the end of a commit, and call the waiting callbacks. Both the driver and ``close`` may call this."""
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
        """Call all callbacks in the list, which is emptied first: they may add more."""
        calls = list(waiting)
        waiting.clear()
        for on_durable in calls:
            try:
                on_durable(self._not_written())
            except Exception:  # one of many callbacks; the others are called nevertheless
                _LOG.exception("state file: a callback failed")

    def _not_written(self) -> StateNotWritten | None:
        if self.failure is None:
            return None
        return StateNotWritten(self.path, self.failure, is_retried=not (self._closed or self._is_refused))

    def _note(self, error: OSError | None) -> None:
        reason = None if error is None else str(error)
        if reason != self.failure:
            fields = {"path": self.path, "reason": reason}
            if reason is None:
                _LOG.warning("state file: it can be written again", extra={"fields": fields})
            else:
                _LOG.error("state file: not written, trying again", extra={"fields": fields})
        self.failure = reason

    # ---- a stream

    @property
    def end(self) -> int:
        """Where the stream of the table's files ends: after the last byte that is durable here."""
        commit = self._commit
        if commit is not None and commit.fresh is not None and commit.error is None:
            return commit.fresh.end
        return 0 if self._file is None else self._file.end

    @property
    def start(self) -> int:
        """Where the file with the table's name begins in the stream."""
        return 0 if self._file is None else self._file.start

    def bytes_at(self, offset: int, count: int) -> tuple[_StateFile, bytes]:
        """Return the file with ``offset`` of the stream, and up to ``count`` bytes from there (blocking).

        Raises:
            OSError: They cannot be read.
        """
        fresh = None if self._commit is None else self._commit.fresh
        file = fresh if fresh is not None and offset >= fresh.start else self._file
        if file is None or not file.start <= offset < file.end:
            raise OSError(errno.EINVAL, f"offset {offset} is in no file of the state")
        return file, self._files.pread(file.fd, min(count, file.end - offset), offset - file.start)


def _entry_bytes(key: str, value: bytes) -> int:
    return ENTRY_BYTES + len(key) + len(value)
