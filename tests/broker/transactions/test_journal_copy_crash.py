"""A follower's journal through power cuts and failing disks at every call: what it reported as durable is there."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.files import Files
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.lost_found import Intention
from metaq_broker.log.streams.stream import JOURNAL, StreamBytes, StreamRefused
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from metaq_broker.transactions.journal import Journal
from metaq_broker.transactions.journal_copy import CopySync, JournalCopy, JournalTail, whole_records
from metaq_broker.transactions.records import Applied, RolledBack
from stored import QuickFiles, cut_at_every_call, each_call

INCARNATION = "a" * 32
FILE_BYTES = 400


def leaders_runs(folder: Path, *, claims: bool) -> list[StreamBytes]:
    """The bytes of a leader's journal of several files; ``claims``: its records say that earlier ones are durable."""
    folder.mkdir()
    journal = Journal(QuickFiles(), folder, FILE_BYTES)
    journal.load(lambda location, record: None)
    for number in range(40):
        journal.append([RolledBack(number), Applied(number)])
        if claims and number % 3 == 0:
            journal.sync_now()
    journal.sync_now()
    runs, at = [], 0
    while at < journal.end_lsn:
        start, data = journal.bytes_at(at, 150)
        runs.append(StreamBytes(at, start, data[: whole_records(data, at, start)]))
        at = runs[-1].end
    journal.close()
    return runs


def content(runs: list[StreamBytes]) -> bytes:
    return b"".join(run.data for run in runs)


class Following:
    """Copies the runs; ``promised`` is how far it reported them as durable, ``start`` what the leader still has."""

    claims = False

    def __init__(self, root: Path) -> None:
        self.runs = leaders_runs(root.parent / f"{root.name}-leader", claims=self.claims)
        self.directory = root / "transactions"
        self.promised = 0

    def opened(self, files: Files) -> JournalCopy:
        if not files.exists(self.directory):
            files.make_folders(self.directory)
        copy = JournalCopy(files, ManualClock(), self.directory)
        copy.open()
        return copy

    def run(self, files: Files) -> None:
        copy = self.opened(files)
        if copy.incarnation is None:
            copy.begin(INCARNATION, 0)
        self.follow(copy)
        copy.close()

    def follow(self, copy: JournalCopy) -> None:
        for number, run in enumerate(self.runs):
            if run.end <= copy.end:
                continue
            copy.append(StreamBytes(copy.end, run.file_start, run.data[copy.end - run.offset :]))
            if number % 2:
                self.sync(copy)
            if number == len(self.runs) // 2:
                self.sync(copy)
                copy.drop_before(run.offset - 300)
        self.sync(copy)

    def sync(self, copy: JournalCopy) -> None:
        job = copy.pending_sync()
        if job is not None:
            job.run()
            copy.complete_sync(job, None)
            self.promised = copy.durable_end

    def repaired(self, files: Files, copy: JournalCopy) -> JournalCopy:
        assert self.claims, copy.loss
        assert copy.end >= self.promised
        copy.close()
        tail = JournalTail(files, self.directory)
        lost_found.cut_tail(files, self.directory.parent, JOURNAL, tail, Intention(copy.end, 0, 5, "-"))
        return self.opened(files)

    def check(self, files: Files) -> None:
        copy = self.opened(files)
        if copy.loss is not None:
            copy = self.repaired(files, copy)
        assert copy.end >= self.promised
        _, data = copy.bytes_at(copy.start, 10_000) if copy.end > copy.start else (0, b"")
        assert content(self.runs)[copy.start :].startswith(data)
        if copy.incarnation is None:
            assert not self.promised
            copy.begin(INCARNATION, 0)
        self.follow(copy)
        assert copy.end == self.runs[-1].end
        copy.close()
        journal = Journal(files, self.directory, FILE_BYTES)
        journal.load(lambda location, record: None)  # an election: no record says that it lacks durable bytes
        assert journal.end_lsn == self.runs[-1].end
        journal.close()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 0.6, 1.0])
def test_power_cut_at_every_call(kept: float, tmp_path: Path) -> None:
    assert cut_at_every_call(tmp_path, Following, kept) > 80


class Learning(Following):
    """A member that is not in sync: its leader's records say that bytes are durable which it has not synced."""

    claims = True


@pytest.mark.slow
def test_power_cut_of_a_learner_at_every_call(tmp_path: Path) -> None:
    assert cut_at_every_call(tmp_path, Learning, 0.6) > 80


class Overlapping(Following):
    """While a sync is under way, the next file begins."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.under_way: CopySync | None = None
        self.until = 0

    def follow(self, copy: JournalCopy) -> None:
        self.under_way = None
        super().follow(copy)
        self.until = copy.end
        self.sync(copy)

    def sync(self, copy: JournalCopy) -> None:
        if self.under_way is not None and copy.end >= self.until:
            copy.complete_sync(self.under_way, None)
            self.promised, self.under_way = copy.durable_end, None
        job = copy.pending_sync()
        if job is not None:
            job.run()
            self.under_way, self.until = job, copy.end + FILE_BYTES


@pytest.mark.slow
def test_power_cut_while_runs_arrive_during_syncs(tmp_path: Path) -> None:
    assert cut_at_every_call(tmp_path, Overlapping, 0.6) > 80


@pytest.mark.slow
def test_an_error_at_every_call(tmp_path: Path) -> None:
    for at, root in each_call(tmp_path, Following):
        files, life = FaultyFiles(root, Fault(at, errno.EIO)), Following(root)
        with contextlib.suppress(OSError, StreamRefused):
            life.run(files)
        files.fault = None
        life.check(files.crash(Random(at)))


CUT = 17


class Cutting(Following):
    """Has everything, and then cuts the tail of a leader that was replaced."""

    def run(self, files: FaultyFiles) -> None:  # type: ignore[override]
        super().run(files)
        files.calls.clear()
        files.fault = self.fault
        tail = JournalTail(files, self.directory)
        offset = self.runs[CUT].offset
        lost_found.cut_tail(files, self.directory.parent, JOURNAL, tail, Intention(offset, 8, 5, "b"))

    fault: Fault | None = None


def kept_tails(root: Path) -> Iterator[bytes]:
    for each in lost_found.kept(Files(), root):
        yield each.path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, errno.EIO])
def test_a_cut_that_is_interrupted_at_every_call(error: int | None, tmp_path: Path) -> None:
    for at in range(1, 60):
        root = tmp_path / str(at)
        root.mkdir()
        files, life = FaultyFiles(root), Cutting(root)
        life.fault = Fault(at, error)
        try:
            life.run(files)
        except (PowerCut, OSError):
            pass
        else:
            break  # the cut has fewer calls
        files.fault = None
        after = files.crash(Random(at))
        copy = life.opened(after)
        assert copy.loss is None
        offset = life.runs[CUT].offset
        tails = b"".join(kept_tails(root))
        everything = content(life.runs)
        if copy.end == life.runs[-1].end:
            assert not lost_found.unfinished(Files(), root)
        else:
            assert copy.end == offset
            assert tails == everything[offset:]
        copy.close()
    assert at > 10
