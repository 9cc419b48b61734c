"""Partitions that a broker offers and does not list, so that nobody can read them, nor tell whether they hold messages.

A Java broker opens only some of its partitions when it starts. The others answer as if nobody had ever written to them
until their next put. A broker that reports incarnations lists whatever it has on its disk: what it leaves out is empty.
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
    """Return the partitions of ``topic`` that are offered, not ``listed``, and may hold messages all the same, sorted.

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
    """Return the sentence about partitions of these names."""
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return (
        f"{', '.join(names[:SHOWN_MAX])}{more}: the broker offers this partition, but does not list it, so nothing of "
        "it is read. It was never written to, or the broker has not opened it since it was restarted: a Java broker "
        "opens some of its partitions only with their next put"
    )
