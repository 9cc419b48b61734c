"""Partitions that are deleted or moved after a commit: no restart appends its messages again."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from random import Random

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
from waiting import in_loop

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
        found = asyncio.run(second(files.crash(Random(seed)), root))
        assert found == ({1: [BODY]} if moves else {}), seed


@in_loop
async def test_a_commit_whose_end_cannot_be_written_keeps_its_partition(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    life = Life(files, tmp_path)
    await life.commit_one()
    before = files.calls.count("pwrite")
    await life.commit_one(2)
    assert files.calls.count("pwrite") - before == 3  # the commit, the message, and the end of the commit
    files.fault = Fault(3, errno.ENOSPC, calls=frozenset({"pwrite"}))
    await life.commit_one(3)
    with pytest.raises(MaintenanceRefused, match=r"is needed by transactions that have not ended: .*3"):
        await life.maintenance.delete("orders", [0], force=True)
    await life.commit_one(4)  # notes the end of both
    assert await life.maintenance.delete("orders", [0], force=True) == [0]
    assert await life.contents() == {}
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
