"""A directory from RocketMQ's name servers: topics, queues, and addresses of brokers.

One name server is sufficient: the one that answered last is asked first, then the others. If it does not know a topic,
all are asked: a name server that has just started knows nothing until the brokers register again, within 30 seconds.

While no name server answers, the last answers remain valid (``refreshed``). A broker that leaves the route keeps its
address here: it may only be restarting.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from metaq import ports
from metaq.backends.rocketmq.batch_writer import NEW_TOPIC_QUEUES
from metaq.backends.rocketmq.errors import BrokerAway, NameServersAway, RouteUnusable
from metaq.backends.rocketmq.names import is_derived_topic, is_system_name, with_namespace, without_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.bundled import MetaQBroker
from metaq.backends.rocketmq.routes import MASTER_ID
from metaq.backends.rocketmq.session import Session
from metaq.backends.rocketmq.topic_route import Addresses, TopicRoute, ask_brokers, ask_route, ask_topics, not_ready
from metaq.discovery.base import Away, nobody, without
from metaq.discovery.refreshed import RefreshedCache
from metaq.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    MasterMissing,
    MetaqError,
    TlsRefused,
    TopicNotFound,
    WrongServer,
)
from metaq.formats.topic_names import TEMPLATE_TOPIC
from metaq.model import Address, Partition
from metaq.net.forks import notify_after_fork
from metaq.net.retry import ONCE, RetryPolicy, persist

LOOK_S: Final = 1.0
"""Longest wait for a name server that is asked whether a silent broker has moved."""

AVOID_S: Final = 30.0
"""Seconds for which a silent address is used last, if the broker has another one."""


_NOT_NOW: Final = (NameServersAway, RouteUnusable, TopicNotFound, WrongServer, TlsRefused)
"""Errors after which a known route stays valid: name servers that have just started know no topics yet, and the address
of one that is away may be another server's.
"""

_T = TypeVar("_T")


def parse_name_servers(text: str) -> tuple[Address, ...]:
    """Parse a list of name servers, ``ns1:9876;ns2:9876``, separated by ``;`` or ``,``.

    Raises:
        ValueError: It is empty, or an item is not ``host:port``.
    """
    parts = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    if not parts:
        raise ValueError(f"name servers {text!r}: expected host:port, more of them with ; between")
    try:
        return tuple(dict.fromkeys(Address.parse(part) for part in parts))
    except ValueError:
        wrong = next(part for part in parts if not _is_address(part))
        raise ValueError(
            f"name server {wrong!r}: expected host:port, port 1..65535, for example 127.0.0.1:{ports.NAME_SERVER}"
        ) from None


def _is_address(text: str) -> bool:
    try:
        Address.parse(text)
    except ValueError:
        return False
    return True


class NameServerDirectory:
    """The name servers at ``servers``, asked over connections of ``pool``. Thread-safe; one per process.

    Topics are passed and returned without ``namespace``. Answers may be ``CACHE_AGE_S_MAX`` old, and older while no
    name server answers. All methods raise ``NameServersAway`` if none can be asked and none ever could, and
    ``RouteUnusable`` if an answer is not valid. ``policy``: retries of routes; by default there are none.
    ``away``: servers that are left out of answers; where none is left, their error is raised.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        pool: SessionPool,
        *,
        namespace: str | None = None,
        policy: RetryPolicy = ONCE,
        away: Away = nobody,
    ) -> None:
        if not servers:
            raise ValueError("servers: expected at least one name server")
        self._servers, self._pool, self._namespace = list(servers), pool, namespace or None
        self._policy, self._away = policy, away
        self._clock = pool.clock
        self._make_locks()
        names = ", ".join(map(str, servers))
        self._cache = RefreshedCache(f"name server {names}", "metaq-name-server", _NOT_NOW, self._clock)
        self._is_old = False
        self._current = 0
        self._brokers: dict[str, dict[int, Address]] = {}
        self._masters: dict[Address, str] = {}
        """Every address that was a master's, with the name of its broker."""
        self._registered: frozenset[str] = frozenset()
        """Names of the brokers in the last list of all brokers, if there was one."""
        self._bundled: dict[Address, MetaQBroker] = {}
        self._avoided: dict[Address, float] = {}
        self._hurried = pool.hurried(LOOK_S)
        pool.register((*self._servers, self._namespace, policy), self._was_replaced)

    def _make_locks(self) -> None:
        """Make the locks; also in a child process, where no thread has them."""
        notify_after_fork(self._make_locks)
        self._lock = threading.RLock()  # guards the cache; may be held during a fetch
        self._brokers_lock = threading.Lock()  # also taken by a fetch, but never held during one

    @property
    def namespace(self) -> str | None:
        return self._namespace

    @property
    def servers(self) -> tuple[Address, ...]:
        return tuple(self._servers)

    def topics(self) -> list[str]:
        """Return the users' topics of the namespace, sorted, without RocketMQ's own and topics of groups.

        Raises:
            TopicListMissing: The name server does not list topics.
        """
        names = self._get("topics", self._fetch_topics)
        own = (without_namespace(name, self._namespace) for name in names)
        return sorted(name for name in own if name is not None and self._is_of_users(name))

    def queues(self, topic: str) -> list[Partition]:
        """Return the readable queues of ``topic``, sorted, without queues of brokers that are away.

        Raises:
            TopicNotFound: No name server knows the topic.
        """
        return self._present(self._route(topic).readable())

    def writable(self, topic: str) -> list[Partition]:
        """Return the writable queues of ``topic``, sorted. Raises as ``queues``."""
        return self._present(self._route(topic).writable())

    def writable_or_new(self, topic: str) -> list[Partition]:
        """Return ``writable``, or the queues at which the first message will create the topic.

        These are the writable queues of the template topic, which has a route if brokers create topics.
        """
        try:
            return self.writable(topic)
        except TopicNotFound:
            try:
                template = self._route(TEMPLATE_TOPIC).writable()
            except TopicNotFound:
                template = []
            if not template:
                raise
            return [queue for queue in template if queue.index < NEW_TOPIC_QUEUES]

    def read_address(self, broker_name: str, broker_id: int = MASTER_ID, *, topic: str | None = None) -> Address:
        known = self._addresses(broker_name, topic)
        if not known:
            self._require_present(broker_name)
            raise BrokerAway(broker_name, "the address", list(map(str, self._servers)))
        now_s = self._clock.monotonic()
        with self._brokers_lock:
            avoided = {address for address, until_s in self._avoided.items() if now_s < until_s}
        return min(known.items(), key=lambda one: (one[1] in avoided, one[0] != broker_id, one[0]))[1]

    def write_address(self, broker_name: str, *, topic: str | None = None) -> Address:
        master = self._addresses(broker_name, topic).get(MASTER_ID)
        if master is None:
            self._require_present(broker_name)
            raise BrokerAway(broker_name, "the master", list(map(str, self._servers)))
        return master

    def metaq_broker(self, address: Address) -> MetaQBroker | None:
        """Return the MetaQ identity of a broker, from the last route with its address."""
        with self._brokers_lock:
            return self._bundled.get(address)

    def brokers(self) -> dict[str, Addresses]:
        """Return the addresses of all brokers named in any answer so far."""
        away, known = self._away(), self._known()
        if not away:
            return known
        left = without([address for addresses in known.values() for address in addresses.values()], away)
        found = {
            name: {id_: address for id_, address in addresses.items() if address in left}
            for name, addresses in known.items()
        }
        return {name: addresses for name, addresses in found.items() if addresses}

    def addresses(self) -> set[Address]:
        """Return the addresses of the name servers, and of the brokers that were registered there last; asks none."""
        known = self._known()
        return {*self._servers, *(at for name in self._registered or known for at in known.get(name, {}).values())}

    @property
    def left_out(self) -> frozenset[Address]:
        """The addresses of brokers that answers are without at the moment: their masters are away."""
        away = self._away()
        return frozenset(
            address
            for addresses in self._known().values()
            if addresses.get(MASTER_ID, next(iter(addresses.values()))) in away
            for address in addresses.values()
            if address in away
        )

    def _known(self) -> dict[str, Addresses]:
        with self._brokers_lock:
            return {name: dict(addresses) for name, addresses in self._brokers.items()}

    def _present(self, queues: list[Partition]) -> list[Partition]:
        """Return the queues of brokers that are not left out."""
        if not self._away():
            return queues
        left = self.brokers()
        found = [queue for queue in queues if queue.broker_name in left]
        if queues and not found:
            self._require_present(queues[0].broker_name)
        return found

    def _require_present(self, broker_name: str) -> None:
        """Raise the error of a broker that is left out."""
        without(list(self._known().get(broker_name, {}).values()), self._away())

    def masters(self, cluster: str | None = None) -> dict[str, Address]:
        """Return broker name -> address of its master, of ``cluster`` or of all clusters; only brokers known so far,
        if the server does not list brokers.
        """
        clusters, _ = self._get("clusters", self._fetch_clusters)
        brokers = self.brokers()
        names = brokers if cluster is None or not clusters else clusters.get(cluster, ())
        return {name: brokers[name][MASTER_ID] for name in sorted(names) if MASTER_ID in brokers.get(name, {})}

    def has_moved(self, broker_name: str, address: Address) -> bool:
        """Ask each name server for the broker's master, for a short time each; note a new one, if there is one.

        Those on the host of the silent broker are asked last: members of a pair may be name servers themselves.
        """
        for position, server in sorted(enumerate(self._servers), key=lambda each: each[1].host == address.host):
            try:
                with self._hurried.lease(server) as session:
                    known = ask_brokers(session)
            except MetaqError:
                continue
            master = None if known is None else known.brokers.get(broker_name, {}).get(MASTER_ID)
            if known is not None and master is not None and master != address:
                self._remember(known.brokers)
                self._current = position  # the others may be frozen with the old master
                self.invalidate()
                return True
        return False

    def _was_replaced(self, address: Address) -> bool:
        name = self._masters.get(address)
        return name is not None and self.has_moved(name, address)

    def avoid(self, address: Address) -> None:
        with self._brokers_lock:
            self._avoided[address] = self._clock.monotonic() + AVOID_S
        self.invalidate()

    def invalidate(self) -> None:
        """Have every answer asked for again at the next call. Returns at once, also while a name server is asked."""
        self._is_old = True

    def _is_of_users(self, topic: str) -> bool:
        return not (is_system_name(topic) or is_derived_topic(topic) or topic in self._own_topics())

    def _own_topics(self) -> set[str]:
        """Return the topics named after brokers and clusters, as far as these are known."""
        clusters, brokers = self._get("clusters", self._fetch_clusters)
        return {*clusters, *brokers, *(f"{cluster}_REPLY_TOPIC" for cluster in clusters)}

    def _route(self, topic: str) -> TopicRoute:
        name = with_namespace(topic, self._namespace)
        look = partial(self._get, ("route", name), lambda: self._fetch_route(topic, name))
        return persist(look, self._policy, self._clock)

    def _get(self, key: Hashable, fetch: Callable[[], _T]) -> _T:
        with self._lock:
            if self._is_old:
                self._is_old = False
                self._cache.invalidate()
            return self._cache.get(key, fetch)

    def _addresses(self, broker_name: str, topic: str | None) -> dict[int, Address]:
        """Return a broker's current or last addresses, from the route of a topic, else from the list of clusters."""
        if topic is not None:
            try:
                self._route(topic)
            except TopicNotFound:
                pass  # all brokers that have it are away
            except (NameServersAway, RouteUnusable):
                if broker_name not in self.brokers():
                    raise
        if broker_name not in self.brokers():
            self._get("clusters", self._fetch_clusters)
        return dict(self.brokers().get(broker_name, {}))

    def _fetch_route(self, topic: str, name: str) -> TopicRoute:
        unknown_at: list[str] = []

        def ask(session: Session) -> TopicRoute | None:
            route = ask_route(session, name)
            if route is None:
                unknown_at.append(str(session.address))
            return route

        route = self._ask_each(ask)
        if route is None:
            known = self._ask_each(ask_brokers)
            if known is not None and not known.brokers:
                raise MasterMissing(topic, [], f"at name server {', '.join(unknown_at)}")
            unknown_at.clear()
            route = self._ask_each(ask)  # a broker may have registered between the two questions
        if route is None:
            raise TopicNotFound(topic, unknown_at)
        self._remember(route.brokers)
        with self._brokers_lock:
            for address in (each for addresses in route.brokers.values() for each in addresses.values()):
                self._bundled.pop(address, None)
            self._bundled.update(route.bundled)
        return route

    def _fetch_topics(self) -> list[str]:
        return self._ask_each(ask_topics) or []

    def _fetch_clusters(self) -> tuple[Mapping[str, Collection[str]], list[str]]:
        """Return the clusters with the names of their brokers, and the names of all brokers; empty if the server does
        not report them (a proxy).
        """
        known = self._ask_each(ask_brokers)
        if known is None:
            return {}, []
        self._remember(known.brokers)
        self._registered = frozenset(known.brokers)
        return known.clusters, list(known.brokers)

    def _remember(self, brokers: Mapping[str, Addresses]) -> None:
        """Record addresses; a broker without any keeps its previous ones."""
        with self._brokers_lock:
            self._brokers |= {name: dict(addresses) for name, addresses in brokers.items() if addresses}
            self._masters |= {
                addresses[MASTER_ID]: name for name, addresses in brokers.items() if MASTER_ID in addresses
            }

    def _ask_each(self, ask: Callable[[Session], _T | None]) -> _T | None:
        """Return the first answer, beginning with the name server that answered last.

        One of several that is silent gets ``LOOK_S`` before the next one is asked, and twice as long each time that no
        one answers; in the end, the rest of the time of a request. If others answer that they do not know, it is not
        waited for again.

        Raises:
            NameServersAway: None of them answers.
            NotNameServer: One of them is a broker.
        """
        away = self._away()
        order = [(self._current + step) % len(self._servers) for step in range(len(self._servers))]
        if all(server in away for server in self._servers):
            raise NameServersAway(list(map(str, self._servers)), [_reason(away[server]) for server in self._servers])
        order = [position for position in order if self._servers[position] not in away]
        for within_s in self._waits_s(len(order)):
            failures: list[MetaqError] = []
            for position in order:
                try:
                    answer = self._ask_one(self._servers[position], ask, within_s)
                except MetaqError as error:
                    if not (error.retryable or not_ready(error)):
                        raise
                    failures.append(error)
                    continue
                self._current = position
                if answer is not None:
                    return answer
            if len(failures) < len(order) or not any(isinstance(one, DeadlineExceeded) for one in failures):
                break
        if len(failures) == len(order):
            raise NameServersAway([str(self._servers[position]) for position in order], list(map(_reason, failures)))
        return None

    def _waits_s(self, count: int) -> Iterator[float | None]:
        """Yield how long each of ``count`` name servers is waited for, in one round after the other."""
        if count == 1:
            yield None
            return
        end_s, within_s = self._clock.monotonic() + self._pool.timeouts.request_s, LOOK_S
        while self._clock.monotonic() + 2 * within_s < end_s:
            yield within_s
            within_s *= 2
        yield max(LOOK_S, end_s - self._clock.monotonic())

    def _ask_one(self, server: Address, ask: Callable[[Session], _T | None], within_s: float | None) -> _T | None:
        until_s = None if within_s is None else self._clock.monotonic() + within_s
        with self._pool.lease(server, until_s) as session:
            return ask(session)


def _reason(error: MetaqError) -> str:
    """Return why a name server does not answer; the texts of errors name the address, and a broker."""
    if isinstance(error, ConnectionFailed):
        return f"{error.action} failed: {error.reason}"
    if isinstance(error, DeadlineExceeded):
        return f"no answer to {error.action} within {error.seconds:g} s"
    return str(error)
