"""The names of an exactly-once write: what the brokers call its batches and branches, and which branches are left over.

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

Spark counts task attempts anew in every driver, so a replayed batch meets the attempt numbers of the run that crashed;
the nonce keeps their branches apart. The sequence counts the branches that one task attempt opens on one broker, and
orders them. Pure: nothing here asks Spark or a broker.

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
"""Distinguishes our branches from those of other programs that use the same broker."""

_NAMED: Final = "app-"
_SINGLE: Final = "once-"
_GLOBAL: Final = re.compile(rb"(.+)/(\d{1,19})", re.DOTALL)
_BRANCH: Final = re.compile(rb"(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class BatchName:
    """Batch ``batch_id`` of ``query``; numbers grow. Prints as its user knows it."""

    query: str
    batch_id: int

    @property
    def in_a_stream(self) -> bool:
        """Whether it is a micro-batch: every number from 0 on is decided. Versions of batch writes may have gaps."""
        return not self.query.startswith((_NAMED, _SINGLE))

    @property
    def number_name(self) -> str:
        """What its user calls the number."""
        return "txnVersion" if self.query.startswith(_NAMED) else "batch"

    def __str__(self) -> str:
        if self.query.startswith(_NAMED):
            return f"txnVersion {self.batch_id} of txnAppId {self.query.removeprefix(_NAMED)}"
        return f"batch {self.batch_id} of query {self.query}"


def named_write(app_id: str, version: int) -> BatchName:
    """What a batch write with ``txnAppId`` and ``txnVersion`` is called; never what a stream is called."""
    return BatchName(f"{_NAMED}{app_id}", version)


def single_write() -> BatchName:
    """A fresh name for a batch write that cannot be repeated."""
    return BatchName(f"{_SINGLE}{uuid4()}", 0)


@dataclass(frozen=True, slots=True)
class BranchName:
    """What one task attempt puts on one broker between one BEGIN and one PREPARE."""

    batch: BatchName
    task: int
    attempt: int
    broker_id: int
    sequence: int
    nonce: str

    @property
    def xid(self) -> Xid:
        """The key that brokers know."""
        query, batch_id = self.batch.query, self.batch.batch_id
        branch = f"{self.task}.{self.attempt}.{self.broker_id}.{self.sequence}.{self.nonce}"
        return Xid(FORMAT_ID, f"{query}/{batch_id}".encode(), branch.encode(), query)


def branch_name(xid: Xid) -> BranchName | None:
    """Read the key of a branch; ``None`` if it is none of ours."""
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
    """Which of the branches are on a broker: positions in the list, growing. A key that is not ours is on none."""
    names = map(branch_name, xids)
    return [position for position, name in enumerate(names) if name is not None and name.broker_id == broker_id]


def superseded(prepared: Iterable[Xid], decided: BatchName, listed: Collection[Xid]) -> list[Xid]:
    """Which of the branches that a broker holds no decision can ever list: they may be rolled back.

    Those of ``decided`` and of earlier batches of its query, except the ones that the decision lists. Later batches may
    belong to a driver that is about to decide; what is not ours is left alone.
    """
    found = []
    for xid in prepared:
        name = branch_name(xid)
        if name is not None and name.batch.query == decided.query and name.batch.batch_id <= decided.batch_id:
            found += [] if xid in listed else [xid]
    return found
