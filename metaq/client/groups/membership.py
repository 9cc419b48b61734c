"""Who else is in the group: the interface that ZooKeeper's groups implement, and a group that has one member at a time.

Without ZooKeeper nobody can tell consumers of each other, so a consumer on a fixed list of brokers owns all partitions.
A file of this machine, locked as long as it runs, keeps out a second program that would store offsets at the same
place.
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

    ``refresh_s``: pause between two looks at the members and partitions, where nobody reports all changes; else
    ``None``. ``until_s``: until when, by the consumer's clock, a partition is proven to be this consumer's; a
    partition for which that is over counts as another one's until it is claimed anew. ``owned_now``: those of the
    partitions that are this consumer's by an answer of the registry that is not older than the call, and have been
    since they were claimed.
    """

    group: str
    consumer_id: str
    registry: str
    """What tells members of each other, as messages name it."""
    exclusive: bool
    """Whether ``claim`` gives a partition only when its last owner has released it."""

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


class LoneMembership:
    """The only member of ``group`` among those that use the same ``lock_path``; ``None``: nobody looks."""

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
        """Nothing ever changes by itself."""

    def register(self) -> None:
        """Lock the file.

        Raises:
            ConsumerIdInUse: Another program has locked it.
            StoreFailed: It cannot be made.
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
        with suppress(OSError):  # a full disk: whoever waits does not know for whom
            opened.truncate(0)
            opened.write(f"{self.consumer_id}\n".encode())
            opened.flush()
        return opened

    def _holder(self, path: Path) -> str:
        """Return the consumer that has locked the file, as it says."""
        with suppress(OSError):
            if name := path.read_text(encoding="utf-8", errors="replace").strip():
                return name
        return "unknown"

    def view(self) -> GroupView:
        """Return all partitions that hold or accept messages of the topics."""
        return GroupView({self.consumer_id: list(self._topics)}, self._partitions())

    def _partitions(self) -> Mapping[str, list[Partition]]:
        found: dict[str, list[Partition]] = {}
        for topic in self._topics:
            there = set(self._directory.partitions(topic))
            try:
                there |= set(self._directory.writable(topic))
            except TopicNotFound:
                if not there:
                    raise
            found[topic] = sorted(there)
        return found

    def claim(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """All of them."""
        return set(partitions)

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """All of them: a lock of this machine lasts as long as the process."""
        return set(partitions)

    def until_s(self, where: TopicPartition) -> float:
        """As ``owned_now``."""
        return inf

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Nobody waits for them."""

    def close(self) -> None:
        """Unlock the file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self.registered = False
