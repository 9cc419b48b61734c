"""Finds out what a Java slave of a synchronous pair has stored, before anything is sent to it.

A Java slave appends messages at its own end, so that end must be known exactly. ``stats offsets`` is not enough:

* after a restart, a Java broker lists some partitions only when a message is stored in them;
* it reports the end of its synced data, which may lag behind its answers;
* messages from an earlier connection may not be in its files yet.

So partitions that are not listed are opened, which stores nothing; all data must be synced; and two consecutive answers
must agree.

Source: docs/replication.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from metaq_broker.replication.local import CopyRefused
from metaq_broker.replication.peer import Declined, PartitionKey, Peer, StoredRange

SETTLE_S: Final = 0.5
"""Between two looks."""

LOOKS_MAX: Final = 20

GROUP: Final = "metaq-pair"
"""The consumer group under which a master reads from its slave."""

Found = dict[PartitionKey, StoredRange | Declined]


async def settled_ranges(peer: Peer, partition_keys: Sequence[PartitionKey]) -> Found:
    """Return the range that a Java slave has of each partition.

    Raises:
        CopyRefused: It is not known yet; the text says why.
        PeerLost: The connection is lost.
    """
    found = await _look(peer, partition_keys)
    for _ in range(LOOKS_MAX):
        await asyncio.sleep(SETTLE_S)
        before, found = found, await _look(peer, partition_keys)
        if found == before:
            return found
    raise CopyRefused("the slave still stores messages that it was sent before")


async def _look(peer: Peer, partition_keys: Sequence[PartitionKey]) -> Found:
    listed = await peer.stored_ranges()
    unlisted = [each for each in partition_keys if each not in listed]
    opened = dict(zip(unlisted, await peer.opened(unlisted, GROUP), strict=True))
    found: Found = {**listed, **opened}
    synced: Counter[str] = Counter()
    for (topic, _), there in found.items():
        if isinstance(there, StoredRange):
            synced[topic] += there.readable_end - there.start
    topics = sorted({topic for topic, _ in partition_keys})
    for topic, stored in zip(topics, await peer.stored_bytes(topics), strict=True):
        if stored is not None and stored != synced[topic]:
            raise CopyRefused(f"the slave has not synced all messages of topic {topic} yet (its unflushInterval)")
    return found
