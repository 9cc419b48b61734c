"""``Lookup`` and ``Topics`` for asyncio; every call asks the servers in a thread."""

from __future__ import annotations

from collections.abc import Collection

from metaq.client.rocketmq.lookup import Lookup
from metaq.client.rocketmq.records import RocketReceived
from metaq.client.rocketmq.topics import Topics, TopicSettings
from metaq.client.thread_calls import call_in_thread
from metaq.model import Address


class AsyncLookup:
    """``Lookup`` for asyncio."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def by_id(self, topic: str, message_id: str) -> list[RocketReceived]:
        """Return the message with an id: the broker's, or its producer's. A message sent twice is found twice."""
        return await call_in_thread(self._lookup.by_id, topic, message_id)

    async def by_key(
        self, topic: str, key: str, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[RocketReceived]:
        """Return messages that have ``key`` among their keys, stored in ``[since_ms, until_ms]``; 64 from
        each broker.
        """
        return await call_in_thread(self._lookup.by_key, topic, key, since_ms, until_ms)


class AsyncTopics:
    """``Topics`` for asyncio."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def create(
        self, topic: str, queues: int = 8, permissions: str = "rw", brokers: Collection[str] | None = None
    ) -> dict[str, Address]:
        """Create a topic with ``queues`` queues at each broker, or change the number of its queues; return
        the brokers.
        """
        return await call_in_thread(self._topics.create, topic, queues, permissions, brokers)

    async def settings(self, topic: str, brokers: Collection[str] | None = None) -> list[TopicSettings]:
        """Return the topic at each broker that has it."""
        return await call_in_thread(self._topics.settings, topic, brokers)

    async def alter(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permissions: str | None = None,
        brokers: Collection[str] | None = None,
    ) -> list[TopicSettings]:
        """Change the given settings at each broker that has the topic, and return the new settings."""
        return await call_in_thread(
            self._topics.alter,
            topic,
            read_queues=read_queues,
            write_queues=write_queues,
            permissions=permissions,
            brokers=brokers,
        )

    async def delete(self, topic: str) -> dict[str, Address]:
        """Delete a topic with its messages at every broker, and its route at every name server; return the brokers."""
        return await call_in_thread(self._topics.delete, topic)
