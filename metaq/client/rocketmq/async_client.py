"""``AsyncRocketMQ``: ``RocketMQ`` for asyncio, with the same names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Self, Unpack

from metaq.backends.rocketmq.pool import Credentials
from metaq.backends.rocketmq.pulls import GROUP
from metaq.backends.rocketmq.remoting import HEARTBEAT_S
from metaq.client.async_iteration import in_threads
from metaq.client.browser import End, Start
from metaq.client.cluster import OffsetChange
from metaq.client.partitioners import Partitioner
from metaq.client.profile import read_profile
from metaq.client.rocketmq.async_admin import AsyncLookup, AsyncTopics
from metaq.client.rocketmq.async_producer import AsyncCheck, AsyncRocketProducer, AsyncTransactionalProducer
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.cluster import QueueInfo, QueueLag, RocketClusterView
from metaq.client.rocketmq.group_consumer import AsyncRocketConsumer
from metaq.client.rocketmq.groups.options import MoreRocketOptions, RocketOptions
from metaq.client.rocketmq.groups.parking import RocketParkedMessages
from metaq.client.rocketmq.groups.rocketmq_group import broadcast
from metaq.client.rocketmq.producer import DEFAULT_GROUP, SendOptions
from metaq.client.rocketmq.records import RocketReceived
from metaq.client.rocketmq.statistics import QueueStatistics, RocketBrokerStatistics
from metaq.client.rocketmq.transactions import CHECK_WORKERS
from metaq.client.shells import AsyncClient, behind_loop
from metaq.client.thread_calls import call_in_thread
from metaq.model import Address, Partition
from metaq.net.tls import TlsSettings
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts


class AsyncRocketMQ(AsyncClient):
    """``RocketMQ`` for ``async with``. Uses the running event loop; opens nothing before the first request.

    Raises:
        ValueError: ``name_servers`` is not a list of addresses.

    Examples:
        >>> async with AsyncRocketMQ("127.0.0.1:9876") as mq:
        ...     await mq.producer().send("orders", "one tea", tag="hot")
        ...     async for message in mq.browse("orders", tags="hot || cold"):
        ...         print(message.tag, message.data)
    """

    def __init__(
        self,
        name_servers: str,
        *,
        credentials: Credentials | None = None,
        namespace: str | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        tls: TlsSettings | None = None,
    ) -> None:
        self._mq = RocketMQ(name_servers, credentials=credentials, namespace=namespace, timeouts=timeouts, tls=tls)
        super().__init__(self._mq)

    @classmethod
    def from_env(cls, profile: str | None = None) -> Self:
        """Return a client configured from the environment; see ``RocketMQ.from_env``."""
        return cls(**read_profile(profile, None).rocketmq())

    def __repr__(self) -> str:
        return f"Async{self._mq!r}"

    def producer(
        self, partitioner: Partitioner | None = None, *, group: str = DEFAULT_GROUP, **options: Unpack[SendOptions]
    ) -> AsyncRocketProducer:
        """Return a producer for any topic. Raises as ``RocketMQ.producer``. With ``on_overflow="block"``, ``submit``
        awaits space in the window.
        """
        options["on_overflow"], waits = behind_loop(options.get("on_overflow", "block"))
        return AsyncRocketProducer(self._mq.producer(partitioner, group=group, **options), wait_for_window=waits)

    def transactional_producer(
        self,
        group: str,
        check: AsyncCheck,
        partitioner: Partitioner | None = None,
        *,
        check_workers: int = CHECK_WORKERS,
        heartbeat_s: float = HEARTBEAT_S,
        **options: Unpack[SendOptions],
    ) -> AsyncTransactionalProducer:
        """Return a producer with transactions, for ``async with``. Raises as ``RocketMQ.transactional_producer``.

        ``check`` may be a coroutine function.
        """
        options["on_overflow"], waits = behind_loop(options.get("on_overflow", "block"))
        return AsyncTransactionalProducer(
            lambda check: self._mq.transactional_producer(
                *(group, check, partitioner), check_workers=check_workers, heartbeat_s=heartbeat_s, **options
            ),
            check,
            waits=waits,
        )

    def browse(
        self,
        topic: str,
        *,
        partitions: Collection[Partition] | None = None,
        start: Start = "earliest",
        end: End | None = None,
        tags: str = "*",
        sql: str | None = None,
        group: str = GROUP,
        require_brokers: Collection[str | int] | None = None,
    ) -> AsyncIterator[RocketReceived]:
        """Yield the messages that ``topic`` holds now. Raises as ``RocketMQ.browse`` and ``RocketBrowser``."""
        return in_threads(
            self._mq.browse(
                topic,
                partitions=partitions,
                start=start,
                end=end,
                tags=tags,
                sql=sql,
                group=group,
                require_brokers=require_brokers,
            )
        )

    def consumer(self, group: str, topics: Sequence[str], **options: Unpack[MoreRocketOptions]) -> AsyncRocketConsumer:
        """Return a consumer of ``topics`` in ``group``, for ``async with``. See ``RocketMQ.consumer``."""
        return self._ends(AsyncRocketConsumer(self._mq.consumers, RocketOptions(group=group, topics=topics, **options)))

    def broadcast_consumer(
        self, group: str, topics: Sequence[str], **options: Unpack[MoreRocketOptions]
    ) -> AsyncRocketConsumer:
        """Return a consumer that reads all queues, whatever others read. See ``RocketMQ.broadcast_consumer``."""
        given = RocketOptions(group=group, topics=topics, **options)
        return self._ends(AsyncRocketConsumer(self._mq.consumers, broadcast(given, self._mq.consumers)))

    def parked(self, group: str) -> RocketParkedMessages:
        """Return the messages that consumers of ``group`` rejected and parked on this machine."""
        return self._mq.parked(group)

    @property
    def cluster(self) -> AsyncRocketClusterView:
        """A view of the cluster: topics, queues, offsets, and the lag of groups."""
        return AsyncRocketClusterView(self._mq.cluster)

    @property
    def lookup(self) -> AsyncLookup:
        """Finds single messages by id or by key."""
        return AsyncLookup(self._mq.lookup)

    @property
    def topics(self) -> AsyncTopics:
        """Creates, changes and deletes topics."""
        return AsyncTopics(self._mq.topics)


class AsyncRocketClusterView:
    """``RocketClusterView`` for asyncio; every call asks the servers in a thread."""

    def __init__(self, view: RocketClusterView) -> None:
        self._view = view

    @property
    def connections(self) -> int:
        """How many connections this client has opened; while it is the same, no broker was restarted."""
        return self._view.connections

    async def servers(self) -> set[Address]:
        """Return the addresses of all servers, as ``RocketClusterView.servers`` does."""
        return await call_in_thread(self._view.servers)

    async def partitions(self, topic: str) -> list[Partition]:
        """Return the queues of a topic that may be read, sorted."""
        return await call_in_thread(self._view.partitions, topic)

    async def writable(self, topic: str) -> list[Partition]:
        """Return the queues of a topic that may be written to, sorted."""
        return await call_in_thread(self._view.writable, topic)

    async def statistics(self) -> list[RocketBrokerStatistics]:
        return await call_in_thread(self._view.statistics)

    async def topic_statistics(self, topic: str) -> list[QueueStatistics]:
        return await call_in_thread(self._view.topic_statistics, topic)

    async def brokers(self) -> dict[str, Address]:
        """Return broker name -> address to read from, for brokers with at least one user topic."""
        return await call_in_thread(self._view.brokers)

    async def topics(self) -> dict[str, list[Partition]]:
        """Return each topic with its queues that may be read."""
        return await call_in_thread(self._view.topics)

    async def describe(self, topic: str) -> list[QueueInfo]:
        """Return the queues of a topic that may be read, sorted."""
        return await call_in_thread(self._view.describe, topic)

    async def offsets_at(self, topic: str, time_ms: int) -> dict[Partition, int]:
        """Return the offset of each queue's first message stored at or after ``time_ms`` (since 1970), else its end."""
        return await call_in_thread(self._view.offsets_at, topic, time_ms)

    async def groups(self) -> list[str]:
        """Return the consumer groups that the brokers know, sorted; without RocketMQ's own."""
        return await call_in_thread(self._view.groups)

    async def members(self, group: str) -> list[str]:
        """Return the ids of the consumers of ``group`` that are running, sorted."""
        return await call_in_thread(self._view.members, group)

    async def plan_reset(
        self, group: str, topic: str, start: Start, partitions: Collection[Partition] | None = None
    ) -> list[OffsetChange]:
        """Return the changes for ``reset`` that make ``group`` begin at ``start``."""
        return await call_in_thread(self._view.plan_reset, group, topic, start, partitions)

    async def reset(self, group: str, changes: Collection[OffsetChange]) -> None:
        """Set the offsets of a group that is not running."""
        await call_in_thread(self._view.reset, group, changes)

    async def lag(self, group: str, topics: Collection[str] | None = None) -> list[QueueLag]:
        """Return the lag of ``group`` in ``topics``, by default in all topics for which the brokers have its
        offsets.
        """
        return await call_in_thread(self._view.lag, group, topics)

    async def create_topic(self, topic: str, queues: int = 8) -> dict[str, Address]:
        """Create a topic with ``queues`` queues at the master of every broker; return the brokers."""
        return await call_in_thread(self._view.create_topic, topic, queues)

    async def delete_topic(self, topic: str) -> dict[str, Address]:
        """Delete a topic with its messages at the master of every broker; return the brokers."""
        return await call_in_thread(self._view.delete_topic, topic)
