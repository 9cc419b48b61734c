"""``AsyncMetaQ``: ``MetaQ`` for asyncio, with the same names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Self, Unpack

from metaq.client.async_producer import AsyncOrderedProducer, AsyncProducer, AsyncXaBranch
from metaq.client.browser import End, Start
from metaq.client.cluster import ClusterView
from metaq.client.group_consumer import AsyncGroupConsumer
from metaq.client.groups.metaq_group import broadcast
from metaq.client.groups.options import ConsumerOptions, MoreOptions
from metaq.client.groups.parking import ParkedMessages
from metaq.client.metaq import MetaQ
from metaq.client.ordered import SEND_TIMEOUT_S
from metaq.client.partitioners import Partitioner
from metaq.client.profile import read_profile
from metaq.client.records import Received
from metaq.client.search import SCAN_MAX, Search
from metaq.client.sending.submissions import MAX_BLOCK_S, WINDOW_BYTES, OnOverflow
from metaq.client.shells import AsyncClient, behind_loop
from metaq.client.threads.async_iteration import in_threads
from metaq.client.threads.thread_calls import InThreads, awaited
from metaq.model import Message, Partition
from metaq.net.tls import TlsSettings
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts


class AsyncMetaQ(AsyncClient[MetaQ]):
    """``MetaQ`` for ``async with``. Uses the running event loop; opens nothing before the first request.

    Producers and consumers wait in the event loop; threads send, fetch, and do everything else that blocks.

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
        super().__init__(MetaQ(cluster, brokers=brokers, timeouts=timeouts, tls=tls))

    @classmethod
    def from_env(cls, profile: str | None = None) -> Self:
        """Return a client configured from the environment; see ``MetaQ.from_env``."""
        return cls(**read_profile(profile, None).metaq())

    def __repr__(self) -> str:
        return f"Async{self._blocking!r}"

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
        made = self._blocking.producer(
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
            self._blocking.ordered_producer(
                partitions, spool, partitioner=partitioner, retry_s=retry_s, send_timeout_s=send_timeout_s
            )
        )

    def consumer(self, group: str, topics: Sequence[str], **options: Unpack[MoreOptions]) -> AsyncGroupConsumer:
        """Return a consumer of ``topics`` in ``group``, for ``async with``. Raises as ``MetaQ.consumer``."""
        given = ConsumerOptions(group=group, topics=topics, **options)
        return self._ends(AsyncGroupConsumer(self._blocking.consumers, given))

    def broadcast_consumer(
        self, group: str, topics: Sequence[str], **options: Unpack[MoreOptions]
    ) -> AsyncGroupConsumer:
        """Return a consumer that reads all partitions. Raises as ``MetaQ.consumer``."""
        given = ConsumerOptions(group=group, topics=topics, **options)
        return self._ends(AsyncGroupConsumer(self._blocking.consumers, broadcast(given, self._blocking.consumers)))

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
            self._blocking.browse(topic, partitions=partitions, start=start, end=end, require_brokers=require_brokers)
        )

    def search_id(
        self, topic: str, message_id: int, *, partitions: Collection[Partition] | None = None, limit: int = SCAN_MAX
    ) -> AsyncSearch:
        """Return a search for the message with an id, for ``async for``."""
        return AsyncSearch(self._blocking.search_id(topic, message_id, partitions=partitions, limit=limit))

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
            self._blocking.search_key(
                topic, key, partitions=partitions, since_ms=since_ms, until_ms=until_ms, limit=limit
            )
        )

    def parked(self, group: str) -> ParkedMessages:
        """Return the messages that consumers of ``group`` rejected and parked on this machine.

        They are in a local file, for which the loop waits, and which can also be read when the client is closed.
        """
        return self._blocking.parked(group)

    def xa(self, global_id: bytes, branch: bytes, *, unique: str, timeout: int = 60) -> AsyncXaBranch:
        """Return a branch of an XA transaction for an ``async with`` block."""
        return AsyncXaBranch(self._blocking.xa(global_id, branch, unique=unique, timeout=timeout))

    prepared = awaited(MetaQ.prepared)
    last_decided = awaited(MetaQ.last_decided)
    commit = awaited(MetaQ.commit)
    rollback = awaited(MetaQ.rollback)

    @property
    def cluster(self) -> AsyncClusterView:
        """What the cluster holds: topics, partitions, offsets, groups."""
        return AsyncClusterView(self._blocking.cluster)


class AsyncClusterView(InThreads[ClusterView]):
    """``ClusterView`` for asyncio: every call asks the brokers or ZooKeeper in a thread."""

    @property
    def connections(self) -> int:
        """How many connections this client has opened; while it is the same, no broker was restarted."""
        return self._blocking.connections

    brokers = awaited(ClusterView.brokers)
    topics = awaited(ClusterView.topics)
    topic_sizes = awaited(ClusterView.topic_sizes)
    describe = awaited(ClusterView.describe)
    offsets_at = awaited(ClusterView.offsets_at)
    servers = awaited(ClusterView.servers)
    partitions = awaited(ClusterView.partitions)
    writable = awaited(ClusterView.writable)
    statistics = awaited(ClusterView.statistics)
    topic_statistics = awaited(ClusterView.topic_statistics)
    groups = awaited(ClusterView.groups)
    lag = awaited(ClusterView.lag)
    plan_reset = awaited(ClusterView.plan_reset)
    reset = awaited(ClusterView.reset)


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
