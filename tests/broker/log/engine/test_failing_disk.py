"""A disk that fails under the engine: who is told what, what stays readable, and both ways back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from fix_broker import system_section
from metaq_broker.clock import Clock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.maintenance import PartitionMaintenance
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync.group_commit import FlushPolicy, GroupCommit
from metaq_broker.operate.config.configuration import parse
from metaq_broker.statistics import Statistics
from metaq_broker.testing import Fault, FaultyFiles
from metaq_broker.text.refusals import RefusalTexts
from metaq_broker.transactions.interfaces import Unit
from metaq_broker.transactions.partitions import EngineStore
from stored import put
from waiting import in_loop

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdWorker

TOPIC = "t"

TEXTS = RefusalTexts(5, "here", 8123)


class Disk:
    """An engine on a disk that fails when told to, and what was acknowledged."""

    def __init__(self, files: Files, root: Path, policy: FlushPolicy) -> None:
        text = system_section(5, maxSegmentSize=2000, maxTransferSize=1024, dataPath=root / "data")
        config, clock = parse(f"{text}[topic={TOPIC}]\n".encode()), Clock()
        self.stores = TopicStores.open(files, clock, config)
        self.commit = GroupCommit(lambda topic: policy)
        statistics = Statistics(clock.monotonic, lambda topic: False)
        self.engine = Engine(config, self.stores, self.commit, IdWorker(5), clock, statistics)
        self.maintenance = PartitionMaintenance(
            self.engine, self.commit, lambda topic, index: [], _nothing, lambda callback: callback(None)
        )

    @property
    def log(self) -> PartitionLog:
        log = self.stores.get(TOPIC, 0)
        assert log is not None
        return log

    async def put(self, *bodies: bytes) -> str | None:
        """Put messages, as a client that pipelines; return why they were refused, ``None`` when they were
        acknowledged.
        """
        durable: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        outcome = put(self.engine, TOPIC, 0, bodies, durable.set_result)
        refusal = outcome if isinstance(outcome, Refusal) else await asyncio.wait_for(durable, 10)
        return None if refusal is None else TEXTS.put(TOPIC, 0, refusal).text

    def bodies(self) -> list[bytes]:
        return [frame.body for frame in self.log.scan(0)]


async def _nothing(log: PartitionLog) -> None:
    """No retention is at work."""


@asynccontextmanager
async def broker(files: Files, root: Path, policy: FlushPolicy | None = None) -> AsyncIterator[Disk]:
    disk = Disk(files, root, policy or FlushPolicy())
    yield disk
    disk.commit.stop()


@pytest.mark.parametrize("way", ["command", "restart"])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("pwrite", errno.EIO),
        ("fdatasync", errno.EIO),
        ("fdatasync", errno.ENOSPC),
        ("create", errno.EIO),
        ("rename", errno.EIO),
        ("fsync_dir", errno.EIO),
    ],
)
@in_loop
async def test_a_partition_fails_alone_and_comes_back(call: str, error: int, way: str, tmp_path: Path) -> None:
    async def goes_on(disk: Disk, acknowledged: list[bytes]) -> None:
        for number in range(3):
            body = b"after %d" % number + b"." * 900
            assert await disk.put(body) is None
            acknowledged.append(body)
        assert disk.bodies() == acknowledged

    files, acknowledged = FaultyFiles(tmp_path), []
    async with broker(files, tmp_path) as disk:
        while True:
            body = b"message %d" % len(acknowledged) + b"." * 900
            refusal = await disk.put(body)
            if refusal is not None:
                break
            acknowledged.append(body)
            # The first segment is under way by now; what rolls fails as well.
            files.fault = files.fault or Fault(1, error, 0.5, calls=frozenset({call}))
            assert len(acknowledged) < 20
        assert f"partition {TOPIC}-0 is read-only: " in refusal
        assert "is read-only: " in str(await disk.put(b"refused at once"))
        assert disk.bodies() == acknowledged
        files.fault = None
        if way == "command":
            await disk.maintenance.reopen(TOPIC, 0)
            await goes_on(disk, acknowledged)
    if way == "restart":
        files = files.restart()
        async with broker(files, tmp_path) as disk:
            await goes_on(disk, acknowledged)
    files = files.crash(Random(len(acknowledged)))
    async with broker(files, tmp_path) as disk:
        assert disk.log.failure is None
        assert disk.bodies() == acknowledged


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("writes", range(4))
@in_loop
async def test_pipelined_puts_that_reach_the_end_of_a_segment_are_stored_or_refused(
    writes: int, error: int, tmp_path: Path
) -> None:
    """Whatever write fails: what is refused is not stored, also not after a restart."""
    files, acknowledged, refused = FaultyFiles(tmp_path), [], 0
    async with broker(files, tmp_path) as disk:
        assert await disk.put(b"first") is None
        acknowledged.append(b"first")
        files.fault = Fault(writes + 1, error, 0.5, lasting=True, calls=frozenset({"pwrite"}))
        for turn in range(3):
            bodies = [b"message %d.%d" % (turn, number) + b"." * 900 for number in range(12)]
            if await disk.put(*bodies) is None:
                acknowledged += bodies
            else:
                refused += 1
        assert refused
        assert disk.bodies() == acknowledged
        files.fault = None
        if error == errno.ENOSPC:
            assert await disk.put(b"after") is None
            acknowledged.append(b"after")
        assert disk.bodies() == acknowledged
    async with broker(files.restart(), tmp_path) as disk:
        assert disk.bodies() == acknowledged


@in_loop
async def test_a_unit_of_a_transaction_is_durable_in_every_mode(tmp_path: Path) -> None:
    """With a threshold that is never reached, only the transaction itself can have caused the sync."""

    files = FaultyFiles(tmp_path)
    async with broker(files, tmp_path, FlushPolicy(1_000_000, 3_600_000)) as disk:
        assert await disk.put(b"plain") is None
        assert disk.bodies() == []
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        unit = Unit(TOPIC, 0, FrameBlock(encode_frame(77, 0, b"committed"), 1))
        EngineStore(disk.engine).append([unit], done.set_result)
        assert not done.done()
        assert await asyncio.wait_for(done, 10) is None
        assert disk.bodies() == [b"plain", b"committed"]
    files = files.crash(Random(1))
    async with broker(files, tmp_path) as disk:
        assert disk.bodies() == [b"plain", b"committed"]
