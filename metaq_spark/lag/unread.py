"""What of one partition a query has not read yet. Pure: where the query is and what the brokers hold are given."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from metaq.model import Held, OffsetRange, TopicPartition
from metaq_spark.offsets import Progress


class Remark(enum.StrEnum):
    """Why a partition is not simply read on from where the query is."""

    GONE = "gone"
    """No broker that was asked holds the partition."""
    RECREATED = "recreated"
    """It was deleted and made again: its offsets start over."""
    REMOVED = "removed"
    """Messages that were to be read next are gone, by the broker's delete policy."""
    AHEAD = "ahead"
    """The broker's log ends before the place that was read already, as during a failover."""
    NEW = "new"
    """The query does not know the partition yet; it will read it from its first byte."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: the query has read up to ``read_to`` and has ``unread`` before it (both in bytes).

    ``held``: what the broker holds, ``None`` if none holds it. ``messages``: how many are unread; ``seconds``: age of
    the oldest of them, 0 if there is none; ``None`` = not known.
    """

    where: TopicPartition
    read_to: int
    unread: OffsetRange
    remark: Remark | None = None
    held: OffsetRange | None = None
    messages: int | None = None
    seconds: float | None = None

    @property
    def bytes(self) -> int:
        """How many bytes are unread."""
        return len(self.unread)


def lags(read_to: Progress, held: Mapping[TopicPartition, Held]) -> list[PartitionLag]:
    """The lag in bytes of every partition that the query or the brokers know, in order.

    ``held`` is limited to what the query reads; a partition that is in there only counts as new.
    """
    return [_lag(where, read_to, held.get(where)) for where in sorted({*read_to.offsets, *held})]


def _lag(where: TopicPartition, read_to: Progress, held: Held | None) -> PartitionLag:
    at = read_to.offsets.get(where)
    if held is None:
        assert at is not None
        return PartitionLag(where, at, OffsetRange(at, at), Remark.GONE)
    there = held.offsets
    if at is None:
        return PartitionLag(where, there.start, there, Remark.NEW, there)
    known = read_to.incarnations.get(where)
    if None not in (known, held.incarnation) and known != held.incarnation:
        return PartitionLag(where, at, there, Remark.RECREATED, there)
    if at < there.start:
        return PartitionLag(where, at, there, Remark.REMOVED, there)
    if at > there.end:
        return PartitionLag(where, at, OffsetRange(at, at), Remark.AHEAD, there)
    return PartitionLag(where, at, OffsetRange(at, there.end), None, there)
