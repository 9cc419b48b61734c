"""The last that was known of ZooKeeper's tree: looked at often enough, and still there while ZooKeeper is away.

A look is a session of some ten milliseconds, in a thread of its own, and nothing of it stays: no thread, no socket, no
watch that a forked process would share. In between, what was seen last stands. A look that takes longer than
``PATIENCE_S`` is not waited for. While ZooKeeper is away what is known may become old: then brokers that have moved are
not found, and everything else goes on; a thread looks every ``AWAY_PAUSE_S``, and nobody waits for that.

A master that refuses connections stays registered until its session expires. Reads go to one of its slaves meanwhile,
if it has any (``avoid``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from metaq.discovery.background import Background
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.errors import ZooKeeperAway
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from metaq.discovery.survey import Hidden
    from metaq.discovery.zk_map import Offers, RegisteredBroker, TreeReader

LOOK_AGE_S_MAX: Final = 5.0
"""How old an answer may be before ZooKeeper is asked again."""

AWAY_PAUSE_S: Final = 10.0
"""How long ZooKeeper is left alone after it did not answer, if there is an older answer to go on with."""

PATIENCE_S: Final = 1.0
"""How long a look is waited for if there is an older answer to go on with, and ZooKeeper is not known to be away."""

AVOID_S: Final = 30.0
"""How long a master that did not answer is left alone by reads, if it has a slave."""

FORGET_S: Final = 600.0
"""How long a broker is still asked that has left the tree: it may only be restarting, and have what nobody else has."""

_LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Seen:
    answer: Any
    at_s: float


class TreeMemory:
    """What is known of the tree at ``address``. Thread-safe; meant to be one for each process.

    All methods raise ``ZooKeeperAway`` if ZooKeeper cannot be asked and never could, and ``ZooKeeperRefused`` if the
    tree cannot be read.
    """

    def __init__(self, address: ZooKeeperAddress, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.address = address
        self._timeout_s, self._clock = timeout_s, clock
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._left: dict[int, tuple[RegisteredBroker, float]] = {}
        self._away_until_s: float | None = None
        self._looks: dict[str, Background[Any]] = {}
        self._avoided: dict[Address, float] = {}

    def readable(self) -> dict[int, Address]:
        """Broker id to where it is read: the master, else a slave, also in place of a master that is avoided."""
        now_s = self._clock.monotonic()
        return {
            id_: address
            for id_, broker in self.brokers().items()
            if (address := broker.readable_without({at for at, until_s in self._avoided.items() if now_s < until_s}))
            is not None
        }

    def avoid(self, address: Address) -> bool:
        """Read from a slave of the master at ``address`` for a while; return whether there is another to read from."""
        for broker in self.brokers().values():
            if broker.master == address and broker.slaves:
                if address not in self._avoided:
                    _LOG.warning("broker %s does not answer; its slave is read", address)
                self._avoided[address] = self._clock.monotonic() + AVOID_S
                return True
        return False

    def brokers(self) -> Mapping[int, RegisteredBroker]:
        """The brokers by id; those that have left not long ago are still among them, without a master."""
        with self._lock:
            found = self._known("brokers", lambda tree: tree.brokers())
            left = {id_: broker for id_, (broker, _) in self._left.items()}
            return dict(sorted((left | found).items()))

    def hidden(self) -> Hidden:
        """What brokers do not offer to readers."""
        with self._lock:
            return self._known("hidden", lambda tree: tree.hidden())

    def offers(self, topic: str) -> Offers:
        """Who takes messages of ``topic``."""
        with self._lock:
            return self._known(f"offers {topic}", lambda tree: tree.offers(topic))

    def doubt(self) -> None:
        """Ask ZooKeeper the next time: something that it said has turned out not to work."""
        with self._lock:
            self._seen = {key: replace(seen, at_s=float("-inf")) for key, seen in self._seen.items()}

    def _known(self, key: str, read: Callable[[TreeReader], _T]) -> _T:
        if key not in self._seen:
            self._seen[key] = _Seen(self._look(read), self._clock.monotonic())
        self._take_in()
        if not (self._is_fresh(self._seen[key]) or self._is_left_alone()) and key not in self._looks:
            look = self._looks[key] = Background("metaq-zookeeper", lambda: self._look(read))
            if self._away_until_s is None and not look.wait(PATIENCE_S):
                self._note_away(f"ZooKeeper at {self.address.hosts} does not answer")
            self._take_in()
        answer: _T = self._seen[key].answer
        return answer

    def _is_fresh(self, seen: _Seen) -> bool:
        return self._clock.monotonic() - seen.at_s < LOOK_AGE_S_MAX

    def _is_left_alone(self) -> bool:
        return self._away_until_s is not None and self._clock.monotonic() < self._away_until_s

    def _take_in(self) -> None:
        """Take note of the looks that have come to their end."""
        for key in [key for key, look in self._looks.items() if look.done]:
            look = self._looks.pop(key)
            try:
                answer = look.result()
            except ZooKeeperAway as error:
                self._note_away(str(error))
            else:
                self._learn(key, answer)

    def _note_away(self, why: str) -> None:
        if self._away_until_s is None:
            _LOG.warning("%s. Going on with the brokers as they were last known", why)
        self._away_until_s = self._clock.monotonic() + AWAY_PAUSE_S

    def _learn(self, key: str, answer: Any) -> None:
        if self._away_until_s is not None:
            _LOG.warning("ZooKeeper at %s is back", self.address.hosts)
            self._away_until_s = None
        before, self._seen[key] = self._seen[key], _Seen(answer, self._clock.monotonic())
        if key == "brokers":
            self._note_who_left(before.answer, answer)

    def _look(self, read: Callable[[TreeReader], _T]) -> _T:
        from metaq.discovery.zk_client import connected  # here: kazoo is for those who use ZooKeeper
        from metaq.discovery.zk_map import TreeReader

        with connected(self.address.hosts, self._timeout_s) as client:
            return read(TreeReader(client, self.address))

    def _note_who_left(self, before: Mapping[int, RegisteredBroker], now: Mapping[int, RegisteredBroker]) -> None:
        now_s = self._clock.monotonic()
        self._left = {
            id_: (broker, since_s)
            for id_, (broker, since_s) in self._left.items()
            if id_ not in now and now_s - since_s < FORGET_S
        }
        for id_ in before.keys() - now.keys():
            broker = before[id_]
            _LOG.warning("broker %d at %s has left ZooKeeper at %s", id_, broker.readable, self.address)
            self._left[id_] = replace(broker, master=None, slaves={}, last=broker.readable), now_s
