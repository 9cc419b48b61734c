"""The unread part of a partition. Pure: computed from the query's position and the brokers' range."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from metaq.model import OffsetRange, PartitionState, TopicPartition
from metaq_spark.offsets import Progress, unit_of

CLOCKS_S: Final = 5.0
"""Clocks of two machines that differ by more make times of one say nothing on the other."""


class LagStatus(enum.StrEnum):
    """Why a partition is not simply read on from where the query is."""

    GONE = "gone"
    """No asked broker has the partition."""
    RECREATED = "recreated"
    """It was deleted and created again: its offsets start over."""
    REMOVED = "removed"
    """The next messages were deleted by the broker's delete policy."""
    AHEAD = "ahead"
    """The broker's log ends before the offset to read next, as during a failover."""
    NEW = "new"
    """The query does not know the partition yet, and will read it from its start."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: the query has read up to ``read_to``; ``unread`` offsets follow.

    ``available``: the broker's range, ``None`` if no broker has it. ``messages``: how many are unread; ``seconds``: age
    of the oldest of them, 0 if there is none; ``bytes_estimate``: if offsets count messages. ``None`` = unknown.
    """

    where: TopicPartition
    read_to: int
    unread: OffsetRange
    status_note: LagStatus | None = None
    available: OffsetRange | None = None
    messages: int | None = None
    seconds: float | None = None
    bytes_estimate: int | None = None

    @property
    def bytes(self) -> int | None:
        """How many bytes are unread, ``None`` = not known."""
        return len(self.unread) if unit_of(self.where) == "bytes" else self.bytes_estimate


def waited_s(stored_ms: int, now_s: float) -> float | None:
    """Return for how many seconds a message has been stored, by the clock here (since 1970); ``None`` if the server's
    clock is ahead.
    """
    age_s = now_s - stored_ms / 1000
    return None if age_s < -CLOCKS_S else max(0.0, age_s)


def lags(read_to: Progress, available: Mapping[TopicPartition, PartitionState]) -> list[PartitionLag]:
    """Return the lag of every partition that the query or the brokers know, in order: in bytes, or if offsets count
    messages, in messages.

    ``available`` is limited to what the query reads; a partition that is only there counts as new.
    """
    found = [_lag(where, read_to, available.get(where)) for where in sorted({*read_to.offsets, *available})]
    return [lag if unit_of(lag.where) == "bytes" else replace(lag, messages=len(lag.unread)) for lag in found]


def _lag(where: TopicPartition, read_to: Progress, available: PartitionState | None) -> PartitionLag:
    at = read_to.offsets.get(where)
    if available is None:
        assert at is not None
        return PartitionLag(where, at, OffsetRange(at, at), LagStatus.GONE)
    there = available.offsets
    if at is None:
        return PartitionLag(where, there.start, there, LagStatus.NEW, there)
    known = read_to.incarnations.get(where)
    if None not in (known, available.incarnation) and known != available.incarnation:
        return PartitionLag(where, at, there, LagStatus.RECREATED, there)
    if at < there.start:
        return PartitionLag(where, at, there, LagStatus.REMOVED, there)
    if at > there.end:
        return PartitionLag(where, at, OffsetRange(at, at), LagStatus.AHEAD, there)
    return PartitionLag(where, at, OffsetRange(at, there.end), None, there)
