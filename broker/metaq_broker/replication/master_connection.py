"""Keeps a connection to the master of this slave: finds it, connects, works, and connects again, without end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.operate.config.sections import ZooKeeperConfig
from metaq_broker.replication.peer import Connect, Peer

ANSWER_S_MAX = 10.0
"""Longest wait for ZooKeeper."""


class MasterNotFound(MetaqError):
    """ZooKeeper has no master, or cannot be asked; the text says which."""


class MasterAddress:
    """Finds the master of broker id ``broker_id``: at ``configured``, or in ZooKeeper at each call."""

    def __init__(self, configured: Address | None, zookeeper: ZooKeeperConfig, broker_id: int) -> None:
        self.configured = configured
        self._zookeeper, self._broker_id = zookeeper, broker_id

    async def find(self) -> Address:
        """Return the address of the master.

        Raises:
            MasterNotFound: It is not known now.
        """
        if self.configured is not None:
            return self.configured
        return await asyncio.to_thread(self._ask_zookeeper)

    def _ask_zookeeper(self) -> Address:
        from metaq.discovery.zk_client import connected  # imported here: only who uses ZooKeeper needs kazoo
        from metaq.discovery.zk_map import TreeReader

        address = self._zookeeper.address
        timeout_s = min(self._zookeeper.connection_timeout_ms / 1000, ANSWER_S_MAX)
        try:
            with connected(address.hosts, timeout_s) as client:
                known = TreeReader(client, address).brokers().get(self._broker_id)
        except MetaqError as error:
            raise MasterNotFound(f"ZooKeeper cannot be asked for the master: {error}") from error
        if known is None or known.master is None:
            raise MasterNotFound(f"no master of broker id {self._broker_id} is registered in ZooKeeper at {address}")
        return Address(known.master.host, known.master.port)


class MasterRefused(MetaqError):
    """The broker at the address is not the master of this slave; the text says why."""


class Work(Protocol):
    """The work that is done over the connection."""

    async def check(self, peer: Peer) -> None:
        """Check that work is possible over a new connection. An exception closes it, and the next pause is longer."""

    async def work(self, peer: Peer) -> None:
        """Work until the connection is lost or ``MasterConnection.stopping`` is set. An exception closes the
        connection.
        """

    def disconnected(self, error: Exception | None) -> None:
        """The connection has ended, or none could be opened; ``error`` says why; ``None``: ``work`` has returned."""


class MasterConnection:
    """Connects between ``start`` and ``stop``. ``request_s_max``: longest wait for one answer.

    ``pauses_s``: shortest and longest pause between two connections; it doubles after each failed attempt.
    """

    def __init__(
        self, master: MasterAddress, connect: Connect, request_s_max: float, pauses_s: tuple[float, float]
    ) -> None:
        self._master, self._connect, self._request_s_max = master, connect, request_s_max
        self._pause_s_min, self._pause_s_max = pauses_s
        self._peer: Peer | None = None
        self._task: asyncio.Task[None] | None = None
        self.stopping = asyncio.Event()
        """Set when the work should end."""

    def start(self, work: Work, name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(work), name=name)

    async def stop(self) -> None:
        """Stop after the step in progress."""
        self.stopping.set()
        if self._peer is not None:
            await self._peer.close()
        if self._task is not None:
            await self._task
            self._task = None

    async def sleep(self, seconds: float) -> None:
        """Sleep, but no longer than until ``stop``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    async def _run(self, work: Work) -> None:
        pause_s = self._pause_s_min
        while not self.stopping.is_set():
            failure: Exception | None = None
            try:
                self._peer = await self._connect(await self._master.find(), self._request_s_max)
                await work.check(self._peer)
                pause_s = self._pause_s_min
                await work.work(self._peer)
            except Exception as error:  # bugs too: they must not end the work
                failure = error
            finally:
                if self._peer is not None:
                    await self._peer.close()
                self._peer = None
            work.disconnected(failure)
            await self.sleep(pause_s)
            pause_s = min(pause_s * 2, self._pause_s_max)


async def require_broker_id(peer: Peer, broker_id: int) -> None:
    """Check that a peer has the broker id of this slave.

    Raises:
        MasterRefused: It has another one.
        PeerLost, RequestRefused, ProtocolError: It could not be asked.
    """
    found = await peer.broker_id()
    if found != broker_id:
        ids = f"brokerId {found}, this slave has {broker_id}"
        raise MasterRefused(f"broker {peer.address} has {ids}; they must be the same")
