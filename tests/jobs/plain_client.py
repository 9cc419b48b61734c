"""What is in topics, seen without Spark: messages are put and read one by one by the plain client."""

from __future__ import annotations

from collections.abc import Iterable

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.metaq.puts import put
from metaq.client.consumer import Consumer
from metaq.discovery.fixed import FixedDirectory
from metaq.formats.frames import Frame
from metaq.model import Address, Message


def put_all(address: Address, topic: str, partition: int, messages: Iterable[Message]) -> list[int]:
    """Append to one partition; the offsets of the messages."""
    with shared_pool().lease(address) as session:
        return [put(session, topic, partition, message).offset for message in messages]


def frames(address: Address, topic: str) -> dict[int, list[Frame]]:
    """By index, the frames of each partition that was written to."""
    pool = shared_pool()
    directory = FixedDirectory([address], pool)
    consumer = Consumer(directory, pool)
    return {where.index: [*consumer.messages(topic, where)] for where in directory.partitions(topic)}


def stored(address: Address, topic: str) -> dict[int, list[Message]]:
    """By index, the messages of each partition that holds any."""
    return {index: [one.message for one in found] for index, found in frames(address, topic).items() if found}
