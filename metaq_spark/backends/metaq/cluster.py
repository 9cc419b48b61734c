"""The cluster as the connector sees it: the brokers, their partitions, and the topics they accept.

Requests are retried after a lost connection or a timeout, as the options ``retries`` and ``retryIntervalMs`` say. Only
the brokers' addresses are cached; sockets are pooled for the whole process. Brokers are found by the addresses in the
options, or in ZooKeeper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final, TypeVar

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.discovery.base import Directory
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.survey import SurveyedDirectory
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.errors import BrokersMissing, MetaqError, TopicNotFound
from metaq.model import Address, Partition, PartitionState, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.reach import Reach
from metaq.net.retry import RetryPolicy, persist, persist_over
from metaq.protocols.text.extensions import EXT_INCARNATION
from metaq_spark.backends.metaq.last_messages import FrameHeads
from metaq_spark.backends.metaq.options import BrokerOptions
from metaq_spark.backends.metaq.positions import FrameLookup
from metaq_spark.errors import BrokerNotNamed, OptionError
from metaq_spark.options.selection import Assigned, Selection, TopicPattern, chosen, topics_of

__all__ = ["Cluster", "SessionPool", "pool_with"]

ROUTE_AGE_S_MAX: Final = 10.0
"""Seconds for which a process caches the brokers of a write."""

T = TypeVar("T")
A = TypeVar("A")


@functools.cache
def pool_with(reach: Reach) -> SessionPool:
    """Return this process's pool of connections with these settings."""
    return SessionPool(reach.timeouts, reach.transport())


class Cluster:
    """All brokers together.

    All methods raise ``ConnectionFailed`` or ``DeadlineExceeded``, naming the broker, when retrying did not help.
    """

    def __init__(
        self,
        options: BrokerOptions,
        pool: SessionPool | None = None,
        clock: Clock = SYSTEM_CLOCK,
        policy: RetryPolicy | None = None,
    ) -> None:
        """``policy``: retries of requests about the cluster; by default ``ConnectionOptions.first_policy``."""
        self._options = options
        self._pool = pool or pool_with(options.reach)
        self._directory: Directory = directory_of(options, self._pool)
        self._names, self._moving = list(options.places), options.zookeeper is not None
        self._policy, self._waiting = policy or options.first_policy, options.waiting_policy
        self._clock = clock
        self._addresses: dict[int, Address] = {}
        self._found: Mapping[TopicPartition, PartitionState] = {}
        self._chosen: tuple[Selection | None, Mapping[TopicPartition, PartitionState]] = (None, {})
        self.positions = FrameLookup(self.ask_each, lambda: self.connections)
        self.last_messages = FrameHeads(self.ask_each, self.positions.last_start)

    def available(self, selection: Selection) -> Mapping[TopicPartition, PartitionState]:
        """Return the readable range of every selected partition that was ever written to; the same object if
        unchanged.
        """
        found = self._persist(lambda: self._directory.available(topics_of(selection)))
        return self._chosen_of(selection, found)

    def available_now(
        self, selection: Selection
    ) -> tuple[Mapping[TopicPartition, PartitionState], dict[str, MetaqError]]:
        """Return ``available`` from brokers that answer without retries, and the errors of the others by address."""
        found, away = self._directory.available_now(topics_of(selection))
        found = self._chosen_of(selection, found, ask=self._moving)
        return found, {str(address): error for address, error in away.items()}

    def _chosen_of(
        self, selection: Selection, found: Mapping[TopicPartition, PartitionState], ask: bool = True
    ) -> Mapping[TopicPartition, PartitionState]:
        """Return the selected part; with ``ask``, also look up the addresses of new brokers."""
        same = found is self._found
        if ask and (self._moving or (not same and self._has_unknown_brokers(found))):
            # ZooKeeper may return another address next time, a slave for its master.
            self._addresses = self._addresses | self._persist(self._directory.brokers)
        if not same or self._chosen[0] is not selection:
            self._found, self._chosen = found, (selection, chosen(selection, found))
        return self._chosen[1]

    def _has_unknown_brokers(self, found: Iterable[TopicPartition]) -> bool:
        return any(where.partition.broker_id not in self._addresses for where in found)

    def writable(self, topic: str) -> dict[Partition, Address]:
        """Where messages of ``topic`` can be put, in the order of the partitions.

        Raises:
            TopicNotFound: No broker accepts the topic.
        """
        return self._persist(lambda: self._directory.writable(topic))

    def require(self, selection: Selection, *, stored: bool, read: Collection[str] = ()) -> None:
        """Check that the brokers know the named topics and partitions, from their configuration or their data.

        Without ``stored`` a topic may be empty, if a broker accepts it. Topics that a query has ``read`` are not
        checked, but waited for.

        Raises:
            TopicNotFound: No broker knows a topic, or accepts it.
            OptionError: A topic has no partition of that name.
        """
        if isinstance(selection, TopicPattern):
            return
        named = [topic for topic in topics_of(selection) or [] if topic not in read]
        if not named:
            return
        known = self._persist(lambda: self._directory.topics(named))
        for topic in named:
            if topic not in known:
                if stored:
                    raise TopicNotFound(topic, self._names, sorted(known))
                self.writable(topic)
            if isinstance(selection, Assigned):
                self._require_partitions(topic, selection.partitions[topic], set(known.get(topic, ())))

    def _require_partitions(self, topic: str, named: Collection[Partition], there: set[Partition]) -> None:
        if not there.issuperset(named):
            with suppress(TopicNotFound):  # closed for writing, for example
                there |= set(self.writable(topic))
        if missing := sorted(set(named) - there):
            present = ", ".join(map(str, sorted(there))) or "none"
            raise OptionError(
                "assign", f"topic {topic!r} has no partition {', '.join(map(str, missing))}; there is {present}"
            )

    def address_of(self, where: TopicPartition) -> Address:
        """The broker that serves a partition.

        Raises:
            BrokerNotNamed: None of the brokers has that broker id.
        """
        broker_id = where.partition.broker_id
        if broker_id not in self._addresses:
            self._addresses = self._persist(self._directory.brokers)
        if broker_id not in self._addresses:
            raise BrokerNotNamed(str(where), broker_id, [f"{at} ({known})" for known, at in self._addresses.items()])
        return self._addresses[broker_id]

    def require_there(self, option: str, partitions: Collection[TopicPartition]) -> None:
        """Check that the brokers of ``partitions`` exist: an empty partition is not listed, so its broker must be."""
        for where in partitions:
            self.address_of(where)

    def require_brokers(self, option: str, names: Collection[str], selection: Selection) -> None:
        def look() -> None:
            there = {str(broker_id) for broker_id in self._directory.brokers()}
            if missing := sorted(set(names) - there):
                raise BrokersMissing(f"option {option}", missing, f"found by {self._options.found_by}")

        self._persist(look)

    def listed_whole(self) -> Collection[str]:
        """Return the brokers that list all partitions with messages: a Java broker does not, and has no times
        either.
        """
        return frozenset(map(str, self._persist(self._directory.brokers)))

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: brokers list their partitions themselves."""

    @property
    def missed(self) -> Mapping[str, MetaqError]:
        return {}

    def broker_of(self, where: TopicPartition) -> str | None:
        """The address of the broker that served a partition before, if one did; no request is sent."""
        address = self._addresses.get(where.partition.broker_id)
        return None if address is None else str(address)

    @property
    def connections(self) -> int:
        return self._pool.opened

    def reports_incarnations(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, bool]:
        """Whether the brokers of ``partitions`` report incarnations."""

        def reports(session: Session, asked: list[TopicPartition]) -> dict[TopicPartition, bool]:
            return dict.fromkeys(asked, EXT_INCARNATION in session.extensions)

        return self.ask_each(partitions, reports)

    def ask_each(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Session, list[TopicPartition]], dict[TopicPartition, T]],
    ) -> dict[TopicPartition, T]:
        """Return the results of ``ask``, called once per broker with its partitions among ``partitions``.

        A broker has listed them before, so its restart is waited for.
        """
        served: dict[int, list[TopicPartition]] = {}
        for where in partitions:
            served.setdefault(where.partition.broker_id, []).append(where)
        found: dict[TopicPartition, T] = {}
        for broker_id, wanted in served.items():
            self.address_of(wanted[0])
            found |= persist(partial(self._leased, broker_id, ask, wanted), self._waiting, self._clock)
        return found

    def _leased(self, broker_id: int, ask: Callable[[Session, A], T], about: A) -> T:
        address = self._addresses[broker_id]
        try:
            with self._pool.lease(address) as session:
                return ask(session, about)
        except MetaqError as error:
            locate = locating(self._options, self._pool, broker_id) if error.away else None
            if locate is not None:
                self._addresses = self._addresses | {broker_id: locate(address)}
            raise

    def _persist(self, ask: Callable[[], T]) -> T:
        return persist(ask, self._policy, self._clock)


@functools.cache
def tree_cache(address: ZooKeeperAddress, timeout_s: float) -> TreeCache:
    """Return this process's cache of a tree, which outlives Spark's readers and writers."""
    return TreeCache(address, timeout_s)


def directory_of(options: BrokerOptions, pool: SessionPool) -> SurveyedDirectory:
    """Return the directory of a read or a write, over connections of ``pool``."""
    return FixedDirectory(options.brokers, pool) if options.zookeeper is None else _in_zookeeper(options, pool)


def masters_of(options: BrokerOptions, pool: SessionPool) -> tuple[Address, ...]:
    """Return every broker that may take part in a write, whether or not it answers now; named ones may be slaves.

    Raises:
        ZooKeeperAway, ZooKeeperRefused: ZooKeeper cannot be asked, and could not before.
    """
    return options.brokers if options.zookeeper is None else tuple(_in_zookeeper(options, pool).masters().values())


def _in_zookeeper(options: BrokerOptions, pool: SessionPool) -> ZooKeeperDirectory:
    assert options.zookeeper is not None  # the caller looked
    return ZooKeeperDirectory(tree_cache(options.zookeeper, options.timeouts.connect_s), pool)


Locate = Callable[[Address], Address]
"""Where a broker is by now that does not answer at an address."""


def locating(options: BrokerOptions, pool: SessionPool, broker_id: int, *, to_write: bool = False) -> Locate | None:
    """How a task finds a broker again that ZooKeeper has at another address by now; ``None`` where options name it."""
    if options.zookeeper is None:
        return None
    return partial(_in_zookeeper(options, pool).moved_to, broker_id, to_write=to_write)


class RetryingSessions:
    """Leases sessions of a pool, for work that continues after a broker's restart.

    Connecting is retried by ``policy``, by default ``ConnectionOptions.waiting_policy``, for work in progress.
    """

    def __init__(
        self,
        options: BrokerOptions,
        pool: SessionPool | None = None,
        clock: Clock = SYSTEM_CLOCK,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.pool = pool or pool_with(options.reach)
        self.policy, self.clock = policy or options.waiting_policy, clock
        self._options = options
        # A task's pool has asked nobody yet, and its broker may be away: the pool needs to know who else to ask.
        if options.zookeeper is None:
            self.pool.members.name(options.brokers)
        else:
            _in_zookeeper(options, self.pool)

    @property
    def found_by(self) -> str:
        """How the options find the brokers, for messages."""
        return self._options.found_by

    def ask(self, session: Session, question: Callable[[Session], T]) -> T:
        """Return the answer to a question over a leased session, which is reconnected as often as the policy allows."""
        return persist_over(session, lambda: question(session), self.policy, self.clock)

    @contextmanager
    def lease(
        self, address: Address, broker_id: int | None = None, *, to_write: bool = False, retried: bool = True
    ) -> Iterator[Session]:
        """Lease an open session for a ``with`` block, as ``SessionPool.lease``.

        Where the options name ZooKeeper, the broker with this id is also found at another address, by this session too
        when it reconnects: its master with ``to_write``. Not ``retried``: the caller repeats more than this step.

        Raises:
            ConnectionFailed, DeadlineExceeded: No connection, even after retries.
            ZooKeeperAway, ZooKeeperRefused: ZooKeeper could not be asked where the broker is.
        """
        locate = None if broker_id is None else locating(self._options, self.pool, broker_id, to_write=to_write)
        at = address
        with ExitStack() as stack:

            def enter() -> Session:
                nonlocal at
                try:
                    return stack.enter_context(self.pool.lease(at))
                except MetaqError:
                    failed, at = at, at if locate is None else locate(at)
                    if at == failed:
                        raise
                return stack.enter_context(self.pool.lease(at))

            session = persist(enter, self.policy, self.clock) if retried else enter()
            session.locate = locate
            try:
                yield session
            finally:
                session.locate = None
