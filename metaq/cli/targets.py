"""The target of ``metaq produce``: a producer of MetaQ or RocketMQ."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from metaq.cli.json_lines import keeping_partitions, partition_key
from metaq.cli.line_format import Line

if TYPE_CHECKING:
    from metaq.client.metaq import MetaQ
    from metaq.client.records import Sent
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.records import RocketMessage, RocketSent
    from metaq.model import Message, Partition

M = TypeVar("M")
KeyOf = Callable[[Line], bytes | None]


class Target(Protocol[M]):
    """Sends lines as messages of its system."""

    def message(self, line: Line) -> M:
        """Return the message for a line.

        Raises:
            ValueError: The system does not support such a message.
        """

    def send(self, lines: Sequence[Line], messages: Sequence[M]) -> Sequence[Sent | RocketSent]:
        """Store the messages of lines. Raises as ``send_many`` of a producer."""

    def stripped(self, lines: Sequence[Line]) -> int:
        """Return of how many lines the properties are not stored."""


def target_of(mq: MetaQ | RocketMQ, options: argparse.Namespace, partition: Partition | None) -> Target[Any]:
    """Return the target for a cluster, with all lines for ``partition`` if given.

    Raises:
        ValueError: An option is not supported by the system, or has another form there.
    """
    from metaq.client.metaq import MetaQ

    properties = _properties(options.property or ())
    if isinstance(mq, MetaQ):
        if properties or options.delay is not None:
            raise ValueError("--property and --delay are for RocketMQ: MetaQ's messages have neither")
        return MetaqTarget(mq, options, partition)
    return RocketmqTarget(mq, options, partition, properties)


def _properties(given: Sequence[str]) -> dict[str, str]:
    properties = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"--property {text}: expected NAME=VALUE")
        properties[name] = value
    return properties


def _key(line: Line) -> bytes | None:
    return line.key


class MetaqTarget:
    """Sends lines to MetaQ, whose messages have no properties and no keys."""

    def __init__(self, mq: MetaQ, options: argparse.Namespace, partition: Partition | None) -> None:
        self._topic, self._partition = options.topic, partition
        self._producer = mq.producer(keeping_partitions() if options.json else None)
        self._key: KeyOf = partition_key if options.json else _key

    def message(self, line: Line) -> Message:
        """Return value and attribute."""
        from metaq.model import Message

        return Message(line.value, line.attribute)

    def send(self, lines: Sequence[Line], messages: Sequence[Message]) -> Sequence[Sent]:
        """Store messages. Raises as ``Producer.send_many``."""
        keys = [self._key(line) for line in lines]
        return self._producer.send_many(self._topic, messages, partition=self._partition, keys=keys)

    def stripped(self, lines: Sequence[Line]) -> int:
        """Return how many lines have properties."""
        return sum(bool(line.properties) for line in lines)


class RocketmqTarget:
    """Sends lines to RocketMQ."""

    def __init__(
        self, mq: RocketMQ, options: argparse.Namespace, partition: Partition | None, properties: dict[str, str]
    ) -> None:
        self._topic, self._partition, self._properties = options.topic, partition, properties
        self._delay: int | None = options.delay
        self._producer = mq.producer(keeping_partitions() if options.json else None, failover=True)
        self._key: KeyOf = partition_key if options.json else _key

    def message(self, line: Line) -> RocketMessage:
        """Return value, tag, keys and properties.

        Raises:
            ValueError: A tag or a key is of a form that RocketMQ does not have.
        """
        from metaq.client.rocketmq.records import RocketMessage

        properties = {**self._properties, **line.properties} if line.properties else self._properties
        return RocketMessage(
            data=line.value, tag=line.attribute, keys=line.words_of_key(), properties=properties, delay=self._delay
        )

    def send(self, lines: Sequence[Line], messages: Sequence[RocketMessage]) -> Sequence[RocketSent]:
        """Store messages. Raises as ``RocketProducer.send_many``."""
        keys = [self._key(line) for line in lines]
        return self._producer.send_many(self._topic, messages, partition=self._partition, keys=keys)

    def stripped(self, lines: Sequence[Line]) -> int:
        """Return 0: RocketMQ's messages have properties."""
        return 0
