"""Scans that run in the background: started, looked at, stopped. Their number, age and time are bounded."""

from __future__ import annotations

import logging
import secrets
import threading
from dataclasses import dataclass
from typing import Final

from metaq.errors import MetaqError
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq_console.cluster.scans import Scan, ScanRequest
from metaq_console.cluster.system import QueueSystem
from metaq_console.errors import RequestFailed

RUNNING_MAX: Final = 4
"""Scans that run at a time; further ones are refused."""
KEPT_MAX: Final = 32
"""Scans that are kept; the oldest that has ended goes first."""
KEPT_S: Final = 600.0
"""How long the matches of a scan are kept after its end."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanJob:
    """A scan with its name."""

    scan_id: str
    scan: Scan
    started_s: float


class ScanJobs:
    """The scans of one process; for any thread."""

    def __init__(self, system: QueueSystem, clock: Clock = SYSTEM_CLOCK) -> None:
        self._system, self._clock = system, clock
        self._lock = threading.Lock()
        self._jobs: dict[str, ScanJob] = {}
        self._stopping: list[ScanJob] = []
        """Scans that were stopped, and whose threads may still wait for a server."""

    def start(self, request: ScanRequest) -> ScanJob:
        """Start a scan in a thread of its own.

        Raises:
            RequestFailed: Too many run already (503).
        """
        with self._lock:
            self._forget_old()
            self._stopping = [job for job in self._stopping if job.scan.progress.running]
            running = [job for job in self._jobs.values() if job.scan.progress.running]
            if len(running) + len(self._stopping) >= RUNNING_MAX:
                raise RequestFailed(
                    503, "too_many_scans", f"{RUNNING_MAX} scans run already; stop one, or wait", retryable=True
                )
            job = ScanJob(secrets.token_hex(8), Scan(self._system, request, self._clock), self._clock.monotonic())
            self._jobs[job.scan_id] = job
        threading.Thread(target=_run, args=(job.scan,), name=f"metaq-scan-{job.scan_id}", daemon=True).start()
        return job

    def get(self, scan_id: str) -> ScanJob:
        """Return a scan.

        Raises:
            RequestFailed: There is none of that name, or not any more (404).
        """
        with self._lock:
            self._forget_old()
            job = self._jobs.get(scan_id)
        if job is None:
            raise RequestFailed(404, "scan_not_found", f"there is no scan {scan_id[:80]!r}; it may be too old")
        return job

    def each(self) -> list[ScanJob]:
        """Return all scans, the newest first."""
        with self._lock:
            self._forget_old()
            return sorted(self._jobs.values(), key=lambda job: -job.started_s)

    def stop(self, scan_id: str) -> ScanJob:
        """Stop a scan, and forget it. Raises as ``get``."""
        job = self.get(scan_id)
        job.scan.cancel()
        with self._lock:
            self._jobs.pop(scan_id, None)
            self._stopping.append(job)
        return job

    def close(self) -> None:
        """Stop all scans."""
        for job in self.each():
            job.scan.cancel()

    def _forget_old(self) -> None:
        now_s = self._clock.monotonic()
        ended = [job for job in self._jobs.values() if not job.scan.progress.running]
        ended.sort(key=lambda job: job.started_s)
        surplus = max(0, len(self._jobs) - KEPT_MAX + 1)
        for number, job in enumerate(ended):
            since_s = now_s - job.started_s - job.scan.progress.seconds
            if number < surplus or since_s > KEPT_S:
                del self._jobs[job.scan_id]


def _run(scan: Scan) -> None:
    try:
        scan.run()
    except (MetaqError, ValueError, RequestFailed):
        pass  # the scan's progress says it
    except Exception:
        _log.exception("a scan failed")
