"""The parts of a running broker that operators work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.model import Address
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.maintenance import PartitionMaintenance
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.retention.retention import Retention
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.control.reload import Reloader
from metaq_broker.operate.monitoring.disk_guard import DiskGuard
from metaq_broker.replication.driver.pair_replication import PairReplication
from metaq_broker.replication.roles import Replication
from metaq_broker.transactions.manager import TransactionManager

if TYPE_CHECKING:
    from metaq_broker.operate.registration.registration import Registration


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """RocketMQ's groups: their number, memberships of clients, and the size of the file with settings and offsets."""

    groups: int
    members: int
    state_bytes: int
    state_bytes_max: int


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """Created once by the broker and passed to everything that operators use.

    ``metrics_address`` is ``None`` when no metrics are served, ``registration`` without ZooKeeper; ``groups`` returns
    ``None`` if RocketMQ's clients are not served. ``describe`` returns the sentence of a refusal. ``stop`` makes the
    broker end as SIGTERM does.
    """

    address: Address
    metrics_address: Address | None
    engine: Engine
    commit: GroupCommit
    maintenance: PartitionMaintenance
    transactions: TransactionManager
    retention: Retention
    guard: DiskGuard
    replication: Replication | PairReplication
    registration: Callable[[], Registration | None]
    groups: Callable[[], GroupFigures | None]
    reloader: Reloader
    describe: Callable[[Refusal], str]
    stop: Callable[[], None]
