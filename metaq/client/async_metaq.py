"""``AsyncMetaQ``: ``MetaQ`` for asyncio, with the same names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Self, Unpack

from metaq.client.async_iteration import in_threads
from metaq.client.async_ordered import AsyncOrderedProducer
from metaq.client.async_producer import AsyncProducer, AsyncXaBranch
from metaq.client.browser import End, Start
from metaq.client.cluster import ClusterView, GroupLag, OffsetChange, PartitionInfo
from metaq.client.group_consumer import AsyncGroupConsumer
from metaq.client.groups.metaq_group import broadcast
from metaq.client.groups.options import ConsumerOptions, MoreOptions
from metaq.client.groups.parking import ParkedMessages
from metaq.client.groups.starts import Start as GroupStart
from metaq.client.metaq import MetaQ
from metaq.client.ordered import SEND_TIMEOUT_S
from metaq.client.partitioners import Partitioner
from metaq.client.profile import read_profile
from metaq.client.records import Received
from metaq.client.search import SCAN_MAX, Search
from metaq.client.shells import AsyncClient, behind_loop
from metaq.client.statistics import BrokerStatistics, TopicStatistics
from metaq.client.submissions import MAX_BLOCK_S, WINDOW_BYTES, OnOverflow
from metaq.client.thread_calls import call_in_thread
from metaq.client.transactions import Prepared
from metaq.model import Address, Message, Partition, Xid
from metaq.net.tls import TlsSettings
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts


class AsyncMetaQ(AsyncClient):
    """``MetaQ`` for ``async with``. Uses the running event loop; opens nothing before the first request.


    Consumers wait and fetch in the event loop. Rare requests (brokers, topics, offsets) and blocking work (files,
    databases, ZooKeeper) run in threads.

    Raises:
        ValueError: ``cluster`` is neither a list of brokers nor a ZooKeeper.

    Examples:
        >>> async with AsyncMetaQ("127.0.0.1:8123") as mq:
        ...     await mq.producer().send("orders", "one tea")
        ...     async with mq.consumer("billing", ["orders"]) as consumer:
        ...         async for message in consumer:
        ...             print(message.data)
    """

    def __init__(
        self,
        cluster: str | None = None,
        *,
        brokers: Sequence[str] | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        tls: TlsSettings | None = None,
    ) -> None:
        self._mq = MetaQ(cluster, brokers=brokers, timeouts=timeouts, tls=tls)
        super().__init__(self._mq)

    @classmethod
    def from_env(cls, profile: str | None = None) -> Self:
        """Return a client configured from the environment; see ``MetaQ.from_env``."""
        return cls(**read_profile(profile, None).metaq())

    def __repr__(self) -> str:
        return f"Async{self._mq!r}"

    def producer(
        self,
        partitioner: Partitioner | None = None,
        *,
        linger_s: float = 0.0,
        window: int | str = WINDOW_BYTES,
        on_overflow: OnOverflow[Message] = "block",
        max_block_s: float = MAX_BLOCK_S,
    ) -> AsyncProducer:
        """Return a producer for any topic. Raises as ``MetaQ.producer``. With ``on_overflow="block"``, ``submit``
        awaits space in the window.
        """
        behind, waits = behind_loop(on_overflow)
        made = self._mq.producer(
            partitioner, linger_s=linger_s, window=window, on_overflow=behind, max_block_s=max_block_s
        )
        return AsyncProducer(made, wait_for_window=waits)

    def ordered_producer(
        self,
        partitions: Mapping[str, str],
        spool: str | Path,
        *,
        partitioner: Partitioner | None = None,
        retry_s: float = 5.0,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> AsyncOrderedProducer:
        """Return a producer that keeps each partition's order, for ``async with``. Raises as
        ``MetaQ.ordered_producer``.
        """
        return AsyncOrderedProducer(
            self._mq.ordered_producer(
                partitions, spool, partitioner=partitioner, retry_s=retry_s, send_timeout_s=send_timeout_s
            )
        )

    def consumer(self, group: str, topics: Sequence[str], **options: Unpack[MoreOptions]) -> AsyncGroupConsumer:
        """Return a consumer of ``topics`` in ``group``, for ``async with``. Raises as ``MetaQ.consumer``."""
        given = ConsumerOptions(group=group, topics=topics, **options)
        return self._ends(AsyncGroupConsumer(self._mq.consumers, given))

    def broadcast_consumer(
        self, group: str, topics: Sequence[str], **options: Unpack[MoreOptions]
    ) -> AsyncGroupConsumer:
        """Return a consumer that reads all partitions. Raises as ``MetaQ.consumer``."""
        given = ConsumerOptions(group=group, topics=topics, **options)
        return self._ends(AsyncGroupConsumer(self._mq.consumers, broadcast(given, self._mq.consumers)))

    def browse(
        self,
        topic: str,
        *,
        partitions: Collection[Partition] | None = None,
        start: Start = "earliest",
        end: End | None = None,
        require_brokers: Collection[str | int] | None = None,
    ) -> AsyncIterator[Received]:
        """Yield the messages that ``topic`` holds now. Raises as ``Browser``. To follow a topic, use a consumer."""
        return in_threads(
            self._mq.browse(topic, partitions=partitions, start=start, end=end, require_brokers=require_brokers)
        )

    def search_id(self, topic: str, message_id: int, *, limit: int = SCAN_MAX) -> AsyncSearch:
        """Return a search for the message with an id, for ``async for``."""
        return AsyncSearch(self._mq.search_id(topic, message_id, limit=limit))

    def search_key(
        self,
        topic: str,
        key: str,
        *,
        partitions: Collection[Partition] | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: int = SCAN_MAX,
    ) -> AsyncSearch:
        """Return a search for messages with a key, for ``async for``; see ``MetaQ.search_key``."""
        return AsyncSearch(
            self._mq.search_key(topic, key, partitions=partitions, since_ms=since_ms, until_ms=until_ms, limit=limit)
        )

    def parked(self, group: str) -> ParkedMessages:
        """Return the messages that consumers of ``group`` parked. Reads a local file, and blocks for it."""
        return self._mq.parked(group)

    def xa(self, global_id: bytes, branch: bytes, *, unique: str, timeout: int = 60) -> AsyncXaBranch:
        """Return a branch of an XA transaction for an ``async with`` block."""
        return AsyncXaBranch(self._mq.xa(global_id, branch, unique=unique, timeout=timeout))

    async def prepared(self, unique: str | None = None) -> list[Prepared]:
        """Return the prepared branches of all brokers."""
        return await call_in_thread(self._mq.prepared, unique)

    async def commit(self, xid: Xid) -> None:
        """Commit a prepared branch. Raises as ``MetaQ.commit``."""
        await call_in_thread(self._mq.commit, xid)

    async def rollback(self, xid: Xid) -> None:
        """Roll a prepared branch back. Raises as ``MetaQ.commit``."""
        await call_in_thread(self._mq.rollback, xid)

    @property
    def cluster(self) -> AsyncClusterView:
        """What the cluster holds: topics, partitions, offsets, groups."""
        return AsyncClusterView(self._mq.cluster)


class AsyncClusterView:
    """``ClusterView`` for asyncio: every call asks the brokers or ZooKeeper in a thread."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def connections(self) -> int:
        """How many connections this client has opened; while it is the same, no broker was restarted."""
        return self._view.connections

    async def brokers(self) -> dict[int, Address]:
        """Return broker id -> address to read from."""
        return await call_in_thread(self._view.brokers)

    async def topics(self) -> dict[str, list[Partition]]:
        """Return each topic with its partitions that hold or held messages."""
        return await call_in_thread(self._view.topics)

    async def describe(self, topic: str) -> list[PartitionInfo]:
        """Return the partitions of a topic, sorted."""
        return await call_in_thread(self._view.describe, topic)

    async def offsets_at(self, topic: str, time_ms: int) -> dict[Partition, int]:
        """Return the offset of each partition's first message at or after ``time_ms``, else its end."""
        return await call_in_thread(self._view.offsets_at, topic, time_ms)

    async def servers(self) -> set[Address]:
        """Return the addresses of all brokers that are registered."""
        return await call_in_thread(self._view.servers)

    async def partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic that hold or accept messages, sorted."""
        return await call_in_thread(self._view.partitions, topic)

    async def writable(self, topic: str) -> list[Partition]:
        """Return the partitions that accept messages of a topic, sorted."""
        return await call_in_thread(self._view.writable, topic)

    async def statistics(self) -> list[BrokerStatistics]:
        return await call_in_thread(self._view.statistics)

    async def topic_statistics(self, topic: str) -> list[TopicStatistics]:
        return await call_in_thread(self._view.topic_statistics, topic)

    async def groups(self) -> list[str]:
        """Return the consumer groups that are known in ZooKeeper, sorted."""
        return await call_in_thread(self._view.groups)

    async def lag(self, group: str, topics: Collection[str] | None = None) -> list[GroupLag]:
        """Return how far ``group`` is behind."""
        return await call_in_thread(self._view.lag, group, topics)

    async def plan_reset(
        self, group: str, topic: str, start: GroupStart, partitions: Collection[Partition] | None = None
    ) -> list[OffsetChange]:
        """Return what a reset would change."""
        return await call_in_thread(self._view.plan_reset, group, topic, start, partitions)

    async def reset(self, group: str, changes: Collection[OffsetChange]) -> None:
        """Set the offsets of a group that is not running."""
        await call_in_thread(self._view.reset, group, changes)


class AsyncSearch:
    """``Search`` for ``async for``."""

    def __init__(self, search: Search) -> None:
        self._search = search

    @property
    def scanned(self) -> int:
        """How many messages were read."""
        return self._search.scanned

    @property
    def is_complete(self) -> bool:
        """Whether the search has read everything that could match."""
        return self._search.is_complete

    def __aiter__(self) -> AsyncIterator[Received]:
        return in_threads(self._search)
