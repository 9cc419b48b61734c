"""``MetaQ``: the object with which a program sends to, reads from and inspects a cluster of MetaQ brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self, Unpack

from metaq import ports
from metaq.backends.metaq.pool import SessionPool
from metaq.client.browser import Browser, End, Start
from metaq.client.checkup.findings import Finding
from metaq.client.cluster import ClusterView
from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.metaq_group import MetaqCluster, broadcast
from metaq.client.groups.options import ConsumerOptions, MoreOptions
from metaq.client.groups.parking import PARKED_FILE, ParkedMessages
from metaq.client.ordered import SEND_TIMEOUT_S, OrderedProducer
from metaq.client.partitioners import Partitioner
from metaq.client.producer import Producer
from metaq.client.profile import read_profile
from metaq.client.relay import Relay
from metaq.client.search import SCAN_MAX, Search, by_id, by_key
from metaq.client.sending.submissions import MAX_BLOCK_S, WINDOW_BYTES, OnOverflow
from metaq.client.shells import BlockingClient
from metaq.client.transactions import LastBatch, Prepared, PreparedBranches, XaBranch
from metaq.discovery.base import Away, nobody
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.kept import KeptDirectory
from metaq.discovery.survey import SurveyedDirectory
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.model import Address, Message, Partition, Xid
from metaq.net.reach import Reach
from metaq.net.retry import election_policy
from metaq.net.tls import TlsSettings
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts

ZOOKEEPER_SCHEME = "zk://"
XA_FORMAT: Final = 0x4D51
"""Format id in the XA transaction ids that this client makes."""
EXAMPLE = f"{ports.METAQ_HERE}, or zk://127.0.0.1:{ports.ZOOKEEPER}/meta"


class MetaQ(BlockingClient):
    """A client of a cluster: the brokers at ``cluster``, or all brokers registered in ZooKeeper.

    ``cluster`` is ``host:port,host:port`` or ``zk://host:port,host:port/root``; ``brokers`` is a list of ``host:port``
    instead. Nothing is opened before the first use; leaving the ``with`` block closes all connections. Methods and
    their results may be used by several threads, a producer or browser by one at a time.
    ``away`` is for programs that watch servers: it returns the servers that are not asked at the moment.

    Raises:
        ValueError: ``cluster`` has neither form, or not exactly one of the two is given.
        TypeError: ``brokers`` is not a list.

    Examples:
        >>> with MetaQ("127.0.0.1:8123") as mq:
        ...     mq.producer().send("orders", "one tea")
        ...     for message in mq.browse("orders"):
        ...         print(message.data)
    """

    def __init__(
        self,
        cluster: str | None = None,
        *,
        brokers: Sequence[str] | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        tls: TlsSettings | None = None,
        away: Away = nobody,
    ) -> None:
        self._cluster = cluster = _named(cluster, brokers)
        self._pool = SessionPool(timeouts, Reach(timeouts, tls).transport())
        super().__init__(self._pool)
        self._zookeeper: ZooKeeperAddress | None = None
        if cluster.startswith(ZOOKEEPER_SCHEME):
            self._zookeeper = _zookeeper_address(cluster)
            cache = TreeCache(self._zookeeper, timeouts.connect_s)
            make: Callable[..., SurveyedDirectory] = partial(ZooKeeperDirectory, cache, self._pool)
        else:
            make = partial(FixedDirectory, _addresses(cluster), self._pool)
        self._directory = make(election_policy(timeouts))
        self._directory_now = make()  # for what waits by itself, without a limit, and must not be held up
        self._seen = self._directory if away is nobody else make(away=away)
        self._timeouts, self._tls = timeouts, tls
        self.consumers: Final = MetaqCluster(cluster, self._directory_now, self._pool, self._zookeeper)
        """The parts of the cluster that consumers use."""

    @classmethod
    def from_env(cls, profile: str | None = None) -> Self:
        """Return a client configured from the environment: ``$METAQ_CLUSTER``, and the profile ``profile`` or
        ``$METAQ_PROFILE``; see ``metaq.client.profile``.

        Raises:
            ProfileError: The profile cannot be used.
            ValueError: The profile is for RocketMQ.
        """
        return cls(**read_profile(profile, None).metaq())

    def __repr__(self) -> str:
        return f"MetaQ({self._cluster!r})"

    def producer(
        self,
        partitioner: Partitioner | None = None,
        *,
        linger_s: float = 0.0,
        window: int | str = WINDOW_BYTES,
        on_overflow: OnOverflow[Message] = "block",
        max_block_s: float = MAX_BLOCK_S,
    ) -> Producer:
        """Return a producer for any topic; see ``Producer`` and ``metaq.client.partitioners``.

        Raises:
            ValueError: An option is outside its allowed range.
        """
        self._require_open()
        return self._ends(
            Producer(
                *(self._directory, self._pool, partitioner),
                linger_s=linger_s,
                window=window,
                on_overflow=on_overflow,
                max_block_s=max_block_s,
            )
        )

    def ordered_producer(
        self,
        partitions: Mapping[str, str],
        spool: str | Path,
        *,
        partitioner: Partitioner | None = None,
        retry_s: float = 5.0,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> OrderedProducer:
        """Return a producer that keeps each partition's order while brokers are away, for a ``with`` block.

        ``partitions``: topic -> its fixed partitions, such as ``0:4;1:4``. ``spool``: the file for messages that must
        wait.

        Raises:
            ValueError: The partitions, ``retry_s`` or ``send_timeout_s`` are not valid.
        """
        self._require_open()
        return self._ends(
            OrderedProducer(
                *(self._directory_now, self._pool, partitions, Path(spool)),
                partitioner=partitioner,
                retry_s=retry_s,
                send_timeout_s=send_timeout_s,
            )
        )

    def xa(self, global_id: bytes, branch: bytes, *, unique: str, timeout: int = 60) -> XaBranch:
        """Return a branch of an XA transaction for a ``with`` block; ``unique`` names the program's resource."""
        return self.producer().xa(Xid(XA_FORMAT, global_id, branch, unique), timeout)

    def prepared(self, unique: str | None = None) -> list[Prepared]:
        """Return the prepared branches of all brokers, each with its broker."""
        return PreparedBranches(self._seen, self._pool).all(unique)

    def last_decided(self, query_ids: Collection[str]) -> list[LastBatch]:
        """Return, for Spark queries that write exactly once, the last batch that each broker has decided (*ours*)."""
        return PreparedBranches(self._seen, self._pool).decided(query_ids)

    def commit(self, xid: Xid) -> None:
        """Commit a prepared branch.

        Raises:
            TransactionNotFound: No broker has it.
            TransactionError, ConnectionFailed, DeadlineExceeded: A broker refused, or could not be reached.
        """
        PreparedBranches(self._directory, self._pool).end(xid, commit=True)

    def rollback(self, xid: Xid) -> None:
        """Roll a prepared branch back. Raises as ``commit``."""
        PreparedBranches(self._directory, self._pool).end(xid, commit=False)

    def browse(
        self,
        topic: str,
        *,
        partitions: Collection[Partition] | None = None,
        start: Start = "earliest",
        end: End | None = None,
        follow: bool = False,
        require_brokers: Collection[str | int] | None = None,
    ) -> Browser:
        """Return the messages of ``topic`` as an iterator, with ``follow`` one that waits for more; see ``Browser``."""
        self._require_open()
        return Browser(
            self._seen, self._pool, topic, partitions=partitions, start=start, end=end, follow=follow,
            require_brokers=require_brokers,
        )  # fmt: skip

    def search_id(
        self, topic: str, message_id: int, *, partitions: Collection[Partition] | None = None, limit: int = SCAN_MAX
    ) -> Search:
        """Return a search for the message with an id, which reads up to ``limit`` messages; see ``Search``."""
        self._require_open()
        return by_id(self._seen, self._pool, topic, message_id, partitions=partitions, limit=limit)

    def search_key(
        self,
        topic: str,
        key: str,
        *,
        partitions: Collection[Partition] | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: int = SCAN_MAX,
    ) -> Search:
        """Return a search for messages with the attribute ``key``, or with that key if a RocketMQ client sent them.

        ``since_ms`` and ``until_ms`` (ms since 1970) limit the time at which the broker stored them.
        """
        self._require_open()
        return by_key(
            self._seen, self._pool, topic, key,
            partitions=partitions, since_ms=since_ms, until_ms=until_ms, limit=limit,
        )  # fmt: skip

    def consumer(self, group: str, topics: Sequence[str], **options: Unpack[MoreOptions]) -> GroupConsumer:
        """Return a consumer of ``topics`` in ``group``; see ``GroupConsumer``, and ``ConsumerOptions`` for the options.

        Raises:
            ValueError, TypeError: An option is outside its allowed range.
        """
        self._require_open()
        return self._ends(GroupConsumer(self.consumers, ConsumerOptions(group=group, topics=topics, **options)))

    def broadcast_consumer(self, group: str, topics: Sequence[str], **options: Unpack[MoreOptions]) -> GroupConsumer:
        """Return a consumer that reads all partitions, whatever other consumers read: its group is private to this
        machine.

        Offsets are in a file of this machine, unless ``offsets`` names another storage. Raises as ``consumer``.
        """
        self._require_open()
        given = ConsumerOptions(group=group, topics=topics, **options)
        return self._ends(GroupConsumer(self.consumers, broadcast(given, self.consumers)))

    def parked(self, group: str) -> ParkedMessages:
        """Return the messages that consumers of ``group`` rejected and parked on this machine.

        They are in a local file, which can also be read when the client is closed.
        """
        self._require_open()
        return ParkedMessages(self.consumers.state_folder / PARKED_FILE, group)

    def checkup(self, timeout: float = 5.0) -> Iterator[Finding]:
        """Check ZooKeeper and each broker, and yield the findings; a step takes ``timeout`` seconds at most.

        Servers that do not answer are findings, not errors.
        """
        self._require_open()
        from metaq.client.checkup.metaq import MetaqCheckup
        from metaq.client.checkup.reach import ConnectSettings

        brokers = [] if self._zookeeper is not None else list(dict.fromkeys(_addresses(self._cluster)))
        checkup = MetaqCheckup(brokers, self._zookeeper, ConnectSettings(self._tls, timeout))
        return self._while_open(checkup.findings())

    @property
    def relay(self) -> Relay:
        """Passes on requests that other programs made, for servers of other protocols."""
        self._require_open()
        return Relay(self._directory, self._pool)

    @property
    def cluster(self) -> ClusterView:
        """A view of the cluster: topics, partitions, offsets, groups."""
        self._require_open()
        return ClusterView(self._seen, self._pool, self._zookeeper, self._timeouts)

    def cluster_kept(self, brokers_s: float) -> ClusterView:
        """Return a view of the cluster that keeps the list of brokers for ``brokers_s`` seconds, and for a moment where
        partitions are; see ``KeptDirectory``.
        """
        self._require_open()
        directory = KeptDirectory(self._seen, self._pool, brokers_s)
        return ClusterView(directory, self._pool, self._zookeeper, self._timeouts)


def _named(cluster: str | None, brokers: Sequence[str] | None) -> str:
    if (cluster is None) == (brokers is None):
        raise ValueError("cluster and brokers: expected one of them")
    if isinstance(brokers, str):
        raise TypeError(f"brokers {brokers!r}: expected a list, such as ['{ports.METAQ_HERE}']")
    if cluster is None:
        return ",".join(brokers or ())
    if not isinstance(cluster, str):
        raise TypeError(f"cluster {cluster!r}: expected a text such as {EXAMPLE}")
    return cluster


def _zookeeper_address(cluster: str) -> ZooKeeperAddress:
    try:
        return ZooKeeperAddress.parse(cluster.removeprefix(ZOOKEEPER_SCHEME))
    except ValueError as error:
        raise ValueError(f"cluster {cluster!r}: {error}") from None


def _addresses(cluster: str) -> Sequence[Address]:
    try:
        return [Address.parse(one) for one in cluster.split(",")]
    except ValueError:
        raise ValueError(f"cluster {cluster!r}: expected host:port,host:port, for example {EXAMPLE}") from None
