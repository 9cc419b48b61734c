"""Rows of a reset and the client's offset changes; the two systems differ only in how a partition is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metaq.client.cluster import OffsetChange
from metaq.model import Partition
from metaq_console.cluster.values import ResetRow


def reset_rows(changes: Iterable[OffsetChange]) -> list[ResetRow]:
    return [
        ResetRow(topic=one.topic, partition=str(one.partition), position=one.position, to=one.to) for one in changes
    ]


def offset_changes(rows: Iterable[ResetRow], parse: Callable[[str], Partition]) -> list[OffsetChange]:
    """Return the changes of ``rows``; ``parse`` reads the text of a partition."""
    return [
        OffsetChange(topic=row.topic, partition=parse(row.partition), position=row.position, to=row.to) for row in rows
    ]
