"""A directory from a list of addresses: every broker is asked for its id and its partitions. Needs no ZooKeeper.

Both members of a pair may be in the list; its master is asked, whichever it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metaq import ports
from metaq.backends.metaq.pool import SessionPool
from metaq.discovery.base import Away, nobody
from metaq.discovery.stats import parse_settings
from metaq.discovery.survey import SurveyedDirectory
from metaq.errors import TopicNotFound
from metaq.model import Address, Partition
from metaq.net.retry import ONCE, RetryPolicy


class FixedDirectory(SurveyedDirectory):
    """The brokers at ``addresses`` (at least one), asked over connections of ``pool``."""

    def __init__(
        self, addresses: Sequence[Address], pool: SessionPool, policy: RetryPolicy = ONCE, away: Away = nobody
    ) -> None:
        if not addresses:
            raise ValueError(f"addresses: expected at least one broker, for example {ports.METAQ_HERE}")
        super().__init__(pool, policy, away)
        self._named = list(dict.fromkeys(addresses))
        pool.members.name(self._named)

    def _addresses(
        self, topics: Collection[str] | None = None, among: Collection[int | str] | None = None
    ) -> Sequence[Address]:
        return self._named

    def addresses(self) -> Collection[Address]:
        return self._named

    def brokers(self) -> dict[int, Address]:
        """Return broker id -> address.

        Raises:
            DirectoryConflict: Two addresses are the same broker, or a broker and its slave.
        """
        return {broker.info.broker_id: broker.address for broker in self._survey()}

    def writable(self, topic: str) -> dict[Partition, Address]:
        """Return the partitions that accept ``topic``, without slaves and brokers with ``acceptPublish=false``."""
        found = {
            Partition(broker.info.broker_id, index): broker.address
            for broker in self._survey("config")
            if not broker.info.slave
            for index in range(broker.read("config", parse_settings).partition_count(topic))
        }
        if not found:
            raise TopicNotFound(topic, [str(address) for address in self._named], list(self.topics()))
        return dict(sorted(found.items()))
