"""RocketMQ messages as a consumer of a group delivers them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from metaq.backends.rocketmq.names import without_namespace
from metaq.client.groups.deliveries import ReadEpoch
from metaq.client.records import made_directly
from metaq.client.rocketmq.records import RocketReceived
from metaq.formats.rocketmq.properties import RETRY_TOPIC
from metaq.formats.rocketmq.records import Record
from metaq.formats.topic_names import RETRY_PREFIX
from metaq.model import TopicPartition


@made_directly
@dataclass(frozen=True, slots=True, kw_only=True)
class RocketDelivery(RocketReceived):
    """A message of a consumer group. ``attempt`` counts its deliveries by this consumer, from 1.

    ``reconsume_times`` is how often members of the group have sent it back. ``topic`` is the topic that it was sent to,
    also if it is redelivered; ``where`` is the queue that it was read from, and ``log_offset`` its offset in the
    broker's log.
    """

    attempt: int
    where: TopicPartition
    log_offset: int = field(repr=False)
    epoch: ReadEpoch = field(repr=False, compare=False)

    @property
    def generation(self) -> int:
        """The assignment in which this consumer got the queue."""
        return self.epoch.generation

    def ack(self) -> None:
        """Settle this message: the position moves past it once all earlier messages of the queue are settled, too.

        Raises:
            PartitionLost: The queue has been released, or the message was rolled back.
        """
        self.epoch.settler.acknowledge(self)

    def again(self, refusals: int = 1) -> RocketDelivery:
        """Return the delivery that follows if this one is refused ``refusals`` times."""
        return replace(self, attempt=self.attempt + refusals)


def original_topic(record: Record, where: TopicPartition, namespace: str | None) -> str:
    if record.topic and where.topic.startswith(RETRY_PREFIX):
        name = record.property_map().get(RETRY_TOPIC)
        if name is not None:
            return without_namespace(name, namespace) or name
    return where.topic
