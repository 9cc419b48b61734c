"""Keeps a slave's copy of its master's state: what is durable beside the log, such as offsets of groups.

The master's state is a file of changes. Every ``ASK_S`` the slave asks for the bytes after its own position, or for a
whole new file, and gets the master's state at one moment. It is not applied at once: first the slave's partitions must
reach the ends that the master's partitions had *after* that moment. So the copied state never refers to messages that
the slave does not have. After a promotion, groups and delayed messages continue from a moment shortly before it: what
was done since is repeated, and nothing is skipped.

If a partition is not copied, the state is not copied either; ``trouble`` names the partition.

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
from metaq_broker.log.state.state_records import decode_changes
from metaq_broker.replication.copied_order import StoredRanges, first_missing, still_there
from metaq_broker.replication.master_connection import MasterAddress, MasterConnection, require_broker_id
from metaq_broker.replication.peer import Connect, Peer

_LOG: Final = logging.getLogger(__name__)

ASK_S: Final = 1.0
"""Seconds between two questions, or after a snapshot was applied."""

LOOK_S: Final = 0.05
"""Seconds between two checks whether the partitions have reached the ends."""

WAIT_S: Final = 10.0
"""After this many seconds without reaching the ends, ``trouble`` says so."""

REQUEST_S_MAX: Final = 30.0
PART_BYTES: Final = 1 << 20
STATE_BYTES_MAX: Final = 512 << 20
"""Limit on the bytes of a master's file."""

Change = tuple[str, bytes | None]
"""A key and its value; ``None``: it was deleted."""


class StateSource(NamedTuple):
    """The position of a copied state: byte ``position`` of the master's file ``number``."""

    number: int = 0
    position: int = 0


class StateTarget(Protocol):
    @property
    def source(self) -> StateSource:
        """The position up to which the state was copied."""

    def take(self, source: StateSource, changes: Sequence[Change], *, whole: bool) -> None:
        """Apply changes that lead to ``source``; ``whole``: they replace everything. Raises ``MetaqError``."""


class _StateNotCopied(MetaqError):
    """The master's state is not copied; the text says why."""


@dataclass(slots=True)
class _Snapshot:
    """The changes up to ``source``, made before the master's partitions ended at ``goal``."""

    source: StateSource
    changes: Sequence[Change]
    whole: bool
    goal: StoredRanges


class StateCopy:
    """Copies between ``start`` and ``stop``. The master must have the same ``broker_id``."""

    def __init__(
        self, stores: TopicStores, target: StateTarget, master: MasterAddress, connect: Connect, broker_id: int
    ) -> None:
        self._stores, self._target, self._broker_id = stores, target, broker_id
        self._connection = MasterConnection(master, connect, REQUEST_S_MAX, (ASK_S, ASK_S))
        self._snapshot: _Snapshot | None = None
        self._stopping = self._connection.stopping
        self.trouble: str | None = "not connected yet"
        """Why the state is not copied; ``None`` if it is, up to some seconds ago."""

    def start(self) -> None:
        self._connection.start(self, "copy of the master's state")

    async def stop(self) -> None:
        """Stop; a snapshot that can be applied is applied."""
        await self._connection.stop()
        with contextlib.suppress(MetaqError, ValueError):
            self._take_if_reached()

    async def check(self, peer: Peer) -> None:
        if not peer.reports_state:
            raise _StateNotCopied(f"broker {peer.address} does not report its state")
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
                _LOG.error("bug in copying the master's state", exc_info=error)
            self._note_trouble(f"{type(error).__name__}: {error}")

    def _note_trouble(self, reason: str) -> None:
        if self._stopping.is_set():
            return
        if reason != self.trouble:
            _LOG.warning("the master's state is not copied", extra={"fields": {"reason": reason}})
        self.trouble = reason

    # ---- one look

    async def _look(self, peer: Peer) -> None:
        self._snapshot = await self._fetch(peer)  # newer than one that may not be applied yet, and includes it
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
        """Apply the snapshot if the partitions have reached its goal; return whether none is left."""
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
        """Return the changes that the target does not have; ``None`` if there are none, or not now."""
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
        goal = await peer.stored_ranges()  # after the state: all messages that it refers to were readable before
        where = Path(str(peer.address))
        changes = await asyncio.to_thread(decode_changes, where, at.number, first.position, bytes(content))
        return _Snapshot(at, changes, first != source, goal)
