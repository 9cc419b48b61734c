"""Text puts that are carried out together: the same replies and the same log as one by one, whatever they are."""

from __future__ import annotations

import asyncio
import errno
import signal
import threading
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from examples import rarely
from fix_broker import RunningBroker, StartBroker, system_section, wait_until
from metaq_broker.clock import Clock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync.group_commit import GroupCommit, OnDurable
from metaq_broker.operate.config.configuration import parse
from metaq_broker.serve.replies import ReplyQueue
from metaq_broker.statistics import Statistics
from metaq_broker.testing import Fault, FaultyFiles
from metaq_broker.text.refusals import RefusalTexts
from metaq_broker.text.session import TextServices, TextSession

from metaq.formats.checksum import checksum
from metaq.formats.frames import HEADER_BYTES, Frame, walk
from metaq.formats.message_id import IdWorker
from metaq.protocols.text.commands import Get, GetOffset, Put, Reply, Result
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder
from metaq.protocols.text.encode import encode


def put(opaque: int, body: bytes, partition: int = 0, flag: int = 0, topic: str = "t") -> Put:
    return Put(topic, partition, body, flag, opaque, checksum(body))


def random_puts(random: Random, count: int) -> list[Put]:
    """Mostly usual ones to one partition, among them all that is refused or unusual."""
    puts = []
    for opaque in range(count):
        body = random.randbytes(random.choice([0, 1, 30, 100, 300]))
        kind = random.choices(range(8), [400, 4, 2, 2, 1, 1, 1, 1])[0]
        usual = put(opaque - count // 2, body, flag=random.choice([0, 0, 1, -5]))
        unusual = [
            put(opaque, body, partition=1),
            usual._replace(checksum=None),
            usual._replace(checksum=-1),
            usual._replace(checksum=(checksum(body) + 1) & 0x7FFFFFFF),
            put(opaque, bytes(1001)),
            put(opaque, body, partition=9),
            put(opaque, body, topic="unknown"),
        ]
        puts.append(usual if kind == 0 else unusual[kind - 1])
    return puts


class Harness:
    """One broker's engine and one text session in front of it; partition 0 and 1 of topic ``t``."""

    def __init__(self, folder: Path, segment_bytes: int, files: Files | None = None) -> None:
        text = system_section(5, 2, maxSegmentSize=segment_bytes, maxMessageSize=1000, dataPath=folder) + "[topic=t]\n"
        clock = Clock()
        self.folder = folder
        config, self.commit = parse(text.encode()), GroupCommit()
        self.stores = TopicStores.open(files or Files(), clock, config)
        self.statistics = Statistics(clock.monotonic, lambda topic: True)
        self.engine = Engine(config, self.stores, self.commit, IdWorker(5), clock, self.statistics)
        nothing: Any = SimpleNamespace()
        self.services = TextServices(self.engine, nothing, nothing, nothing, "1", RefusalTexts(5, "here", 1))
        self.queue = ReplyQueue(lambda: None)
        self.session = TextSession(self.services, self.queue, "peer")

    async def send(self, stream: bytes, chunk_bytes: int) -> list[Reply]:
        for start in range(0, len(stream), chunk_bytes):
            self.session.decoder.receive_data(stream[start : start + chunk_bytes])
            while self.session.handle(4096):
                pass
        await self.commit.drain()
        await asyncio.sleep(0)
        return _replies(self.queue.take(1 << 40)[0])

    def close(self) -> None:
        self.commit.stop()
        self.stores.close(clean=True)

    def frames(self, partition: int) -> list[Frame]:
        files = sorted(self.folder.glob(f"t-{partition}/*.meta"))
        return list(walk(b"".join(file.read_bytes() for file in files)))


def _replies(data: bytes) -> list[Reply]:
    decoder, replies = ReplyDecoder(), []
    decoder.receive_data(data)
    while not isinstance(reply := decoder.next_reply(), type(NEED_DATA)):
        assert isinstance(reply, Result)
        replies.append(reply)
    return replies


def carried_out(folder: Path, puts: list[Put], segment_bytes: int, chunk_bytes: int) -> Any:
    """All that can be seen of it afterwards but ids, which are checked here."""

    async def run() -> Any:
        harness = Harness(folder, segment_bytes)
        try:
            replies = await harness.send(b"".join(map(encode, puts)), chunk_bytes)
        finally:
            harness.close()
        kept = [{frame.offset: frame for frame in harness.frames(partition)} for partition in (0, 1)]
        seen, last_id = [], 0
        for reply in replies:
            assert isinstance(reply, Result)
            if reply.code == 200:
                message_id, partition, offset = map(int, reply.text.split())
                assert kept[partition][offset].message_id == message_id
                last_id = max(last_id, message_id)
                seen.append((reply.opaque, partition, offset))
            else:
                seen.append((reply.opaque, reply.code, reply.text))
        for frames in kept:
            ids = [frame.message_id for frame in frames.values()]
            assert ids == sorted(set(ids))
        figures = harness.statistics
        counted = dict(figures.commands), figures.realtime("put"), figures.realtime("message_size"), figures.traffic
        sizes = [file.stat().st_size for file in sorted(folder.glob("t-*/*.meta"))]
        return seen, [[frame._replace(message_id=0) for frame in each.values()] for each in kept], counted, sizes

    return asyncio.run(run())


@pytest.mark.parametrize("seed", [*range(4), *rarely(*range(4, 12))])
def test_the_outcome_is_that_of_puts_one_by_one(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    puts = random_puts(random, 1000)
    segment_bytes, chunk_bytes = random.choice([1 << 14, 1 << 17, 1 << 30]), random.choice([5000, 1 << 16, 1 << 22])
    together = carried_out(tmp_path / "together", puts, segment_bytes, chunk_bytes)
    assert together == carried_out(tmp_path / "one", puts, segment_bytes, 40)
    assert len(together[0]) == len(puts)


def test_when_the_disk_fails_every_put_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_durable(_log: PartitionLog, _end: int, callback: OnDurable) -> None:
        asyncio.get_running_loop().call_soon(callback, OSError("no disk"))

    async def run() -> list[Reply]:
        harness = Harness(tmp_path, 1 << 30)
        monkeypatch.setattr(harness.commit, "wait", never_durable)
        try:
            return await harness.send(b"".join(encode(put(opaque, b"x" * 100)) for opaque in range(-50, 50)), 1 << 20)
        finally:
            harness.close()

    replies = asyncio.run(run())
    assert [(reply.code, reply.opaque) for reply in replies if isinstance(reply, Result)] == [
        (500, opaque) for opaque in range(-50, 50)
    ]
    said = "Put message to [broker 'meta://here:1'] [partition 't-0'] failed.Detail:no disk"
    assert {reply.text for reply in replies if isinstance(reply, Result)} == {said}


@pytest.mark.parametrize("seed", range(12))
def test_on_a_full_disk_those_are_stored_that_are_acknowledged(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    puts = random_puts(random, 1000)
    files = FaultyFiles(tmp_path)

    async def run() -> tuple[list[Reply], list[list[Frame]]]:
        harness = Harness(tmp_path, 1 << 12, files)
        files.fault = Fault(random.randrange(1, 20), errno.ENOSPC, 0.5, lasting=True, calls=frozenset({"pwrite"}))
        try:
            replies = await harness.send(b"".join(map(encode, puts)), random.choice([5000, 1 << 16, 1 << 22]))
            return replies, [harness.frames(partition) for partition in (0, 1)]
        finally:
            files.fault = None
            harness.close()

    replies, stored = asyncio.run(run())
    acknowledged: list[dict[int, tuple[int, bytes]]] = [{}, {}]
    for each, reply in zip(puts, replies, strict=True):
        assert isinstance(reply, Result)
        assert reply.opaque == each.opaque
        if reply.code == 200:
            message_id, partition, offset = map(int, reply.text.split())
            acknowledged[partition][offset] = message_id, each.body
    assert [{frame.offset: (frame.message_id, frame.body) for frame in each} for each in stored] == acknowledged
    assert any("No space left on device" in reply.text for reply in replies if isinstance(reply, Result))


def test_a_partition_out_of_service_says_why_and_to_puts_where(tmp_path: Path) -> None:
    async def run() -> list[Reply]:
        harness = Harness(tmp_path, 1 << 30)
        try:
            harness.stores.store_of("t").take_offline("t", 0, "it is being moved")
            commands = [Get("t", "g", 0, 0, 100, 1), GetOffset("t", "g", 0, 0, 2), Put("t", 0, b"x", 0, 3)]
            return await harness.send(b"".join(map(encode, commands)), 1 << 20)
        finally:
            harness.close()

    where = "Put message to [broker 'meta://here:1'] [partition 't-0'] failed.Detail:"
    assert asyncio.run(run()) == [
        Result(500, "it is being moved", 1),
        Result(500, "it is being moved", 2),
        Result(500, f"{where}it is being moved", 3),
    ]


@pytest.mark.process
def test_a_broker_takes_them_up_while_it_works(start_broker: StartBroker, tmp_path: Path) -> None:
    """Many puts, some wrong ones among them, before and after the compiled passes are there."""
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "1")
    client = broker.client()
    body, offset = b"b" * 180, 0
    wrong = encode(Put("t", 0, body, 0, 777, checksum(body) ^ 1))
    run = b"".join(encode(put(opaque, body)) for opaque in range(100)) + wrong
    run += b"".join(encode(put(opaque, body)) for opaque in range(200, 300))

    def rounds(count: int) -> None:
        nonlocal offset
        for _ in range(count):
            client.send(run)
            for reply in client.replies(201):
                assert isinstance(reply, Result)
                if reply.opaque == 777:
                    assert reply.code == 500
                    assert "Checksum failure" in reply.text
                else:
                    assert reply.code == 200
                    assert reply.text.split()[1:] == ["0", str(offset)]
                    offset += HEADER_BYTES + len(body)

    rounds(130)  # 5 MB
    wait_until(lambda: compiled_loops(broker), "the compiled loops")
    rounds(30)
    frames = list(walk(client.value(encode(Get("t", "g", 0, offset - 200_000, 200_000, 1)))))
    assert [frame.body for frame in frames] == [body] * 1000
    client.close()


@pytest.mark.process
def test_what_was_acknowledged_survives_a_kill(start_broker: StartBroker, tmp_path: Path) -> None:
    """The broker dies with puts under way, once the compiled passes are in use."""
    arguments = "dev", tmp_path / "data", "--port", "0", "--partitions", "1"
    broker = start_broker(*arguments)
    client = broker.client()
    body = b"%08d" + b"b" * 180
    sent = 0

    def run() -> bytes:
        nonlocal sent
        sent += 200
        return b"".join(encode(put(number, body % number)) for number in range(sent - 200, sent))

    for _ in range(130):
        client.send(run())
        assert all(isinstance(reply, Result) and reply.code == 200 for reply in client.replies(200))
    wait_until(lambda: compiled_loops(broker), "the compiled loops")
    stored: dict[int, int] = {}
    killer = threading.Timer(0.1, broker.process.kill)

    def send_on() -> None:
        while True:
            if len(stored) > 2000 and killer.ident is None:
                killer.start()
            client.send(run() + run() + run())
            for reply in client.replies(600):
                assert isinstance(reply, Result)
                stored[reply.opaque] = int(reply.text.split()[2])

    with pytest.raises((OSError, EOFError, AssertionError)):
        send_on()
    assert broker.process.wait(1) == -signal.SIGKILL, "nothing else ended it"
    client.close()
    assert len(stored) > 2000
    client = start_broker(*arguments).client()
    frame_bytes = HEADER_BYTES + len(body % 0)
    for opaque, offset in [*stored.items()][-1000:]:
        (frame,) = walk(client.value(encode(Get("t", "g", 0, offset, frame_bytes, 1))))
        assert frame.body == body % opaque
    client.close()


def compiled_loops(broker: RunningBroker) -> bool:
    """Whether the process has numba, and so, in a moment, the loops."""
    return "llvmlite" in Path(f"/proc/{broker.process.pid}/maps").read_text()
