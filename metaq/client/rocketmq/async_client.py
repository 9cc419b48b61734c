"""``AsyncRocketMQ``: ``RocketMQ`` for asyncio, with the same names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Self, Unpack

from metaq.backends.rocketmq.pool import Credentials
from metaq.backends.rocketmq.reads.pulls import GROUP
from metaq.backends.rocketmq.remoting import HEARTBEAT_S
from metaq.client.browser import End, Start
from metaq.client.partitioners import Partitioner
from metaq.client.profile import read_profile
from metaq.client.rocketmq.async_producer import AsyncCheck, AsyncRocketProducer, AsyncTransactionalProducer
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.cluster import RocketClusterView
from metaq.client.rocketmq.group_consumer import AsyncRocketConsumer
from metaq.client.rocketmq.groups.options import MoreRocketOptions, RocketOptions
from metaq.client.rocketmq.groups.parking import RocketParkedMessages
from metaq.client.rocketmq.groups.rocketmq_group import broadcast
from metaq.client.rocketmq.lookup import MessageLookup
from metaq.client.rocketmq.producer import DEFAULT_GROUP, SendOptions
from metaq.client.rocketmq.records import RocketReceived
from metaq.client.rocketmq.topics import TopicAdministration
from metaq.client.rocketmq.transactions import CHECK_WORKERS
from metaq.client.shells import AsyncClient, behind_loop
from metaq.client.threads.async_iteration import in_threads
from metaq.client.threads.thread_calls import InThreads, awaited
from metaq.model import Partition
from metaq.net.tls import TlsSettings
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts


class AsyncRocketMQ(AsyncClient[RocketMQ]):
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
        super().__init__(
            RocketMQ(name_servers, credentials=credentials, namespace=namespace, timeouts=timeouts, tls=tls)
        )

    @classmethod
    def from_env(cls, profile: str | None = None) -> Self:
        """Return a client configured from the environment; see ``RocketMQ.from_env``."""
        return cls(**read_profile(profile, None).rocketmq())

    def __repr__(self) -> str:
        return f"Async{self._blocking!r}"

    def producer(
        self, partitioner: Partitioner | None = None, *, group: str = DEFAULT_GROUP, **options: Unpack[SendOptions]
    ) -> AsyncRocketProducer:
        """Return a producer for any topic. Raises as ``RocketMQ.producer``. With ``on_overflow="block"``, ``submit``
        awaits space in the window.
        """
        options["on_overflow"], waits = behind_loop(options.get("on_overflow", "block"))
        return AsyncRocketProducer(self._blocking.producer(partitioner, group=group, **options), wait_for_window=waits)

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
            lambda check: self._blocking.transactional_producer(
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
            self._blocking.browse(
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
        return self._ends(
            AsyncRocketConsumer(self._blocking.consumers, RocketOptions(group=group, topics=topics, **options))
        )

    def broadcast_consumer(
        self, group: str, topics: Sequence[str], **options: Unpack[MoreRocketOptions]
    ) -> AsyncRocketConsumer:
        """Return a consumer that reads all queues, whatever others read. See ``RocketMQ.broadcast_consumer``."""
        given = RocketOptions(group=group, topics=topics, **options)
        return self._ends(AsyncRocketConsumer(self._blocking.consumers, broadcast(given, self._blocking.consumers)))

    def parked(self, group: str) -> RocketParkedMessages:
        """Return the messages that consumers of ``group`` rejected and parked on this machine.

        They are in a local file, for which the loop waits, and which can also be read when the client is closed.
        """
        return self._blocking.parked(group)

    @property
    def cluster(self) -> AsyncRocketClusterView:
        """A view of the cluster: topics, queues, offsets, and the lag of groups."""
        return AsyncRocketClusterView(self._blocking.cluster)

    @property
    def lookup(self) -> AsyncLookup:
        """Finds single messages by id or by key."""
        return AsyncLookup(self._blocking.lookup)

    @property
    def topics(self) -> AsyncTopics:
        """Creates, changes and deletes topics."""
        return AsyncTopics(self._blocking.topics)


class AsyncRocketClusterView(InThreads[RocketClusterView]):
    """``RocketClusterView`` for asyncio; every call asks the servers in a thread."""

    @property
    def connections(self) -> int:
        """How many connections this client has opened; while it is the same, no broker was restarted."""
        return self._blocking.connections

    servers = awaited(RocketClusterView.servers)
    partitions = awaited(RocketClusterView.partitions)
    writable = awaited(RocketClusterView.writable)
    statistics = awaited(RocketClusterView.statistics)
    topic_statistics = awaited(RocketClusterView.topic_statistics)
    brokers = awaited(RocketClusterView.brokers)
    topics = awaited(RocketClusterView.topics)
    topic_messages = awaited(RocketClusterView.topic_messages)
    topic_rates = awaited(RocketClusterView.topic_rates)
    describe = awaited(RocketClusterView.describe)
    offsets_at = awaited(RocketClusterView.offsets_at)
    groups = awaited(RocketClusterView.groups)
    members = awaited(RocketClusterView.members)
    plan_reset = awaited(RocketClusterView.plan_reset)
    reset = awaited(RocketClusterView.reset)
    lag = awaited(RocketClusterView.lag)
    create_topic = awaited(RocketClusterView.create_topic)
    delete_topic = awaited(RocketClusterView.delete_topic)


class AsyncLookup(InThreads[MessageLookup]):
    """``MessageLookup`` for asyncio."""

    by_id = awaited(MessageLookup.by_id)
    by_key = awaited(MessageLookup.by_key)


class AsyncTopics(InThreads[TopicAdministration]):
    """``TopicAdministration`` for asyncio."""

    create = awaited(TopicAdministration.create)
    settings = awaited(TopicAdministration.settings)
    alter = awaited(TopicAdministration.alter)
    delete = awaited(TopicAdministration.delete)
