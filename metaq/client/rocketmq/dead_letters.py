"""Messages that the consumers of a RocketMQ group gave up: the topic ``%DLQ%GROUP``, where they stay until they are
deleted by age.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from metaq.client.rocketmq.records import RocketMessage, RocketReceived
from metaq.formats.rocketmq.properties import RETRY_TOPIC
from metaq.formats.topic_names import DEAD_PREFIX, RETRY_PREFIX
from metaq.model import Partition

if TYPE_CHECKING:
    from metaq.client.rocketmq.client import RocketMQ


def letter_number(message: RocketReceived) -> str:
    """Return the number of a dead letter, ``BROKER:QUEUE:OFFSET``."""
    return f"{message.partition}:{message.offset}"


def origin_of(message: RocketReceived) -> str | None:
    """Return the topic from which a message was moved, if it says so."""
    return message.properties.get(RETRY_TOPIC)


def again(message: RocketReceived, topic: str | None = None) -> tuple[str, RocketMessage]:
    """Return where to send a dead letter again, its own topic by default, and the message to send.

    In a group's retry topic it keeps the original topic, for the consumers.

    Raises:
        ValueError: It does not say its topic, and none is given.
    """
    target = topic or origin_of(message)
    if target is None:
        raise ValueError(f"dead letter {letter_number(message)} does not say its topic; name one")
    copy = message.copy()
    if target.startswith(RETRY_PREFIX) and RETRY_TOPIC in message.properties:
        copy = replace(copy, properties={**copy.properties, RETRY_TOPIC: message.properties[RETRY_TOPIC]})
    return target, copy


class DeadMessages:
    """The dead letters of ``group``. Methods raise ``MetaqError`` if a broker cannot be asked."""

    def __init__(self, client: RocketMQ, group: str) -> None:
        self._client = client
        self.topic: Final = DEAD_PREFIX + group

    def __iter__(self) -> Iterator[RocketReceived]:
        return iter(self._client.browse(self.topic))

    def read(self, queue: Partition, offset: int, count: int) -> Generator[RocketReceived, None, None]:
        """Yield up to ``count`` messages of a queue from an offset on."""
        if count <= 0:
            return
        with closing(iter(self._client.browse(self.topic, partitions=[queue], start={queue: offset}))) as messages:
            for number, message in enumerate(messages, 1):
                yield message
                if number == count:
                    return

    def find(self, number: str) -> RocketReceived:
        """Return the dead letter of a number.

        Raises:
            ValueError: It is no number, or there is no such message, or not any more.
        """
        queue, _, offset = number.rpartition(":")
        if ":" not in queue or not (offset.isdecimal() and offset.isascii()):
            raise ValueError(f"dead letter {number[:80]!r}: expected BROKER:QUEUE:OFFSET")
        where, at = Partition.parse_queue(queue), int(offset)
        ends = {one.partition: one for one in self._client.cluster.describe(self.topic)}
        if where not in ends or not ends[where].start <= at < ends[where].end:
            raise ValueError(f"{self.topic} has no message {number[:80]}")
        with closing(self.read(where, at, 1)) as messages:
            found = next(messages, None)
        if found is None or found.offset != at:
            raise ValueError(f"{self.topic} has no message {number[:80]} any more")
        return found
