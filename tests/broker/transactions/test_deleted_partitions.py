"""Partitions that are deleted or moved after a commit: no restart appends its messages again."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fix_broker import system_section
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.maintenance import MaintenanceRefused, PartitionMaintenance
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.configuration import parse
from metaq_broker.statistics import Statistics
from metaq_broker.testing import Fault, FaultyFiles
from metaq_broker.transactions.interfaces import Durability
from metaq_broker.transactions.manager import TransactionManager
from metaq_broker.transactions.partitions import EngineStore
from stored import put
from waiting import in_loop, until

from metaq.formats.message_id import IdWorker
from metaq.model import LocalTransactionId

BODY = b"committed"


async def _no_retention(_log: PartitionLog) -> None: ...


class Life:
    """A broker's partitions and transactions, from one start to the next."""

    def __init__(self, files: Files, root: Path) -> None:
        text = system_section(1, 4, dataPath=root / "data")
        config, clock = parse(f"{text}[topic=orders]\n".encode()), ManualClock()
        self.stores = TopicStores.open(files, clock, config)
        self.commit = GroupCommit(workers=1)
        statistics = Statistics(clock.monotonic, lambda topic: False)
        self.engine = Engine(config, self.stores, self.commit, IdWorker(1), clock, statistics)
        self.transactions = TransactionManager(
            files,
            clock,
            root / "data" / "transactions",
            EngineStore(self.engine),
            timeout_s_max=60,
            durability=Durability.COMMIT,
            call_later=asyncio.get_running_loop().call_later,
        )
        self.maintenance = PartitionMaintenance(
            self.engine, self.commit, self.transactions.users_of, _no_retention, self.transactions.when_on_disk
        )
        self.transactions.recover_from_journal()

    async def commit_one(self, number: int = 1) -> None:
        """Commit a transaction with one message for orders-0."""
        key, ended = LocalTransactionId("S", number), asyncio.get_running_loop().create_future()
        self.transactions.begin(self, key)
        self.transactions.put(self, key, "orders", 0, 0, None, BODY)
        self.transactions.commit(key, True, self, ended.set_result)
        refusal: Refusal | None = await ended
        assert refusal is None

    async def contents(self) -> dict[int, list[bytes]]:
        await self.commit.drain()
        return {log.index: [bytes(frame.body) for frame in log.scan(log.start_offset)] for log in self.stores.logs()}


def found_after_power_cuts(
    tmp_path: Path, first: Callable[[Files, Path], Coroutine[Any, Any, None]]
) -> Iterator[dict[int, list[bytes]]]:
    """Yield what a second life finds after ``first`` and a power cut, for eight of them."""

    async def second(files: Files, root: Path) -> dict[int, list[bytes]]:
        life = Life(files, root)
        found = await life.contents()
        life.commit.stop()
        return found

    for seed in range(8):
        root = tmp_path / str(seed)
        root.mkdir()
        files = FaultyFiles(root)
        asyncio.run(first(files, root))
        yield asyncio.run(second(files.crash(Random(seed)), root))


@pytest.mark.parametrize("moves", [False, True], ids=["deleted", "moved"])
def test_after_a_power_cut(moves: bool, tmp_path: Path) -> None:
    async def first(files: Files, root: Path) -> None:
        life = Life(files, root)
        await life.commit_one()
        if moves:
            life.maintenance.close("orders", [0])
            await life.maintenance.move("orders", [0], 1)
        else:
            await life.maintenance.delete("orders", [0], force=True)
        life.commit.stop()

    for seed, found in enumerate(found_after_power_cuts(tmp_path, first)):
        assert found == ({1: [BODY]} if moves else {}), seed


@in_loop
async def test_a_commit_whose_end_cannot_be_written_keeps_its_partition(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    life = Life(files, tmp_path)
    await life.commit_one()
    before = files.calls.count("pwrite")
    await life.commit_one(2)
    assert files.calls.count("pwrite") - before == 3  # the commit, the message, and the end of the commit
    files.fault = Fault(3, errno.ENOSPC, calls=frozenset({"pwrite"}), lasting=True)
    await life.commit_one(3)
    with pytest.raises(MaintenanceRefused, match=r"have not ended: .*3 \(over, but the journal cannot be written\)"):
        await life.maintenance.delete("orders", [0], force=True)
    files.fault = None
    assert await life.maintenance.delete("orders", [0], force=True) == [0]
    assert await life.contents() == {}
    life.commit.stop()


def lose_files(life: Life, root: Path) -> None:
    log = life.stores.get("orders", 0)
    assert log is not None
    shutil.rmtree(root / "data" / "orders-0")
    log.failure = "its files are gone"  # as the watch over folders notes


def test_a_partition_that_begins_anew_gets_no_commit_of_the_old_one(tmp_path: Path) -> None:
    """Nor does a restart look for its messages at their offsets, which are inside of other messages now."""

    async def first(files: Files, root: Path) -> None:
        life = Life(files, root)
        await life.commit_one()
        lose_files(life, root)
        await life.maintenance.reopen("orders", 0)
        put(life.engine, "orders", 0, [b"anew" * 50])
        await life.commit.drain()
        life.commit.stop()

    for seed, found in enumerate(found_after_power_cuts(tmp_path, first)):
        assert found == {0: [b"anew" * 50]}, seed


@in_loop
async def test_a_partition_with_an_unfinished_commit_begins_anew_at_a_restart(tmp_path: Path) -> None:
    life = Life(Files(), tmp_path)
    await life.commit_one()
    key, answers = LocalTransactionId("S", 2), list[Refusal | None]()
    life.transactions.begin(life, key)
    life.transactions.put(life, key, "orders", 0, 0, None, b"stalled")
    lose_files(life, tmp_path)
    life.transactions.commit(key, True, life, answers.append)
    await until(lambda: bool(answers), "an answer to the commit")
    for _ in range(2):
        with pytest.raises(MaintenanceRefused, match=r"not ended: .*2; as its files are gone, restart this broker"):
            await life.maintenance.reopen("orders", 0)
    life.transactions.close()
    await life.commit.drain()
    life.commit.stop()
    life.stores.close(clean=False)
    life = Life(Files(), tmp_path)
    assert await life.contents() == {0: [b"stalled"]}
    life.commit.stop()


@in_loop
async def test_a_journal_that_has_failed_keeps_partitions(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    life = Life(files, tmp_path)
    await life.commit_one()
    files.fault = Fault(1, errno.EIO, calls=frozenset({"fdatasync"}))
    with pytest.raises(MaintenanceRefused, match="orders-0 is not deleted: the transaction journal cannot be synced"):
        await life.maintenance.delete("orders", [0], force=True)
    files.fault = None
    assert await life.contents() == {0: [BODY]}
    assert life.engine.put_refusal("orders", 0) is None
    life.commit.stop()
