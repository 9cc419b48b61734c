"""``AsyncMetaQ``: ``MetaQ`` for asyncio, with the same names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack

from metaq.client.async_consumer import AsyncGroupConsumer
from metaq.client.async_producer import AsyncProducer, AsyncXaBranch
from metaq.client.browser import Start
from metaq.client.cluster import ClusterView, GroupLag, PartitionInfo
from metaq.client.groups.metaq_group import broadcast
from metaq.client.groups.options import ConsumerOptions, MoreOptions
from metaq.client.metaq import MetaQ
from metaq.client.partitioners import Partitioner
from metaq.client.records import Received
from metaq.client.submissions import WINDOW_BYTES, OnOverflow
from metaq.client.transactions import Prepared
from metaq.model import Address, Message, Partition, Xid
from metaq.net.tls import TlsSettings
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts

if TYPE_CHECKING:
    import ssl

_BROWSED_AT_ONCE: Final = 500
"""Messages that a browser brings from its thread to the loop at a time."""


class AsyncMetaQ:
    """As ``MetaQ``, for ``async with``. The loop is the one that awaits; nothing is opened before.

    Consumers wait and fetch in the loop. What is asked rarely (brokers, topics, offsets) and what blocks by nature
    (files, databases, ZooKeeper) runs in threads.

    Raises:
        ValueError: ``cluster`` is neither a list of brokers nor a ZooKeeper.

    Examples:
        >>> async with AsyncMetaQ("127.0.0.1:8123") as mq:
        ...     await mq.producer().send("orders", "one tea")
        ...     async with mq.consumer("billing", ["orders"]) as consumer:
        ...         async for message in consumer:
        ...             print(message.data)
    """

    def __init__(self, cluster: str, *, timeouts: Timeouts = DEFAULT_TIMEOUTS, tls: TlsSettings | None = None) -> None:
        self._mq = MetaQ(cluster, timeouts=timeouts, tls=tls)
        self._context: ssl.SSLContext | None = None if tls is None else tls.context()

    def __repr__(self) -> str:
        return f"Async{self._mq!r}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what producers have taken, and close idle connections."""
        await asyncio.to_thread(self._mq.close)

    def producer(
        self,
        partitioner: Partitioner | None = None,
        *,
        linger_s: float = 0.0,
        window: int | str = WINDOW_BYTES,
        on_overflow: OnOverflow[Message] = "block",
    ) -> AsyncProducer:
        """Return a producer for any topic. Raises as ``MetaQ.producer``; with ``block`` a full window is awaited."""
        waits = on_overflow == "block"
        made = self._mq.producer(
            partitioner, linger_s=linger_s, window=window, on_overflow="raise" if waits else on_overflow
        )
        return AsyncProducer(made, wait_for_window=waits)

    def consumer(self, group: str, topics: Sequence[str], **options: Unpack[MoreOptions]) -> AsyncGroupConsumer:
        """Return a consumer of ``topics`` in ``group``, for ``async with``. Raises as ``MetaQ.consumer``."""
        given = ConsumerOptions(group=group, topics=topics, **options)
        return AsyncGroupConsumer(self._mq.consumers, given, self._context)

    def broadcast_consumer(
        self, group: str, topics: Sequence[str], **options: Unpack[MoreOptions]
    ) -> AsyncGroupConsumer:
        """Return a consumer that reads all partitions. Raises as ``MetaQ.consumer``."""
        given = ConsumerOptions(group=group, topics=topics, **options)
        return AsyncGroupConsumer(self._mq.consumers, broadcast(given, self._mq.consumers), self._context)

    async def browse(
        self, topic: str, *, partitions: Collection[Partition] | None = None, start: Start = "earliest"
    ) -> AsyncIterator[Received]:
        """Yield the messages of ``topic`` that are there. Raises as ``Browser``. To follow, use a consumer."""
        messages = iter(self._mq.browse(topic, partitions=partitions, start=start))
        try:
            while some := await asyncio.to_thread(lambda: list(islice(messages, _BROWSED_AT_ONCE))):
                for message in some:
                    yield message
        finally:
            await asyncio.to_thread(messages.close)

    def xa(self, global_id: bytes, branch: bytes, *, unique: str, timeout: int = 60) -> AsyncXaBranch:
        """Return a branch of an XA transaction for an ``async with`` block."""
        return AsyncXaBranch(self._mq.xa(global_id, branch, unique=unique, timeout=timeout))

    async def prepared(self, unique: str | None = None) -> list[Prepared]:
        """Return the prepared branches of all brokers."""
        return await asyncio.to_thread(self._mq.prepared, unique)

    async def commit(self, xid: Xid) -> None:
        """Commit a prepared branch. Raises as ``MetaQ.commit``."""
        await asyncio.to_thread(self._mq.commit, xid)

    async def rollback(self, xid: Xid) -> None:
        """Roll a prepared branch back. Raises as ``MetaQ.commit``."""
        await asyncio.to_thread(self._mq.rollback, xid)

    @property
    def cluster(self) -> AsyncClusterView:
        """What the cluster holds: topics, partitions, offsets, groups."""
        return AsyncClusterView(self._mq.cluster)


class AsyncClusterView:
    """As ``ClusterView``, which see; every call asks the brokers or ZooKeeper in a thread."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    async def brokers(self) -> dict[int, Address]:
        """Return broker id -> address to read from."""
        return await asyncio.to_thread(self._view.brokers)

    async def topics(self) -> dict[str, list[Partition]]:
        """Return each topic with its partitions that hold or held messages."""
        return await asyncio.to_thread(self._view.topics)

    async def describe(self, topic: str) -> list[PartitionInfo]:
        """Return the partitions of a topic, sorted."""
        return await asyncio.to_thread(self._view.describe, topic)

    async def offsets_at(self, topic: str, time_ms: int) -> dict[Partition, int]:
        """Return the offset of each partition's first message at or after ``time_ms``, else its end."""
        return await asyncio.to_thread(self._view.offsets_at, topic, time_ms)

    async def groups(self) -> list[str]:
        """Return the consumer groups that are known in ZooKeeper, sorted."""
        return await asyncio.to_thread(self._view.groups)

    async def lag(self, group: str, topics: Collection[str] | None = None) -> list[GroupLag]:
        """Return how far ``group`` is behind."""
        return await asyncio.to_thread(self._view.lag, group, topics)
