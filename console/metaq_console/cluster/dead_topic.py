"""Dead letters of a RocketMQ group: the messages of its topic ``%DLQ%GROUP``, where they stay until they are old.

A letter's number is ``BROKER:QUEUE:OFFSET``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.dead_letters import DeadMessages, again, letter_number, origin_of
from metaq.client.rocketmq.producer import RocketProducer
from metaq.client.rocketmq.records import RocketReceived
from metaq.errors import TopicNotFound
from metaq_console.cluster.parked import resend_result
from metaq_console.cluster.rocketmq_messages import stored_message
from metaq_console.cluster.sends import Submitted, outcomes
from metaq_console.cluster.values import DeadLetter, ResendResult


class DeadTopic:
    """The dead letters of one group."""

    def __init__(self, client: RocketMQ, producer: RocketProducer, group: str) -> None:
        self._client, self._producer, self._letters = client, producer, DeadMessages(client, group)

    def page(self, start: int, count: int) -> tuple[list[DeadLetter], int]:
        """Return up to ``count`` messages from index ``start`` on, and how many there are; none without the topic."""
        try:
            queues = self._client.cluster.describe(self._letters.topic)
        except TopicNotFound:
            return [], 0
        found: list[DeadLetter] = []
        skipped = start
        for queue in queues:
            if skipped >= queue.messages:
                skipped -= queue.messages
                continue
            for message in self._letters.read(queue.partition, queue.start + skipped, count - len(found)):
                found.append(_letter(message))
            skipped = 0
        return found, sum(queue.messages for queue in queues)

    def resend(self, numbers: Sequence[str], topic: str | None, within_s: float) -> list[ResendResult]:
        """Send messages to their own topic, or to ``topic``. They stay dead letters, as in RocketMQ."""
        sent = outcomes([self._submission(number, topic) for number in numbers], within_s)
        return [resend_result(number, outcome, removed=False) for number, outcome in zip(numbers, sent, strict=True)]

    def _submission(self, number: str, topic: str | None) -> Callable[[], Submitted]:
        def submit() -> Submitted:
            target, copy = again(self._letters.find(number), topic)
            return self._producer.submit(target, copy.data, tag=copy.tag, keys=copy.keys, properties=copy.properties)

        return submit


def _letter(message: RocketReceived) -> DeadLetter:
    return DeadLetter(
        number=letter_number(message),
        origin=origin_of(message),
        moved_ms=message.timestamp_ms,
        reason=None,
        message=stored_message(message),
    )
