"""The brokers that a query writes to, and copies of their data folders from which they are restored."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerProcess, BrokerTrouble, ServerSettings
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.net.transport import Timeouts

TARGET: Final = "target"
JOURNAL: Final = "transactions"
SUSPEND_PATIENCE_S: Final = 120.0
_TIMEOUTS: Final = Timeouts(10.0, 60.0)


class SinkBrokers:
    """``count`` brokers, with the ids from 1 on. ``rocketmq``: they serve RocketMQ's clients as well."""

    def __init__(self, folder: Path, count: int, *, rocketmq: bool) -> None:
        self._copies = folder / "copies"
        self.brokers = {
            number: BrokerProcess(
                folder / f"sink-{number}", ServerSettings({TARGET: 2}, extra={"brokerId": number}, rocketmq=rocketmq)
            )
            for number in range(1, count + 1)
        }

    def start(self) -> None:
        """Start all brokers.

        Raises:
            BrokerTrouble: One does not become ready.
        """
        for broker in self.brokers.values():
            broker.start()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def copy(self, name: str) -> None:
        """Copy the data of all brokers at one moment while they are suspended, like a snapshot of their disks.

        An older copy of that name is replaced.

        Raises:
            BrokerTrouble: One cannot be suspended.
        """
        for broker in self.brokers.values():
            broker.suspend()
            _wait_until_suspended(broker.pid)
        for number, broker in self.brokers.items():
            _replace(broker.data, self._copies / name / str(number))
        for broker in self.brokers.values():
            broker.resume()

    def drop_copies(self, names: Iterable[str]) -> None:
        for name in names:
            shutil.rmtree(self._copies / name, ignore_errors=True)

    def put_back(self, name: str, numbers: Collection[int] | None = None) -> None:
        """Kill brokers (all by default), replace their data by a copy and start them again.

        Raises:
            BrokerTrouble: One does not become ready.
        """
        for number in self.brokers if numbers is None else numbers:
            broker = self.brokers[number]
            broker.kill()
            _replace(self._copies / name / str(number), broker.data)
            broker.start()

    def lose_journal(self) -> None:
        """Kill all brokers and start them again without their transaction journals. Raises as ``put_back``."""
        for broker in self.brokers.values():
            broker.kill()
            shutil.rmtree(broker.data / JOURNAL)
            broker.start()

    def prepared(self) -> list[str]:
        """Return the prepared branches.

        Raises:
            MetaqError: A broker does not answer.
        """
        found: list[str] = []
        for broker in self.brokers.values():
            session = Session.connect(broker.address, _TIMEOUTS)
            try:
                found += map(str, TransactionSteps(session).recover())
            finally:
                session.close()
        return found

    def complaints(self) -> list[str]:
        """Return the lines of the logs that report bugs of the brokers."""
        return [line for broker in self.brokers.values() for line in broker.complaints()]


def _replace(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock"))


def _wait_until_suspended(pid: int) -> None:
    """Wait for the signal to take effect."""
    end = time.monotonic() + SUSPEND_PATIENCE_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        if time.monotonic() > end:
            raise BrokerTrouble(f"broker process {pid} is not suspended after {SUSPEND_PATIENCE_S:g} s")
