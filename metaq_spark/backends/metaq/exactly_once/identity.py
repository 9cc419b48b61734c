"""The names of batches and branches of an exactly-once write, and which branches are superseded.

::

    write                     query on the broker        batch
    streaming                 Spark's query id           Spark's batch id
    batch with txnAppId       app-TXNAPPID               txnVersion
    batch without             once-UUID of this write    0

    XID:FORMAT:GTRID:BQUAL:UNIQUE
        FORMAT  1297175379, "MQSS"
        GTRID   QUERY/BATCH
        BQUAL   TASK.ATTEMPT.BROKER.SEQUENCE.NONCE
        UNIQUE  QUERY

Every driver numbers task attempts from 0, so a replayed batch repeats the attempt numbers of the crashed run; the nonce
distinguishes their branches. The sequence numbers the branches of one task attempt on one broker. Pure: no access to
Spark or a broker.

Source: docs/transactions.md, "Exactly once".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from metaq.model import Xid

FORMAT_ID: Final = int.from_bytes(b"MQSS", "big")
"""Distinguishes the connector's branches from other programs' on the same broker."""

_NAMED: Final = "app-"
_SINGLE: Final = "once-"
_GLOBAL: Final = re.compile(rb"(.+)/(\d{1,19})", re.DOTALL)
_BRANCH: Final = re.compile(rb"(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class BatchName:
    """Batch ``batch_id`` of ``query``; numbers grow. Prints in the user's terms."""

    query: str
    batch_id: int

    @property
    def in_a_stream(self) -> bool:
        """Whether it is a micro-batch: every number from 0 on is decided. Versions of batch writes may have gaps."""
        return not self.query.startswith((_NAMED, _SINGLE))

    @property
    def number_name(self) -> str:
        """The user's name for the number."""
        return "txnVersion" if self.query.startswith(_NAMED) else "batch"

    def __str__(self) -> str:
        if self.query.startswith(_NAMED):
            return f"txnVersion {self.batch_id} of txnAppId {self.query.removeprefix(_NAMED)}"
        return f"batch {self.batch_id} of query {self.query}"


def named_write(app_id: str, version: int) -> BatchName:
    """Return the name of a batch write with ``txnAppId`` and ``txnVersion``; never equal to a stream's."""
    return BatchName(f"{_NAMED}{app_id}", version)


def single_write() -> BatchName:
    """A fresh name for a batch write that cannot be repeated."""
    return BatchName(f"{_SINGLE}{uuid4()}", 0)


@dataclass(frozen=True, slots=True)
class BranchName:
    """A task attempt's branch on one broker, between one BEGIN and one PREPARE."""

    batch: BatchName
    task: int
    attempt: int
    broker_id: int
    sequence: int
    nonce: str

    @property
    def xid(self) -> Xid:
        """The key of the branch at brokers."""
        query, batch_id = self.batch.query, self.batch.batch_id
        branch = f"{self.task}.{self.attempt}.{self.broker_id}.{self.sequence}.{self.nonce}"
        return Xid(FORMAT_ID, f"{query}/{batch_id}".encode(), branch.encode(), query)


def branch_name(xid: Xid) -> BranchName | None:
    """Parse the key of a branch; ``None`` if the connector did not make it."""
    batch, branch = _GLOBAL.fullmatch(xid.global_id), _BRANCH.fullmatch(xid.branch)
    if xid.format_id != FORMAT_ID or batch is None or branch is None or batch[1] != xid.unique.encode():
        return None
    task, attempt, broker_id, sequence = map(int, branch.groups()[:4])
    name = BatchName(xid.unique, int(batch[2]))
    return BranchName(name, task, attempt, broker_id, sequence, branch[5].decode())


def by_broker(xids: Iterable[Xid]) -> dict[int, list[Xid]]:
    """Sort the branches of a decision by broker id, each list in the order of the decision.

    Raises:
        ValueError: A key has another format, so the broker of its branch is unknown.
    """
    found: dict[int, list[Xid]] = {}
    for xid in xids:
        name = branch_name(xid)
        if name is None:
            raise ValueError(f"{xid} is not a branch of this sink")
        found.setdefault(name.broker_id, []).append(xid)
    return found


def own_positions(xids: Sequence[Xid], broker_id: int) -> list[int]:
    """Return the ascending indexes of the branches on a broker. Other programs' keys are ignored."""
    names = map(branch_name, xids)
    return [position for position, name in enumerate(names) if name is not None and name.broker_id == broker_id]


def superseded(prepared: Iterable[Xid], decided: BatchName, listed: Collection[Xid]) -> list[Xid]:
    """Return the prepared branches that no decision can list any more: they may be rolled back.

    These are the branches of ``decided`` and of earlier batches of its query, except the listed ones. Later batches may
    belong to a driver that is about to decide; other programs' branches are ignored.
    """
    found = []
    for xid in prepared:
        name = branch_name(xid)
        if name is not None and name.batch.query == decided.query and name.batch.batch_id <= decided.batch_id:
            found += [] if xid in listed else [xid]
    return found
