"""What the sync and the asyncio consumer share: the parts of a consumer, and the rules for what was handed out."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from metaq.backends.metaq.pool import SessionPool
from metaq.client.groups.coordinator import Coordinator, CoordinatorSettings
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.membership import LoneMembership, Membership
from metaq.client.groups.options import ConsumerOptions
from metaq.client.groups.parking import PARKED_FILE, ParkedMessages
from metaq.client.groups.starts import StartResolver
from metaq.client.groups.state import GroupState
from metaq.client.offsets import OffsetStorage
from metaq.client.sql_offsets import SqliteOffsets
from metaq.discovery.base import Directory
from metaq.discovery.zk_groups import ZooKeeperMembership
from metaq.discovery.zk_layout import GroupOffset, ZooKeeperAddress
from metaq.errors import PartitionLost
from metaq.model import TopicPartition
from metaq.net.clock import SYSTEM_CLOCK
from metaq.net.transport import own_ip

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a consumer needs to know of its cluster; ``name`` is what the program called it."""

    name: str
    directory: Directory
    pool: SessionPool
    zookeeper: ZooKeeperAddress | None

    @property
    def state_folder(self) -> Path:
        """Where consumers of this cluster keep files on this machine."""
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(base) / "metaq" / re.sub(r"[^\w.-]+", "_", self.name)


class _ZooKeeperOffsets:
    """The group's offsets in ZooKeeper, over the session of its membership."""

    def __init__(self, membership: ZooKeeperMembership) -> None:
        self._membership = membership

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        return self._membership.load(partitions)

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        self._membership.save(offsets)

    def close(self) -> None:
        """The membership closes the session."""


class Verdict(Enum):
    """What becomes of a message that a handler refused."""

    AGAIN = "again"
    REJECT = "reject"
    LOST = "lost"


class ConsumerCore:
    """One consumer of a group, without the part that waits for messages. Opens nothing before ``start``."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        self.cluster, self.options = cluster, options
        self.group = options.group
        self.clock = cluster.pool.clock if cluster.pool.clock is not SYSTEM_CLOCK else SYSTEM_CLOCK
        self.state = GroupState(
            retry_max_s=options.retry_max_s, max_attempts=options.max_attempts, dedupe=options.dedupe
        )
        self.consumer_id = f"{self.group}_{options.consumer_id or f'{own_ip()}-{os.getpid()}-{uuid.uuid4()}'}"
        self._membership, self._storage = self._members()
        self.parked = ParkedMessages(options.parking or cluster.state_folder / PARKED_FILE, self.group)
        self.coordinator = Coordinator(
            self.state,
            self._membership,
            self._storage,
            StartResolver(cluster.directory, cluster.pool, options.start),
            options.read_settings(self.group),
            CoordinatorSettings(
                strategy=options.strategy,
                save_s=options.save_s,
                drain_s=options.drain_s,
                id_wait_s=2 * options.session_s,
                callbacks=options.on_revoked is not None,
            ),
            self.clock,
        )

    def _members(self) -> tuple[Membership, OffsetStorage]:
        cluster, options = self.cluster, self.options
        if cluster.zookeeper is not None:
            membership = ZooKeeperMembership(
                cluster.zookeeper,
                self.group,
                self.consumer_id,
                options.topics,
                session_s=options.session_s,
                timeout_s=cluster.pool.timeouts.connect_s,
            )
            return membership, options.offsets or _ZooKeeperOffsets(membership)
        folder = cluster.state_folder
        lock = None if options.offsets is not None else folder / f"{self.group}.lock"
        lone = LoneMembership(cluster.directory, self.group, self.consumer_id, options.topics, lock)
        return lone, options.offsets or SqliteOffsets(folder / "offsets.sqlite")

    def acknowledge(self, delivery: Delivery) -> None:
        """Settle a message for the program. One whose partition is lost is delivered again, here or elsewhere."""
        with suppress(PartitionLost):
            self.state.acknowledge(delivery)

    def refused(self, delivery: Delivery) -> Verdict:
        """A handler raised: have the message handed out again, unless that was its last attempt."""
        if delivery.attempt >= self.options.max_attempts:
            return Verdict.REJECT
        return Verdict.AGAIN if self.state.schedule_retry(delivery, self.clock.monotonic()) else Verdict.LOST

    def is_exhausted(self, delivery: Delivery) -> bool:
        """Whether a message was rolled back so often that it is not handed out any more."""
        return delivery.attempt > self.options.max_attempts

    def reject_here(self, delivery: Delivery, error: BaseException | None) -> None:
        """Do with a message that is given up what the options say, unless it goes to a topic.

        Raises:
            StoreFailed: It cannot be parked.
        """
        reason = f"{type(error).__name__}: {error}" if error is not None else "rolled back too often"
        _LOG.warning(
            "group %s: %s/%s offset %d is given up after %d attempts: %s",
            *(self.group, delivery.topic, delivery.partition, delivery.offset, self.options.max_attempts, reason),
        )
        match self.options.on_reject:
            case "park":
                self.parked.park(delivery, reason)
            case str():
                pass
            case function:
                function(delivery, error)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset before which everything is settled, of each partition."""
        return {where: position.offset for where, position in self.state.positions().items()}

    def lag(self) -> dict[TopicPartition, int]:
        """Return how many bytes each partition has behind its position; asks the brokers."""
        ends = self.cluster.directory.ends(self.options.topics)
        return {
            where: max(0, ends[where].end - max(offset, ends[where].start)) if where in ends else 0
            for where, offset in self.positions().items()
        }

    def changes(self) -> list[tuple[Callable[..., object], tuple[TopicPartition, ...]]]:
        """Return the calls of the program's functions that are due. The caller has the lock; see ``changes_done``."""
        functions = {"assigned": self.options.on_assigned, "revoked": self.options.on_revoked}
        found = [
            (function, change.partitions)
            for change in self.state.changes
            if (function := functions[change.kind]) is not None
        ]
        self.state.changes.clear()
        self.state.callbacks_running += 1
        return found

    def changes_done(self) -> None:
        """The functions have returned."""
        with self.state.lock:
            self.state.callbacks_running -= 1
            self.state.notify()


def broadcast(options: ConsumerOptions, cluster: Cluster) -> ConsumerOptions:
    """Return the options of a consumer that reads all partitions by itself: its group is this machine's own."""
    from metaq.client.offsets import FileOffsets

    group = f"{options.group}-{re.sub(r'[.:]', '-', own_ip())}"
    offsets = options.offsets or FileOffsets(cluster.state_folder / "broadcast-offsets.json")
    return replace(options, group=group, offsets=offsets)
