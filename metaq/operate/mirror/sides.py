"""The source and the target of a mirror, MetaQ or RocketMQ, behind one interface, and the conversion of copies.

A MetaQ attribute corresponds to a RocketMQ tag. RocketMQ's keys and properties are copied if the target is RocketMQ;
MetaQ messages have neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaq.client.metaq import MetaQ
from metaq.client.records import Received
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketMessage, RocketReceived
from metaq.errors import TopicNotFound
from metaq.formats.rocketmq.properties import KEYS, RESERVED
from metaq.model import Message, Partition

AnyReceived = Received | RocketReceived


class CannotCopy(ValueError):
    """A message of ``where`` (topic/partition) at ``offset`` cannot be written to the target as it is."""

    def __init__(self, where: str, offset: int, reason: str) -> None:
        self.where, self.offset, self.reason = where, offset, reason
        super().__init__(where, offset, reason)

    def __str__(self) -> str:
        return f"{self.where}, offset {self.offset}: the message cannot be copied: {self.reason}"


def targets_in(mq: MetaQ | RocketMQ, topic: str) -> list[Partition]:
    """Return the partitions of a topic that accept messages.

    Raises:
        TopicNotFound: There are none.
    """
    found = mq.cluster.writable(topic)
    if not found:
        raise TopicNotFound(topic, sorted(map(str, mq.cluster.servers())))
    return found


class MetaQTarget:
    def __init__(self, mq: MetaQ) -> None:
        self._producer = mq.producer()

    def send(self, topic: str, partition: Partition, messages: Sequence[AnyReceived]) -> None:
        """Store copies in a partition, in order. Several requests are in flight.

        Raises:
            SendFailed, TopicNotFound: Not all were acknowledged; some that follow a refused one may be.
            ValueError: The topic has no such partition.
        """
        copies = [Message(message.data, message.attribute) for message in messages]
        self._producer.send_many(topic, copies, partition=partition)


class RocketMQTarget:
    def __init__(self, mq: RocketMQ) -> None:
        self._producer = mq.producer()

    def send(self, topic: str, partition: Partition, messages: Sequence[AnyReceived]) -> None:
        """Store copies in a queue, in order. Raises as ``MetaQTarget.send``, and ``CannotCopy``."""
        self._producer.send_many(topic, [rocket_copy(message) for message in messages], partition=partition)


def rocket_copy(message: AnyReceived) -> RocketMessage:
    """Return a message in RocketMQ's form.

    Raises:
        CannotCopy: The attribute is not a valid tag.
    """
    try:
        if isinstance(message, RocketReceived):
            return message.copy()
        properties = message.properties or {}
        return RocketMessage(
            data=message.data,
            tag=message.attribute or None,
            keys=tuple(properties.get(KEYS, "").split()),
            properties={name: value for name, value in properties.items() if name not in RESERVED},
        )
    except ValueError as error:
        raise CannotCopy(f"{message.topic}/{message.partition}", message.offset, str(error)) from None


def target_of(mq: MetaQ | RocketMQ) -> MetaQTarget | RocketMQTarget:
    """Return the target that writes to a cluster."""
    return MetaQTarget(mq) if isinstance(mq, MetaQ) else RocketMQTarget(mq)
