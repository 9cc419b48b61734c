"""What the control commands work on: the parts of one running broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metaq.model import Address
from metaq_broker.disk_guard import DiskGuard
from metaq_broker.engine import Engine
from metaq_broker.maintenance import PartitionMaintenance
from metaq_broker.reload import Reloader
from metaq_broker.retention import Retention
from metaq_broker.tx.manager import TransactionManager


@dataclass(frozen=True, slots=True)
class ControlServices:
    """``stop`` makes the broker end as SIGTERM does; ``metrics_address`` is ``None`` when no metrics are served."""

    address: Address
    metrics_address: Address | None
    engine: Engine
    maintenance: PartitionMaintenance
    transactions: TransactionManager
    retention: Retention
    guard: DiskGuard
    reloader: Reloader
    stop: Callable[[], None]
