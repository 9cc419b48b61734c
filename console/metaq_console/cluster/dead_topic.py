"""Dead letters of a RocketMQ group: the messages of its topic ``%DLQ%GROUP``, where they stay until they are old.

A letter's number is ``BROKER:QUEUE:OFFSET``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.producer import RocketProducer
from metaq.client.rocketmq.records import RocketMessage, RocketReceived
from metaq.errors import TopicNotFound
from metaq.model import Partition
from metaq_console.cluster.parked import resend_result
from metaq_console.cluster.rocketmq_messages import stored_message
from metaq_console.cluster.sends import Submitted, outcomes
from metaq_console.cluster.values import DeadLetter, ResendResult

DEAD: Final = "%DLQ%"
RETRIED: Final = "%RETRY%"
ORIGIN: Final = "RETRY_TOPIC"
"""Property with the topic of a message that was moved."""


class DeadTopic:
    """The dead letters of one group."""

    def __init__(self, client: RocketMQ, producer: RocketProducer, group: str) -> None:
        self._client, self._producer, self._topic = client, producer, DEAD + group

    def page(self, start: int, count: int) -> tuple[list[DeadLetter], int]:
        """Return up to ``count`` messages from index ``start`` on, and how many there are; none without the topic."""
        try:
            queues = self._client.cluster.describe(self._topic)
        except TopicNotFound:
            return [], 0
        found: list[DeadLetter] = []
        skipped = start
        for queue in queues:
            if skipped >= queue.messages:
                skipped -= queue.messages
                continue
            for message in self._read(queue.partition, queue.start + skipped, count - len(found)):
                found.append(_letter(message))
            skipped = 0
        return found, sum(queue.messages for queue in queues)

    def resend(self, numbers: Sequence[str], topic: str | None, within_s: float) -> list[ResendResult]:
        """Send messages to their own topic, or to ``topic``. They stay dead letters, as in RocketMQ."""
        sent = outcomes([self._submission(number, topic) for number in numbers], within_s)
        return [resend_result(number, outcome, removed=False) for number, outcome in zip(numbers, sent, strict=True)]

    def _submission(self, number: str, topic: str | None) -> Callable[[], Submitted]:
        def submit() -> Submitted:
            message = self._one(number)
            target = topic or message.properties.get(ORIGIN)
            if target is None:
                raise ValueError(f"dead letter {number} does not say its topic; name one")
            copy = _again(message, target)
            return self._producer.submit(target, copy.data, tag=copy.tag, keys=copy.keys, properties=copy.properties)

        return submit

    def _one(self, number: str) -> RocketReceived:
        queue, _, offset = number.rpartition(":")
        if ":" not in queue or not offset.isdecimal():
            raise ValueError(f"dead letter {number[:80]!r}: expected BROKER:QUEUE:OFFSET")
        where, at = Partition.parse_queue(queue), int(offset)
        ends = {one.partition: one for one in self._client.cluster.describe(self._topic)}
        if where not in ends or not ends[where].start <= at < ends[where].end:
            raise ValueError(f"{self._topic} has no message {number[:80]}")
        found = next(self._read(where, at, 1), None)
        if found is None or found.offset != at:
            raise ValueError(f"{self._topic} has no message {number[:80]} any more")
        return found

    def _read(self, queue: Partition, offset: int, count: int) -> Iterator[RocketReceived]:
        if count <= 0:
            return
        with closing(iter(self._client.browse(self._topic, partitions=[queue], start={queue: offset}))) as messages:
            for number, message in enumerate(messages, 1):
                yield message
                if number == count:
                    return


def _letter(message: RocketReceived) -> DeadLetter:
    return DeadLetter(
        number=f"{message.partition}:{message.offset}",
        origin=message.properties.get(ORIGIN),
        moved_ms=message.timestamp_ms,
        reason=None,
        message=stored_message(message),
    )


def _again(message: RocketReceived, topic: str) -> RocketMessage:
    """Return the message to send. In a group's retry topic it needs the original topic, for the consumers."""
    copy = message.copy()
    if topic.startswith(RETRIED) and ORIGIN in message.properties:
        return replace(copy, properties={**copy.properties, ORIGIN: message.properties[ORIGIN]})
    return copy
