"""Opens a member of a pair: its file, its streams, and the driver that runs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.model import Address
from metaq_broker.clock import Clock
from metaq_broker.log.retention.retention import Retention
from metaq_broker.log.streams.epochs import FILE_NAME as EPOCHS_NAME
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

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemberParts:
    """The parts of a broker that its member works with. ``address``: where the other member reaches this one."""

    local: LocalPartitions
    clock: Clock
    retention: Retention
    others: Sequence[OwnStream]
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
        epochs = read_epochs(files, data_path)
        if epochs is None:
            unfit = f"the epochs of its streams are lost: {data_path / EPOCHS_NAME} is missing"
    except EpochsDamaged as damaged:
        epochs, unfit = None, f"the epochs of its streams are lost: {damaged}"
    assert isinstance(local.commit, PairedCommit)  # the broker of a pair makes one
    remove_before = parts.retention.remove_before
    streams = LocalStreams(local, local.commit, parts.clock, remove_before, epochs or {}, parts.others)
    unfit = unfit or streams.unfit()
    if unfit is not None:
        _LOG.warning("this member leads only if no other one can", extra={"fields": {"reason": unfit}})
    return PairDriver(
        DriverParts(pair, _identity(file.record, streams, parts.address, unfit), streams, store, open_link, file, host)
    ), streams.deleted


def _identity(record: MemberRecord, streams: LocalStreams, address: Address, unfit: str | None) -> PairIdentity:
    is_blank = not record.seen and streams.is_blank
    return PairIdentity(record.uuid, str(address), record.boots, record.promised, record.seen, is_blank, unfit)
