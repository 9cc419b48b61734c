"""The disks of two members of a pair in one process: their streams, without a network and without elections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from fix_broker import system_section
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.maintenance import PartitionMaintenance
from metaq_broker.log.engine.outcomes import Appended, Refusal
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.retention.retention import Retention
from metaq_broker.log.state.state_stream import StateStream
from metaq_broker.log.state.state_table import LoopDriver, StateTable
from metaq_broker.log.streams.epochs import read_epochs
from metaq_broker.log.streams.stream import STATE, PairStream, StreamRefused
from metaq_broker.log.sync.group_commit import FlushPolicy
from metaq_broker.operate.config.configuration import parse
from metaq_broker.replication.local import LocalPartitions
from metaq_broker.replication.local_streams import LocalStreams
from metaq_broker.replication.pair.streams import agreed_end
from metaq_broker.replication.paired_commit import PairedCommit
from metaq_broker.statistics import Statistics
from metaq_broker.testing import PowerCut
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.interfaces import Durability
from metaq_broker.transactions.journal_stream import JournalStream
from metaq_broker.transactions.manager import TransactionManager
from metaq_broker.transactions.partitions import EngineStore
from stored import QuickFiles, put

from metaq.formats.frames import walk
from metaq.formats.message_id import IdWorker

PAIR = "[zookeeper]\nzk.zkConnect=127.0.0.1:1\n[pair]\nother=127.0.0.1:1\n"


class NoCommits:
    """The transactions that retention asks: there are none."""

    def needed_from(self, topic: str, partition: int) -> int | None:
        return None

    def when_on_disk(self, callback: Callable[[Exception | None], None]) -> None:
        callback(None)


class PairDisk:
    """An opened data folder of a member. As a leader it notes what was reported, and confirms it if ``alone``."""

    def __init__(
        self, root: Path, files: Files | None = None, *, segment_bytes: int = 400, journal_bytes: int = 1 << 20
    ) -> None:
        self.data, self.files = root / "data", files or QuickFiles()
        text = system_section(1, 4, maxSegmentSize=segment_bytes, indexInterval=100, dataPath=self.data)
        self.config = parse(f"{text}{PAIR}[topic=*]\n".encode())
        self.clock = ManualClock()
        self.stores = TopicStores.open(self.files, self.clock, self.config)
        self.commit = PairedCommit(lambda topic: FlushPolicy())
        statistics = Statistics(self.clock.monotonic, lambda topic: False)
        self.engine = Engine(self.config, self.stores, self.commit, IdWorker(1), self.clock, statistics)
        self.retention = Retention(self.files, self.clock, self.config, self.stores, NoCommits())
        calls = lambda *at: [], self.retention.settle, NoCommits().when_on_disk
        self.maintenance = PartitionMaintenance(self.engine, self.commit, *calls)
        local = LocalPartitions(self.engine, self.commit, self.maintenance, self.files)
        epochs = read_epochs(self.files, self.data) or {}
        self.journal_bytes = journal_bytes
        self.journal = JournalStream.open(self.files, self.clock, self.data / "transactions")
        self.state = StateStream.open(self.files, self.data / STATE)
        self.transactions: TransactionManager | None = None
        self.streams = LocalStreams(
            local, self.commit, self.clock, self.retention.remove_before, epochs, [self.journal, self.state]
        )
        self.table: StateTable | None = None
        self.alone = True
        self.events: list[tuple[str, str, int]] = []
        self.answers: list[Refusal | None] = []

    # ---- a leader's reports

    def stream_added(self, stream: PairStream) -> None:
        self.events.append(("added", stream.name, stream.end))

    def stream_removed(self, name: str) -> None:
        self.events.append(("removed", name, 0))

    def written(self, name: str, end: int) -> None:
        self.events.append(("written", name, end))

    def synced(self, name: str, end: int) -> None:
        self.events.append(("synced", name, end))
        if self.alone:
            self.stream(name).confirm(end)

    # ---- what a test does

    def serve(self) -> TransactionManager:
        """Open the transactions, as the broker does when it has been elected."""
        self.transactions = TransactionManager(
            self.files,
            self.clock,
            self.data / "transactions",
            EngineStore(self.engine),
            timeout_s_max=60,
            durability=Durability.OS,  # no acknowledgement of a pair depends on it
            call_later=asyncio.get_running_loop().call_later,
            checkpoint=CheckpointSettings(1, 3600.0, self.journal_bytes),
            stream=self.journal,
        )
        self.transactions.recover_from_journal()
        return self.transactions

    def stream(self, name: str) -> PairStream:
        found = self.streams.get(name)
        assert found is not None, name
        return found

    async def lead(self, epoch: int, *, alone: bool = True) -> dict[str, int]:
        self.alone = alone
        starts = await self.streams.begin_epoch(epoch)
        self.streams.lead(self)
        return starts

    async def put(self, bodies: list[bytes], partition: int = 0, topic: str = "t") -> None:
        """Append messages, one after the other, and wait until they are synced."""
        for body in bodies:
            outcome = put(self.engine, topic, partition, [body], self.answers.append)
            assert isinstance(outcome, Appended), outcome
        if self.alone:
            await self.commit.drain()
        else:
            name = f"{topic}-{partition}"
            await until_true(lambda: self.stream(name).durable_end == self.stream(name).end)

    def open_state(self) -> StateTable:
        """Open the state of RocketMQ's clients, as the broker does when it has been elected."""
        self.state.hand_over()
        self.table = StateTable.open(self.files, self.data / STATE, LoopDriver(), stream=self.state)
        self.state.attach(self.table)
        return self.table

    def bodies(self, name: str = "t-0") -> list[bytes]:
        """Return the messages of a partition that can be read."""
        stream = self.streams.get(name)
        log = getattr(stream, "log", None)
        return [] if not isinstance(log, PartitionLog) else [bytes(each.body) for each in log.scan(log.start_offset)]

    async def close(self, *, clean: bool = True) -> None:
        if self.transactions is not None:
            self.transactions.close()
        if self.table is not None:
            self.table.close()
        self.journal.close()
        self.state.close()
        await self.commit.drain()
        self.commit.stop()
        self.stores.close(clean)


async def until_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def durable(stream: PairStream) -> None:
    """Return when everything that was appended to a stream is durable; raises as ``when_durable`` reports."""
    done: asyncio.Future[StreamRefused | None] = asyncio.get_running_loop().create_future()
    stream.when_durable(done.set_result)
    if (refused := await done) is not None:
        raise refused


async def follow(leader: PairDisk, follower: PairDisk, *, run_bytes: int = 150, epoch: int = 0) -> None:
    """Make all streams of ``follower`` copies of the leader's, as the core and the driver do."""
    mine, theirs = follower.streams.facts(), leader.streams.facts()
    agreed = {name: agreed_end(each, theirs[name]) if name in theirs else None for name, each in mine.items()}
    await follower.streams.cut({name: end for name, end in agreed.items() if end != mine[name].end}, epoch, "leader")
    await follower.streams.adopt({name: (each.origin, each.epochs) for name, each in theirs.items()})
    for name, original in theirs.items():
        await copy(leader.stream(name), follower.stream(name), original.end, run_bytes)


async def copy(original: PairStream, target: PairStream, end: int, run_bytes: int = 150) -> None:
    """Carry what is missing, run by run, in memory that is used again, as a connection's is."""
    while target.end < end:
        run = original.read(target.end, end, run_bytes)
        memory = bytearray(run.data)
        target.append_copy(run._replace(data=memoryview(memory)))
        memory[:] = bytes(len(memory))
        await durable(target)


def segments(disk: PairDisk) -> dict[str, bytes]:
    """Return the segments of a member's partitions with bytes, by their paths."""
    found = {path.relative_to(disk.data): path for path in disk.data.glob("*-[0-9]/*.meta*")}
    return {str(at).removesuffix(".new"): found[at].read_bytes() for at in sorted(found) if found[at].stat().st_size}


def bodies_in(data: bytes) -> list[bytes]:
    return [bytes(frame.body) for frame in walk(data)]


def ends_before_a_cut(work: Callable[[], Awaitable[object]]) -> bool:
    """Run ``work`` in a loop of its own; return whether it ended, or was stopped by a ``PowerCut``."""

    async def run() -> bool:
        try:
            await work()
        except PowerCut:
            return False
        return True

    return asyncio.run(run())
