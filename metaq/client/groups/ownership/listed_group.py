"""The group of a consumer on a list of brokers: kept by the brokers, if all of them can, else of one member.

Which one it is is decided when the consumer joins for the first time, because that needs the brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any, Final

from metaq.backends.metaq.group_requests import ask_group, keeps_groups
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.client.groups.ownership.broker_group import BrokerMembership, OffsetsAtBrokers
from metaq.client.groups.ownership.membership import LoneMembership
from metaq.client.offsets import GroupOffset
from metaq.client.sql_offsets import SqliteOffsets
from metaq.discovery.base import Directory
from metaq.discovery.zk_groups import GroupView
from metaq.errors import MetaqError, StoreFailed
from metaq.model import Address, TopicPartition

_LOG: Final = logging.getLogger(__name__)


class ListedMembership:
    """A ``Membership`` that is ``shared`` if all brokers keep groups, else ``lone``.

    ``file``: this machine's offsets of groups that no broker keeps; ``None`` if they are in the program's own storage.
    """

    exclusive = True
    connected = True

    def __init__(
        self,
        directory: Directory,
        pool: SessionPool,
        shared: BrokerMembership,
        lone: LoneMembership,
        file: Path | None = None,
    ) -> None:
        self.group, self.consumer_id = lone.group, lone.consumer_id
        self._directory, self._pool = directory, pool
        self._shared, self._lone, self._file = shared, lone, file
        self._chosen: BrokerMembership | LoneMembership | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the brokers keep the group.

        Raises:
            MetaqError: It is not known yet.
        """
        if self._chosen is None:
            raise _Unknown()
        return self._chosen is self._shared

    @property
    def _membership(self) -> BrokerMembership | LoneMembership:
        if self._chosen is None:
            raise _Unknown()
        return self._chosen

    @property
    def registry(self) -> str:
        return (self._chosen or self._shared).registry

    @property
    def refresh_s(self) -> float | None:
        return (self._chosen or self._shared).refresh_s

    @property
    def registered(self) -> bool:
        return self._chosen is not None and self._chosen.registered

    def start(self, on_change: Callable[[], None], on_lost: Callable[[], None]) -> None:
        self._shared.start(on_change, on_lost)
        self._lone.start(on_change, on_lost)

    def register(self) -> None:
        """Choose, the first time, and join.

        Raises:
            ValueError: Only some of the brokers keep groups, and these know the group.
        """
        if self._chosen is None:
            self._chosen = self._choose()
        self._chosen.register()

    def _choose(self) -> BrokerMembership | LoneMembership:
        """Ask the brokers that answer; all of them, where one keeps no groups, or where this machine has offsets of
        a group that none of them knows: the one that is away may keep no groups.

        Raises ``ValueError`` if only some brokers keep groups, and these know the group: its offsets would not count
        any more, and its members would read what this consumer reads.
        """
        without: list[Address] = []
        known, answered, failure = False, False, None
        for address in self._directory.addresses():
            try:
                with self._pool.lease(address) as session:
                    answered = True
                    if not keeps_groups(session):
                        without.append(address)
                    else:
                        known = known or _knows(session, self.group)
            except MetaqError as error:
                if not error.retryable:
                    raise
                failure = error
        if failure is not None and (not answered or (not known and (without or self._has_offsets()))):
            raise failure
        if not without:
            return self._shared
        named = ", ".join(map(str, without))
        if known:
            raise ValueError(
                f"group {self.group!r} is kept by other brokers of the list, but {named} keeps no consumer groups "
                "(only a bundled broker without a role in replication does): name only brokers that do, or use another "
                "group"
            )
        _LOG.warning(
            "group %s: %s keeps no consumer groups (only a bundled broker without a role in replication does): this "
            "consumer reads all partitions, and its offsets are on this machine",
            *(self.group, named),
        )
        return self._lone

    def _has_offsets(self) -> bool:
        """Whether this machine has offsets of the group, or may have."""
        if self._file is None:
            return False
        try:
            if not self._file.exists():
                return False
            with closing(SqliteOffsets(self._file)) as stored:
                return stored.has_offsets(self.group)
        except (StoreFailed, OSError):
            return True

    def view(self) -> GroupView:
        return self._membership.view()

    def claim(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        return self._membership.claim(partitions)

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        return self._membership.owned_now(partitions)

    def until_s(self, where: TopicPartition) -> float:
        return -inf if self._chosen is None else self._chosen.until_s(where)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self._membership.release(partitions)

    def close(self) -> None:
        self._shared.close()
        self._lone.close()


class ListedOffsets:
    """The offsets of the group of ``membership``: at the brokers, or in an SQLite file of this machine, ``path``."""

    def __init__(self, membership: ListedMembership, shared: BrokerMembership, path: Path) -> None:
        self._membership = membership
        self._local, self._path = SqliteOffsets(path), path
        self._shared = OffsetsAtBrokers(shared, lambda: self._local if path.exists() else None)

    @property
    def _storage(self) -> Any:
        return self._shared if self._membership.is_shared else self._local

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        found: Mapping[TopicPartition, GroupOffset] = self._storage.load(group, partitions)
        return found

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        self._storage.save(group, offsets)

    def save_if_unchanged(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        expected: Mapping[TopicPartition, GroupOffset | None],
    ) -> dict[TopicPartition, GroupOffset | None]:
        changed: dict[TopicPartition, GroupOffset | None] = self._storage.save_if_unchanged(group, offsets, expected)
        return changed

    def incarnations(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        found: Mapping[TopicPartition, str] = self._storage.incarnations(group, partitions)
        return found

    def save_incarnations(
        self,
        group: str,
        offsets: Mapping[TopicPartition, GroupOffset],
        incarnations: Mapping[TopicPartition, str | None],
    ) -> None:
        self._storage.save_incarnations(group, offsets, incarnations)

    def close(self) -> None:
        self._local.close()


def _knows(session: Session, group: str) -> bool:
    """Whether the session's broker has offsets or members of a group."""
    body = ask_group(session, "list", group)
    return bool(body.offsets("offsets") or body.members())


class _Unknown(MetaqError):
    """No broker has been asked yet whether it keeps groups."""

    retryable = True

    def __str__(self) -> str:
        return "the consumer has not joined its group yet"
