"""The role of a broker in replication: as configured, or as it changed while the broker ran.

A slave may be promoted to master; a master is then fenced by the slave that was promoted.

The role record is the file ``standing`` in the data folder, UTF-8 text, written atomically; without it, the configured
role applies::

    metaq-standing 1
    promoted TIME_MS                 or: fenced TIME_MS BY; TIME_MS: wall clock; BY: address of the promoted slave
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

A promoted broker accepts messages although it is configured as a slave. A fenced one accepts none, unless it is
configured as a slave. An operator removes the file when the roles are settled.

Source: docs/replication.md, "Promotion".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.clock import Clock
from metaq_broker.log.engine.outcomes import NotMaster
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.replication import GregorConfig, Role, SamsaConfig, SlaveConfig
from metaq_broker.replication.config_follower import ConfigFollower
from metaq_broker.replication.gregor import SyncSlave
from metaq_broker.replication.local import LocalPartitions
from metaq_broker.replication.master_connection import MasterAddress, MasterNotFound
from metaq_broker.replication.paired_commit import PairedCommit
from metaq_broker.replication.peer import Connect
from metaq_broker.replication.samsa import SyncMaster
from metaq_broker.replication.slave import AsyncSlave
from metaq_broker.replication.state_copy import StateCopy, StateTarget

if TYPE_CHECKING:
    from metaq_broker.operate.control.reload import Reloader


FILE_NAME: Final = "standing"
PROMOTED, FENCED = "promoted", "fenced"
_TITLE: Final = "metaq-standing 1"


class RoleRecord(NamedTuple):
    """The lines of the file: ``word`` is ``promoted`` or ``fenced``, ``by`` is ``""`` if promoted."""

    word: str
    time_ms: int
    by: str = ""


class RoleRecordDamaged(MetaqError):
    """The role record cannot be read; the text says what to do."""


def read_role_record(files: Files, data_path: Path) -> RoleRecord | None:
    """Return the role record of the data folder; ``None`` without a file (blocking).

    Raises:
        RoleRecordDamaged: The record cannot be read.
    """
    path = data_path / FILE_NAME
    if not files.exists(path):
        return None
    try:
        [line] = unseal(_TITLE, files.read_bytes(path))
        word, time_ms, *by = line.split(" ")
        if word not in (PROMOTED, FENCED):
            raise ValueError(f"it says {word!r}")
        return RoleRecord(word, int(time_ms), " ".join(by))
    except (ValueError, OSError) as error:
        text = f"{path}: {error}; the file records whether this broker may be a master: find that out, then remove it"
        raise RoleRecordDamaged(text) from error


def write_role_record(files: Files, data_path: Path, role_record: RoleRecord) -> None:
    """Write the role record, durably (blocking; any thread).

    Raises:
        OSError: The disk refuses.
    """
    line = " ".join(filter(None, (role_record.word, str(role_record.time_ms), role_record.by)))
    files.write_atomic(data_path / FILE_NAME, seal(_TITLE, [line]))


_LOG: Final = logging.getLogger(__name__)

NO_PUTS: Final = "this broker is a slave: messages are put to its master"
ASK_S: Final = 3.0
"""How many seconds a promotion tries to connect to the master."""


class PromotionRefused(MetaqError):
    """The broker is not promoted; the text is one sentence for the operator."""


async def _nothing_more() -> None:
    ...


class Replication:
    """Runs the broker's role in replication: ``start`` when the partitions are open, ``stop`` before they are closed.

    ``promoted`` is called when the broker has become a master, ``fenced`` when another broker has become the master in
    its place. Topics ``copied_last`` are copied after all others (``copied_order``).
    """

    def __init__(
        self,
        role: Role | None,
        local: LocalPartitions,
        commit: GroupCommit,
        clock: Clock,
        connect: Connect,
        promoted: Callable[[], Awaitable[None]] = _nothing_more,
        fenced: Callable[[], None] = lambda: None,
        copied_last: Set[str] = frozenset(),
    ) -> None:
        """Read the role record (blocking); ``connect`` opens connections to the other broker. Raises
        ``RoleRecordDamaged``.
        """
        self._local, self._clock, self._connect = local, clock, connect
        self._promoted, self._fenced, self._copied_last = promoted, fenced, copied_last
        self._gate = local.engine.gate
        self._data_path = Path(local.engine.config.system.data_path)
        self.role = role
        self._master: MasterAddress | None = None
        self.slave: AsyncSlave | None = None
        self.follower: ConfigFollower | None = None
        self.state_copy: StateCopy | None = None
        self.receiver: SyncSlave | None = None
        self.master: SyncMaster | None = None
        self.role_record = read_role_record(local.files, self._data_path)
        self._assume(role, commit)

    def _assume(self, role: Role | None, commit: GroupCommit) -> None:
        was_promoted = self.role_record is not None and self.role_record.word == PROMOTED
        if isinstance(role, GregorConfig):
            self.receiver = SyncSlave(self._local)
            self.receiver.fenced = was_promoted
        if isinstance(role, SlaveConfig | GregorConfig):
            if was_promoted:
                _LOG.warning("configured as a slave, but it was promoted: it is a master")
                self.role = None
                return
            self._gate.slave = True
            master = f" {role.master}" if role.master is not None else ""
            self._gate.shut(NotMaster(f"{NO_PUTS}{master}"))
        elif self.role_record is not None and not was_promoted:
            self._refuse_as_fenced(self.role_record)
            return
        if isinstance(role, SlaveConfig):
            config = self._local.engine.config
            self._master = MasterAddress(role.master, config.zookeeper, config.system.broker_id)
            self.slave = AsyncSlave(self._local, role, self._master, self._connect, self._copied_last)
        elif isinstance(role, SamsaConfig) and isinstance(commit, PairedCommit):
            self.master = SyncMaster(self._local, commit, role, self._connect, self._fence)

    def start(self) -> None:
        """Start copying, or accepting copies, as the role requires."""
        for part in (self.slave, self.master, self.state_copy):
            if part is not None:
                part.start()

    def copy_state(self, target: StateTarget) -> None:
        """If this broker is a slave, copy the master's state to ``target``; call before ``start``."""
        role, system = self.role, self._local.engine.config.system
        master = self._master
        if isinstance(role, GregorConfig) and role.master is not None:
            master = MasterAddress(role.master, self._local.engine.config.zookeeper, system.broker_id)
        if master is not None and self._gate.slave:
            self.state_copy = StateCopy(self._local.engine.stores, target, master, self._connect, system.broker_id)

    def follow_config(self, reloader: Reloader) -> None:
        """If this broker is configured to do so, follow the master's topics; ``reloader`` applies them."""
        if self._master is not None and isinstance(self.role, SlaveConfig) and self.role.follows_config:
            self.follower = ConfigFollower(
                self._master, self._connect, reloader.file, self._local.files, reloader.reload
            )
            self.follower.start()

    async def stop(self) -> None:
        """Stop after the operations in progress."""
        for part in (self.follower, self.slave, self.master, self.receiver, self.state_copy):
            if part is not None:
                await part.stop()

    # ---- who is the master

    async def _check_stopped(self, master: Address | None) -> None:
        if master is None and self._master is not None:
            try:
                master = await self._master.find()
            except MasterNotFound as error:
                raise PromotionRefused(f"{error}: make sure that the master is gone, then use --force") from error
        if master is None:
            raise PromotionRefused(
                "the address of the master is not configured ([gregor] master): make sure that it is gone, then "
                "use --force"
            )
        await _check_unreachable(master)

    async def promote(self, *, force: bool) -> None:
        """Make a slave a master, permanently; ``force``: without checking whether its master is running.

        Raises:
            PromotionRefused: It is not a slave, its master is running or is not known, or the disk refuses.
        """
        role = self.role
        if not isinstance(role, SlaveConfig | GregorConfig):
            raise PromotionRefused("this broker is no slave")
        if not force:
            await self._check_stopped(role.master)
        if self.receiver is not None:
            self.receiver.fenced = True  # first: from now on nothing that a master sends is acknowledged
        await self.stop()
        role_record = RoleRecord(PROMOTED, self._clock.now_ms())
        try:
            await asyncio.to_thread(write_role_record, self._local.files, self._data_path, role_record)
        except OSError as error:
            raise PromotionRefused(f"the promotion cannot be recorded: {error}; try again") from error
        self.role_record, self.role, self.slave, self.follower = role_record, None, None, None
        self.state_copy = None
        self._local.engine.ids_above_stored()
        self._gate.slave = False
        self._gate.open()
        _LOG.warning("promoted: this broker is a master now and takes messages")
        await self._promoted()

    async def _fence(self, by: Address) -> None:
        role_record = RoleRecord(FENCED, self._clock.now_ms(), str(by))
        self.role_record = role_record
        self._refuse_as_fenced(role_record)
        self._fenced()
        try:
            await asyncio.to_thread(write_role_record, self._local.files, self._data_path, role_record)
        except OSError as error:  # at the next start, the slave fences this broker again
            _LOG.warning("the fencing could not be recorded", extra={"fields": {"reason": error}})

    def _refuse_as_fenced(self, role_record: RoleRecord) -> None:
        reason = f"this broker is fenced: its slave {role_record.by} was promoted and is the master now"
        self._gate.shut(NotMaster(reason))
        _LOG.error("fenced, no messages are taken", extra={"fields": {"by": role_record.by}})

    @property
    def fenced(self) -> bool:
        """Whether another broker was promoted in place of this one."""
        return self.role_record is not None and self.role_record.word == FENCED and not self._gate.slave

    @property
    def is_master(self) -> bool:
        """Whether clients put messages to this broker: it is neither a slave nor fenced. A put may still fail."""
        return not self._gate.slave and not self.fenced

    async def slave_was_tried(self) -> None:
        """Return once the master of a pair is in sync with its slave, or knows that it is not; after ``start``.

        By then, a master that comes back after the promotion of its slave knows of the promotion.
        """
        if self.master is not None:
            await self.master.tried()

    # ---- for operators

    @property
    def word(self) -> str:
        """The broker's role in one word."""
        if self.fenced:
            return FENCED
        parts = {"slave": self.slave, "sync_master": self.master}
        found = [word for word, part in parts.items() if part is not None]
        if self._gate.slave and self.receiver is not None:
            return "sync_slave"
        return found[0] if found else PROMOTED if self.role_record is not None else "alone"

    @property
    def trouble(self) -> str | None:
        """Why copies are not kept at the moment; ``None`` if they are, or need not be."""
        part = self.slave or self.master
        return None if part is None else part.trouble

    @property
    def not_followed(self) -> str | None:
        """Why the topics of the master's configuration are not followed; ``None`` if they are, or need not be."""
        return None if self.follower is None else self.follower.trouble

    @property
    def state_not_copied(self) -> str | None:
        """Why the state of RocketMQ's clients is not copied, ``None`` if it is, or need not be."""
        return None if self.state_copy is None else self.state_copy.trouble

    def lines(self) -> Iterator[str]:
        yield f"role {self.word}"
        if self.trouble is not None:
            yield f"trouble {self.trouble}"
        if self.not_followed is not None:
            yield f"not_followed {self.not_followed}"
        if self.state_not_copied is not None:
            yield f"state_not_copied {self.state_not_copied}"
        for state in self.slave.states() if self.slave is not None else ():
            fault = "" if state.fault is None else f" not_copied {state.fault}"
            yield f"{state.partition_key[0]} part {state.partition_key[1]} lag_bytes {state.lag_bytes}{fault}"

    def synchronous_slave(self) -> tuple[Address, bool] | None:
        """Return the slave of this synchronous pair's master, and whether it is in sync; ``None`` for other brokers."""
        if self.master is None or not isinstance(self.role, SamsaConfig):
            return None
        return self.role.slave, self.master.trouble is None

    def facts(self) -> dict[str, object]:
        """Return what ``ctl status`` shows."""
        states = self.slave.states() if self.slave is not None else []
        return {
            "role": self.word,
            "trouble": self.trouble,
            "not_followed": self.not_followed,
            "state_not_copied": self.state_not_copied,
            "lag_bytes": sum(state.lag_bytes for state in states) if self.slave is not None else None,
            "not_copied": [
                {"topic": state.partition_key[0], "index": state.partition_key[1], "reason": state.fault}
                for state in states
                if state.fault is not None
            ],
        }


async def _check_unreachable(master: Address) -> None:
    try:
        async with asyncio.timeout(ASK_S):
            _, writer = await asyncio.open_connection(master.host, master.port)
    except (OSError, TimeoutError):
        return
    writer.transport.abort()  # the answer does not matter
    raise PromotionRefused(f"the master {master} is running: stop it first")
