"""What a Java broker has as the slave of a synchronous pair, before it is sent anything.

Messages can only be put behind its end, so that end must be known exactly, and ``stats offsets`` does not say it:

* a Java broker that was started again lists some of its partitions only when something is stored in them;
* it reports the end of what it has synced, which may be some time after it has answered;
* messages that a master sent over an earlier connection may still be on their way into its files.

So partitions that are not listed are opened, which stores nothing; what it has must all be synced; and two looks one
after the other must find the same.
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
"""The consumer group that a master asks its slave as."""

Found = dict[PartitionKey, StoredRange | Declined]


async def settled_ranges(peer: Peer, partition_keys: Sequence[PartitionKey]) -> Found:
    """Return what a slave that takes no copies has of each partition.

    Raises:
        CopyRefused: It cannot be said yet; the text says why.
        PeerLost: The connection is gone.
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
