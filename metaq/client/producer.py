"""Writing: everything a writer imports, and a small producer for scripts."""

from __future__ import annotations

import itertools

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import Receipt, encode_block, put, put_batch
from metaq.discovery.base import Directory
from metaq.model import Address, Message, Partition

__all__ = ["Producer", "Receipt", "encode_block", "put", "put_batch"]


class Producer:
    """Sends single messages, each waiting for its acknowledgement; partitions in turn unless one is named.

    For scripts and small volumes; ``metaq.backends.metaq.batch_writer`` is the fast way. One thread at a time.
    """

    def __init__(self, directory: Directory, pool: SessionPool) -> None:
        self._directory, self._pool = directory, pool
        self._addresses: dict[str, dict[Partition, Address]] = {}
        self._next = itertools.count()

    def put(self, topic: str, message: Message, partition: Partition | None = None) -> Receipt:
        """Store one message. Where a topic can be written is asked once per topic.

        Raises:
            TopicNotFound: No broker accepts the topic.
            ValueError: ``partition`` is none of the topic's.
            TypeError: ``message`` is no message.
            BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: As the function ``put``.
        """
        Message.require(message)
        addresses = self._addresses.get(topic) or self._addresses.setdefault(topic, self._directory.writable(topic))
        if partition is None:
            partition = list(addresses)[next(self._next) % len(addresses)]
        elif partition not in addresses:
            raise ValueError(f"partition {partition}: {topic} has {', '.join(map(str, addresses))}")
        with self._pool.lease(addresses[partition]) as session:
            return put(session, topic, partition.index, message)
