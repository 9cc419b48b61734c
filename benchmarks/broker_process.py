"""A broker process on a folder that its user chose: with a broker id, to be started there again, to be looked at."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from metaq.model import Address

DEADLINE_S = 60.0


@dataclass(frozen=True)
class RunningBroker:
    """Where it listens, its process, and how long that took to get ready."""

    address: Address
    pid: int
    ready_s: float


@contextmanager
def running_broker(
    folder: Path, partitions: int, broker_id: int = 0, unflush_threshold: int = 0
) -> Iterator[RunningBroker]:
    """Serve the data in ``folder``; any topic is accepted, with so many partitions. Stopped cleanly at the end.

    With ``unflush_threshold`` > 0 it acknowledges before fsync.
    """
    folder.mkdir(exist_ok=True)
    settings = folder / "server.ini"
    settings.write_text(
        f"[system]\nbrokerId={broker_id}\nnumPartitions={partitions}\nserverPort=0\nhostName=127.0.0.1\n"
        f"unflushThreshold={unflush_threshold}\nunflushInterval=10000\n"
        f"maxSegmentSize=1024*1024*1024\nmaxTransferSize=1024*1024\n"
        f"dataPath={folder / 'data'}\ndiskFreeMinBytes=0\n[topic=*]\n"
    )
    with started("start", "-f", str(settings), "--log-level", "error") as running:
        yield running


@contextmanager
def started(*arguments: str) -> Iterator[RunningBroker]:
    """``metaq-broker`` with these arguments, from when it is ready until it is stopped at the end."""
    command = [sys.executable, "-m", "metaq_broker.cli", *arguments]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = re.search(r" ready on (\S+),", process.stdout.readline())
            if ready is None:
                raise SystemExit("the broker did not get ready")
            yield RunningBroker(Address.parse(ready[1]), process.pid, time.perf_counter() - start)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
