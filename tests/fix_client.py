"""Peers for client tests: a script in memory, the same script behind a real socket, brokers in memory.

And what tests look at afterwards: what sessions sent, what a partition has, what a group's consumer was given.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fix_broker import RunningBroker, StartBroker, write_ini
from listeners import Listener

from metaq.backends.metaq.pool import SessionPool, shared_pool
from metaq.backends.metaq.session import Session
from metaq.client.consumer import read_range
from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.metaq_group import MetaqCluster
from metaq.client.groups.options import ConsumerOptions
from metaq.client.offsets import GroupOffset, MemoryOffsets
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.formats.frames import HEADER_BYTES, walk
from metaq.model import INT64_MAX, Address, Message, OffsetRange, Partition, TopicPartition
from metaq.net.pool import Pool
from metaq.net.transport import Timeouts
from metaq.protocols.text.commands import Command, GetOffset
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq.testing.ports import free_port
from metaq.testing.scripted import Disconnect, Expect, Say, ScriptedTransport, Step

ADDRESS = Address("127.0.0.1", 8123)
TIMEOUTS = Timeouts(connect_s=5.0, request_s=10.0)


class LoopbackPeer(Listener):
    """Plays one script to the first connection, and refuses others."""

    def __init__(self, script: Sequence[Step]) -> None:
        self._script = script
        self.problem: AssertionError | None = None
        super().__init__(self._talk)

    def _talk(self, connection: socket.socket) -> None:
        self.stop_listening()
        with connection:
            connection.settimeout(60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._play(connection)
            except AssertionError as problem:
                self.problem = problem

    def _play(self, connection: socket.socket) -> None:
        for step in self._script:
            match step:
                case Expect(data):
                    heard = b""
                    while len(heard) < len(data) and (chunk := connection.recv(len(data) - len(heard))):
                        heard += chunk
                    assert data.startswith(heard), f"expected {data!r}, heard {heard!r}"
                    if heard != data:  # the client went before it said everything
                        return
                case Say(data, size):
                    for at in range(0, len(data), size):
                        connection.sendall(data[at : at + size])
                case Disconnect():
                    return
        while connection.recv(4096):  # silent until the client goes
            pass


@pytest.fixture
def loopback() -> Iterator[Callable[[Sequence[Step]], LoopbackPeer]]:
    """Start loopback peers; whatever went wrong in one fails the test."""
    peers: list[LoopbackPeer] = []

    def start(script: Sequence[Step]) -> LoopbackPeer:
        peers.append(LoopbackPeer(script))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()
        if peer.problem is not None:
            raise peer.problem


def scripted_session(*steps: Step, timeouts: Timeouts = TIMEOUTS) -> tuple[Session, ScriptedTransport]:
    """A session whose peer plays ``steps``; requests have the opaques 1, 2, 3 ..."""
    transport = ScriptedTransport([steps])
    return Session.connect(ADDRESS, timeouts, transport, transport.clock), transport


def offset_session(extensions: str, question: str, answer: str) -> tuple[Session, ScriptedTransport]:
    """A session to a broker that offers ``extensions`` and is asked one ``offset`` command, opaque 2."""
    version = f"x;ext={extensions}" if extensions else "x"
    return scripted_session(
        Expect(b"version 1\r\n"),
        Say(f"result 200 {len(version)} 1\r\n{version}".encode()),
        Expect(f"offset {question}\r\n".encode()),
        Say(f"result 200 {len(answer)} 2\r\n{answer}".encode()),
    )


def memory_session(broker: MemoryBroker, timeouts: Timeouts = TIMEOUTS) -> Session:
    transport = MemoryTransport({ADDRESS: broker})
    return Session.connect(ADDRESS, timeouts, transport, transport.clock)


class MemoryCluster:
    """Brokers in memory at ports 8123, 8124 ..., with a pool that reaches them."""

    def __init__(self, *brokers: MemoryBroker) -> None:
        self.brokers = brokers
        self.addresses = [Address("127.0.0.1", 8123 + number) for number in range(len(brokers))]
        self.transport = MemoryTransport(dict(zip(self.addresses, brokers, strict=True)))
        self.pool = SessionPool(TIMEOUTS, self.transport, self.transport.clock)


class Restarts:
    """A broker that can be killed and started again on its data and port."""

    def __init__(self, start: StartBroker, folder: Path) -> None:
        self._start, self._port = start, free_port()
        self.ini = write_ini(folder, "[topic=t]\n", maxSegmentSize=200000, maxTransferSize=50000)
        self.running = self.start()

    def start(self) -> RunningBroker:
        self.running = self._start("start", "-f", self.ini, "--port", str(self._port))
        return self.running

    def kill_and_start(self) -> None:
        self.running.kill()
        self.start()

    def connect(self) -> Session:
        return Session.connect(self.running.address, TIMEOUTS)


@pytest.fixture
def restarts(start_broker: StartBroker, tmp_path: Path) -> Restarts:
    """A broker with segments of 200 kB and replies of 50 kB."""
    return Restarts(start_broker, tmp_path)


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    commands: list[Command] = []
    send = Session.send

    def noted(self: Session, command: Command, timeout_s: float | None = None) -> None:
        commands.append(command)
        send(self, command, timeout_s)

    monkeypatch.setattr(Session, "send", noted)
    return commands


def stored_messages(session: Session, topic: str, partition: int) -> list[Message]:
    """All that a partition has; each message has to be whole and to match its checksum."""
    end = int(session.ask(GetOffset(topic, "g", partition, INT64_MAX, 0)))
    runs = read_range(session, topic, partition, OffsetRange(0, end))
    frames = [frame for run in runs for frame in walk(run.data, run.offset)]
    assert all(frame.intact for frame in frames)
    return [frame.message for frame in frames]


@pytest.fixture
def pools_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all pools of connections that the test made: what runs in it leaves that to the end of its process."""
    pools, make = list[Pool[Any]](), Pool.__init__

    def noted(pool: Pool[Any], *arguments: Any, **more: Any) -> None:
        pools.append(pool)
        make(pool, *arguments, **more)

    monkeypatch.setattr(Pool, "__init__", noted)
    yield
    for pool in (shared_pool(), *pools):
        pool.close()


P0, P1 = (TopicPartition("orders", Partition(0, index)) for index in (0, 1))


class Setting:
    """A broker in memory with two partitions, and what is needed to read it."""

    def __init__(self, folder: Path) -> None:
        self.broker = MemoryBroker({"orders": 2, "dead": 1})
        self.pool = SessionPool(TIMEOUTS, MemoryTransport({ADDRESS: self.broker}))
        self.directory = FixedDirectory([ADDRESS], self.pool)
        self.producer = Producer(self.directory, self.pool)
        self.offsets = MemoryOffsets()
        self.cluster = MetaqCluster("memory", self.directory, self.pool, None)
        self.parking = folder / "parked.sqlite"

    def consumer(self, **options: Any) -> GroupConsumer:
        given = {"group": "g", "topics": ["orders"], "offsets": self.offsets, "poll_max_s": 0.05, "retry_max_s": 0.01}
        return GroupConsumer(self.cluster, ConsumerOptions(**given | {"parking": self.parking} | options))

    def send(self, *texts: str, partition: int = 0) -> None:
        self.producer.send_many("orders", list(texts), partition=Partition(0, partition))

    def stored(self, where: TopicPartition = P0) -> int:
        return self.offsets.load("g", [where]).get(where, GroupOffset(0)).offset


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    yield made
    made.pool.close()


def texts(deliveries: list[Delivery]) -> list[str]:
    return [one.data.decode() for one in deliveries]


def read(consumer: GroupConsumer, count: int) -> list[Delivery]:
    """Take messages one by one."""
    found: list[Delivery] = []
    for message in consumer:
        found.append(message)
        if len(found) == count:
            break
    return found


def fail_at(data: bytes, consumer: GroupConsumer) -> None:
    for message in consumer:
        if message.data == data:
            raise ZeroDivisionError


def end_of(count: int, size: int) -> int:
    return count * (HEADER_BYTES + size)
