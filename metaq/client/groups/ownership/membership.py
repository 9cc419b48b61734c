"""Membership of a group: the interface that all kinds of groups implement, and a group with one member at a time.

Where neither ZooKeeper nor the brokers keep groups, consumers cannot know of each other, so a consumer owns all
partitions. A local file, locked while it runs, excludes a second program that would store offsets in the same place.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import IO, Protocol

from metaq.discovery.base import Directory
from metaq.discovery.zk_groups import GroupView
from metaq.errors import ConsumerIdInUse, StoreFailed, TopicNotFound
from metaq.model import Partition, TopicPartition


class Membership(Protocol):
    """A consumer's membership of a group; see ``ZooKeeperMembership``.

    ``refresh_s``: interval of checks of the members and partitions if not all changes are reported, else ``None``.
    ``until_s``: until when, by the consumer's clock, a partition is proven to belong to this consumer; afterwards the
    partition counts as another consumer's until it is claimed again. ``owned_now``: the partitions that, by an answer
    of the registry received after the call began, have belonged to this consumer since they were claimed.
    """

    group: str
    consumer_id: str
    exclusive: bool
    """Whether ``claim`` gives a partition only after its last owner has released it."""

    @property
    def registry(self) -> str:
        """The registry's name in messages."""

    @property
    def refresh_s(self) -> float | None: ...

    def start(self, on_change: Callable[[], None], on_lost: Callable[[], None]) -> None: ...

    @property
    def connected(self) -> bool: ...

    @property
    def registered(self) -> bool: ...

    def register(self) -> None: ...

    def view(self) -> GroupView: ...

    def claim(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]: ...

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]: ...

    def until_s(self, where: TopicPartition) -> float: ...

    def release(self, partitions: Collection[TopicPartition]) -> None: ...

    def close(self) -> None: ...


def topic_partitions(directory: Directory, topics: Collection[str]) -> Mapping[str, list[Partition]]:
    """Return topic -> its partitions that hold or accept messages.

    Raises:
        TopicNotFound: A topic has none.
    """
    found: dict[str, list[Partition]] = {}
    for topic in topics:
        there = set(directory.partitions(topic))
        try:
            there |= set(directory.writable(topic))
        except TopicNotFound:
            if not there:
                raise
        found[topic] = sorted(there)
    return found


class LoneMembership:
    """The only member of ``group`` among consumers with the same ``lock_path``; ``None``: without a check."""

    connected = True
    registry = "the file of the group"
    exclusive = True
    refresh_s: float | None = 5.0

    def __init__(
        self, directory: Directory, group: str, consumer_id: str, topics: Collection[str], lock_path: Path | None
    ) -> None:
        self.group, self.consumer_id = group, consumer_id
        self._directory, self._topics, self._lock_path = directory, topics, lock_path
        self._lock: IO[bytes] | None = None
        self.registered = False

    def start(self, on_change: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """No changes are ever reported."""

    def register(self) -> None:
        """Lock the file.

        Raises:
            ConsumerIdInUse: Another program has locked it.
            StoreFailed: It cannot be created.
        """
        if self._lock_path is not None and self._lock is None:
            self._lock = self._locked(self._lock_path)
        self.registered = True

    def _locked(self, path: Path) -> IO[bytes]:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = open(path, "ab")  # noqa: SIM115 - open, and so locked, until the consumer is closed
        except OSError as error:
            raise StoreFailed(str(path), error.strerror or str(error)) from error
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            opened.close()
            raise ConsumerIdInUse(self.group, self._holder(path), str(path)) from None
        with suppress(OSError):  # a full disk: the other program cannot learn who holds the lock
            opened.truncate(0)
            opened.write(f"{self.consumer_id}\n".encode())
            opened.flush()
        return opened

    def _holder(self, path: Path) -> str:
        """Return the consumer that has locked the file, as the file names it."""
        with suppress(OSError):
            if name := path.read_text(encoding="utf-8", errors="replace").strip():
                return name
        return "unknown"

    def view(self) -> GroupView:
        """Return all partitions that hold or accept messages of the topics."""
        return GroupView({self.consumer_id: list(self._topics)}, topic_partitions(self._directory, self._topics))

    def claim(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        return set(partitions)

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return all partitions: the lock lasts as long as the process."""
        return set(partitions)

    def until_s(self, where: TopicPartition) -> float:
        return inf

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: no other member waits."""

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self.registered = False
