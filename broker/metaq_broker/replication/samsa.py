"""The master of a synchronous pair: brings the slave in sync, then sends it every run of frames as it is synced here.

::

                         connected, every partition compared and caught up
        out of sync  ──────────────────────────────────────────────────────▶  in sync
                     ◀──────────────────────────────────────────────────────
                         the slave is lost, slow, refuses a run, or was promoted (fenced: for good)

Out of sync, no message is accepted: puts, PREPARE, COMMIT and decisions are refused at once, and so are waiting puts.
Commits in progress wait until the slave is back. A promoted slave fences this broker: a record in the data folder makes
it refuse messages, also after a restart.

Source: docs/replication.md, "The synchronous pair".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

from metaq.errors import MetaqError, ProtocolError
from metaq.model import Address
from metaq_broker.log.engine.outcomes import SlaveOutOfSync
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.sync.sync import SyncJob
from metaq_broker.operate.config.replication import SamsaConfig
from metaq_broker.replication.java_slave import GROUP, settled_ranges
from metaq_broker.replication.local import CopyRefused, LocalPartitions
from metaq_broker.replication.paired_commit import PairedCommit
from metaq_broker.replication.partition_sender import PartitionSender
from metaq_broker.replication.peer import (
    Connect,
    Declined,
    PartitionKey,
    Peer,
    PeerLost,
    PeerRefused,
    SlavePromoted,
    StoredRange,
)

_LOG: Final = logging.getLogger(__name__)

HEARTBEAT_S: Final = 10.0
"""How often a slave is asked whether it is still connected and still the slave: without puts, nothing else shows it."""

DISCONNECTED: Final = "Slave is disconnected "
"""MetaQ's words; ours follow."""


Stored = StoredRange | Declined
"""The slave's range of a partition, or why it has none."""


class OutOfSync(MetaqError):
    """The slave cannot be brought in sync; the text says why."""


class SyncMaster:
    """Runs between ``start`` and ``stop``. ``fence`` is called once, when the slave says that it was promoted."""

    def __init__(
        self,
        local: LocalPartitions,
        commit: PairedCommit,
        config: SamsaConfig,
        connect: Connect,
        fence: Callable[[Address], Awaitable[None]],
    ) -> None:
        self._local, self._commit, self._config = local, commit, config
        self._connect, self._fence = connect, fence
        self._gate = local.engine.gate
        self._senders: dict[PartitionLog, PartitionSender] = {}
        self._carrying: set[asyncio.Task[None]] = set()
        self._peer: Peer | None = None
        self._in_sync = False
        self._broken: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._slave_was_asked = asyncio.Event()
        """Set once it is known whether the slave was promoted, or that it cannot be asked."""
        self._was_tried = asyncio.Event()
        """Set when the first attempt to bring the slave in sync has ended, successfully or not."""
        self.trouble: str | None = "not connected yet"
        """Why no messages are accepted; ``None`` while both brokers are in sync."""
        self._shut("not connected yet")
        commit.send_missing = self._send_synced

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def tried(self) -> None:
        """Return once the slave is in sync for the first time, or cannot be now.

        A copy in progress is awaited no longer than a reply of the slave.
        """
        await self._slave_was_asked.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timeout_ms / 1000):
                await self._was_tried.wait()

    async def stop(self) -> None:
        """Stop; if the slave is connected, first send it the accepted messages. No request waits afterwards."""
        self._shut("the broker is stopping")
        if self._in_sync:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._commit.drain(), self._config.timeout_ms / 1000)
        self._stopping.set()
        if self._peer is not None:
            await self._peer.close()
        if self._task is not None:
            await self._task
            self._task = None
        self._commit.end("the broker is stopping")

    # ---- the connection

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._bring_in_sync()
                await self._stay_in_sync()
            except SlavePromoted as promoted:
                self._set_out_of_sync(str(promoted), is_replaced=True)
                await self._fence(self._config.slave)
                return
            except (PeerLost, PeerRefused, ProtocolError, OutOfSync) as error:
                self._set_out_of_sync(str(error))
            except Exception as defect:  # it must not end the pair forever
                _LOG.exception("bug in the synchronous pair")
                self._set_out_of_sync(f"{type(defect).__name__}: {defect}")
            finally:
                self._slave_was_asked.set()
                self._was_tried.set()
                await self._disconnect()
            await self._sleep(self._config.check_interval_ms / 1000)

    async def _disconnect(self) -> None:
        self._in_sync = False
        if self._peer is not None:
            await self._peer.close()
        self._peer = None
        if self._broken is not None and self._broken.done():
            self._broken.exception()  # the connection may have reported it already
        await asyncio.gather(*self._carrying, return_exceptions=True)
        self._senders.clear()

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _shut(self, reason: str) -> None:
        self.trouble = reason
        self._gate.shut(SlaveOutOfSync(f"{DISCONNECTED}{reason}"))

    def _set_out_of_sync(self, reason: str, *, is_replaced: bool = False) -> None:
        if reason != self.trouble and not self._stopping.is_set():
            _LOG.error("out of sync, no messages are taken", extra={"fields": {"reason": reason}})
        self._shut(reason)
        self._commit.give_up(f"{DISCONNECTED}{reason}", is_replaced=is_replaced)

    async def _bring_in_sync(self) -> None:
        peer = self._peer = await self._connect(self._config.slave, self._config.timeout_ms / 1000)
        broker_id, own_id = await peer.broker_id(), self._local.engine.config.system.broker_id
        if broker_id != own_id:
            raise OutOfSync(f"broker {peer.address} has brokerId {broker_id}, this one has {own_id}")
        self._broken = asyncio.get_running_loop().create_future()
        await self._check_slave(peer)
        self._slave_was_asked.set()
        logs = list(self._local.engine.stores.logs())
        there = await self._stored_there(peer, logs)
        for log in logs:
            partition_sender = PartitionSender(peer, log)
            job = dict(self._commit.out()).get(log)
            with self._named(log):
                await partition_sender.compare(there.get((log.topic, log.index)), job)
                await partition_sender.send_missing(job)
            self._senders[log] = partition_sender
            if job is not None:
                self._commit.settle_job(log, job)
        self._in_sync = True
        for log, job in self._commit.out():  # synced meanwhile
            self._send_synced(log, job)
        self.trouble = None
        self._gate.open()
        self._was_tried.set()
        _LOG.info("in sync with the slave", extra={"fields": {"slave": peer.address}})

    async def _stored_there(self, peer: Peer, logs: Sequence[PartitionLog]) -> Mapping[PartitionKey, Stored]:
        if peer.takes_copies:
            return await peer.stored_ranges()
        try:
            return await settled_ranges(peer, [(log.topic, log.index) for log in logs])
        except CopyRefused as refused:
            raise OutOfSync(str(refused)) from refused

    async def _sender(self, peer: Peer, log: PartitionLog, job: SyncJob) -> PartitionSender:
        """Return the sender of a partition, which may be new."""
        partition_sender = self._senders.get(log)
        if partition_sender is None:
            partition_sender = PartitionSender(peer, log)
            if not peer.takes_copies:
                [there] = await peer.opened([(log.topic, log.index)], GROUP)
                await partition_sender.compare(there, job)
            self._senders[log] = partition_sender
        return partition_sender

    async def _check_slave(self, peer: Peer) -> None:
        """Check that the peer accepts copies and was not promoted; a Java slave reports neither."""
        if not peer.takes_copies:
            await peer.ping()
            return
        role = await peer.role()
        if role == "promoted":
            raise SlavePromoted(peer.address)
        if role != "sync_slave":
            raise OutOfSync(f"broker {peer.address} is not the slave of a synchronous pair ([gregor])")

    @contextlib.contextmanager
    def _named(self, log: PartitionLog) -> Iterator[None]:
        try:
            yield
        except (CopyRefused, OSError) as refused:
            raise OutOfSync(f"partition {log.name}: {refused}") from refused

    async def _stay_in_sync(self) -> None:
        assert self._peer is not None  # it was just connected
        assert self._broken is not None
        gone = asyncio.ensure_future(self._peer.gone.wait())
        try:
            while True:
                await asyncio.wait((gone, self._broken), timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if self._broken.done():
                    self._broken.result()
                self._peer.check()
                await self._check_slave(self._peer)
        finally:
            gone.cancel()

    # ---- what was synced here

    def _send_synced(self, log: PartitionLog, job: SyncJob) -> None:
        if self._in_sync:
            task = asyncio.get_running_loop().create_task(self._send_one(log, job))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _send_one(self, log: PartitionLog, job: SyncJob) -> None:
        assert self._peer is not None  # while in sync
        assert self._broken is not None
        try:
            with self._named(log):
                partition_sender = await self._sender(self._peer, log, job)
                await partition_sender.send_missing(job)
        except Exception as error:  # a defect, too: what waits for this gets the error
            if self._commit.pending(log) is not job:
                return  # the partition was deleted meanwhile
            self._in_sync = False
            if not self._broken.done():
                self._broken.set_exception(error)
        else:
            self._commit.settle_job(log, job)
