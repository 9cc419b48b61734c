"""What the transaction tests stand on: a loop and a store without threads and sockets, and a broker made of them.

``Harness`` is a transaction manager over a ``PlainStore`` (one plain file per partition) on any ``Files``. Nothing
happens by itself: ``settle`` runs what a worker thread and the loop would, ``pass_time`` moves the clock. ``restart``
is a new process on the same disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from manual_loop import ManualLoop
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.outcomes import PartitionClosed, PartitionUnknown, Refusal, StorageFailed, TopicUnknown
from metaq_broker.log.files.errors import LogFull
from metaq_broker.log.files.files import Files
from metaq_broker.text.put_replies import Worded
from metaq_broker.text.refusals import RefusalTexts
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.interfaces import Durability, SpaceCheck, TransactionLimits, Unit, no_space_check
from metaq_broker.transactions.manager import TransactionManager
from metaq_broker.transactions.outcomes import TransactionRefused

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import Frame, walk
from metaq.formats.message_id import IdRange, IdWorker
from metaq.model import LocalTransactionId, TransactionId, Xid

PARTITIONS = 4
TOPICS = ("orders", "payments")
TEXTS = RefusalTexts(5, "here", 8123)


class PlainStore:
    """A ``TransactionStore``: one file per partition, durable at once. ``broken`` and ``full`` ones take no unit.

    With ``hold`` set, units wait in ``held`` until ``release_held``.
    """

    def __init__(self, files: Files, directory: Path, ids: IdWorker, clock: ManualClock) -> None:
        self._files, self._directory, self._ids, self._clock = files, directory, ids, clock
        self.broken: set[tuple[str, int]] = set()
        self.full: set[tuple[str, int]] = set()
        self.closed: set[tuple[str, int]] = set()
        self.hold = False
        self.held: list[Callable[[], None]] = []
        self._fds: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], int] = {}
        if not files.exists(directory):
            files.makedir(directory)
            files.fsync_dir(directory.parent)
        for name in files.listdir(directory):
            match = re.fullmatch(r"(.+)-(\d+)\.log", name)
            assert match is not None
            self._load((match[1], int(match[2])))

    def _path(self, partition_key: tuple[str, int]) -> Path:
        return self._directory / f"{partition_key[0]}-{partition_key[1]}.log"

    def _load(self, partition_key: tuple[str, int]) -> None:
        fd = self._fds[partition_key] = self._files.open_append(self._path(partition_key))
        size = self._files.size(fd)
        end = 0
        for frame in walk(self._files.pread(fd, size, 0), verify=False):
            if not frame.intact or frame.message_id == 0:  # zeros are an intact frame, by their checksum
                break
            end = frame.end
        self._files.truncate(fd, end)
        self._files.pwrite(fd, self._files.pread(fd, end, 0), 0)  # an fsync may have failed before the restart
        self._files.fdatasync(fd)
        self._ends[partition_key] = end

    def check(self, topic: str, partition: int) -> None:
        if (topic, partition) in self.closed:
            raise TransactionRefused(PartitionClosed(partition))
        if topic not in TOPICS:
            raise TransactionRefused(TopicUnknown(topic))
        if not 0 <= partition < PARTITIONS:
            raise TransactionRefused(PartitionUnknown(partition))

    def log_end(self, topic: str, partition: int) -> int:
        return self._ends.get((topic, partition), 0)

    def next_ids(self, count: int) -> IdRange:
        return self._ids.reserve(count, self._clock.now_ms())

    def append(self, units: Sequence[Unit], done: Callable[[StorageFailed | None], None]) -> None:
        if units[0].partition_key in self.full:
            full = LogFull(f"{units[0].topic}-{units[0].partition}", "there is no space")
            done(StorageFailed(str(full), full))
        elif self.hold:
            self.held.append(lambda: self._append(units, done))
        else:
            self._append(units, done)

    def release_held(self) -> None:
        held, self.held = self.held, []
        for each in held:
            each()

    def _append(self, units: Sequence[Unit], done: Callable[[StorageFailed | None], None]) -> None:
        try:
            for partition_key, group in groupby(units, lambda unit: unit.partition_key):
                self.put(partition_key, b"".join(unit.frames.data for unit in group))
        except OSError as error:
            done(StorageFailed(str(error), error))
            return
        done(None)

    def put(self, partition_key: tuple[str, int], block: bytes) -> None:
        """Append bytes and make them durable, as a plain put would."""
        if partition_key in self.broken:
            raise OSError(5, f"Input/output error on {partition_key[0]}-{partition_key[1]}")
        try:
            if partition_key not in self._fds:
                fd = self._files.open_append(self._path(partition_key))
                self._files.fsync_dir(self._directory)
                self._fds[partition_key], self._ends[partition_key] = fd, 0
            fd, end = self._fds[partition_key], self._ends[partition_key]
            self._files.pwrite(fd, block, end)
            self._files.fdatasync(fd)
        except OSError:
            self.broken.add(partition_key)  # as a real log: read-only from here on
            raise
        self._ends[partition_key] = end + len(block)

    def scan(self, topic: str, partition: int, from_offset: int) -> Iterable[Frame]:
        fd = self._fds.get((topic, partition))
        if fd is None:
            return []
        size = self._ends[(topic, partition)] - from_offset
        return list(walk(self._files.pread(fd, max(0, size), from_offset), from_offset))

    def bodies(self, topic: str, partition: int) -> list[bytes]:
        return [frame.body for frame in self.scan(topic, partition, 0)]

    def ids(self, topic: str, partition: int) -> list[int]:
        return [frame.message_id for frame in self.scan(topic, partition, 0)]


@dataclass
class Harness:
    """A broker's transactions on a disk."""

    root: Path
    files: Files = field(default_factory=Files)
    clock: ManualClock = field(default_factory=ManualClock)
    durability: Durability = Durability.COMMIT
    limits: TransactionLimits = field(default_factory=TransactionLimits)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    timeout_s_max: int = 60
    check_space: SpaceCheck = no_space_check

    def __post_init__(self) -> None:
        self.ids = IdWorker(0)
        self.start()

    def start(self, hold: bool = False) -> None:
        self.loop = ManualLoop(self.clock)
        self.store = self.open_partitions()
        self.store.hold = hold
        self.tx = TransactionManager(
            self.files,
            self.clock,
            self.root / "transactions",
            self.store,
            timeout_s_max=self.timeout_s_max,
            durability=self.durability,
            call_later=self.loop.call_later,
            run_in_worker=self.loop.run_in_worker,
            limits=self.limits,
            checkpoint=self.checkpoint,
            check_space=lambda partition_keys: self.check_space(partition_keys),
        )
        self.report = self.tx.recover_from_journal()
        self.settle()

    def open_partitions(self) -> PlainStore:
        return PlainStore(self.files, self.root / "data", self.ids, self.clock)

    def restart(self) -> None:
        """Stop like SIGTERM and start again."""
        self.tx.close()
        self.start()

    def revive(self, files: Files, *, hold: bool = False) -> None:
        """Start again on what a kill or a power cut left; with ``hold`` the partitions take nothing yet."""
        self.files = files
        self.start(hold)

    def settle(self) -> None:
        self.loop.settle()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))
        self.settle()

    # ---- commands, as a client would send them; each returns what the reply would say

    def begin(self, key: TransactionId, connection: object = "A", timeout_s: int | None = None) -> str:
        return self._now(lambda: self.tx.begin(connection, key, timeout_s))

    def put(
        self,
        key: TransactionId,
        body: bytes,
        topic: str = "orders",
        partition: int = 0,
        connection: object = "A",
        checksum: int | None = -1,
    ) -> str:
        return self._now(
            lambda: self.tx.put(connection, key, topic, partition, 0, checksum, body), TEXTS.put_in_transaction
        )

    def put_batch(self, key: TransactionId, block: bytes, count: int, topic: str = "orders", partition: int = 0) -> str:
        return self._now(
            lambda: self.tx.put_batch("A", key, topic, partition, FrameBlock(block, count)), TEXTS.put_in_transaction
        )

    def prepare(self, key: TransactionId, connection: object = "A") -> str:
        return self._pending(lambda done: self.tx.prepare(key, done, connection))

    def commit(self, key: TransactionId | None, one_phase: bool = True, connection: object = "A") -> str:
        return self._pending(lambda done: self.tx.commit(key, one_phase, connection, done))

    def rollback(self, key: TransactionId | None, connection: object = "A") -> str:
        return self._pending(lambda done: self.tx.rollback(key, connection, done))

    def forget(self, key: TransactionId | None) -> str:
        return self._now(lambda: self.tx.forget(key))

    def decide(
        self,
        query_id: str,
        batch_id: int,
        branches: Sequence[TransactionId],
        contents: str | None = None,
        own: Sequence[int] = (),
    ) -> Any:
        return self._pending(lambda done: self.tx.decide(query_id, batch_id, branches, done, own, contents))

    def by_operator(self, key: TransactionId, outcome: Any) -> str:
        return self._pending(lambda done: self.tx.end_heuristically(key, outcome, done))

    def recover(self, unique: str | None = None) -> list[str]:
        return [str(key) for key in self.tx.recover(unique)]

    def prepare_with(self, key: Xid, *bodies: bytes, partition: int = 0) -> None:
        """BEGIN, puts, PREPARE, all of which must work."""
        assert self.begin(key) == "200"
        for body in bodies:
            assert self.put(key, body, partition=partition) == "200"
        assert self.prepare(key) == "200 0"

    def bodies(self, topic: str = "orders", partition: int = 0) -> list[bytes]:
        return self.store.bodies(topic, partition)

    def _now(self, step: Callable[[], object], worded: Worded = TEXTS.step) -> str:
        try:
            step()
        except TransactionRefused as refused:
            return "{} {}".format(*worded(refused.refusal))
        return "200"

    def _pending(self, step: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        step(answers.append)
        self.settle()
        assert len(answers) == 1, f"answered {len(answers)} times: {answers}"
        return reply_text(answers[0])


def reply_text(answer: Any) -> Any:
    """What the frontend would make of an answer; a decision is returned as it is."""
    if answer is None:
        return "200"
    if isinstance(answer, Refusal):
        return "{} {}".format(*TEXTS.step(answer))
    return f"200 {int(answer)}" if isinstance(answer, int) else answer


def local(number: int) -> LocalTransactionId:
    return LocalTransactionId("sess1", number)


def xid(name: str, unique: str = "q1") -> Xid:
    return Xid(1, b"batch", name.encode(), unique)
