"""A mirror: reads topics of one cluster, writes them to another, and records its progress.

Copies are acknowledged before the position is saved, so a mirror that is stopped at any point copies some messages
again and never omits one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Literal

from metaq.backends.rocketmq.errors import OffsetOutOfRange
from metaq.client.metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import OffsetMoved, SendFailed
from metaq.model import Partition
from metaq.net.transport import share_server
from metaq.operate.mirror.last_copied import LastCopied, resumed
from metaq.operate.mirror.progress import ProgressFile
from metaq.operate.mirror.sides import AnyReceived, target_of, targets_in
from metaq.operate.mirror.targets import assign

BATCH_MESSAGES: Final = 5000
"""Limit on messages that are read before they are written and their positions saved."""
BATCH_BYTES: Final = 4 << 20

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Copied:
    """How many messages of a partition were copied since the start, their target, and the next offset."""

    topic: str
    partition: Partition
    target: Partition
    position: int
    messages: int = 0


class Mirror:
    """Copies ``topics`` from ``source`` to ``target``, under their names with ``prefix`` in front.

    ``start``: where to begin with a topic that ``progress`` does not have. ``fold``: several partitions may share one
    target.

    Raises:
        ValueError: A topic would be copied to itself, or is the copy of another.
        MetaqError: A cluster could not be asked.
    """

    def __init__(
        self,
        source: MetaQ | RocketMQ,
        target: MetaQ | RocketMQ,
        topics: Sequence[str],
        progress: ProgressFile,
        *,
        prefix: str = "",
        fold: bool = False,
        start: Literal["earliest", "latest"] = "earliest",
    ) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._prefix, self._fold, self._start = prefix, fold, start
        topics = list(dict.fromkeys(topics))
        if share_server(source.cluster.servers(), target.cluster.servers()):
            refuse_circles(topics, prefix)
        self._writer = target_of(target)
        self._browsers = {
            topic: source.browse(topic, start=dict(known.positions) if (known := progress.topics.get(topic)) else start)
            for topic in topics
        }
        self._unsent: list[AnyReceived] = []
        self._copied: dict[tuple[str, Partition], Copied] = {}
        self.messages = 0
        """How many were copied since the start."""
        self._compared_at: int | None = None
        """How many connections there were when the messages copied last were compared."""

    @property
    def copied(self) -> list[Copied]:
        """What was copied since the start, by topic and partition."""
        return [self._copied[key] for key in sorted(self._copied, key=lambda key: (key[0], str(key[1])))]

    def settle(self) -> None:
        """Assign a target to every partition of the topics, and save that; existing assignments do not change.

        For a topic that begins at the end, that is saved, too: a run that fails now does not change it.

        Raises:
            TooFewPartitions: The target has not enough.
            TopicNotFound: The source does not have a topic, or the target does not accept it.
            StoreFailed: The progress cannot be saved.
            MetaqError: A cluster could not be asked.
        """
        for topic in self._browsers:
            is_new = topic not in self._progress.topics
            self._settle(topic, self._source.cluster.partitions(topic))
            if is_new and self._start == "latest":
                known, there = self._progress.of(topic), self._source.cluster.describe(topic)
                known.positions = {info.partition: info.end for info in there if info.end}
                self._browse(topic)
        self._progress.save()

    def copy(self) -> int:
        """Copy all messages that are stored now and were not copied; return their number.

        After a failure, another call continues with messages that were read and not acknowledged. Where a broker of the
        source was put back to an older copy of its data, it continues with the messages that are newer than the last
        one copied, and logs that.

        Raises:
            CannotCopy: A message cannot be written to the target.
            MetaqError: A cluster could not be asked, or the progress cannot be saved.
        """
        before = self.messages
        while not self._copied_all():
            pass  # read again from where it was put back to
        return self.messages - before

    def _copied_all(self) -> bool:
        """Copy; return false as soon as a partition continues elsewhere than it was read."""
        try:
            return self._copy_stored()
        except (OffsetMoved, OffsetOutOfRange):
            self._compared_at = None  # a topic may have been made again at a broker that goes on
            if self._is_same():
                raise
            return False

    def _copy_stored(self) -> bool:
        if not self._send():  # messages left by a failure
            return False
        for topic, browser in self._browsers.items():
            byte_count = 0
            for message in browser.poll():
                self._unsent.append(message)
                byte_count += len(message.data)
                if len(self._unsent) >= BATCH_MESSAGES or byte_count >= BATCH_BYTES:
                    if not self._send():
                        return False
                    byte_count = 0
            if not self._send():
                return False
            self._note_positions(topic, browser.positions)
        return True

    def _is_same(self) -> bool:
        """Check that the source holds the messages that were copied last, unless no broker was restarted since.

        RocketMQ's brokers do not say that a queue was made again: each one that was read is checked. Where a message is
        missing, what was read and not written is forgotten, and the topic's browser begins again.
        """
        may_be_older = self._source.cluster.connections != self._compared_at
        read = {(one.topic, one.partition) for one in self._unsent} if isinstance(self._source, RocketMQ) else set()
        if not (may_be_older or read):
            return True
        is_same = True
        for topic in self._browsers:
            known = self._progress.of(topic)
            last = {at: message for at, message in known.last.items() if may_be_older or (topic, at) in read}
            found = resumed(self._source, topic, known.positions, last)
            for partition, at in found.items():
                _log.warning(
                    "%s/%s: the message before offset %d is not the one that was copied: the broker was put back to an "
                    "older copy, or the topic was made again; continuing at offset %d with what is newer",
                    topic, partition, known.positions[partition], at,
                )  # fmt: skip
                known.positions[partition] = at
                del known.last[partition]
            if found:
                self._browse(topic)
                self._unsent = [message for message in self._unsent if message.topic != topic]
                self._progress.save()
                is_same = False
        self._compared_at = self._source.cluster.connections
        return is_same

    def _browse(self, topic: str) -> None:
        """Continue at the saved positions of a topic."""
        self._browsers[topic] = self._source.browse(topic, start=dict(self._progress.of(topic).positions))

    def _settle(self, topic: str, sources: Sequence[Partition]) -> None:
        known = self._progress.of(topic)
        if set(sources) - set(known.targets):
            targets = targets_in(self._target, self._prefix + topic)
            known.targets = assign(topic, sources, targets, known.targets, fold=self._fold)

    def _note_positions(self, topic: str, positions: dict[Partition, int]) -> None:
        """Save where an empty partition begins: a mirror that began at the end needs it."""
        known = self._progress.of(topic)
        new = {partition: at for partition, at in positions.items() if partition not in known.positions}
        if new:
            self._settle(topic, list(new))
            known.positions |= new
            self._progress.save()

    def _send(self) -> bool:
        """Write the messages that were read, and save the positions after the acknowledged ones.

        Nothing is written, and false returned, if they were read from a source that was put back.
        """
        if not self._is_same():
            return False
        if not self._unsent:
            return True
        try:
            while self._unsent:
                self._send_block(_leading(self._unsent))
        finally:
            self._progress.save()
        return True

    def _send_block(self, block: Sequence[AnyReceived]) -> None:
        topic, partition = block[0].topic, block[0].partition
        known = self._progress.of(topic)
        if partition not in known.targets:  # the partition is new at the source
            self._settle(topic, self._source.cluster.partitions(topic))
            self._progress.save()
        target = known.targets[partition]
        try:
            self._writer.send(self._prefix + topic, target, block)
        except SendFailed as error:
            front = sum(1 for _ in takewhile(bool, error.sent))
            self._note_copied(block[:front], target)
            raise
        self._note_copied(block, target)

    def _note_copied(self, messages: Sequence[AnyReceived], target: Partition) -> None:
        """Move behind the leading unsent messages: they are acknowledged."""
        if not messages:
            return
        topic, partition, end = messages[-1].topic, messages[-1].partition, messages[-1].end
        del self._unsent[: len(messages)]
        known = self._progress.of(topic)
        known.positions[partition], known.last[partition] = end, LastCopied.of(messages[-1])
        count = self._copied.setdefault((topic, partition), Copied(topic, partition, target, end))
        count.messages += len(messages)
        self.messages += len(messages)
        count.position = end


def _leading(messages: Sequence[AnyReceived]) -> Sequence[AnyReceived]:
    """Return the leading messages that belong to one partition."""
    partition = messages[0].partition
    count = next((at for at, message in enumerate(messages) if message.partition != partition), len(messages))
    return messages[:count]


def refuse_circles(topics: Sequence[str], prefix: str) -> None:
    """Check that a mirror within one cluster does not read its own copies."""
    if not prefix:
        raise ValueError("--prefix: needed where source and target share a server; a topic is not copied to itself")
    for topic in topics:
        if topic.removeprefix(prefix) in set(topics) - {topic}:
            raise ValueError(f"topic {topic!r} is the copy of {topic.removeprefix(prefix)!r}; leave it out")
