"""The guard of free space: when puts stop and go on, and what is refused meanwhile."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.outcomes import Appended, DiskFull, Refusal
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import DiskSpace, Files
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.configuration import ConfigError, parse
from metaq_broker.operate.monitoring.disk_guard import DEFAULT_FREE_BYTES_MIN, DiskGuard, DiskLimits
from metaq_broker.statistics import Statistics
from metaq_broker.testing import Fault, FaultyFiles
from metaq_broker.text.refusals import RefusalTexts
from metaq_broker.transactions.interfaces import Unit
from metaq_broker.transactions.outcomes import TransactionRefused
from metaq_broker.transactions.partitions import EngineStore
from stored import put
from waiting import in_loop

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdWorker

GIB = 1 << 30
LIMITS = DiskLimits(free_bytes_min=1000, free_bytes_resume=1500, check_interval_ms=1000)

TEXTS = RefusalTexts(0, "here", 8123)


@dataclass
class SetSpace(Files):
    """A disk whose free space is what the test says; ``None`` = it does not answer."""

    free: dict[str, int | None] = field(default_factory=dict)
    total: int = 100 * GIB
    asked: int = 0

    def disk_space(self, path: Path) -> DiskSpace:
        self.asked += 1
        free = self.free[str(path)]
        if free is None:
            raise OSError(errno.EIO, "Input/output error")
        return DiskSpace(free, self.total)


async def at_once(step: Callable[[], None]) -> None:
    step()


class Guarded:
    """A guard of the folders ``a`` and ``b``."""

    def __init__(self, limits: DiskLimits = LIMITS, total: int = 100 * GIB) -> None:
        self.disk = SetSpace({"a": 10_000, "b": 10_000}, total)
        self.clock = ManualClock()
        self.guard = DiskGuard(self.disk, self.clock, limits, ["a", "b"], at_once)

    def free(self, path: str, free_bytes: int | None) -> bool:
        """Look at the disks when so much is free in one folder; return whether that one is low."""
        self.disk.free[path] = free_bytes
        asyncio.run(self.guard.check())
        return self.guard.refusal(path) is not None


# ---- limits


@pytest.mark.parametrize(
    ("limits", "total", "expected"),
    [
        (DiskLimits(), 100 * GIB, (DEFAULT_FREE_BYTES_MIN, 320 << 20)),
        (DiskLimits(), 1 * GIB, (GIB // 10, GIB // 10 * 5 // 4)),
        (DiskLimits(), 0, (0, 0)),
        (DiskLimits(1000), 100 * GIB, (1000, 1250)),
        (DiskLimits(1000), 2000, (1000, 1250)),
        (DiskLimits(1000, 5000), 100 * GIB, (1000, 5000)),
        (DiskLimits(1000, 1000), 100 * GIB, (1000, 1000)),
        (DiskLimits(0), 100 * GIB, (0, 0)),
    ],
)
def test_the_amounts_on_a_disk(limits: DiskLimits, total: int, expected: tuple[int, int]) -> None:
    assert limits.of(total) == expected


def test_the_real_disk_is_asked(tmp_path: Path) -> None:
    space = Files().disk_space(tmp_path)
    assert 0 < space.free_bytes <= space.total_bytes
    with pytest.raises(FileNotFoundError):
        Files().disk_space(tmp_path / "nowhere")


SYSTEM = system_section(0, 2, maxTransferSize=1024)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", (None, None, 1000)),
        ("diskFreeMinBytes=0\n", (0, None, 1000)),
        ("diskFreeMinBytes=1024*1024\ndiskFreeResumeBytes=2*1024*1024\ndiskCheckInterval=50\n", (1 << 20, 2 << 20, 50)),
    ],
)
def test_the_keys(lines: str, expected: tuple[int | None, int | None, int]) -> None:
    system = parse((SYSTEM + lines + "[topic=t]\n").encode()).system
    found = (system.disk_free_bytes_min, system.disk_free_bytes_resume, system.disk_check_interval_ms)
    assert found == expected


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("diskFreeMinBytes=-1\n", "diskFreeMinBytes: value '-1'; expected a number of bytes, 0.."),
        ("diskFreeMinBytes=lots\n", "diskFreeMinBytes: value 'lots'; expected a number of bytes such as 65536"),
        ("diskFreeMinBytes=10\ndiskFreeResumeBytes=9\n", "diskFreeResumeBytes: value 9; expected at least diskFree"),
        ("diskFreeResumeBytes=9\n", "diskFreeResumeBytes: value 9; expected only together with diskFreeMinBytes"),
        ("diskCheckInterval=1\n", "diskCheckInterval: value '1'; expected a number of 10.."),
        ("diskFreeMin=1\n", "the nearest valid key is diskFreeMinBytes"),
    ],
)
def test_wrong_keys_are_named(lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse((SYSTEM + lines + "[topic=t]\n").encode())
    assert message in str(error.value)


# ---- low and enough


@pytest.mark.parametrize(
    ("amounts", "low"),
    [
        ([10_000], [False]),
        ([1000], [False]),
        ([999], [True]),
        ([999, 1000, 1499, 1500], [True, True, True, False]),
        ([1499, 999, 10_000, 1499], [False, True, False, False]),
        ([999, None, 1500], [True, True, False]),
        ([None, 999], [False, True]),
        ([0, 0, 2000], [True, True, False]),
    ],
)
def test_a_folder_is_low_until_there_is_somewhat_more(amounts: list[int | None], low: list[bool]) -> None:
    guarded = Guarded()
    assert [guarded.free("a", amount) for amount in amounts] == low


def test_each_folder_counts_for_itself() -> None:
    guarded = Guarded()
    assert guarded.free("a", 10)
    assert (guarded.guard.low, guarded.guard.refusal("b"), guarded.guard.refusal("elsewhere")) == (True, None, None)
    assert guarded.free("b", 20)
    assert not guarded.free("a", 2000)
    assert guarded.guard.low
    assert not guarded.free("b", 2000)
    assert not guarded.guard.low


def test_the_refusal_says_what_is_missing_where() -> None:
    guarded = Guarded()
    guarded.free("a", 999)
    rule = "puts are refused below 1000 (diskFreeMinBytes) until 1500 are free"
    said = f"disk is nearly full: 999 bytes are free in a; {rule}"
    assert guarded.guard.refusal("a") == said
    guarded.free("a", 1200)
    assert guarded.guard.refusal("a") == said.replace("999", "1200")


def test_it_is_logged_and_counted_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    guarded = Guarded()
    with caplog.at_level(logging.INFO):
        for amount in (10, 20, 2000, 30, 2000):
            guarded.free("a", amount)
    began, ended = "puts are refused, the disk is nearly full", "puts are accepted again, the disk has space"
    assert [record.message for record in caplog.records] == [began, ended, began, ended]
    a, b = guarded.guard.folders()
    assert (a.path, a.times_low, a.free_bytes, a.low) == ("a", 2, 2000, False)
    assert (b.path, b.times_low) == ("b", 0)


def test_a_write_without_space_counts_whatever_the_disk_says() -> None:
    guarded = Guarded()
    guarded.guard.ran_out("a")
    refusal = "disk is full: no space is left in a; puts are refused until there is"
    assert (guarded.guard.low, guarded.guard.refusal("a"), guarded.guard.refusal("b")) == (True, refusal, None)
    assert guarded.free("a", 50_000)  # a quota, or no inodes: the number says nothing
    guarded.clock.advance(4999)
    assert guarded.free("a", 50_000)
    guarded.clock.advance(1)
    assert not guarded.free("a", 50_000)
    guarded.guard.ran_out("elsewhere")
    assert not guarded.guard.low


def test_switched_off_it_does_nothing() -> None:
    async def scenario(guarded: Guarded) -> None:
        guarded.guard.start()
        await guarded.guard.check()
        guarded.guard.ran_out("a")
        assert not guarded.guard.low
        await guarded.guard.stop()

    guarded = Guarded(DiskLimits(0))
    guarded.disk.free = {"a": 0, "b": 0}
    asyncio.run(scenario(guarded))
    assert guarded.disk.asked == 2


def test_other_folders_after_a_reload() -> None:
    guarded = Guarded()
    guarded.free("a", 10)
    guarded.guard.guard(["a", "c"])
    assert [(folder.path, folder.low) for folder in guarded.guard.folders()] == [("a", True), ("c", False)]
    guarded.guard.guard(["b"])
    assert not guarded.guard.low


def test_it_looks_by_itself_and_more_often_when_space_is_scarce() -> None:
    async def scenario(guarded: Guarded) -> None:
        guarded.guard.start()
        guarded.disk.free["a"] = 10
        while not guarded.guard.low:
            await asyncio.sleep(0.001)
        guarded.disk.free["a"] = 2000
        while guarded.guard.low:
            await asyncio.sleep(0.001)
        await guarded.guard.stop()
        assert "disk guard" not in {task.get_name() for task in asyncio.all_tasks()}

    guarded = Guarded(DiskLimits(1000, 1500, 20))
    asyncio.run(asyncio.wait_for(scenario(guarded), 20))
    guarded = Guarded()
    asyncio.run(guarded.guard.check())
    assert guarded.guard.pause_s() == 1.0
    guarded.free("a", 7999)
    assert guarded.guard.pause_s() == 0.1


# ---- what is refused


class Core:
    """An engine with partitions on a disk that may be full, its transactions' store, and the guard."""

    def __init__(self, root: Path, files: Files, lines: str = "") -> None:
        self.config = parse((SYSTEM + lines + f"dataPath={root}/data\n[topic=t]\n").encode())
        self.clock = ManualClock()
        self.commit = GroupCommit()
        self.stores = TopicStores.open(files, self.clock, self.config)
        system = self.config.system
        limits = DiskLimits(system.disk_free_bytes_min, system.disk_free_bytes_resume)
        paths = [*self.config.data_paths(), system.data_log_path]
        self.guard = DiskGuard(files, self.clock, limits, paths, at_once)
        statistics = Statistics(self.clock.monotonic, lambda topic: False)
        self.engine = Engine(self.config, self.stores, self.commit, IdWorker(0), self.clock, statistics, self.guard)
        self.store = EngineStore(self.engine)

    def put(self, partition: int = 0, body: bytes = b"message") -> Appended | Refusal:
        return put(self.engine, "t", partition, [body])

    def put_block(self) -> Appended | Refusal:
        return put(self.engine, "t", 0, [b"message"], independent=False)

    def detail(self, outcome: object) -> str:
        assert isinstance(outcome, Refusal)
        code, detail = TEXTS.plain(outcome)
        assert code == 500
        return detail

    def log(self) -> PartitionLog:
        log = self.stores.get("t", 0)
        assert log is not None
        return log


@in_loop
async def test_every_kind_of_put_is_refused_and_reads_go_on(tmp_path: Path) -> None:
    disk = SetSpace({str(tmp_path / "data"): 10_000})
    core = Core(tmp_path, disk, "diskFreeMinBytes=1000\n")
    assert isinstance(core.put(), Appended)
    await core.commit.drain()
    disk.free[str(tmp_path / "data")] = 10
    await core.guard.check()
    reason = core.guard.refusal(str(tmp_path / "data"))
    assert reason is not None
    for outcome in (core.put(), core.put(1), core.put_block()):
        assert core.detail(outcome) == reason
    with pytest.raises(TransactionRefused) as refused:
        core.store.check("t", 0)
    assert refused.value.refusal == DiskFull(reason)
    assert core.store.check_space([("t", 0)]) == reason
    assert core.stores.get("t", 1) is None  # nothing was made for it
    assert core.engine.statistics.commands["put_failed"] == 3
    # what is wrong anyway is said first
    assert core.detail(put(core.engine, "t", 9)) == "wrong partition 9"
    assert core.detail(put(core.engine, "u", 0)) == "The server do not accept topic u"
    assert isinstance(core.engine.get("t", 0, 0, 1000), Slice)
    disk.free[str(tmp_path / "data")] = 10_000
    await core.guard.check()
    assert isinstance(core.put(), Appended)
    core.store.check("t", 0)
    assert core.store.check_space([("t", 0)]) is None
    await core.commit.drain()
    core.commit.stop()


@in_loop
async def test_where_the_journal_is_counts_for_transactions_only(tmp_path: Path) -> None:
    data, journal = str(tmp_path / "data"), str(tmp_path / "journal")
    disk = SetSpace({data: 10_000, journal: 10})
    core = Core(tmp_path, disk, f"diskFreeMinBytes=1000\ndataLogPath={journal}\n")
    await core.guard.check()
    assert isinstance(core.put(), Appended)
    with pytest.raises(TransactionRefused, match=re.escape(f"are free in {journal}")):
        core.store.check("t", 0)
    assert f"are free in {journal}" in str(core.store.check_space([]))
    await core.commit.drain()
    core.commit.stop()


@pytest.mark.parametrize("call", ["pwrite", "create", "makedir"])
@in_loop
async def test_a_full_disk_is_noticed_by_the_first_write_and_spoils_nothing(call: str, tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    core = Core(tmp_path, files, "diskFreeMinBytes=1\n")
    assert isinstance(core.put(), Appended)
    await core.commit.drain()
    files.fault = Fault(1, errno.ENOSPC, lasting=True, calls=frozenset({call}))
    first = core.detail(core.put(0 if call == "pwrite" else 1))
    assert "No space left on device" in first
    assert core.detail(core.put()).startswith("disk is full: no space is left in ")
    assert core.detail(core.put_block()).startswith("disk is full: no space is left in ")
    files.fault = None
    core.clock.advance(5000)
    await core.guard.check()
    for outcome in (core.put(), core.put_block(), core.put(1)):
        assert not isinstance(outcome, Refusal)
    await core.commit.drain()
    assert (core.log().failure, core.log().message_count) == (None, 3)
    core.commit.stop()


@in_loop
async def test_a_commit_that_finds_no_space_stops_puts_as_well(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    core = Core(tmp_path, files, "diskFreeMinBytes=1\n")
    files.fault = Fault(1, errno.ENOSPC, lasting=True, calls=frozenset({"pwrite"}))
    reported: list[Exception | None] = []
    core.store.append([Unit("t", 0, FrameBlock(encode_frame(0, 0, b"message"), 1))], reported.append)
    assert "No space left on device" in str(reported[0])
    assert core.detail(core.put()).startswith("disk is full")
    core.commit.stop()
