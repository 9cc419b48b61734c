"""Partitions that a broker offers but does not list: they cannot be read, and may or may not hold messages.

A Java broker opens only some of its partitions when it starts. Until their next put, the others answer as if they were
empty. A broker that reports incarnations lists everything on its disk: a missing partition is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import reports_incarnations
from metaq.discovery.base import Directory
from metaq.errors import TopicNotFound
from metaq.model import Address, Partition

SHOWN_MAX: Final = 10


def unlisted_partitions(
    directory: Directory, pool: SessionPool, topic: str, listed: Collection[Partition]
) -> list[Partition]:
    """Return the partitions of ``topic`` that are offered but not ``listed``, and may still hold messages, sorted.

    Raises:
        ConnectionFailed, DeadlineExceeded: A broker could not be asked.
    """
    try:
        offered = directory.writable(topic)
    except TopicNotFound:  # closed for writing
        return []
    missing = {partition: address for partition, address in offered.items() if partition not in listed}
    reports = {address: _reports(pool, address) for address in set(missing.values())}
    return sorted(partition for partition, address in missing.items() if not reports[address])


def _reports(pool: SessionPool, address: Address) -> bool:
    with pool.lease(address) as session:
        return reports_incarnations(session)


def unlisted_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return (
        f"{', '.join(names[:SHOWN_MAX])}{more}: the broker offers this partition but does not list it, so it is not "
        "read. It is empty, or the broker has not opened it since its restart: a Java broker "
        "opens some of its partitions only with their next put"
    )
