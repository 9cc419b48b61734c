"""The consumer groups that bundled brokers keep, for operators: each broker is asked for its part of a group.

It has the same methods as ``GroupOffsetStore``, which is for groups in ZooKeeper.

Source: docs/protocol.md, "group".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from metaq.backends.metaq.group_requests import (
    GroupBody,
    LocalPartition,
    StoredOffset,
    ask_group,
    keeps_groups,
    offset_rows,
)
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.discovery.base import Directory
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import StoreFailed
from metaq.model import Address, Partition, TopicPartition

_ANY_GROUP: Final = "-"
_OPERATOR: Final = "operator"
"""The token of requests that no consumer makes; no partition belongs to it."""


class BrokerGroupStore:
    """The groups at the brokers of ``directory``. All methods raise ``MetaqError`` if a broker does not answer, and
    ``ValueError`` if one keeps no groups.
    """

    def __init__(self, directory: Directory, pool: SessionPool) -> None:
        self._directory, self._pool = directory, pool

    def groups(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted({name for body in self._ask_all("names", _ANY_GROUP).values() for name in body.texts("names")})

    def topics(self, group: str) -> list[str]:
        """Return the topics for which ``group`` has committed offsets, sorted."""
        return sorted({where.topic for where in self._offsets(group)})

    def consumers(self, group: str) -> list[str]:
        """Return the ids of the running consumers of ``group``, sorted."""
        return sorted({name for body in self._ask_all("list", group).values() for name in body.members()})

    def read(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """Return the committed offsets of ``group`` in ``partitions``; partitions without one are left out."""
        offsets = self._offsets(group)
        return {where: offsets[where] for where in partitions if where in offsets}

    def write(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Commit ``offsets`` for ``group``; offsets of other partitions are kept. They are stored with the partitions'
        current incarnations: with an older one, a consumer would not use them.

        Raises:
            StoreFailed: A consumer owns a partition.
        """
        brokers = self._directory.brokers()
        states = self._directory.available({where.topic for where in offsets})
        by_broker: dict[int | str, dict[LocalPartition, StoredOffset]] = {}
        for where, offset in offsets.items():
            place = where.topic, where.partition.index
            incarnation = None if (state := states.get(where)) is None else state.incarnation
            by_broker.setdefault(where.partition.broker, {})[place] = StoredOffset(str(offset), incarnation)
        for broker, new in by_broker.items():
            address = brokers[int(broker)]
            with self._pool.lease(address) as session:
                _check(session, address)
                body = ask_group(session, "save", group, token=_OPERATOR, offsets=offset_rows(new))
            if changed := body.offsets("changed"):
                named = ", ".join(f"{topic}/{broker}-{index}" for topic, index in sorted(changed))
                raise StoreFailed(f"group {group!r} at broker {address}", f"consumers own {named}")

    def forget(self, group: str) -> None:
        """Remove the group and its offsets. Raises ``MetaqError`` if it has members."""
        self._ask_all("forget", group)

    def _offsets(self, group: str) -> dict[TopicPartition, GroupOffset]:
        return {
            TopicPartition(topic, Partition(broker, index)): GroupOffset.parse(stored.offset)
            for broker, body in self._ask_all("list", group).items()
            for (topic, index), stored in body.offsets("offsets").items()
            if stored.offset is not None
        }

    def _ask_all(self, action: str, group: str) -> dict[int, GroupBody]:
        found: dict[int, GroupBody] = {}
        for broker, address in self._directory.brokers().items():
            with self._pool.lease(address) as session:
                _check(session, address)
                found[broker] = ask_group(session, action, group)
        return found


def _check(session: Session, address: Address) -> None:
    if not keeps_groups(session):
        raise ValueError(
            f"broker {address} keeps no consumer groups: only a bundled broker without a role in replication does; "
            "groups in ZooKeeper need a cluster that is named zk://host:port/root"
        )
