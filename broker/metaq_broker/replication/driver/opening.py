"""Opens a member of a pair: its file, its streams, and the driver that runs them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from metaq.model import Address
from metaq_broker.clock import Clock
from metaq_broker.log.retention.retention import Retention
from metaq_broker.log.streams.epochs import EpochsDamaged, read_epochs
from metaq_broker.log.streams.member import MemberFile
from metaq_broker.operate.config.replication import PairConfig
from metaq_broker.replication.driver.driver import DriverParts, PairDriver, PairHost
from metaq_broker.replication.driver.links import OpenLink
from metaq_broker.replication.driver.store import PairStore
from metaq_broker.replication.local import LocalPartitions
from metaq_broker.replication.local_streams import LocalStreams
from metaq_broker.replication.pair.member import PairIdentity
from metaq_broker.replication.paired_commit import PairedCommit


@dataclass(frozen=True, slots=True)
class MemberParts:
    """The parts of a broker that its member works with. ``address``: where the other member reaches this one."""

    local: LocalPartitions
    clock: Clock
    retention: Retention
    address: Address


async def open_member(
    parts: MemberParts, pair: PairConfig, store: PairStore, open_link: OpenLink, host: PairHost
) -> PairDriver:
    """Return the driver, not started. The stores are open, and their folder is locked.

    Raises:
        MemberRefused: The folder cannot be a member's.
        OSError: The disk refuses.
    """
    local = parts.local
    system, files = local.engine.config.system, local.files
    data_path = Path(system.data_path)
    file = await asyncio.to_thread(MemberFile.start, files, data_path, system.broker_id)
    unfit = None
    try:
        epochs = read_epochs(files, data_path) or {}
    except EpochsDamaged as damaged:
        epochs, unfit = {}, f"the epochs of its streams are lost: {damaged}"
    assert isinstance(local.commit, PairedCommit)  # the broker of a pair makes one
    streams = LocalStreams(local, local.commit, parts.clock, parts.retention.remove_before, epochs)
    membership = file.membership
    blank = not membership.seen and not any(stream.end for stream in streams.all())
    identity = PairIdentity(
        membership.uuid,
        str(parts.address),
        membership.boots,
        membership.promised,
        membership.seen,
        blank,
        unfit,
    )

    async def promise(promised: int, seen: int) -> None:
        await asyncio.to_thread(file.promise, promised, seen)

    return PairDriver(DriverParts(pair, identity, streams, store, open_link, promise, host))
