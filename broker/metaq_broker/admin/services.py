"""What the control commands work on: the parts of one running broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.model import Address
from metaq_broker.admin.maintenance import PartitionMaintenance
from metaq_broker.admin.reload import Reloader
from metaq_broker.engine.engine import Engine
from metaq_broker.monitoring.disk_guard import DiskGuard
from metaq_broker.replication.roles import Replication
from metaq_broker.retention.schedule import Retention
from metaq_broker.transactions.manager import TransactionManager

if TYPE_CHECKING:
    from metaq_broker.registration.registration import Registration


@dataclass(frozen=True, slots=True)
class ControlServices:
    """``stop`` makes the broker end as SIGTERM does.

    ``metrics_address`` is ``None`` when no metrics are served, ``registration`` when there is no ZooKeeper.
    """

    address: Address
    metrics_address: Address | None
    engine: Engine
    maintenance: PartitionMaintenance
    transactions: TransactionManager
    retention: Retention
    guard: DiskGuard
    registration: Registration | None
    reloader: Reloader
    replication: Replication
    stop: Callable[[], None]
