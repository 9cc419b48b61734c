"""Keeps a slave's copy of its master's state: what is durable beside the log, such as offsets of groups.

The master's state is a file of changes. Every ``ASK_S`` the slave asks for what was added behind the place that it has,
or for all of another file. What it gets is what the master's state was at one moment. It is not taken at once: first
the slave's partitions have to reach the ends that the master's had *after* that moment. So the copied state never
speaks of messages that the slave does not have: after a promotion groups and delayed messages go on from where
they were at a moment shortly before, and repeat what came after it, but nothing is skipped.

A partition that is not copied therefore keeps the state from being copied, too; ``trouble`` names it.

Source: docs/replication.md, "The state of RocketMQ's clients".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from metaq.errors import MetaqError
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.partitions.folders import folder_name
from metaq_broker.log.state.state_records import FILE_HEADER_BYTES, decode_changes
from metaq_broker.replication.copied_order import StoredRanges, first_missing, still_there
from metaq_broker.replication.master_address import MasterAddress
from metaq_broker.replication.master_connection import MasterConnection, require_broker_id
from metaq_broker.replication.peer import Connect, Peer

_LOG: Final = logging.getLogger(__name__)

ASK_S: Final = 1.0
"""How long after one question, or after what was got is taken, the next one comes."""

LOOK_S: Final = 0.05
"""Between two looks whether the partitions have reached the ends."""

WAIT_S: Final = 10.0
"""How long the partitions may take to reach the ends before that is called a trouble."""

REQUEST_S_MAX: Final = 30.0
PART_BYTES: Final = 1 << 20
STATE_BYTES_MAX: Final = 512 << 20
"""Most bytes of a master's file that are taken."""

Change = tuple[str, bytes | None]
"""A key and its value, ``None``: it was deleted."""


class StateSource(NamedTuple):
    """Up to where a state was copied: byte ``position`` of the master's file ``number``."""

    number: int = 0
    position: int = 0


class StateTarget(Protocol):
    """The slave's own state."""

    @property
    def source(self) -> StateSource:
        """Up to where it was copied."""

    def take(self, source: StateSource, changes: Sequence[Change], *, whole: bool) -> None:
        """Take over changes that lead to ``source``; ``whole``: they are everything. Raises ``MetaqError``."""


class _StateNotCopied(MetaqError):
    """The master's state is not copied; the text says why."""


@dataclass(slots=True)
class _Snapshot:
    """The changes up to ``source``, which the master had made when its partitions ended at ``goal``, or before."""

    source: StateSource
    changes: Sequence[Change]
    whole: bool
    goal: StoredRanges


class StateCopy:
    """See the module: ``start``, then ``stop``. ``broker_id`` is what the master has to have, too."""

    def __init__(
        self, stores: TopicStores, target: StateTarget, master: MasterAddress, connect: Connect, broker_id: int
    ) -> None:
        self._stores, self._target, self._broker_id = stores, target, broker_id
        self._connection = MasterConnection(master, connect, REQUEST_S_MAX, (ASK_S, ASK_S))
        self._snapshot: _Snapshot | None = None
        self._stopping = self._connection.stopping
        self.trouble: str | None = "not connected yet"
        """Why the state is not copied, ``None`` if it is, up to some seconds ago."""

    def start(self) -> None:
        """Begin."""
        self._connection.start(self, "copy of the master's state")

    async def stop(self) -> None:
        """End. What was got and can be taken is taken."""
        await self._connection.stop()
        with contextlib.suppress(MetaqError, ValueError):
            self._take_if_reached()

    async def check(self, peer: Peer) -> None:
        if not peer.reports_state:
            raise _StateNotCopied(f"broker {peer.address} does not give its state away")
        await require_broker_id(peer, self._broker_id)

    async def work(self, peer: Peer) -> None:
        while not self._stopping.is_set():
            await self._look(peer)
            await self._connection.sleep(ASK_S)

    def disconnected(self, error: Exception | None) -> None:
        if isinstance(error, MetaqError):
            self._note_trouble(str(error))
        elif error is not None:
            if not self._stopping.is_set():
                _LOG.error("defect in copying the master's state", exc_info=error)
            self._note_trouble(f"{type(error).__name__}: {error}")

    def _note_trouble(self, reason: str) -> None:
        if self._stopping.is_set():
            return
        if reason != self.trouble:
            _LOG.warning("the master's state is not copied", extra={"fields": {"reason": reason}})
        self.trouble = reason

    # ---- one look

    async def _look(self, peer: Peer) -> None:
        self._snapshot = await self._fetch(peer)  # newer than what may not be taken yet, and includes it
        clock = asyncio.get_running_loop().time
        began = asked = clock()
        while not self._take_if_reached() and not self._stopping.is_set():
            peer.check()
            now = clock()
            if now - asked >= ASK_S and (snapshot := self._snapshot) is not None:
                snapshot.goal, asked = still_there(snapshot.goal, await peer.stored_ranges()), now
            if now - began >= WAIT_S:
                self._note_trouble(self._behind())
            await self._connection.sleep(LOOK_S)
        if not self._stopping.is_set():
            self.trouble = None

    def _take_if_reached(self) -> bool:
        """Take the snapshot if the partitions allow it; return whether there is none left."""
        snapshot = self._snapshot
        if snapshot is None:
            return True
        if first_missing(self._stores, snapshot.goal) is not None:
            return False
        self._snapshot = None
        self._target.take(snapshot.source, snapshot.changes, whole=snapshot.whole)
        return True

    def _behind(self) -> str:
        missing = None if self._snapshot is None else first_missing(self._stores, self._snapshot.goal)
        where = "a partition" if missing is None else f"partition {folder_name(*missing)}"
        return f"it waits for the copy of {where}"

    async def _fetch(self, peer: Peer) -> _Snapshot | None:
        """Return what the target does not have, ``None`` if it has everything, or there is nothing now."""
        source = self._target.source
        first, at, content = source, source, bytearray()
        while True:
            part = await peer.state_part(at.number, at.position, PART_BYTES)
            if part is None:
                return None
            if (part.number, part.position) != at:
                first, content = StateSource(part.number, part.position), bytearray()
            content += part.data
            at = StateSource(part.number, part.position + len(part.data))
            if at.position >= part.size:
                break
            if not part.data or len(content) > STATE_BYTES_MAX:
                raise _StateNotCopied(f"the state of {peer.address} has more than {STATE_BYTES_MAX} bytes")
        if at == source:
            return None
        goal = await peer.stored_ranges()  # behind the state: all that it speaks of was readable before
        where = Path(str(peer.address))
        changes = await asyncio.to_thread(decode_changes, where, at.number, first.position, bytes(content))
        return _Snapshot(at, changes, first.position == FILE_HEADER_BYTES, goal)
