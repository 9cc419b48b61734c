"""A directory that finds brokers in ZooKeeper, where MetaQ 1.4 registers them. What they hold they tell themselves.

For reading, a broker id stands for its master, else for one of its slaves. If there is neither, because the broker
crashed or is being restarted, it stands for where the master was: so asking fails, and names the broker, unless it has
said which topics it may have, and what is asked for is none of them. Writing is for masters only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metaq.backends.metaq.pool import SessionPool
from metaq.discovery.stats import TopicSettings
from metaq.discovery.survey import Answers, Choose, Hidden, SurveyedDirectory, survey
from metaq.discovery.zk_memory import TreeMemory
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError, TopicNotFound
from metaq.model import Address, Partition


class ZooKeeperDirectory(SurveyedDirectory):
    """The brokers in the tree that ``memory`` knows, asked over connections of ``pool``.

    Which brokers there are may be ``LOOK_AGE_S_MAX`` old, and older while ZooKeeper is away. Methods raise
    ``ZooKeeperAway`` only if it never answered in this process.
    """

    def __init__(self, memory: TreeMemory, pool: SessionPool) -> None:
        super().__init__(pool)
        self._memory = memory

    def brokers(self) -> dict[int, Address]:
        """See ``Directory``; nobody but ZooKeeper is asked."""
        return self._memory.readable()

    def masters(self) -> dict[int, Address]:
        """Broker id to where its master is or was; those that are away are among them."""
        found = self._memory.brokers()
        known = {broker_id: broker.master or broker.last for broker_id, broker in found.items()}
        return {broker_id: address for broker_id, address in known.items() if address is not None}

    def writable(self, topic: str) -> dict[Partition, Address]:
        """See ``Directory``. A topic that nobody has written yet is registered by its pattern at most: brokers that
        have registered one which covers it are asked for the number of partitions.
        """
        offers = self._memory.offers(topic)
        masters = {id_: broker.master for id_, broker in self._memory.brokers().items() if broker.master is not None}
        counts = {id_: count for id_, count in offers.counts.items() if id_ in masters}
        for broker in self._asked([masters[id_] for id_ in sorted(offers.maybe) if id_ in masters], _config):
            counts[broker.info.broker_id] = broker.read("config", TopicSettings).partition_count(topic)
        found = {Partition(id_, index): masters[id_] for id_, count in sorted(counts.items()) for index in range(count)}
        if not found:
            self._memory.doubt()
            raise TopicNotFound(topic, [str(self._memory.address)], list(offers.known))
        return found

    def _addresses(self, topics: Collection[str] | None = None) -> Sequence[Address]:
        known = self._memory.brokers()
        return [address for id_, address in self.brokers().items() if id_ not in known or known[id_].may_have(topics)]

    def _hidden(self) -> Hidden:
        return self._memory.hidden()

    def _survey_by(self, choose: Choose, topics: Collection[str] | None = None) -> list[Answers]:
        while True:
            try:
                return self._asked(self._addresses(topics), choose)
            except (ConnectionFailed, DeadlineExceeded) as error:
                if not self._memory.avoid(Address.parse(error.address)):
                    raise

    def _instead_of(self, address: Address) -> Address | None:
        if not self._memory.avoid(address):
            return None
        return next((to for id_, to in self.brokers().items() if self._is_slave_of(id_, address)), None)

    def _is_slave_of(self, broker_id: int, address: Address) -> bool:
        return self._memory.brokers()[broker_id].master == address

    def _asked(self, addresses: Sequence[Address], choose: Choose) -> list[Answers]:
        try:
            return survey(self._pool, addresses, choose)
        except MetaqError as error:
            if error.retryable:
                self._memory.doubt()  # it may have moved
            raise


def _config(_session: object) -> Sequence[str]:
    return ("config",)
