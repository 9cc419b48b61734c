"""One broker on one data folder, with its history and settings, and the check of all.

A ``Trial`` is checked while no worker runs. Findings are written beside the data: ``history.txt`` has every record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.broker_process import BrokerProcess, ServerSettings
from faults.checker import check, lines_about
from faults.checker.anomaly import Anomaly, Case, Kind
from faults.console import PromiseBroken
from faults.history import History
from faults.load.worker import SharedWork
from faults.load.workers import Workers
from faults.stored import Image, PartitionKey
from faults.survey import failures, survey, survey_files
from metaq.backends.metaq.session import Session
from metaq.errors import MetaqError
from metaq.net.transport import Timeouts
from metaq.protocols.text.commands import Stats

SURVEY_TIMEOUTS: Final = Timeouts(10.0, 60.0)
QUIET_PATIENCE_S: Final = 120.0
QUIET_INTERVAL_S: Final = 0.01
SURVEYS_MAX: Final = 5
SHOWN_MAX: Final = 3
"""Anomalies of one kind that are reported with their records."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The assumptions of the checker, see ``Case``. On a full disk commits may wait and partitions may be read-only."""

    retention: bool = False
    readable_at_once: bool = True
    disk_is_full: bool = False
    quiet_s: float = 0.02
    """Seconds without growth after which a partition is checked."""


class Trial:
    """The broker is not started yet."""

    def __init__(
        self,
        folder: Path,
        settings: ServerSettings,
        seed: str,
        rules: Rules = Rules(),
        data: Path | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.folder = folder
        self.broker = BrokerProcess(folder, settings, data)
        self.history = History()
        self.rules = rules
        partition_keys = [
            PartitionKey(topic, index) for topic, count in settings.topics.items() for index in range(count)
        ]
        retention, rocketmq = rules.retention, self.broker.rocketmq
        self.shift = SharedWork(
            self.broker.address, self.history, partition_keys, retention=retention, rocketmq=rocketmq
        )
        if timeouts is not None:
            self.shift.timeouts = timeouts
        self.workers = Workers(self.shift, seed)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Yield a new connection with long timeouts.

        Raises:
            MetaqError: The broker does not accept it.
        """
        session = Session.connect(self.broker.address, SURVEY_TIMEOUTS)
        try:
            yield session
        finally:
            session.close()

    def wait_until_quiet(self, session: Session) -> None:
        """Wait until the broker has finished with every other connection and its partitions do not change any more.

        Raises:
            PromiseBroken: That takes longer than ``QUIET_PATIENCE_S``.
        """
        began = changed = time.monotonic()
        before = ""
        while time.monotonic() - began < QUIET_PATIENCE_S:
            now = session.ask(Stats("offsets", 0))
            if now != before or "\r\ncurr_connections 1\r\n" not in session.ask(Stats("", 0)):
                before, changed = now, time.monotonic()
            elif time.monotonic() - changed >= self.rules.quiet_s:
                return
            time.sleep(QUIET_INTERVAL_S)
        raise self.fail([f"the broker is not quiet {QUIET_PATIENCE_S:g} s after the last client left"], {})

    def check(self, session: Session) -> Image:
        """Read and check everything; return the stored frames.

        Raises:
            PromiseBroken: The report is in the exception, all files are in the folder.
        """
        try:
            image = self._survey(session)
            described = [] if self.rules.disk_is_full else failures(session)
        except MetaqError as error:
            raise self.fail([f"the broker cannot be read: {error}"], {}) from error
        for partition_key, partition in image.items():
            self.history.seen(partition_key, partition.frames)
        self._check(image, [f"the broker says: {line}" for line in described])
        return image

    def _survey(self, session: Session) -> Image:
        image = survey(session)
        for _ in range(SURVEYS_MAX if self.rules.retention else 0):  # segments may be deleted while they are read
            if not any(partition.fault for partition in image.values()):
                break
            image = survey(session)
        return image

    def check_files(self) -> None:
        """Check the files that a stopped broker left.

        Raises:
            PromiseBroken: As ``check``.
        """
        self._check(survey_files(self.broker.data), [])

    def _check(self, image: Image, described: list[str]) -> None:
        rules = self.rules
        case = Case(self.history, image, rules.retention, rules.readable_at_once, rules.disk_is_full)
        anomalies = check(case)
        lines = described + [f"in the broker's log: {line}" for line in self.broker.complaints()]
        lines += _report(anomalies, case)
        if lines:
            raise self.fail(lines, image)

    def fail(self, lines: list[str], image: Image) -> PromiseBroken:
        """Write all records to files and return the exception to raise."""
        with (self.folder / "history.txt").open("w") as file:
            file.writelines(f"{line}\n" for line in (*lines, "", *_records(self.history), "", *_stored(image)))
        return PromiseBroken(self.folder, lines)


def _report(anomalies: list[Anomaly], case: Case) -> list[str]:
    lines: list[str] = []
    counts = Counter(anomaly.kind for anomaly in anomalies)
    shown: Counter[Kind] = Counter()
    for anomaly in anomalies:
        shown[anomaly.kind] += 1
        if shown[anomaly.kind] <= SHOWN_MAX:
            lines.append(str(anomaly))
            lines += (f"    {line}" for line in lines_about(anomaly, case))
    return lines + [f"{kind.name}: {count} in all" for kind, count in counts.items() if count > SHOWN_MAX]


def _records(history: History) -> Iterator[str]:
    yield from map(str, list(history.puts))  # copies: the workers may still be running
    for record in list(history.transactions.values()):
        yield f"transaction {record.key}"
        yield from (f"    {line}" for line in (*record.steps, *record.puts))
    yield from map(str, list(history.listings))


def _stored(image: Image) -> Iterator[str]:
    for partition in image.values():
        yield f"{partition.partition_key} from {partition.start} to {partition.end} {partition.fault}"
        yield from (f"    {frame}" for frame in partition.frames)
