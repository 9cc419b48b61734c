"""Whole brokers inside one event loop, so that a story of two of them runs in milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from fix_broker import system_section
from metaq_broker.app import Broker
from metaq_broker.operate.config.configuration import BrokerConfig, parse
from metaq_broker.text.link import BrokerLink
from waiting import until

from metaq.formats.frames import encode_frame
from metaq.model import Address
from metaq.protocols.text.commands import Get as GetCommand
from metaq.protocols.text.commands import Put, PutBatch, Result, Value

DEADLINE_S = 60.0
SEGMENT_BYTES = 2000


def configured(folder: Path, *, role: str = "", port: int = 0, broker_id: int = 3, system: str = "") -> BrokerConfig:
    """Return the configuration of a broker with small segments that accepts every topic."""
    keys = {"maxSegmentSize": SEGMENT_BYTES, "indexInterval": 256, "deleteWhen": "0 0 6 * * ?", "dataPath": folder}
    text = system_section(broker_id, 2, serverPort=port, **keys)
    return parse(f"{text}{system}\n{role}\n[topic=*]\n".encode(), "test.ini")


def slave_of(master: Broker, **keys: object) -> str:
    """Return the section of a server.ini that makes an asynchronous slave of a broker."""
    keys = {"slaveId": 0, "master": f"127.0.0.1:{master.port}", "slaveMaxDelayInMills": 20, **keys}
    return "[slave]\n" + "".join(f"{key}={value}\n" for key, value in keys.items())


@asynccontextmanager
async def running(config: BrokerConfig, file: Path | None = None) -> AsyncIterator[Broker]:
    """Run a broker as long as the block lasts; ``file`` is where its configuration is reloaded from."""
    broker = Broker(config, file, lambda: None)
    try:
        await broker.open()
        await broker.serve()
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def client(broker: Broker) -> AsyncIterator[BrokerLink]:
    link = await BrokerLink.open(Address("127.0.0.1", broker.port), DEADLINE_S)
    try:
        yield link
    finally:
        await link.close()


def bodies(count: int, size: int = 100, mark: int = 0) -> list[bytes]:
    return [f"{mark}-{number}-".encode().ljust(size, b"x") for number in range(count)]


async def put(link: BrokerLink, body: bytes, topic: str = "t", partition: int = 0) -> tuple[int, str]:
    """Put one message; return code and text of the reply."""
    reply = await link.ask(lambda opaque: Put(topic, partition, body, 0, opaque))
    assert isinstance(reply, Result)
    return reply.code, reply.text


async def put_many(link: BrokerLink, bodies: list[bytes], topic: str = "t", partition: int = 0) -> None:
    """Put messages and make sure that all are acknowledged."""
    futures = [link.send(lambda opaque, b=body: Put(topic, partition, b, 0, opaque)) for body in bodies]
    for future in futures:
        reply = await link.settle(future)
        assert isinstance(reply, Result), reply
        assert reply.code == 200, reply


async def put_block(link: BrokerLink, bodies: list[bytes], topic: str = "t", partition: int = 0) -> tuple[int, str]:
    """Put messages as one block; return code and text of the reply."""
    block = b"".join(encode_frame(-1, 0, body) for body in bodies)
    reply = await link.ask(lambda opaque: PutBatch(topic, partition, block, len(bodies), opaque))
    assert isinstance(reply, Result)
    return reply.code, reply.text


async def read_all(link: BrokerLink, topic: str = "t", partition: int = 0, offset: int = 0) -> bytes:
    """Return all bytes of a partition from ``offset`` on."""
    found = b""
    while True:
        at = offset + len(found)
        reply = await link.ask(lambda opaque, at=at: GetCommand(topic, "g", partition, at, 1 << 20, opaque))
        if not isinstance(reply, Value):
            return found
        found += reply.data


def segments(folder: Path) -> dict[str, bytes]:
    """Return every segment file below a data folder, with its bytes; those without their name yet are no segments."""
    found: dict[str, bytes] = {}
    for partition in sorted(folder.glob("*-[0-9]")):
        with contextlib.suppress(FileNotFoundError):  # it was just removed, or a segment of it
            for path in sorted(partition.glob("*.meta")):
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found


async def until_same(original: Path, copy: Path) -> dict[str, bytes]:
    """Return the segment files of both folders once they are the same, byte for byte; fail if they never are."""
    try:
        await until(lambda: segments(original) == segments(copy), "the files to be the same")
    except AssertionError:
        mine, theirs = ({name: len(data) for name, data in segments(folder).items()} for folder in (copy, original))
        raise AssertionError(f"original {theirs}, copy {mine}") from None
    return segments(copy)


@asynccontextmanager
async def fed_master(folder: Path, bodies: list[bytes]) -> AsyncIterator[tuple[Broker, BrokerLink]]:
    """Run a broker, to which ``bodies`` were put, and a connection to it."""
    async with running(configured(folder)) as master, client(master) as producer:
        await put_many(producer, bodies)
        yield master, producer


@asynccontextmanager
async def copying(folder: Path, master: Broker) -> AsyncIterator[Broker]:
    """Run a slave in ``folder / "s"`` which has every file that its master in ``folder / "m"`` has."""
    async with running(configured(folder / "s", role=slave_of(master))) as slave:
        await until_same(folder / "m", folder / "s")
        yield slave


async def copied(folder: Path, master: Broker) -> BrokerConfig:
    """Run such a slave until it has every file; return what it ran with."""
    async with copying(folder, master) as slave:
        return slave.config


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S * 3):
            await scenario

    asyncio.run(limited())


async def until_caught_up(slave: Broker) -> None:
    """Return when an asynchronous slave can serve everything that its master can."""
    copying = slave.replication.slave
    assert copying is not None
    await until(
        lambda: bool(copying.states()) and all(state.lag_bytes == 0 for state in copying.states()), "the slave's lag"
    )


def samsa(slave: Broker | int, timeout_ms: int = 60_000) -> str:
    """Return the section of a server.ini that makes the master of a pair. ``timeout_ms``: how long a slave may hang."""
    port = slave if isinstance(slave, int) else slave.port
    return f"[samsa]\nslave=127.0.0.1:{port}\nsendToSlaveTimeoutInMills={timeout_ms}\ncheckSlaveIntervalInMills=10\n"


@contextmanager
def holding_copies(slave: Broker) -> Iterator[None]:
    """Have the slave of a pair keep what it is sent, and store and answer it when the block ends."""
    receiver = slave.replication.receiver
    assert receiver is not None
    ended, copy = asyncio.Event(), receiver.copy

    async def slow(command: PutBatch) -> object:
        await ended.wait()
        return await copy(command)

    receiver.copy = slow  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ended.set()


async def until_in_sync(master: Broker) -> None:
    """Return when a pair takes messages."""
    await until(lambda: master.replication.trouble is None, f"the pair: {master.replication.trouble}")
