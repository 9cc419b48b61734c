"""Stop, tear or fail every single call that changes the disk, then see what a restart makes of it.

The story appends, syncs, rolls, deletes and reopens. Whatever happens: every acknowledged message is there once and
unaltered at its offset, a message that was not acknowledged is there whole or not at all, and the log goes on.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from examples import LONG, spread
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from stored import contents, drop_segments, frame, frames, open_log

from metaq.formats.frame_block import FrameBlock

SETTINGS = LogSettings(segment_bytes_max=700, index_interval_bytes=150)
POWER_CUT = None


class Scenario:
    """Uses a partition and remembers what it was promised."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.appended: dict[int, bytes] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.start_offset = 0
        self.number = 0
        self.reported: str | None = None
        self.log: PartitionLog | None = None

    def run(self, files: FaultyFiles) -> PartitionLog:
        self.log = open_log(self.root, SETTINGS, files=files)
        self.acknowledge()
        for step in (self.singles, self.group, self.block, self.oversize, self.group, self.block, self.singles):
            step()
            self.acknowledge()
        self.group()
        self.singles()
        self.log.close(clean=True)
        self.log = open_log(self.root, SETTINGS, files=files, verify="trust")
        self.retire(files)
        self.block()
        self.acknowledge()
        self.singles()
        return self.log

    def acknowledge(self) -> None:
        self.log.sync()
        self.acknowledged |= {at: item for at, item in self.appended.items() if at < self.log.readable_end}
        self.reported = self.reported or self.log.incarnation
        assert self.log.incarnation == self.reported

    def append(self, items: list[bytes]) -> None:
        # Noted before the write: the bytes may arrive though the append fails.
        at = self.log.end_offset
        self.appended = {offset: item for offset, item in self.appended.items() if offset < at}
        for item in items:
            self.appended[at] = item
            at += len(item)
        self.number += len(items)

    def singles(self) -> None:
        for _ in range(3):
            items = frames(1, self.number)
            self.append(items)
            self.log.append(items)

    def group(self) -> None:
        items = frames(14, self.number)
        self.append(items)
        self.log.append(items)

    def block(self) -> None:
        items = frames(12, self.number)
        block = b"".join(items)
        self.append(items)
        self.log.append_blocks([FrameBlock(block, len(items))])

    def oversize(self) -> None:
        items = [frame(self.number, b"o" * 1500)]
        self.append(items)
        self.log.append(items)

    def retire(self, files: FaultyFiles) -> None:
        gone = self.log.segments()[:2]
        self.start_offset = gone[-1].start + gone[-1].size
        drop_segments(self.log, len(gone), files)

    def check(self, log: PartitionLog) -> None:
        assert log.recovery.lost is None
        assert self.reported in (None, log.incarnation)
        assert log.recovery.incarnation_fault is None
        found = contents(log)
        must = {at: item for at, item in self.acknowledged.items() if at >= self.start_offset}
        assert must.items() <= found.items()
        assert found.items() <= self.appended.items()
        assert log.message_count == len(found)
        for ordinal, at in enumerate(sorted(found), log.ordinal(log.start_offset)):
            if not log.quarantined:
                assert log.ordinal(at) == ordinal
            assert log.boundary(at + 1) == at

    def goes_on(self, files: FaultyFiles) -> None:
        """Append once more, and open again: recovery has nothing left to do."""
        before = contents(self.log)
        extra = [frame(self.number + place, b"after the crash %d" % place) for place in range(20)]
        at = self.log.append(extra)
        self.log.sync()
        after = contents(self.log)
        assert before.items() <= after.items()
        assert list(after.values())[-20:] == extra
        assert at in after
        again = open_log(self.root, SETTINGS, files=files)
        assert contents(again) == after
        assert again.recovery.bytes_cut == 0
        assert not again.recovery.damage


def changing_calls(root: Path) -> int:
    files = FaultyFiles(root)
    Scenario(root).run(files)
    return len(files.calls)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    count = changing_calls(tmp_path_factory.mktemp("count"))
    assert count > 90
    return count


def crash_and_check(root: Path, scenario: Scenario, files: FaultyFiles, restart: Callable[[], FaultyFiles]) -> None:
    after = restart()
    scenario.log = open_log(root, SETTINGS, files=after)
    scenario.check(scenario.log)
    scenario.goes_on(after)


# I2, I3
@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_power_cut_at_every_call(calls: int, kept: float, tmp_path: Path) -> None:
    for at in range(1, calls + 1):
        for seed in range(4) if LONG else [at]:
            root = tmp_path / f"{at}-{seed}"
            root.mkdir()
            files, scenario = FaultyFiles(root, Fault(at, POWER_CUT, kept)), Scenario(root)
            with pytest.raises(PowerCut):
                scenario.run(files)
            crash_and_check(root, scenario, files, lambda files=files, seed=seed: files.crash(Random(seed)))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("ending", ["process", "power"])
def test_one_failing_call_then_a_restart(calls: int, error: int, ending: str, tmp_path: Path) -> None:
    for at in spread(range(1, calls + 1)):
        root = tmp_path / str(at)
        root.mkdir()
        files, scenario = FaultyFiles(root, Fault(at, error, kept=0.5)), Scenario(root)
        with contextlib.suppress(OSError, LogFailed):
            scenario.run(files)
        restart = files.restart if ending == "process" else lambda files=files, at=at: files.crash(Random(at))
        crash_and_check(root, scenario, files, restart)


def test_one_failing_call_then_reopen_without_a_restart(calls: int, tmp_path: Path) -> None:
    reopened = 0
    for at in range(1, calls + 1):
        root = tmp_path / str(at)
        root.mkdir()
        files, scenario = FaultyFiles(root, Fault(at, errno.EIO, kept=0.5)), Scenario(root)
        with contextlib.suppress(OSError, LogFailed):
            scenario.run(files)
        if scenario.log is None or scenario.log.failure is None:
            continue
        scenario.log.reopen()
        scenario.check(scenario.log)
        scenario.goes_on(files)
        reopened += 1
    assert reopened > calls / 2


# I2
@pytest.mark.parametrize("seed", range(12))
def test_what_a_restart_serves_is_durable(seed: int, tmp_path: Path) -> None:
    """The process is killed before its sync. What the next one finds it serves, so it must not vanish later."""
    files = FaultyFiles(tmp_path)
    log = open_log(tmp_path, SETTINGS, files=files)
    log.append(frames(40))
    files = files.restart()
    served = contents(open_log(tmp_path, SETTINGS, files=files))
    assert len(served) == 40
    files = files.crash(Random(seed))
    assert contents(open_log(tmp_path, SETTINGS, files=files)) == served
