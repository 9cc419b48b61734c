"""Large transactions: they are read in a worker thread and appended a partition a turn, and nothing else changes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from log_harness import LogHarness
from manual_loop import ManualLoop
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.testing import FaultyFiles
from metaq_broker.transactions import applier
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.group_sync import GroupSync
from metaq_broker.transactions.interfaces import Durability, TransactionLimits, Unit
from metaq_broker.transactions.journal import Journal, JournalDamaged
from metaq_broker.transactions.records import Applied, Messages
from metaq_broker.transactions.stalled import RETRY_S
from metaq_broker.transactions.transaction import SMALL_BYTES, Transaction
from stored import QuickFiles
from tx_harness import Harness, local, xid

from metaq.backends.metaq.puts import encode_block
from metaq.formats.frame_block import FrameBlock, ends_plainly
from metaq.model import Buffer, Message

LIMITS = TransactionLimits(spill_bytes=300)
BRANCHES = tuple(xid(f"b{number}") for number in range(5))


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "AT_ONCE_BYTES", 400)


def bodies_of(name: str, count: int = 12) -> list[bytes]:
    return [f"{name}-{number}".encode() * 10 for number in range(count)]


def prepare(harness: Harness, key: object, name: str, count: int = 12) -> None:
    """Put into two partitions in turn, in several chunks, and prepare."""
    assert harness.begin(key) == "200"  # type: ignore[arg-type]
    for number, body in enumerate(bodies_of(name, count)):
        assert harness.put(key, body, "orders", number % 2) == "200"  # type: ignore[arg-type]
    assert harness.prepare(key) == "200 0"  # type: ignore[arg-type]


def test_branches_of_a_decision_keep_their_order_whatever_their_size(tmp_path: Path) -> None:
    harness = Harness(tmp_path, QuickFiles(), limits=LIMITS)
    sizes = (12, 1, 2, 30, 1)
    for key, size in zip(BRANCHES, sizes, strict=True):
        prepare(harness, key, str(key), size)
    harness.decide("q1", 1, BRANCHES)
    names = [str(key) for key in BRANCHES]
    for partition in (0, 1):
        expected = [
            body for name, size in zip(names, sizes, strict=True) for body in bodies_of(name, size)[partition::2]
        ]
        assert harness.bodies("orders", partition) == expected
    assert all(harness.commit(key, one_phase=False) == "200" for key in BRANCHES)


def test_a_small_commit_does_not_pass_a_large_one_before_it(tmp_path: Path) -> None:
    harness = Harness(tmp_path, QuickFiles(), limits=LIMITS)
    for key, size in ((local(1), 12), (local(2), 1)):
        harness.begin(key)
        for body in bodies_of(str(key), size):
            harness.put(key, body)
    reported: list[object] = []
    for key in (local(1), local(2)):
        harness.tx.commit(key, True, "A", reported.append)
    harness.settle()
    assert reported == [None, None]
    assert harness.bodies() == [*bodies_of(str(local(1))), *bodies_of(str(local(2)), 1)]


def test_others_get_a_quantum_between_the_partitions_of_a_large_commit(tmp_path: Path) -> None:
    harness = Harness(tmp_path, QuickFiles(), limits=LIMITS)
    prepare(harness, BRANCHES[0], "large")
    seen: list[int] = []
    append = harness.store.append

    def watch(units: list[Unit], done: object) -> None:
        seen.append(len({unit.partition_key for unit in units}))
        append(units, done)  # type: ignore[arg-type]

    harness.store.append = watch  # type: ignore[assignment, method-assign]
    assert harness.commit(BRANCHES[0], one_phase=False) == "200"
    assert seen == [1, 1]


def test_a_stop_while_a_commit_is_read_is_finished_by_the_next_start(tmp_path: Path) -> None:
    harness = Harness(tmp_path, QuickFiles(), limits=LIMITS)
    prepare(harness, BRANCHES[0], "large")
    reported: list[object] = []
    harness.tx.commit(BRANCHES[0], False, None, reported.append)
    while not any("JournalRead" in str(getattr(job, "__self__", "")) for job, _ in harness.loop.jobs):
        harness.loop.run_one_job()
    loop = harness.loop
    harness.tx.close()
    loop.settle()  # the worker comes back to a broker that is no more
    assert reported == []
    harness.start()
    assert harness.report.completed == 1
    assert harness.bodies() == bodies_of("large")[::2]


def test_a_file_that_is_being_read_may_be_dropped(tmp_path: Path) -> None:
    journal = Journal(QuickFiles(), tmp_path, 1)
    journal.load(lambda location, record: None)
    wanted = Messages(1, 0, (Unit("orders", 0, FrameBlock(b"frames", 1)),))
    (location,) = journal.append([wanted])
    journal.append([Applied(1)])
    journal.sync_now()
    job = journal.begin_read([location])
    journal.drop_before(location.end)
    journal.close()
    job.run()
    assert job.records == [wanted]
    journal.end_read(job)
    with pytest.raises(OSError, match="Bad file descriptor"):
        job.run()


def test_damage_that_the_worker_finds_is_reported(tmp_path: Path) -> None:
    harness = Harness(tmp_path, QuickFiles(), limits=LIMITS)
    prepare(harness, BRANCHES[0], "large")
    (file,) = (tmp_path / "transactions").glob("*.journal")
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)
    assert "is damaged at offset" in harness.commit(BRANCHES[0], one_phase=False)
    assert harness.tx.stuck_commits() == [str(BRANCHES[0])]
    assert harness.bodies() == []


class UnreadableFiles(QuickFiles):
    """Reads of files from the position ``unreadable_from`` on fail, if there is one."""

    unreadable_from: int | None = None

    def pread_into(self, fd: int, buffer: Buffer, position: int) -> int:
        if self.unreadable_from is not None and position >= self.unreadable_from:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread_into(fd, buffer, position)


def test_a_failed_read_ahead_fails_its_own_commit_only(tmp_path: Path) -> None:
    """The next commit is read while this one is appended; its failure has its turn behind this one."""
    files = UnreadableFiles()
    harness = Harness(tmp_path, files, limits=LIMITS)
    prepare(harness, BRANCHES[0], "first")
    (journal,) = (tmp_path / "transactions").glob("*.journal")
    files.unreadable_from = journal.stat().st_size
    prepare(harness, BRANCHES[1], "second")
    harness.decide("q1", 1, BRANCHES[:2])
    assert harness.tx.stuck_commits() == [str(BRANCHES[1])]
    assert harness.commit(BRANCHES[0], one_phase=False) == "200"
    files.unreadable_from = None
    harness.pass_time(RETRY_S)
    for partition in (0, 1):
        assert harness.bodies("orders", partition) == [
            *bodies_of("first")[partition::2],
            *bodies_of("second")[partition::2],
        ]


def test_checkpoints_move_records_while_large_commits_are_read(tmp_path: Path) -> None:
    settings = CheckpointSettings(checkpoints_max=1, file_bytes=900)
    harness = Harness(tmp_path, QuickFiles(), limits=LIMITS, checkpoint=settings)
    expected = []
    for number in range(6):
        prepare(harness, xid(f"c{number}"), f"n{number}")
    for number in range(6):
        assert harness.commit(xid(f"c{number}"), one_phase=False) == "200"
        expected += bodies_of(f"n{number}")[::2]
    harness.pass_time(3600)
    assert harness.bodies() == expected
    harness.restart()
    assert harness.bodies() == expected


@pytest.mark.parametrize("restarted", [False, True])
def test_the_index_knows_places_inside_what_was_committed(tmp_path: Path, restarted: bool) -> None:
    """From the frames, whether their ends are known or a restart has lost them."""
    harness = LogHarness(tmp_path, FaultyFiles(tmp_path), limits=LIMITS)
    block, count = encode_block([Message(b"m" * 100)] * 200)
    harness.begin(BRANCHES[0])
    for _ in range(3):
        assert harness.put_batch(BRANCHES[0], block, count) == "200"
    assert harness.prepare(BRANCHES[0]) == "200 0"
    if restarted:
        harness.restart()
    assert harness.commit(BRANCHES[0], one_phase=False) == "200"
    assert len(harness.bodies()) == 600
    harness.check_files()
    log = harness.partitions.logs.get("orders", 0)
    assert isinstance(log, PartitionLog)
    assert log.message_count == 600


def test_puts_of_all_sizes_are_one_run_of_frames_that_know_where_they_end() -> None:
    transaction, expected, total = Transaction(local(1), 1, 0), b"", 0
    for size in (10, 3000, SMALL_BYTES, 20, 30, 5 * SMALL_BYTES, 1, 2):
        data, count = encode_block([Message(b"x" * size)] * 3)
        for _ in range(2):
            transaction.add(("orders", 0), FrameBlock(data, count).copy())
        transaction.take_back(("orders", 0), FrameBlock(data, count))
        expected, total = expected + data, total + count
    chunk = transaction.next_chunk()
    assert chunk is not None
    assert b"".join(unit.frames.data for unit in chunk.units) == expected
    assert [unit.frames.ends for unit in chunk.units] == [ends_plainly(unit.frames.data) for unit in chunk.units]
    sizes = (transaction.messages, transaction.byte_count, transaction.buffered_bytes)
    assert sizes == (total, len(expected), len(expected))
    transaction.chunk_written()
    assert (transaction.chunks, transaction.buffered_bytes) == (1, 0)


def test_many_small_puts_are_few_units() -> None:
    transaction = Transaction(local(1), 1, 0)
    data, _ = encode_block([Message(b"x" * 44)])
    for _ in range(1000):
        transaction.add(("orders", 0), FrameBlock(data, 1).copy())
    chunk = transaction.next_chunk()
    assert chunk is not None
    assert sum(unit.frames.count for unit in chunk.units) == 1000
    assert len(chunk.units) <= 1 + 1000 * len(data) // SMALL_BYTES


@pytest.mark.parametrize(("durability", "early"), [(Durability.COMMIT, 1), (Durability.OS, 0)])
def test_the_journal_becomes_durable_before_anybody_waits(tmp_path: Path, durability: Durability, early: int) -> None:
    journal = Journal(QuickFiles(), tmp_path, 1 << 20)
    journal.load(lambda location, record: None)
    loop = ManualLoop()
    sync = GroupSync(journal, durability, loop.run_in_worker, loop.call_later, early_bytes=100)
    journal.append([Applied(1)])
    sync.start_early()
    assert loop.jobs == []
    while journal.end_lsn - journal.durable_lsn < 100:
        journal.append([Applied(1)])
    sync.start_early()
    sync.start_early()
    assert len(loop.jobs) == early
    loop.settle()
    assert (journal.durable_lsn == journal.end_lsn) == bool(early)
    journal.close()


def test_reading_damage_names_the_place(tmp_path: Path) -> None:
    journal = Journal(QuickFiles(), tmp_path, 1 << 20)
    journal.load(lambda location, record: None)
    (location,) = journal.append([Messages(1, 0, (Unit("orders", 0, FrameBlock(b"frames", 1)),))])
    (file,) = tmp_path.glob("*.journal")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    job = journal.begin_read([location])
    with pytest.raises(JournalDamaged, match="fail their checksum"):
        job.run()
    journal.end_read(job)
    journal.close()
