"""A directory that finds brokers in ZooKeeper, where MetaQ 1.4 registers them, and asks them for their contents.

Reads go to the master of a broker id, else to one of its slaves. If neither is registered, because the broker crashed
or restarts, reads go to the last known address of the master. They fail there with an error that names the broker,
unless the broker registered its topics and none of them is wanted. Writes go to masters only. A topic whose brokers
have no master at the moment is not a topic that does not exist: ``MasterMissing``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from metaq.backends.metaq.pair_members import PairFacts
from metaq.backends.metaq.pool import SessionPool
from metaq.discovery.base import Away, nobody, without
from metaq.discovery.stats import parse_settings
from metaq.discovery.survey import Choose, Hidden, SurveyAnswers, SurveyedDirectory, survey
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import RegisteredPair
from metaq.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    MasterMissing,
    MetaqError,
    TopicNotFound,
    ZooKeeperAway,
    ZooKeeperRefused,
)
from metaq.model import Address, Partition
from metaq.net.retry import ONCE, RetryPolicy

if TYPE_CHECKING:
    from metaq.discovery.zk_map import RegisteredBroker  # imports kazoo, which only users of ZooKeeper need


class ZooKeeperDirectory(SurveyedDirectory):
    """The brokers of the tree in ``cache``, asked over connections of ``pool``.

    The list of brokers may be ``CACHE_AGE_S_MAX`` old, and older while ZooKeeper is unavailable. Methods raise
    ``ZooKeeperAway`` only if ZooKeeper has never answered in this process.
    """

    def __init__(
        self, cache: TreeCache, pool: SessionPool, policy: RetryPolicy = ONCE, away: Away = nobody
    ) -> None:
        super().__init__(pool, policy, away)
        self._cache = cache
        self._pairs: dict[int, RegisteredPair] = {}
        pool.members.register(cache.address, self._note_pairs)

    def brokers(self) -> dict[int, Address]:
        """Return broker id -> address to read from; asks no broker."""
        self._registered()
        away = self._away()
        for address in away:
            self._cache.avoid(address)
        found = self._cache.readable()
        left = without(list(found.values()), away)
        return {id_: address for id_, address in found.items() if address in left}

    def addresses(self) -> Collection[Address]:
        self._registered()
        return self._cache.readable().values()

    def _registered(self) -> Mapping[int, RegisteredBroker]:
        """Return the brokers by id, and record the pairs among them: if one member fails, the other is asked."""
        found = self._cache.brokers()
        for id_, broker in found.items():
            pair = broker.pair
            if pair is not None and self._pairs.get(id_) != pair:
                self._pairs[id_] = pair
                self._pool.members.note_facts(pair.master, PairFacts(pair.other, True, pair.epoch))
        return found

    def _note_pairs(self) -> None:
        with suppress(ZooKeeperAway, ZooKeeperRefused):
            self._registered()

    def masters(self) -> dict[int, Address]:
        """Return broker id -> last known address of its master, registered or not."""
        found = self._registered()
        known = {broker_id: broker.master or broker.last for broker_id, broker in found.items()}
        return {broker_id: address for broker_id, address in known.items() if address is not None}

    def moved_to(self, broker_id: int, address: Address, *, to_write: bool) -> Address:
        """Return the current address of a broker that does not answer at ``address``; ``address`` if it is unknown."""
        self._cache.invalidate()
        if to_write:
            return self.masters().get(broker_id, address)
        self._cache.avoid(address)
        return self.brokers().get(broker_id, address)

    def writable(self, topic: str) -> dict[Partition, Address]:
        """Return the partitions that accept ``topic``. A topic without messages may be registered only by its pattern:
        brokers with a matching pattern are asked for the number of partitions.

        Raises:
            MasterMissing: No broker accepts the topic; a broker that is known to have had it has no master now.
            TopicNotFound: No broker accepts the topic.
        """
        return self._persist(lambda: self._offered(topic) or self._offered_now(topic))

    def _offered_now(self, topic: str) -> dict[Partition, Address]:
        """Return ``_offered`` as it is now; raise as ``writable``."""
        self._cache.invalidate()
        listed = self._cache.listed(topic)  # first: what a master has listed there, it has offered before
        if found := self._offered(topic):
            return found
        self._cache.invalidate()
        brokers = self._registered().items()
        if away := [f"{id_} ({each.places})" for id_, each in brokers if each.lacks(topic, is_listed=id_ in listed)]:
            raise MasterMissing(topic, away, f"in ZooKeeper at {self._cache.address}")
        raise TopicNotFound(topic, [str(self._cache.address)], list(self._cache.offers(topic).known))

    def _offered(self, topic: str) -> dict[Partition, Address]:
        offers, brokers = self._cache.offers(topic), self._registered()
        away = self._away()
        masters = {
            id_: broker.master
            for id_, broker in brokers.items()
            if broker.master is not None and broker.master not in away
        }
        counts = {id_: count for id_, count in offers.counts.items() if id_ in masters}
        for broker in self._asked([masters[id_] for id_ in sorted(offers.maybe) if id_ in masters], _config):
            counts[broker.info.broker_id] = broker.read("config", parse_settings).partition_count(topic)
        return {Partition(id_, index): masters[id_] for id_, count in sorted(counts.items()) for index in range(count)}

    def _addresses(
        self, topics: Collection[str] | None = None, among: Collection[int | str] | None = None
    ) -> Sequence[Address]:
        known = self._registered()
        return [
            address
            for id_, address in self.brokers().items()
            if (among is None or id_ in among) and (id_ not in known or known[id_].may_have(topics))
        ]

    def _hidden(self) -> Hidden:
        return self._cache.hidden()

    def _survey_by(self, choose: Choose, topics: Collection[str] | None = None) -> list[SurveyAnswers]:
        return self._persist(lambda: self._survey_once(choose, topics))

    def _survey_once(self, choose: Choose, topics: Collection[str] | None) -> list[SurveyAnswers]:
        while True:
            try:
                return self._asked(self._present(topics), choose)
            except (ConnectionFailed, DeadlineExceeded) as error:
                if not self._cache.avoid(Address.parse(error.address)):
                    raise

    def _instead_of(self, address: Address) -> Address | None:
        if not self._cache.avoid(address):
            return None
        return next((to for id_, to in self.brokers().items() if self._is_slave_of(id_, address)), None)

    def _is_slave_of(self, broker_id: int, address: Address) -> bool:
        return self._cache.brokers()[broker_id].master == address

    def _asked(self, addresses: Sequence[Address], choose: Choose) -> list[SurveyAnswers]:
        try:
            return survey(self._pool, addresses, choose)
        except MetaqError as error:
            if error.retryable:
                self._cache.invalidate()  # the broker may have moved
            raise


def _config(_session: object) -> Sequence[str]:
    return ("config",)
