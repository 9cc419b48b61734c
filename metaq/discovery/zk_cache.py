"""A cache of ZooKeeper's tree, which remains usable while ZooKeeper is unavailable.

A refresh (``refreshed``) is a ZooKeeper session of some ten milliseconds, without a watch that a forked process would
share. Until one succeeds, brokers that have moved are not found; everything else works.

A master that refuses connections stays registered until its session expires. Reads use one of its slaves meanwhile, if
it has any (``avoid``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from metaq.discovery.refreshed import RefreshedCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.errors import ZooKeeperAway
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.forks import notify_after_fork

if TYPE_CHECKING:
    from metaq.discovery.survey import Hidden
    from metaq.discovery.zk_map import Offers, RegisteredBroker, TreeReader

AVOID_S: Final = 30.0
"""Seconds for which reads avoid a silent master that has a slave."""

FORGET_S: Final = 600.0
"""Seconds for which a broker that has left the tree is still asked: it may be restarting."""

_LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


class TreeCache:
    """The tree at ``address``. Thread-safe; meant to be one for each process.

    All methods raise ``ZooKeeperAway`` if ZooKeeper is unavailable and nothing is cached, and ``ZooKeeperRefused`` if a
    node cannot be parsed or read.
    """

    def __init__(self, address: ZooKeeperAddress, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.address = address
        self._timeout_s, self._clock = timeout_s, clock
        self._make_lock()
        self._cache = RefreshedCache(f"ZooKeeper at {address.hosts}", "metaq-zookeeper", (ZooKeeperAway,), clock)
        self._known_brokers: Mapping[int, RegisteredBroker] = {}
        self._departed: dict[int, tuple[RegisteredBroker, float]] = {}
        self._avoided: dict[Address, float] = {}

    def _make_lock(self) -> None:
        """Make the lock, which may be held during a fetch; also in a child process, where no thread has it."""
        notify_after_fork(self._make_lock)
        self._lock = threading.Lock()

    def readable(self) -> dict[int, Address]:
        """Return broker id -> address to read from: the master, else a slave; a slave also if the master is avoided."""
        now_s = self._clock.monotonic()
        return {
            id_: address
            for id_, broker in self.brokers().items()
            if (address := broker.readable_without({at for at, until_s in self._avoided.items() if now_s < until_s}))
            is not None
        }

    def avoid(self, address: Address) -> bool:
        """Read from a slave of the master at ``address`` for ``AVOID_S``; return whether it has one."""
        for broker in self.brokers().values():
            if broker.master == address and broker.slaves:
                if address not in self._avoided:
                    _LOG.warning("broker %s does not answer; its slave is read", address)
                until_s = self._clock.monotonic() + AVOID_S
                self._avoided = {**self._avoided, address: until_s}  # a new one: other threads may iterate over it
                return True
        return False

    def brokers(self) -> Mapping[int, RegisteredBroker]:
        """Return the brokers by id. A broker that left less than ``FORGET_S`` ago is among them, without a master."""
        with self._lock:
            found = self._known("brokers", lambda tree: tree.brokers())
            if found is not self._known_brokers:
                self._note_departed(self._known_brokers, found)
                self._known_brokers = found
            left = {id_: broker for id_, (broker, _) in self._departed.items()}
            return dict(sorted((left | found).items()))

    def hidden(self) -> Hidden:
        """Return the topics that brokers do not offer to readers."""
        with self._lock:
            return self._known("hidden", lambda tree: tree.hidden())

    def offers(self, topic: str) -> Offers:
        """Return which brokers accept messages of ``topic``."""
        with self._lock:
            return self._known(f"offers {topic}", lambda tree: tree.offers(topic))

    def listed(self, topic: str) -> frozenset[int]:
        """Return which masters have registered ``topic``, or a pattern for it. A master does that last of all."""
        with self._lock:
            return self._known(f"listed {topic}", lambda tree: tree.listed(topic))

    def invalidate(self) -> None:
        """Mark every answer as old, because one of them turned out to be wrong: the next call refreshes it."""
        with self._lock:
            self._cache.invalidate()

    def _known(self, key: str, read: Callable[[TreeReader], _T]) -> _T:
        return self._cache.get(key, lambda: self._fetch(read))

    def _fetch(self, read: Callable[[TreeReader], _T]) -> _T:
        from metaq.discovery.zk_client import connected  # imports kazoo, which only users of ZooKeeper need
        from metaq.discovery.zk_map import TreeReader

        with connected(self.address.hosts, self._timeout_s) as client:
            return read(TreeReader(client, self.address))

    def _note_departed(self, before: Mapping[int, RegisteredBroker], now: Mapping[int, RegisteredBroker]) -> None:
        now_s = self._clock.monotonic()
        self._departed = {
            id_: (broker, since_s)
            for id_, (broker, since_s) in self._departed.items()
            if id_ not in now and now_s - since_s < FORGET_S
        }
        for id_ in before.keys() - now.keys():
            broker = before[id_]
            _LOG.warning("broker %d at %s has left ZooKeeper at %s", id_, broker.readable, self.address)
            self._departed[id_] = replace(broker, master=None, slaves={}, last=broker.readable), now_s
