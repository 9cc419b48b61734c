"""A disk that fails under the engine: who is told what, what stays readable, and both ways back."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from weakref import ref

import pytest
from fix_broker import system_section
from metaq_broker.clock import Clock
from metaq_broker.log.engine.appends import Append, Terms
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.maintenance import PartitionMaintenance
from metaq_broker.log.engine.outcomes import Refusal, StorageFailed
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
MESSAGE_BYTES_MAX = 1000
TEXTS = RefusalTexts(5, "here", 8123)


class WeaklyReferenced(bytearray):
    """Bytes of which it can be seen whether something still refers to them."""


class Disk:
    """An engine on a disk that fails when told to, and what was acknowledged."""

    def __init__(self, files: Files, root: Path, policy: FlushPolicy) -> None:
        sizes = {"maxSegmentSize": 2000, "maxTransferSize": 1024, "maxMessageSize": MESSAGE_BYTES_MAX}
        text = system_section(5, **sizes, dataPath=root / "data")
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

    async def put(self, body: bytes) -> str | None:
        """Put one message; return why it was refused, ``None`` when it was acknowledged."""
        [refusal] = await self.pipeline([body])
        return None if refusal is None else TEXTS.put(TOPIC, 0, refusal).text

    async def pipeline(self, bodies: Sequence[bytes]) -> list[Refusal | None]:
        """Put messages that come together; return why each was refused, ``None`` when it was acknowledged."""
        durable: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        outcome = put(self.engine, TOPIC, 0, bodies, durable.set_result)
        if isinstance(outcome, Refusal):
            return [outcome] * len(bodies)
        failure = await asyncio.wait_for(durable, 10)
        return [outcome.rejected.get(position, failure) for position in range(len(bodies))]

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
@pytest.mark.parametrize("wrong", [None, 0, 5], ids="wrong_{}".format)
@in_loop
async def test_of_pipelined_puts_those_are_stored_that_are_acknowledged(
    wrong: int | None, writes: int, error: int, tmp_path: Path
) -> None:
    """Whatever write fails, where segments begin between them, and if one of them is too large."""
    files, acknowledged, refused = FaultyFiles(tmp_path), [b"first"], set[type[Refusal]]()
    async with broker(files, tmp_path) as disk:
        assert await disk.put(b"first") is None
        files.fault = Fault(writes + 1, error, 0.5, lasting=True, calls=frozenset({"pwrite"}))
        for turn in range(3):
            bodies = [b"message %d.%d" % (turn, number) + b"." * 900 for number in range(12)]
            if wrong is not None:
                bodies[wrong] = bytes(MESSAGE_BYTES_MAX + 1)
            for body, refusal in zip(bodies, await disk.pipeline(bodies), strict=True):
                if refusal is None:
                    acknowledged.append(body)
                else:
                    refused.add(type(refusal))
        assert StorageFailed in refused
        assert disk.bodies() == acknowledged
        files.fault = None
        if error == errno.ENOSPC:
            assert await disk.put(b"after") is None
            acknowledged.append(b"after")
        assert disk.bodies() == acknowledged
    async with broker(files.restart(), tmp_path) as disk:
        assert disk.bodies() == acknowledged


@in_loop
async def test_a_refusal_does_not_keep_the_messages_in_memory(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    async with broker(files, tmp_path) as disk:
        assert await disk.put(b"first") is None
        files.fault = Fault(1, errno.ENOSPC, 0.5, lasting=True, calls=frozenset({"pwrite"}))
        frames = WeaklyReferenced(encode_frame(0, 0, b"second"))
        data, unit = ref(frames), Append(TOPIC, 0, FrameBlock(frames, 1), Terms.BLOCK)
        refusal = disk.engine.append(unit, print)
        del frames, unit
        gc.collect()
        assert isinstance(refusal, StorageFailed)
        assert data() is None


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
