"""Opens a member of a pair: its file, its streams, and the driver that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metaq.model import Address
from metaq_broker.clock import Clock
from metaq_broker.log.retention.retention import Retention
from metaq_broker.log.streams.epochs import EpochsDamaged, read_epochs
from metaq_broker.log.streams.member import MemberFile, MemberRecord
from metaq_broker.operate.config.replication import PairConfig
from metaq_broker.replication.driver.driver import DriverParts, PairDriver, PairHost
from metaq_broker.replication.driver.links import OpenLink
from metaq_broker.replication.driver.store import PairStore
from metaq_broker.replication.local import LocalPartitions
from metaq_broker.replication.local_streams import LocalStreams, OwnStream
from metaq_broker.replication.pair.member import PairIdentity
from metaq_broker.replication.paired_commit import PairedCommit
from metaq_broker.transactions.journal_stream import JournalStream


@dataclass(frozen=True, slots=True)
class MemberParts:
    """The parts of a broker that its member works with. ``address``: where the other member reaches this one."""

    local: LocalPartitions
    clock: Clock
    retention: Retention
    journal: OwnStream | None
    address: Address


async def open_member(
    parts: MemberParts, pair: PairConfig, store: PairStore, open_link: OpenLink, host: PairHost
) -> tuple[PairDriver, Callable[[str, int], None]]:
    """Return the driver, not started, and what to call when a partition was deleted. The stores are open and locked.

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
    others = [parts.journal] if parts.journal is not None else []
    streams = LocalStreams(local, local.commit, parts.clock, parts.retention.remove_before, epochs, others)
    if unfit is None and isinstance(parts.journal, JournalStream):
        unfit = parts.journal.loss
    return PairDriver(
        DriverParts(pair, _identity(file.record, streams, parts.address, unfit), streams, store, open_link, file, host)
    ), streams.deleted


def _identity(record: MemberRecord, streams: LocalStreams, address: Address, unfit: str | None) -> PairIdentity:
    has_data = any(
        not stream.is_blank if isinstance(stream, JournalStream) else stream.end > 0 for stream in streams.all()
    )
    is_blank = not record.seen and not has_data
    return PairIdentity(record.uuid, str(address), record.boots, record.promised, record.seen, is_blank, unfit)
