"""A cache of ZooKeeper's tree, which answers while ZooKeeper is unavailable.

A refresh is a ZooKeeper session of some ten milliseconds in a thread of its own. It leaves nothing behind: no thread,
no socket, no watch that a forked process would share. A caller waits at most ``REFRESH_WAIT_S`` for a refresh, and gets
the previous answer if it takes longer. While ZooKeeper is unavailable a thread tries again every ``AWAY_PAUSE_S`` and
no caller waits. Until one succeeds, brokers that have moved are not found; everything else goes on.

A master that refuses connections stays registered until its session expires. Reads use one of its slaves meanwhile, if
it has any (``avoid``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.errors import ZooKeeperAway
from metaq.model import Address
from metaq.net.background import Background
from metaq.net.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from metaq.discovery.survey import Hidden
    from metaq.discovery.zk_map import Offers, RegisteredBroker, TreeReader

CACHE_AGE_S_MAX: Final = 5.0
"""Age at which a cached answer is refreshed."""

AWAY_PAUSE_S: Final = 10.0
"""Pause after a failed refresh, if a cached answer exists."""

REFRESH_WAIT_S: Final = 1.0
"""Longest wait for a refresh if a cached answer exists and the last refresh did not fail."""

AVOID_S: Final = 30.0
"""How long reads avoid a master that did not answer, if it has a slave."""

FORGET_S: Final = 600.0
"""How long a broker that has left the tree is still asked. It may be restarting, and hold what no other broker has."""

_LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Entry:
    answer: Any
    at_s: float


class TreeCache:
    """The tree at ``address``. Thread-safe; meant to be one for each process.

    All methods raise ``ZooKeeperAway`` if ZooKeeper is unavailable and nothing is cached, and ``ZooKeeperRefused`` if a
    node cannot be parsed or read.
    """

    def __init__(self, address: ZooKeeperAddress, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.address = address
        self._timeout_s, self._clock = timeout_s, clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._departed: dict[int, tuple[RegisteredBroker, float]] = {}
        self._away_until_s: float | None = None
        self._refreshes: dict[str, Background[Any]] = {}
        self._avoided: dict[Address, float] = {}

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
                self._avoided[address] = self._clock.monotonic() + AVOID_S
                return True
        return False

    def brokers(self) -> Mapping[int, RegisteredBroker]:
        """Return the brokers by id. A broker that left less than ``FORGET_S`` ago is among them, without a master."""
        with self._lock:
            found = self._known("brokers", lambda tree: tree.brokers())
            left = {id_: broker for id_, (broker, _) in self._departed.items()}
            return dict(sorted((left | found).items()))

    def hidden(self) -> Hidden:
        """Return what brokers do not offer to readers."""
        with self._lock:
            return self._known("hidden", lambda tree: tree.hidden())

    def offers(self, topic: str) -> Offers:
        """Return which brokers accept messages of ``topic``."""
        with self._lock:
            return self._known(f"offers {topic}", lambda tree: tree.offers(topic))

    def invalidate(self) -> None:
        """Mark every answer as old, because one of them turned out to be wrong: the next call refreshes it."""
        with self._lock:
            self._entries = {key: replace(seen, at_s=float("-inf")) for key, seen in self._entries.items()}

    def _known(self, key: str, read: Callable[[TreeReader], _T]) -> _T:
        if key not in self._entries:
            self._entries[key] = _Entry(self._fetch(read), self._clock.monotonic())
        self._collect()
        if not (self._is_fresh(self._entries[key]) or self._is_paused()) and key not in self._refreshes:
            refresh = self._refreshes[key] = Background("metaq-zookeeper", lambda: self._fetch(read))
            if self._away_until_s is None and not refresh.wait(REFRESH_WAIT_S):
                self._note_away(f"ZooKeeper at {self.address.hosts} does not answer")
            self._collect()
        answer: _T = self._entries[key].answer
        return answer

    def _is_fresh(self, seen: _Entry) -> bool:
        return self._clock.monotonic() - seen.at_s < CACHE_AGE_S_MAX

    def _is_paused(self) -> bool:
        return self._away_until_s is not None and self._clock.monotonic() < self._away_until_s

    def _collect(self) -> None:
        """Store the answers of the refreshes that are done."""
        for key in [key for key, refresh in self._refreshes.items() if refresh.done]:
            refresh = self._refreshes.pop(key)
            try:
                answer = refresh.result()
            except ZooKeeperAway as error:
                self._note_away(str(error))
            else:
                self._store(key, answer)

    def _note_away(self, why: str) -> None:
        if self._away_until_s is None:
            _LOG.warning("%s. Going on with the brokers as they were last known", why)
        self._away_until_s = self._clock.monotonic() + AWAY_PAUSE_S

    def _store(self, key: str, answer: Any) -> None:
        if self._away_until_s is not None:
            _LOG.warning("ZooKeeper at %s is back", self.address.hosts)
            self._away_until_s = None
        before, self._entries[key] = self._entries[key], _Entry(answer, self._clock.monotonic())
        if key == "brokers":
            self._note_departed(before.answer, answer)

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
