"""The whole fuzz: one broker, several attackers, one honest client, and a monitor of the process."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerProcess, BrokerTrouble, ServerSettings
from faults.fuzz.attacker import BrokerAttacker, FuzzFinding
from faults.fuzz.witness import TOPIC, Witness
from faults.survey import failures
from metaq.backends.metaq.session import Session

MIB: Final = 1 << 20
MEMORY_BYTES_MAX: Final = 400 * MIB
"""Far above the sum of the limits below, far below what an unbounded buffer would reach."""

WATCH_INTERVAL_S: Final = 0.2
REPORT_INTERVAL_S: Final = 5.0
END_PATIENCE_S: Final = 60.0

SETTINGS: Final = ServerSettings(
    {"fuzz-0": 2, "fuzz-1": 2, "fuzz-2": 2, "wild-*": 1, TOPIC: 1},
    segment_bytes_max=MIB,
    extra={
        "stat": "true",
        "maxMessageSize": 256 << 10,
        "maxBatchSize": 512 << 10,
        "maxPartitions": 60,
        "maxOutputBuffer": MIB,
        "maxConnections": 50,
        "maxTxTimeoutTimerCapacity": 200,
        "maxTxTimeoutInSeconds": 5,
    },
)


@dataclass(frozen=True, slots=True)
class FuzzOptions:
    """``phrases`` commands in all, divided among ``attackers``; all of them follow from ``seed``."""

    seed: int
    phrases: int
    attackers: int = 4


class FuzzRun:
    """``tell`` gets a line of progress from time to time."""

    def __init__(self, options: FuzzOptions, base: Path, report: Callable[[str], None]) -> None:
        self.folder = base / f"fuzz-{options.seed}"
        self._options = options
        self._report = report
        self._broker = BrokerProcess(self.folder, SETTINGS)
        self._stop = threading.Event()
        self.attackers = [BrokerAttacker(f"{options.seed}.{n}", self._broker.address) for n in range(options.attackers)]
        self.memory_bytes_peak = 0

    def run(self) -> str:
        """Fuzz, restart, check; return a summary sentence. The folder is removed if nothing was found.

        Raises:
            FuzzFinding: The folder is kept, with the bytes of the last conversations.
        """
        self._broker.start()
        began = time.monotonic()
        try:
            witness = Witness(self._broker.address)
            self._attack(witness)
            took_s = time.monotonic() - began
            self._aftermath(witness)
        except (FuzzFinding, BrokerTrouble) as finding:
            self._keep()
            raise FuzzFinding(str(finding)) from finding
        finally:
            self._stop.set()
            self._broker.kill()
        shutil.rmtree(self.folder)
        said, answers = (sum(getattr(each, what) for each in self.attackers) for what in ("sent_phrases", "answers"))
        return (
            f"{said:,} commands in {took_s:.0f} s, {answers:,} answers; {len(witness.receipts):,} honest messages, "
            f"slowest {witness.slowest_s:.2f} s; memory at most {self.memory_bytes_peak / MIB:.0f} MiB"
        )

    def _attack(self, witness: Witness) -> None:
        share = -(-self._options.phrases // len(self.attackers))
        running = [threading.Thread(target=each.run, args=(share, self._stop), daemon=True) for each in self.attackers]
        with self._at_work(witness):
            for thread in running:
                thread.start()
            described = time.monotonic()
            while any(thread.is_alive() for thread in running) and not self._stop.wait(WATCH_INTERVAL_S):
                self._look_at_process()
                if time.monotonic() - described > REPORT_INTERVAL_S:
                    described = time.monotonic()
                    self._report(self._progress(witness))
            for thread in running:
                thread.join(END_PATIENCE_S)
        findings = [each.finding for each in self.attackers] + [witness.complaint]
        if any(findings):
            raise FuzzFinding("; ".join(finding for finding in findings if finding))

    @contextlib.contextmanager
    def _at_work(self, witness: Witness) -> Iterator[None]:
        thread = threading.Thread(target=witness.run, args=(self._stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(END_PATIENCE_S)

    def _progress(self, witness: Witness) -> str:
        said = sum(each.sent_phrases for each in self.attackers)
        memory, honest = self.memory_bytes_peak / MIB, len(witness.receipts)
        return f"fuzz: {said:,} of {self._options.phrases:,}, {honest:,} honest messages, {memory:.0f} MiB"

    def _look_at_process(self) -> None:
        if not self._broker.alive:
            raise FuzzFinding(f"the broker process has ended:\n{self._broker.log_tail()}")
        self.memory_bytes_peak = max(self.memory_bytes_peak, self._broker.resident_bytes())
        if self.memory_bytes_peak > MEMORY_BYTES_MAX:
            raise FuzzFinding(f"the broker holds {self.memory_bytes_peak} bytes, more than {MEMORY_BYTES_MAX}")

    def _aftermath(self, witness: Witness) -> None:
        """Check after the attack: no errors in the log, no unexpected files, and a restarted broker serves all
        messages.
        """
        self._look_at_process()
        if complaints := self._broker.complaints():
            raise FuzzFinding(f"in the broker's log: {complaints[:5]}")
        if unexpected := self._unexpected_files():
            raise FuzzFinding(f"files where none may be: {unexpected[:5]}")
        self._broker.kill()
        self._broker.start()
        if complaint := witness.check_all(self._broker.address):
            raise FuzzFinding(complaint)
        session = Session.connect(self._broker.address)
        damage = failures(session)
        session.close()
        if damage:
            raise FuzzFinding(f"after the restart the broker says: {damage[:5]}")
        self._broker.stop()
        if complaints := self._broker.complaints():
            raise FuzzFinding(f"in the broker's log: {complaints[:5]}")

    def _unexpected_files(self) -> list[str]:
        """Return files that the broker created outside its data folder, or for topics that it must not accept."""
        beside = {path.name for path in self.folder.iterdir()} - {"server.ini", "data", "broker.log"}
        above = {path.name for path in self.folder.parent.iterdir() if "escape" in path.name}
        folders = {path.name for path in self._broker.data.iterdir() if path.is_dir()} - {"transactions"}
        odd = {name for name in folders if not name.startswith(("fuzz-", "wild-", f"{TOPIC}-"))}
        return sorted(beside | above | odd)

    def _keep(self) -> None:
        for attacker in self.attackers:
            for number, data in enumerate(attacker.recent):
                (self.folder / f"said-{attacker.seed}-{number:02}.bin").write_bytes(data)
