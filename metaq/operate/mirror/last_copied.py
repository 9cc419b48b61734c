"""Whether a partition of the source still holds the message that was copied last: if not, its broker has an older copy.

A broker that was restored from an older copy of its data has the same partitions, but not the messages that came after
the copy. Once such a partition has grown to the saved offset again, the messages in between would never be copied. They
were stored later than the message that was copied last, so the mirror continues with the first message that is newer;
where a broker stores no times, with the first message of the partition.

Nothing is proven by a message that retention may have removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Self

from metaq.client.metaq import MetaQ
from metaq.client.records import Received
from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import CorruptFrame, CorruptRecord, ExtensionMissing, OffsetMoved
from metaq.model import Partition
from metaq.operate.mirror.sides import AnyReceived


@dataclass(frozen=True, slots=True)
class LastCopied:
    """The message that was copied last of a partition: its offset, when it was stored (``None``: unknown; ms since
    1970), and a digest of its id and data.
    """

    offset: int
    stored_ms: int | None
    digest: str

    @classmethod
    def of(cls, message: AnyReceived) -> Self:
        """Return what identifies a message."""
        return cls(message.offset, message.timestamp_ms, digest_of(message))

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """Return what ``tree`` made.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        stored_ms = tree["stored_ms"]
        return cls(int(tree["offset"]), None if stored_ms is None else int(stored_ms), str(tree["digest"]))

    def tree(self) -> dict[str, Any]:
        """Return the form in a progress file."""
        return asdict(self)


def digest_of(message: AnyReceived) -> str:
    """Return 32 hexadecimal digits that no other message at this offset has."""
    times = "" if isinstance(message, Received) else f" {message.timestamp_ms}"
    return sha256(f"{message.message_id}{times} ".encode() + message.data).hexdigest()[:32]


def resumed(
    source: MetaQ | RocketMQ, topic: str, positions: Mapping[Partition, int], last: Mapping[Partition, LastCopied]
) -> dict[Partition, int]:
    """Return where to continue in partitions that do not hold the message before their position any more.

    Raises:
        MetaqError: A broker could not be asked.
    """
    there = {info.partition: (info.start, info.end) for info in source.cluster.describe(topic)} if last else {}
    found = {}
    for partition, message in last.items():
        if partition not in there or partition not in positions:
            continue
        (start, end), position = there[partition], positions[partition]
        if end >= position and (start > message.offset or _holds(source, topic, partition, message, position)):
            continue
        found[partition] = _newer(source, topic, partition, message, start)
    return found


def _holds(source: MetaQ | RocketMQ, topic: str, partition: Partition, message: LastCopied, end: int) -> bool:
    browser = source.browse(topic, partitions=[partition], start={partition: message.offset}, end={partition: end})
    try:
        return [digest_of(each) for each in browser] == [message.digest]
    except (ValueError, OffsetMoved, CorruptFrame, CorruptRecord):  # messages begin elsewhere
        return False


def _newer(source: MetaQ | RocketMQ, topic: str, partition: Partition, message: LastCopied, start: int) -> int:
    if message.stored_ms is None:
        return start
    try:
        return source.cluster.offsets_at(topic, message.stored_ms + 1).get(partition, start)
    except ExtensionMissing:
        return start
