"""``RocketMQ``: the object with which a program sends to, reads from and inspects a cluster of RocketMQ brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final, Self, Unpack

from metaq.backends.rocketmq.pool import Credentials, SessionPool
from metaq.backends.rocketmq.reads.pulls import GROUP, Subscription
from metaq.backends.rocketmq.remoting import HEARTBEAT_S, member_client
from metaq.client.browser import End, Start
from metaq.client.checkup.findings import Finding
from metaq.client.groups.parking import PARKED_FILE
from metaq.client.partitioners import Partitioner
from metaq.client.profile import read_profile
from metaq.client.rocketmq.browser import RocketBrowser
from metaq.client.rocketmq.check_backs import Check
from metaq.client.rocketmq.cluster import RocketClusterView
from metaq.client.rocketmq.group_consumer import RocketGroupConsumer
from metaq.client.rocketmq.groups.options import MoreRocketOptions, RocketOptions
from metaq.client.rocketmq.groups.parking import RocketParkedMessages
from metaq.client.rocketmq.groups.rocketmq_group import RocketCluster, broadcast
from metaq.client.rocketmq.lookup import MessageLookup
from metaq.client.rocketmq.presence import Presence
from metaq.client.rocketmq.producer import DEFAULT_GROUP, RocketProducer, SendOptions
from metaq.client.rocketmq.topics import TopicAdministration
from metaq.client.rocketmq.transactions import CHECK_WORKERS, TransactionalProducer
from metaq.client.shells import BlockingClient
from metaq.discovery.base import Away, nobody
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.model import Partition
from metaq.net.reach import Reach
from metaq.net.retry import election_policy
from metaq.net.tls import TlsSettings
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts


class RocketMQ(BlockingClient):
    """A client of the brokers registered at ``name_servers``, ``host:port;host:port``.

    A proxy's remoting port also works as a name server. ``credentials`` are an account's keys; ``namespace`` prefixes
    topics and groups. Nothing is opened before the first use; leaving the ``with`` block closes all connections.
    Methods and their results may be used by several threads, a browser by one at a time.
    ``away`` is for programs that watch servers: it returns the servers that are not asked at the moment.

    Raises:
        ValueError: ``name_servers`` is not a list of addresses.

    Examples:
        >>> with RocketMQ("127.0.0.1:9876") as mq:
        ...     mq.producer().send("orders", "one tea", tag="hot")
        ...     for message in mq.browse("orders", tags="hot || cold"):
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
        away: Away = nobody,
    ) -> None:
        self._name_servers = name_servers
        self._credentials, self._timeouts, self._tls = credentials, timeouts, tls
        self._pool = SessionPool(timeouts, Reach(timeouts, tls).transport(), credentials=credentials)
        super().__init__(self._pool)
        make = partial(NameServerDirectory, parse_name_servers(name_servers), self._pool, namespace=namespace)
        self._directory = make(policy=election_policy(timeouts))
        self._seen = self._directory if away is nobody else make(away=away)
        self._presence = Presence(self._directory, lambda: member_client(timeouts, tls, credentials))
        self.consumers: Final = RocketCluster(name_servers, make(), self._pool, credentials, tls)
        """The parts of the cluster that consumers use."""

    @classmethod
    def from_env(cls, profile: str | None = None) -> Self:
        """Return a client configured from the environment: ``$METAQ_CLUSTER``, and the profile ``profile`` or
        ``$METAQ_PROFILE``; see ``metaq.client.profile``.

        Raises:
            ProfileError: The profile cannot be used.
            ValueError: The profile is for MetaQ.
        """
        return cls(**read_profile(profile, None).rocketmq())

    def __repr__(self) -> str:
        return f"RocketMQ({self._name_servers!r})"

    def _end_all(self, timeout: float | None) -> None:
        super()._end_all(timeout)
        self._presence.close()

    def producer(
        self, partitioner: Partitioner | None = None, *, group: str = DEFAULT_GROUP, **options: Unpack[SendOptions]
    ) -> RocketProducer:
        """Return a producer for any topic; see ``RocketProducer`` and ``metaq.client.partitioners``.

        Raises:
            ValueError: An option is outside its allowed range.
        """
        self._require_open()
        return self._ends(
            RocketProducer(*(self._directory, self._pool, partitioner), group=group, presence=self._presence, **options)
        )

    def transactional_producer(
        self,
        group: str,
        check: Check,
        partitioner: Partitioner | None = None,
        *,
        check_workers: int = CHECK_WORKERS,
        heartbeat_s: float = HEARTBEAT_S,
        **options: Unpack[SendOptions],
    ) -> TransactionalProducer:
        """Return a producer with transactions, a member of ``group``; see ``TransactionalProducer``.

        Raises:
            ValueError, TypeError: An option is outside its allowed range.
        """
        self._require_open()
        client = member_client(self._timeouts, self._tls, self._credentials)
        return self._ends(
            TransactionalProducer(
                *(self._directory, self._pool, client, group, check, partitioner),
                check_workers=check_workers,
                heartbeat_s=heartbeat_s,
                **options,
            )
        )

    def browse(
        self,
        topic: str,
        *,
        partitions: Collection[Partition] | None = None,
        start: Start = "earliest",
        end: End | None = None,
        follow: bool = False,
        tags: str = "*",
        sql: str | None = None,
        group: str = GROUP,
        require_brokers: Collection[str | int] | None = None,
    ) -> RocketBrowser:
        """Return the messages of ``topic`` as an iterator, with ``follow`` one that waits for more; see its class.

        ``tags``: ``*``, or the wanted tags separated by ``||``. ``sql``: a condition over properties instead, for
        brokers that are configured to filter by SQL.

        Raises:
            ValueError: ``tags`` or ``sql`` is not a valid filter, or both are given.
        """
        self._require_open()
        return RocketBrowser(
            self._seen, self._pool, topic, partitions=partitions, start=start, end=end, follow=follow,
            subscription=Subscription.of(tags, sql), group=group, require_brokers=require_brokers,
        )  # fmt: skip

    def consumer(self, group: str, topics: Sequence[str], **options: Unpack[MoreRocketOptions]) -> RocketGroupConsumer:
        """Return a consumer of ``topics`` in ``group``; see ``RocketGroupConsumer``, and ``RocketOptions``.

        Raises:
            ValueError, TypeError: An option is outside its allowed range.
        """
        self._require_open()
        return self._ends(RocketGroupConsumer(self.consumers, RocketOptions(group=group, topics=topics, **options)))

    def broadcast_consumer(
        self, group: str, topics: Sequence[str], **options: Unpack[MoreRocketOptions]
    ) -> RocketGroupConsumer:
        """Return a consumer that reads all queues, whatever others read. Raises as ``consumer``.

        Offsets are in a file of this machine, unless ``offsets`` names another storage; rejected messages are parked.
        """
        self._require_open()
        given = RocketOptions(group=group, topics=topics, **options)
        return self._ends(RocketGroupConsumer(self.consumers, broadcast(given, self.consumers)))

    def parked(self, group: str) -> RocketParkedMessages:
        """Return the messages that consumers of ``group`` rejected and parked on this machine.

        They are in a local file, which can also be read when the client is closed.
        """
        self._require_open()
        return RocketParkedMessages(self.consumers.state_folder / PARKED_FILE, group)

    def checkup(self, timeout: float = 5.0) -> Iterator[Finding]:
        """Check the name servers and each broker, and yield the findings; a step takes ``timeout`` seconds at most.

        Servers that do not answer are findings, not errors.
        """
        self._require_open()
        from metaq.client.checkup.reach import ConnectSettings
        from metaq.client.checkup.rocketmq import RocketmqCheckup

        connect_settings = ConnectSettings(self._tls, timeout)
        checkup = RocketmqCheckup(self._directory.servers, connect_settings, self._credentials)
        return self._while_open(checkup.findings())

    @property
    def cluster(self) -> RocketClusterView:
        """A view of the cluster: topics, queues, offsets, and the lag of groups."""
        self._require_open()
        return RocketClusterView(self._seen, self._pool)

    @property
    def lookup(self) -> MessageLookup:
        """Finds single messages by id or by key."""
        self._require_open()
        return MessageLookup(self._seen, self._pool)

    @property
    def topics(self) -> TopicAdministration:
        """Creates, changes and deletes topics."""
        self._require_open()
        return TopicAdministration(self._directory, self._pool)
