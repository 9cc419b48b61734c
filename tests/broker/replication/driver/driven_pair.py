"""Two members with real disks, driven in one process: connections and ZooKeeper are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_store import MemoryServer
from metaq_broker.operate.config.replication import PairConfig
from metaq_broker.replication.driver.driver import DriverParts, PairDriver
from metaq_broker.replication.driver.links import LinkEnd, LinkTimes, OnLost, OnMessage
from metaq_broker.replication.pair.actions import PairRole
from metaq_broker.replication.pair.member import PairIdentity
from metaq_broker.replication.peer import PeerLost
from pair_disks import PairDisk, until_true

from metaq.model import Address, Buffer


class _Wire:
    """A connection between two members: both ends of it."""

    def __init__(self, network: Network, on_message: OnMessage, on_lost: OnLost) -> None:
        self._network, self._on_message, self._on_lost = network, on_message, on_lost
        self._is_open = True
        self._end: LinkEnd | None = None
        self.incoming = _Incoming(self)

    def connect(self, end: LinkEnd) -> None:
        self._end = end

    def write(self, parts: Sequence[Buffer]) -> None:
        asyncio.get_running_loop().call_soon(self._to_member, b"".join(parts))

    async def drain(self) -> None: ...

    def _to_member(self, content: bytes) -> None:
        if self._is_open and self._end is not None and not self._network.is_cut:
            memory = bytearray(content)
            self._end.received(memoryview(memory))
            memory[:] = bytes(len(memory))  # as a connection does, which uses it for later messages

    def to_master(self, content: bytes) -> None:
        def arrive() -> None:
            if self._is_open and not self._network.is_cut:
                self._on_message(content)

        asyncio.get_running_loop().call_later(self._network.answer_s, arrive)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._end is not None:
                asyncio.get_running_loop().call_soon(self._end.lost)

    def cut(self, reason: str) -> None:
        """End it for both."""
        if self._is_open:
            self.close()
            self._on_lost(reason)


@dataclass(frozen=True)
class _Incoming:
    wire: _Wire

    def send(self, content: bytes) -> None:
        self.wire.to_master(content)

    def close(self) -> None:
        self.wire.cut("closed by the other member")


class Network:
    """Connects members by address. ``is_cut``: nothing arrives. ``answer_s``: how long a member's answers take.

    ``defects`` are raised by the next attempts to connect.
    """

    def __init__(self) -> None:
        self.members: dict[Address, Member] = {}
        self.wires: list[_Wire] = []
        self.is_cut = False
        self.answer_s = 0.0
        self.defects: list[Exception] = []

    async def open(self, address: Address, times: LinkTimes, on_message: OnMessage, on_lost: OnLost) -> _Wire:
        if self.defects:
            raise self.defects.pop()
        member = self.members.get(address)
        if member is None or self.is_cut:
            raise PeerLost(address, "Connection refused")
        wire = _Wire(self, on_message, on_lost)
        wire.connect(member.driver.opened(wire.incoming))
        self.wires.append(wire)
        return wire

    def cut(self) -> None:
        self.is_cut = True
        for wire in self.wires:
            wire.cut("cut")
        self.wires.clear()


class Member:
    """One member. ``boots`` and promises survive ``stop`` and ``start``, as in the member's file."""

    def __init__(self, name: str, root: Path, network: Network, zookeeper: MemoryServer, min_in_sync: int = 1) -> None:
        self.name, self.root, self._network, self._zookeeper = name, root, network, zookeeper
        self.address = Address("127.0.0.1", 1 if name == "a" else 2)
        other = Address("127.0.0.1", 3 - self.address.port)
        self.config = PairConfig(other=other, min_in_sync=min_in_sync, session_ms=1000, timeout_ms=1000)
        self.boots: tuple[str, ...] = ()
        self.starts = 0
        self.promised = self.seen = 0
        self.gates: list[tuple[bool, str]] = []
        self.led = self.followed = 0
        self.ended: str | None = None

    async def start(self) -> None:
        self.disk = PairDisk(self.root)
        self.starts += 1
        self.boots = (*self.boots, f"{self.starts}-{self.name}")
        blank = not self.seen
        identity = PairIdentity(self.name, str(self.address), self.boots, self.promised, self.seen, blank)
        self.ended = None
        self.store = self._zookeeper.client()
        parts = DriverParts(self.config, identity, self.disk.streams, self.store, self._network.open, self, self)
        self.driver = PairDriver(parts)
        self._network.members[self.address] = self
        self.driver.start()

    # ---- the member's file

    def promise(self, promised: int, seen: int) -> None:
        self.promised, self.seen = promised, seen

    def registered(self, boot: str) -> None:
        self.boots = self.boots[self.boots.index(boot) :]

    async def kill(self) -> None:
        """End it: its session and its connections end, and its unacknowledged bytes stay on the disk."""
        del self._network.members[self.address]
        await self.driver.stop()
        self.disk.streams.fence("killed")
        await self.disk.close(clean=False)

    # ---- the broker, for the driver

    async def lead(self) -> None:
        self.led += 1

    def move_gate(self, *, is_open: bool, reason: str, hands_over: bool) -> None:
        self.gates.append((is_open, reason))

    def member_follows(self) -> None:
        self.followed += 1

    def end_leading(self, reason: str) -> None:
        self.ended = reason

    # ---- what tests look at

    @property
    def role(self) -> PairRole:
        return self.driver.member.role

    def in_sync(self) -> frozenset[str]:
        return self.driver.member.in_sync

    def put(self, body: bytes) -> None:
        from stored import put

        put(self.disk.engine, "t", 0, [body], self.disk.answers.append)

    async def acknowledged(self, count: int) -> None:
        await until_true(lambda: len([each for each in self.disk.answers if each is None]) >= count)


class DrivenPair:
    def __init__(self, root: Path, min_in_sync: int = 1) -> None:
        self.network, self.zookeeper = Network(), MemoryServer()
        self.a, self.b = (Member(name, root / name, self.network, self.zookeeper, min_in_sync) for name in ("a", "b"))

    async def start(self) -> None:
        """Start both; ``a`` becomes the master if it is first."""
        await self.a.start()
        await self.b.start()
        await self.until(lambda: self.in_sync == {"a", "b"} and self.slave.role is PairRole.IN_SYNC)

    @property
    def in_sync(self) -> frozenset[str]:
        return self.master.in_sync() if self.masters else frozenset()

    @property
    def masters(self) -> list[Member]:
        there = self.network.members.values()
        return [each for each in there if each.role is PairRole.MASTER]

    @property
    def master(self) -> Member:
        [found] = self.masters
        return found

    @property
    def slave(self) -> Member:
        return self.b if self.master is self.a else self.a

    async def until(self, condition: Callable[[], bool]) -> None:
        await until_true(condition)

    async def close(self) -> None:
        for each in list(self.network.members.values()):
            await each.kill()
