"""The messages of the cluster demo, and the check that each was written once, unchanged and stamped.

Every message begins with its number, from which the rest follows, so the check needs only a counter for each message.
It reads the topic with the plain client, without Spark.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.client.consumer import Consumer
from metaq.client.rocketmq.producer import RocketProducer
from metaq.discovery.base import Directory
from metaq.model import Message, Partition

BLOCK_MESSAGES = 250
STAMP_BYTES = 4 + 8
"""Bytes that an attribute adds to a stored message: its length, and eight digits."""


def payload(number: int) -> bytes:
    """Return the number, a blank, and 32 to 160 bytes of all values that follow from it."""
    return b"%d " % number + hashlib.sha256(b"%d" % number).digest() * (1 + number % 5)


def stamp(value: bytes) -> str:
    """Return the attribute that the pipeline gives."""
    return f"{zlib.crc32(value):08x}"


def send(directory: Directory, pool: SessionPool, rocketmq: RocketProducer, topic: str, count: int) -> int:
    """Send the messages 0 to ``count - 1``, block by block to the topic's partitions in turn.

    Every partition gets a block over MetaQ's protocol, then one over RocketMQ's. Return how many used the latter.
    """
    assigned = list(directory.writable(topic).items())
    over_rocketmq = 0
    for block, first in enumerate(range(0, count, BLOCK_MESSAGES)):
        payloads = [payload(number) for number in range(first, min(first + BLOCK_MESSAGES, count))]
        partition, address = assigned[block % len(assigned)]
        if block // len(assigned) % 2:
            queue = Partition(broker_name(int(partition.broker_id)), partition.index)
            over_rocketmq += len(rocketmq.send_many(topic, payloads, partition=queue))
        else:
            with pool.lease(address) as session:
                put_batch(session, topic, partition.index, *encode_block(map(Message, payloads)))
    return over_rocketmq


def broker_name(broker_id: int) -> str:
    """Return the broker's name for RocketMQ's clients."""
    return f"broker-{broker_id}"


@dataclass(frozen=True)
class Verdict:
    """The number of messages in the output, and what is wrong with them."""

    received: int
    missing: int
    doubled: int
    wrong: int

    @property
    def good(self) -> bool:
        return not (self.missing or self.doubled or self.wrong)


def judge(messages: Iterable[Message], count: int) -> Verdict:
    """Compare the output with what ``send`` put in; the order is not compared."""
    times = [0] * count
    received = wrong = 0
    for message in messages:
        received += 1
        number = number_of(message.payload)
        if number is None or number >= count or message.attribute != stamp(message.payload):
            wrong += 1
        else:
            times[number] += 1
    return Verdict(received, times.count(0), sum(each - 1 for each in times if each > 1), wrong)


def number_of(value: bytes) -> int | None:
    """Return the number of a message; ``None`` if it is not as it was sent."""
    digits = value.partition(b" ")[0]
    if not digits.isdigit():
        return None
    return int(digits) if payload(int(digits)) == value else None


def stored(directory: Directory, pool: SessionPool, topic: str, broker_id: int | None = None) -> Iterable[Message]:
    """Yield the messages of a topic, of all its partitions or of one broker's."""
    consumer = Consumer(directory, pool)
    for partition in directory.partitions(topic):
        if broker_id is None or partition.broker_id == broker_id:
            yield from (frame.message for frame in consumer.messages(topic, partition))
