"""The transaction journal as a replicated stream.

On a follower it is a ``JournalCopy``. At an election ``hand_over`` closes the copy, and the ``Journal`` of the
transactions opens the same files: crash recovery on the other machine. From then on this stream reads from that journal
and confirms its syncs. It never goes back: a fenced leader is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from metaq.formats.checksum import crc32
from metaq_broker.clock import Clock
from metaq_broker.log.files.files import Files
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.facts import StreamOrigin
from metaq_broker.log.streams.lost_found import Intention
from metaq_broker.log.streams.stream import JOURNAL, TAIL_BYTES, Leader, StreamBytes, StreamDamaged, StreamRefused
from metaq_broker.log.sync.sync_queue import SyncQueue
from metaq_broker.transactions.folder import claim_folder
from metaq_broker.transactions.group_sync import GroupSync
from metaq_broker.transactions.journal import Journal
from metaq_broker.transactions.journal_bytes import Broken, UnknownVersion
from metaq_broker.transactions.journal_copy import CopySync, JournalCopy, JournalTail, put_aside, whole_records

COVER_S: Final = 1.0


class JournalStream:
    """The stream of the journal in ``directory``. Made by ``open``."""

    name: Final = JOURNAL

    def __init__(self, files: Files, clock: Clock, directory: Path) -> None:
        self._files, self._clock, self._directory = files, clock, directory
        self._lock: int | None = None
        self._journal: Journal | None = None
        self._sync: GroupSync | None = None
        self._leader: Leader | None = None
        self._fence: Callable[[str], None] = lambda reason: None
        self._covered_s = 0.0
        self._begin_copy()

    def _begin_copy(self) -> None:
        self._copy = JournalCopy(self._files, self._clock, self._directory)
        self._queue = SyncQueue(self._copy, self._run)

    @classmethod
    def open(cls, files: Files, clock: Clock, directory: Path) -> JournalStream:
        """Lock and read the journal (blocking); the folder is created if necessary.

        Raises:
            StoreLocked: Another broker uses the folder.
            IntentionDamaged, OSError: The folder cannot be used.
        """
        stream = cls(files, clock, directory)
        stream._lock = claim_folder(files, directory)
        try:
            stream._copy.open()
        except BaseException:
            stream.close()
            raise
        return stream

    @property
    def loss(self) -> str | None:
        """What was durable and is gone; ``None`` if nothing."""
        return self._copy.loss

    @property
    def is_blank(self) -> bool:
        return not self._copy.has_records

    # ---- as ``PairStream``

    @property
    def origin(self) -> StreamOrigin | None:
        incarnation = self._copy.incarnation
        start = self._copy.start if self._journal is None else self._journal.start_lsn
        return None if incarnation is None else StreamOrigin(JOURNAL, incarnation, start)

    @property
    def end(self) -> int:
        return self._copy.end if self._journal is None else self._journal.end_lsn

    @property
    def durable_end(self) -> int:
        return self._copy.durable_end if self._sync is None else self._sync.durable_end

    @property
    def confirmed_end(self) -> int:
        return self._copy.durable_end if self._journal is None else self._journal.durable_lsn

    def read(self, offset: int, limit: int, bytes_max: int) -> StreamBytes:
        origin = self.origin
        if origin is None or not origin.start <= offset < min(limit, self.end):
            raise StreamRefused(JOURNAL, f"LSN {offset} is outside of the journal, which ends at {self.end}")
        wanted = min(bytes_max, limit - offset)
        while True:  # until a record is complete
            start, data = self._bytes_at(offset, wanted)
            try:
                whole = whole_records(data, offset, start)
            except (Broken, UnknownVersion) as fault:
                raise StreamDamaged(JOURNAL, offset, str(fault)) from fault
            if whole:
                return StreamBytes(offset, start, data[:whole])
            if len(data) < wanted or wanted >= limit - offset:
                raise StreamDamaged(JOURNAL, offset, f"there is no intact record at LSN {offset}")
            wanted = min(wanted * 4, limit - offset)

    def tail(self, end: int) -> int:
        origin = self.origin
        offset, crc = max(0 if origin is None else origin.start, end - TAIL_BYTES), 0
        while offset < end:
            _, data = self._bytes_at(offset, end - offset)
            if not data:
                raise StreamRefused(JOURNAL, f"LSN {offset} cannot be read")
            crc, offset = crc32(data, crc), offset + len(data)
        return crc

    def _bytes_at(self, offset: int, count: int) -> tuple[int, bytes]:
        source = self._copy if self._journal is None else self._journal
        try:
            return source.bytes_at(offset, count)
        except OSError as error:
            raise StreamRefused(JOURNAL, f"LSN {offset} cannot be read: {error}") from error

    # ---- a follower

    def append_copy(self, run: StreamBytes) -> None:
        self._copy.append(run)

    def when_durable(self, callback: Callable[[StreamRefused | None], None]) -> None:
        reached = self._copy.durable_to()
        if isinstance(reached, StreamRefused):
            callback(reached)
        elif reached >= self._copy.end:
            callback(None)
        else:
            self._queue.waiters.append((self._copy.end, lambda error: callback(_refused(error))))
            self._queue.start()

    def _run(self, queue: SyncQueue[CopySync], job: CopySync) -> None:
        def finished(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is not None and not isinstance(error, OSError):
                error = OSError(f"the sync broke off: {error!r}")
            queue.finish(job, error)
            if queue.waiters:
                queue.start()

        asyncio.get_running_loop().run_in_executor(None, job.run).add_done_callback(finished)

    async def drop_before(self, start: int) -> None:
        with contextlib.suppress(OSError):  # a later call tries again
            self._copy.drop_before(start)

    async def create(self, origin: StreamOrigin, time_ms: int) -> None:
        """Begin an empty copy; records that are there, of an unknown incarnation, are moved to ``lost+found``."""
        await self.settled()
        if self._copy.has_records:
            await self.set_aside(time_ms)
        self._copy.begin(origin.incarnation, origin.start)
        self._copy.loss = None

    async def set_aside(self, time_ms: int) -> None:
        """Move the files to ``lost+found`` beside the journal's folder."""
        await self.settled()
        incarnation = self._copy.incarnation or "0" * 32
        self._copy.loss = self._copy.loss or "it is being moved"  # its end is not recorded any more
        self._copy.close()
        await asyncio.to_thread(put_aside, self._files, self._directory, incarnation, time_ms)
        self._begin_copy()
        self._copy.open()

    async def cut(self, intention: Intention) -> None:
        """Cut the tail, and keep it in ``lost+found``."""
        await self.settled()
        self._copy.loss = self._copy.loss or "it is being cut"
        self._copy.close()
        tail = JournalTail(self._files, self._directory)
        await asyncio.to_thread(lost_found.cut_tail, self._files, self._directory.parent, JOURNAL, tail, intention)
        self._begin_copy()
        self._copy.open()

    async def repair(self, intention: Intention) -> None:
        """Cut what is after the intact records, if there is anything: the leader sends it again."""
        if self._copy.has_rest() or self._copy.loss is not None:
            await self.cut(intention)

    async def settled(self) -> None:
        """Return when no sync of the copy is running."""
        while self._journal is None and self._queue.under_way:
            done = asyncio.get_running_loop().create_future()
            self._queue.waiters.append((0, done.set_result))
            await done

    # ---- a leader

    def prepare(self) -> None:
        """Give a journal without incarnation one, durably (blocking). Raises ``OSError``."""
        if self._copy.incarnation is None:
            self._copy.begin()

    def hand_over(self) -> None:
        """Close the copy, so that ``Journal.load`` can open the files (blocking). Raises ``OSError``."""
        self._copy.make_first_file()
        self._copy.close()
        self._unlock()

    def attach(self, journal: Journal, sync: GroupSync, fence: Callable[[str], None]) -> None:
        """Follow the journal that has opened the files; ``fence`` refuses everything that waits for it."""
        self._journal, self._sync, self._fence = journal, sync, fence
        sync.hold = self._synced
        journal.appended = self._appended
        self._appended(journal.end_lsn)
        if self._leader is not None:
            self._leader.synced(JOURNAL, journal.durable_lsn)

    def lead(self, leader: Leader) -> None:
        self._leader = leader

    def _appended(self, end: int) -> None:
        if self._leader is not None:
            self._leader.written(JOURNAL, end)

    def _synced(self, end: int) -> None:
        assert self._leader is not None  # only a leader opens the journal
        self._leader.synced(JOURNAL, end)

    def confirm(self, end: int) -> None:
        if self._sync is None or self._journal is None:
            return
        self._sync.confirm(end)
        now_s = self._clock.monotonic()
        if now_s - self._covered_s >= COVER_S:
            self._covered_s = now_s
            asyncio.get_running_loop().run_in_executor(None, self._journal.cover, self._journal.durable_lsn)

    def fence(self, reason: str) -> None:
        self._fence(reason)

    def close(self) -> None:
        """Close the files of a follower (blocking). A leader's journal is closed by its transactions."""
        if self._journal is None:
            self._copy.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._files.close(self._lock)
            self._lock = None


def _refused(error: Exception | None) -> StreamRefused | None:
    return error if error is None or isinstance(error, StreamRefused) else StreamRefused(JOURNAL, str(error))
