"""Deleting and moving partitions on a disk that fails or loses its power at any call: nothing is ever half there."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
from examples import spread
from fix_broker import system_section
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.maintenance import MaintenanceRefused, PartitionMaintenance
from metaq_broker.log.engine.outcomes import Appended, Refusal
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.configuration import parse
from metaq_broker.statistics import Statistics
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from metaq_broker.text.refusals import RefusalTexts
from stored import put
from waiting import in_loop

from metaq.formats.frames import walk
from metaq.formats.message_id import IdWorker

Contents = dict[int, list[bytes]]
Scenario = Callable[["Harness"], Coroutine[Any, Any, object]]


class Harness:
    """An engine on a disk that can fail, in this process."""

    def __init__(self, files: Files, root: Path) -> None:
        text = system_section(1, 4, maxSegmentSize=200, dataPath=root / "data")
        self.config = parse(f"{text}[topic=orders]\n".encode())
        clock = ManualClock()
        self.stores = TopicStores.open(files, clock, self.config)
        self.commit = GroupCommit(workers=1)
        statistics = Statistics(clock.monotonic, lambda topic: False)
        self.engine = Engine(self.config, self.stores, self.commit, IdWorker(1), clock, statistics)
        self.settled: list[str] = []
        self.gone: list[tuple[str, int]] = []
        self.maintenance = PartitionMaintenance(
            self.engine, self.commit, lambda topic, index: [], self._settle, lambda callback: callback(None)
        )
        self.maintenance.deleted = lambda *at: self.gone.append(at)

    async def _settle(self, log: Any) -> None:
        self.settled.append(log.name)

    async def fill(self, index: int, count: int = 5) -> None:
        bodies = [b"%d of %d" % (number, index) * 5 for number in range(count)]
        outcome = put(self.engine, "orders", index, bodies)
        assert isinstance(outcome, Appended)
        await self.commit.drain()

    def contents(self) -> Contents:
        return {log.index: [bytes(frame.body) for frame in log.scan(log.start_offset)] for log in self.stores.logs()}


def expected(index: int, count: int = 5) -> list[bytes]:
    return [b"%d of %d" % (number, index) * 5 for number in range(count)]


async def filled(files: Files, root: Path, *indexes: int) -> Harness:
    harness = Harness(files, root)
    for index in indexes:
        await harness.fill(index)
        harness.engine.close_partition("orders", index)
    return harness


async def close(harness: Harness) -> None:
    await harness.commit.drain()
    harness.commit.stop()
    harness.stores.close(clean=True)


async def delete_one(harness: Harness) -> object:
    return await harness.maintenance.delete("orders", [1], force=False)


async def move_two(harness: Harness) -> object:
    return await harness.maintenance.move("orders", [0, 1], 1)


DELETED: list[Contents] = [{0: expected(0), 1: expected(1)}, {0: expected(0)}]
MOVED: list[Contents] = [
    {0: expected(0), 1: expected(1)},
    {0: expected(0), 2: expected(1)},
    {1: expected(0), 2: expected(1)},
]


def play(root: Path, scenario: Scenario, fault: Fault | None) -> tuple[FaultyFiles, bool, Contents, list[str]]:
    """Run a story on a filled store; return the disk, whether it was done, what is served then, the calls it made."""
    files = FaultyFiles(root)

    async def run() -> tuple[bool, Contents, list[str]]:
        harness = await filled(files, root, 0, 1)
        before = len(files.calls)
        files.fault = fault
        done = True
        try:
            await scenario(harness)
        except MaintenanceRefused:
            done = False
        files.fault = None
        calls = files.calls[before:]
        for topic, index, _ in list(harness.stores.refused()):
            await harness.maintenance.reopen(topic, index)
        served = harness.contents()
        changed = {("orders", index) for index in (0, 1) if served.get(index) != expected(index)}
        assert changed <= set(harness.gone)
        await close(harness)
        return done, served, calls

    return files, *asyncio.run(run())


@pytest.mark.parametrize(("scenario", "states"), [(delete_one, DELETED), (move_two, MOVED)])
def test_without_faults(scenario: Scenario, states: list[Contents], tmp_path: Path) -> None:
    _, done, served, _ = play(tmp_path, scenario, None)
    assert (done, served) == (True, states[-1])


@pytest.mark.parametrize(("scenario", "states"), [(delete_one, DELETED), (move_two, MOVED)])
def test_any_call_that_fails(scenario: Scenario, states: list[Contents], tmp_path: Path) -> None:
    (tmp_path / "dry").mkdir()
    _, _, _, calls = play(tmp_path / "dry", scenario, None)
    assert {"rename", "fsync_dir"} <= set(calls)
    for at in spread(range(1, len(calls) + 1)):
        root = tmp_path / str(at)
        root.mkdir()
        files, done, served, _ = play(root, scenario, Fault(at, errno.EIO))
        assert served in states, at
        assert not done or served == states[-1], at
        assert reopened(files.restart(), root) == served, at


@pytest.mark.parametrize(("scenario", "states"), [(delete_one, DELETED), (move_two, MOVED)])
def test_the_power_goes_at_any_call(scenario: Scenario, states: list[Contents], tmp_path: Path) -> None:
    (tmp_path / "dry").mkdir()
    _, _, _, calls = play(tmp_path / "dry", scenario, None)
    for at in spread(range(1, len(calls) + 1)):
        for seed in range(4):
            root = tmp_path / f"{at}-{seed}"
            root.mkdir()
            files = FaultyFiles(root)
            with pytest.raises(PowerCut):
                asyncio.run(_until_power_cut(files, root, scenario, at))
            assert reopened(files.crash(Random(seed)), root) in states, (at, seed)


async def _until_power_cut(files: FaultyFiles, root: Path, scenario: Scenario, at: int) -> None:
    harness = await filled(files, root, 0, 1)
    files.fault = Fault(at, None)
    try:
        await scenario(harness)
    finally:
        harness.commit.stop()


def reopened(files: FaultyFiles, root: Path) -> Contents:
    """What a start finds; nothing of a deletion is left after it."""

    async def run() -> Contents:
        harness = Harness(files, root)
        contents = harness.contents()
        assert list(harness.stores.refused()) == []
        folders = sorted(path.name for path in (root / "data").glob("orders*"))
        assert folders == [f"orders-{index}" for index in sorted(contents)]
        await harness.fill(3)
        assert harness.contents() == {**contents, 3: expected(3)}
        await close(harness)
        return contents

    return asyncio.run(run())


# ---- one thing at a time


@in_loop
async def test_a_partition_whose_files_were_removed_is_another_one(tmp_path: Path) -> None:
    """Whoever has kept an offset of the old one must hear of that: the new one counts from 0."""
    harness = await filled(Files(), tmp_path, 0)
    harness.engine.open_partition("orders", 0)
    before = harness.stores.get("orders", 0)
    assert before is not None
    shutil.rmtree(tmp_path / "data" / "orders-0")
    before.failure = "its files are gone"  # as the watch over folders notes
    await harness.maintenance.reopen("orders", 0)
    assert harness.gone == [("orders", 0)]
    after = harness.stores.get("orders", 0)
    assert after is not None
    assert after is not before
    await harness.fill(0)
    assert harness.contents() == {0: expected(0)}
    assert after.incarnation not in (None, before.incarnation)
    await close(harness)


@in_loop
async def test_a_refused_partition_whose_files_were_moved_away_is_another_one(tmp_path: Path) -> None:
    await close(await filled(Files(), tmp_path, 0, 1))
    for index in (0, 1):
        first, *_, last = sorted((tmp_path / "data" / f"orders-{index}").glob("*.meta"))
        (tmp_path / f"{index}.meta").write_bytes(first.read_bytes())
        first.rename(last.with_name(f"{10**6 + index:020d}.meta"))  # a gap
    harness = Harness(Files(), tmp_path)
    for index in (0, 1):
        assert "orders" in (harness.stores.refusal("orders", index) or "")
        folder = tmp_path / "data" / f"orders-{index}"
        (folder / f"{10**6 + index:020d}.meta").rename(tmp_path / f"{index}.moved")
    for path in (tmp_path / "data" / "orders-0").glob("*.meta"):
        path.rename(tmp_path / path.name)
    (tmp_path / "data" / "orders-1" / f"{0:020d}.meta").write_bytes((tmp_path / "1.meta").read_bytes())
    for index in (0, 1):
        await harness.maintenance.reopen("orders", index)
    assert harness.gone == [("orders", 0)]
    await harness.fill(0)
    assert harness.contents() == {0: expected(0), 1: expected(1)}
    await close(harness)


@in_loop
async def test_retention_is_settled_and_a_partition_at_work_is_left_alone(tmp_path: Path) -> None:
    harness = await filled(Files(), tmp_path, 0, 1, 2)
    started, go_on = asyncio.Event(), asyncio.Event()
    real = harness.commit.settle

    async def slow(log: Any) -> None:
        started.set()
        await go_on.wait()
        await real(log)

    harness.commit.settle = slow  # type: ignore[method-assign]
    deleting = asyncio.create_task(harness.maintenance.delete("orders", [0], force=False))
    await started.wait()
    busy = "another operation is in progress on partition orders-0; try again later"
    refused = "failed.Detail:partition orders-0 is being deleted"
    assert harness.engine.log_for_put("orders", 0) is not None
    with pytest.raises(MaintenanceRefused, match=busy):
        harness.maintenance.open("orders", [0])
    with pytest.raises(MaintenanceRefused, match=busy):
        await harness.maintenance.move("orders", [2], -2)
    for step in (
        harness.maintenance.delete("orders", [0], force=True),
        harness.maintenance.reopen("orders", 0),
    ):
        with pytest.raises(MaintenanceRefused, match=busy):
            await step
    harness.engine.open_partition("orders", 0)
    outcome = put(harness.engine, "orders", 0)
    assert isinstance(outcome, Refusal)
    assert refused in RefusalTexts(0, "here", 8123).put("orders", 0, outcome).text
    go_on.set()
    assert await deleting == [0]
    assert harness.settled == ["orders-0"]
    await close(harness)


@in_loop
async def test_readers_of_a_deleted_partition_keep_what_they_hold(tmp_path: Path) -> None:
    harness = await filled(Files(), tmp_path, 0)
    harness.engine.open_partition("orders", 0)
    held = harness.engine.get("orders", 0, 0, 1000)
    await harness.maintenance.delete("orders", [0], force=True)
    await harness.fill(0, 1)
    bodies = [bytes(frame.body) for frame in walk(held.read())]  # type: ignore[union-attr]
    assert bodies == expected(0)[: len(bodies)] != []
    assert harness.contents() == {0: expected(0, 1)}
    await close(harness)
