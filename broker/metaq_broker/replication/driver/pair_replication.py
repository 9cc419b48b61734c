"""The role of a member of a pair, as the rest of the broker sees it: whether it serves clients, and what operators see.

Source: docs/replication.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from metaq.errors import MetaqError
from metaq.model import Address
from metaq.statuses import NOT_MASTER
from metaq_broker.log.engine.gates import PutGate
from metaq_broker.log.engine.outcomes import NotMaster, SlaveOutOfSync
from metaq_broker.log.files.files import Files
from metaq_broker.log.streams.lost_found import kept
from metaq_broker.operate.config.replication import PairConfig
from metaq_broker.replication.driver.driver import PairDriver
from metaq_broker.replication.driver.links import IncomingLink, LinkEnd
from metaq_broker.replication.pair.actions import PairRole
from metaq_broker.replication.roles import PromotionRefused
from metaq_broker.replication.samsa import DISCONNECTED

if TYPE_CHECKING:
    from metaq_broker.operate.control.reload import Reloader

WORDS: Final = {
    PairRole.LEARNER: "learner",
    PairRole.IN_SYNC: "in_sync_slave",
    PairRole.CANDIDATE: "candidate",
    PairRole.MASTER: "master",
    PairRole.FENCED: "fenced",
}
"""Roles in ``stats replication`` and ``ctl status``."""


class SwitchRefused(MetaqError):
    """The pair does not change; the text is one sentence for the operator."""


class PairReplication:
    """Offers the broker what ``Replication`` offers. Call ``open`` with a driver before ``start``.

    ``serve`` recovers transactions and state, and serves clients; ``reopen`` closes the broker and opens it again.
    ``follows`` is called when the other member has begun to follow this one.
    """

    slave: Final = None
    receiver: Final = None
    fenced: Final = False
    not_followed: Final = None
    state_not_copied: Final = None

    def __init__(
        self,
        role: PairConfig,
        gate: PutGate,
        serve: Callable[[], Awaitable[None]],
        reopen: Callable[[str], None],
        files: Files,
        data_paths: Sequence[Path],
        follows: Callable[[], None] = lambda: None,
    ) -> None:
        self._follows = follows
        self.role, self._gate, self._serve, self._reopen = role, gate, serve, reopen
        self._files, self._data_paths = files, data_paths
        self.driver: PairDriver | None = None
        self._serves = False
        self._gate_is_open, self._gate_reason, self._hands_over = False, "this broker has not been elected", False
        gate.slave = True
        self._settle_gate()

    def open(self, driver: PairDriver) -> None:
        self.driver = driver

    def start(self) -> None:
        self._started.start()

    async def stop(self) -> None:
        """Hand over to the other member, if this one is the master and the other one is in sync; then stop.

        If the other one does not answer, sessions end without an answer: nobody may confirm what waits.
        """
        if self.driver is None:
            return
        if self._serves and len(self.driver.member.in_sync) > 1 and not await self.driver.hand_over():
            self.end_leading("the broker is stopping")
        self._serves = False
        self._settle_gate()
        await self.driver.stop()

    @property
    def _started(self) -> PairDriver:
        assert self.driver is not None  # the broker opens it before anything else is done
        return self.driver

    # ---- for the driver

    async def lead(self) -> None:
        """Serve clients. Raises ``MetaqError``."""
        self._gate.slave = False
        try:
            await self._serve()
        except BaseException:
            self._gate.slave = True
            raise
        self._serves = True
        self._settle_gate()

    def move_gate(self, *, is_open: bool, reason: str, hands_over: bool) -> None:
        self._gate_is_open, self._gate_reason, self._hands_over = is_open, reason, hands_over
        self._settle_gate()

    def member_follows(self) -> None:
        self._follows()

    def end_leading(self, reason: str) -> None:
        self._serves = False
        self._gate.slave = True
        self._settle_gate()
        self._reopen(reason)

    def _settle_gate(self) -> None:
        if not self._serves:
            self._gate.shut(NotMaster(f"{NOT_MASTER}{self._where}"))
        elif self._gate_is_open:
            self._gate.open()
        elif self._hands_over:
            self._gate.shut(NotMaster(f"{NOT_MASTER}{self._gate_reason}"))
        else:
            self._gate.shut(SlaveOutOfSync(f"{DISCONNECTED}{self._gate_reason} (minInSync)"))

    # ---- for sessions

    @property
    def refusal(self) -> str | None:
        """Why clients are not served; ``None`` at the master."""
        return None if self._serves else f"{NOT_MASTER}{self._where}"

    @property
    def _where(self) -> str:
        master = "-" if self.driver is None else self.driver.master_address
        return "the pair has no master yet" if master == "-" else f"the master of the pair is {master}"

    def opened(self, link: IncomingLink) -> LinkEnd:
        return self._started.opened(link)

    @property
    def other(self) -> Address:
        return self.role.other

    @property
    def epoch(self) -> int:
        """The epoch that this member knows."""
        return 0 if self.driver is None else self.driver.member.epoch

    # ---- for the broker and for operators

    @property
    def is_master(self) -> bool:
        return self._serves

    def synchronous_slave(self) -> tuple[Address, bool] | None:
        """At the master, return the other member and whether it is in sync; elsewhere ``None``."""
        if not self._serves:
            return None
        return self.role.other, len(self._started.member.in_sync) > 1

    async def slave_was_tried(self) -> None:
        """Return at once: a member serves no clients before it is elected."""

    def follow_config(self, reloader: Reloader) -> None:
        """Do nothing: members of a pair have the same files."""

    async def promote(self, *, force: bool) -> None:
        """Refuse: a pair elects its master. Raises ``PromotionRefused``."""
        raise PromotionRefused("a pair elects its master by itself; use switch on the master to hand over")

    async def switch(self) -> None:
        """Hand over to the other member. Raises ``SwitchRefused``."""
        if not self._serves:
            raise SwitchRefused(f"this member is not the master; {self._where}")
        if len(self._started.member.in_sync) < 2:
            raise SwitchRefused(f"the other member is not in sync: {self.trouble}")
        if not await self._started.switch():
            then = "goes on as the master" if self._serves else "has stopped serving"
            raise SwitchRefused(f"the other member was not elected within a second; this one {then}")

    def leave(self) -> None:
        """Leave the set in sync. Raises ``SwitchRefused``."""
        if self._serves:
            raise SwitchRefused("this member is the master; use switch first")
        self._started.leave()

    def join(self) -> None:
        self._started.join()

    @property
    def master(self) -> str:
        """The address of the recorded master; ``-`` if there is none."""
        return self._started.master_address

    @property
    def elections(self) -> int:
        return self._started.elections

    @property
    def seconds_without_master(self) -> float:
        return self._started.seconds_without_master

    @property
    def word(self) -> str:
        """The broker's role in one word."""
        return WORDS[PairRole.LEARNER if self.driver is None else self.driver.member.role]

    @property
    def trouble(self) -> str | None:
        """Why the members are not both in sync, in one sentence; ``None`` if they are."""
        driver = self.driver
        if driver is None:
            return None
        own = driver.member.trouble or driver.store_trouble
        if own is None and self._serves and len(driver.member.in_sync) < 2:
            own = driver.links_trouble or "the other member is not in sync yet"
        return own

    def in_sync(self) -> list[str]:
        """Return the addresses of the members in sync, as the record says."""
        record = None if self.driver is None else self.driver.member.record
        if record is None:
            return []
        return sorted(record.members[uuid].address for uuid in record.in_sync)

    def lines(self) -> Iterator[str]:
        facts = self._pair_facts()
        yield f"role {self.word}"
        yield f"epoch {facts['epoch']}"
        yield f"master {facts['master']}"
        yield f"other {facts['other']}"
        yield f"in_sync {','.join(facts['in_sync']) or '-'}"
        yield f"min_in_sync {facts['min_in_sync']}"
        yield f"elections {facts['elections']}"
        yield f"seconds_without_master {facts['seconds_without_master']:.1f}"
        if self.trouble is not None:
            yield f"trouble {self.trouble}"

    def facts(self) -> dict[str, object]:
        """Return what ``ctl status`` shows."""
        return {
            "role": self.word,
            "trouble": self.trouble,
            "not_followed": None,
            "state_not_copied": None,
            "lag_bytes": None,
            "not_copied": [],
            "pair": self._pair_facts(),
        }

    def _kept(self) -> list[dict[str, object]]:
        """Return the files of records that were cut because the master lacked them. Operators remove the files."""
        found = []
        for data_path in self._data_paths:
            with contextlib.suppress(OSError):
                found += [{"path": str(each.path), "bytes": each.byte_count} for each in kept(self._files, data_path)]
        return found

    def _pair_facts(self) -> dict[str, Any]:
        driver = self.driver
        return {
            "epoch": self.epoch,
            "master": "-" if driver is None else driver.master_address,
            "other": str(self.role.other),
            "in_sync": self.in_sync(),
            "min_in_sync": self.role.min_in_sync,
            "elections": 0 if driver is None else driver.elections,
            "seconds_without_master": 0.0 if driver is None else driver.seconds_without_master,
            "kept": self._kept(),
        }
