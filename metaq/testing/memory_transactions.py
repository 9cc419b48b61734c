"""Transactions of the broker in memory: local ones, which end with their connection, and branches of XA transactions.

Nothing is readable before the commit; then the messages of each partition are appended at once. Prepared branches
survive ``restart``. Steps are refused with the texts and XA codes of a real broker.

Source: docs/transactions.md. Not here: decisions of the exactly-once sink, so none is known, and operators' commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from metaq.model import LocalTransactionId, TransactionId, Xid
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.protocols.text.commands import Result, TransactionCommand
from metaq.statuses import NOT_STARTED

_UNKNOWN, _PROTOCOL, _RESOURCE = -4, -6, -3
"""XA's codes: no such branch, not possible now, not possible at all."""

PREPARED, READ_ONLY = "0", "3"


@dataclass(slots=True)
class _Open:
    """A transaction: its connection, its expiry, and its messages, by topic and partition."""

    connection: object
    deadline_s: float | None
    frames: dict[tuple[str, int], bytearray] = field(default_factory=dict)
    prepared: bool = False


class MemoryTransactions:
    """``append`` stores frames in a partition of a topic. Not thread-safe."""

    def __init__(self, append: Callable[[str, int, bytes], object], clock: Clock = SYSTEM_CLOCK) -> None:
        self._append: Final = append
        self._clock = clock
        self._open: dict[TransactionId, _Open] = {}

    def step(self, command: TransactionCommand, connection: object) -> Result | None:
        """Carry out a step; ``None`` where a broker does not answer."""
        self._expire()
        opaque, key = command.opaque, command.key
        if command.type == "RECOVER":
            return Result(200, "\r\n".join(map(str, self._prepared(command.unique))), opaque)
        if command.type == "END":
            return None
        if command.type == "BEGIN" and key is not None:
            self._begin(key, command.timeout_s or 0, connection)
            return Result(200, "", opaque)
        if command.type == "DECIDED":
            return Result(200, "", opaque)
        if command.type == "FORGET" and isinstance(key, Xid):
            return Result(200, "", opaque)
        if command.type not in ("PREPARE", "COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE", "ROLLBACK") or key is None:
            return Result(400, f"transaction {command.type} is not among what a broker in memory does", opaque)
        return self._ended(command, key, connection)

    def put(self, key: TransactionId, connection: object, topic: str, partition: int, frames: bytes) -> str | None:
        """Keep frames until the commit; return why they are refused, if they are."""
        self._expire()
        found = self._find(key, connection)
        if found is None:
            return _not_started(key)
        if found.prepared:
            return "Cannot put now, the transaction is prepared or ending."
        found.frames.setdefault((topic, partition), bytearray()).extend(frames)
        return None

    def connection_lost(self, connection: object) -> None:
        """Roll back the local transactions of a connection."""
        for key in [key for key, one in self._open.items() if one.connection is connection]:
            if isinstance(key, LocalTransactionId):
                del self._open[key]

    def restart(self) -> None:
        """Roll back transactions that are not prepared, as a restarted broker does."""
        self._open = {key: one for key, one in self._open.items() if one.prepared}

    def clear(self) -> None:
        """Forget all of them."""
        self._open.clear()

    def _begin(self, key: TransactionId, timeout_s: int, connection: object) -> None:
        deadline_s = self._clock.monotonic() + timeout_s if timeout_s else None
        self._open.setdefault(key, _Open(connection, deadline_s))

    def _ended(self, command: TransactionCommand, key: TransactionId, connection: object) -> Result:
        found = self._find(key, connection)
        if found is None:
            text = _not_started(key)
            return _refused(text, _UNKNOWN, command) if isinstance(key, Xid) else Result(500, text, command.opaque)
        match command.type:
            case "PREPARE":
                return self._prepare(command, key, found)
            case "COMMIT_TWO_PHASE" if not found.prepared and isinstance(key, Xid):
                text = "Cannot do 2 phase commit if the transaction has not been prepared."
                return _refused(text, _PROTOCOL, command)
            case "COMMIT_ONE_PHASE" | "COMMIT_TWO_PHASE":
                for (topic, partition), frames in found.frames.items():
                    self._append(topic, partition, bytes(frames))
        del self._open[key]
        return Result(200, "", command.opaque)

    def _prepare(self, command: TransactionCommand, key: TransactionId, found: _Open) -> Result:
        if not isinstance(key, Xid):
            return _refused("Prepare not implemented on Local Transactions.", _RESOURCE, command)
        if found.prepared:
            return _refused("Cannot call prepare now.", _PROTOCOL, command)
        if not found.frames:
            del self._open[key]
            return Result(200, READ_ONLY, command.opaque)
        found.prepared = True
        return Result(200, PREPARED, command.opaque)

    def _prepared(self, unique: str | None) -> list[Xid]:
        keys = [key for key, one in self._open.items() if one.prepared and isinstance(key, Xid)]
        return [key for key in keys if unique is None or key.unique == unique]

    def _find(self, key: TransactionId, connection: object) -> _Open | None:
        found = self._open.get(key)
        if found is None or (isinstance(key, LocalTransactionId) and found.connection is not connection):
            return None
        return found

    def _expire(self) -> None:
        now_s = self._clock.monotonic()
        for key, one in list(self._open.items()):
            if not one.prepared and one.deadline_s is not None and now_s >= one.deadline_s:
                del self._open[key]


def _not_started(key: TransactionId) -> str:
    return f"{'XA' if isinstance(key, Xid) else 'Local'} transaction '{key}' {NOT_STARTED}."


def _refused(text: str, code: int, command: TransactionCommand) -> Result:
    return Result(500, f"XAException:code={code},msg={text}", command.opaque)
