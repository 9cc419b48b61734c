"""A loop's timers and its worker thread, run by the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from metaq_broker.clock import ManualClock


@dataclass(slots=True)
class ManualTimer:
    """A call that ``ManualLoop`` makes when its time has come."""

    at_s: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class ManualLoop:
    """``call_later`` and ``run_in_worker`` by hand."""

    clock: ManualClock = field(default_factory=ManualClock)
    timers: list[ManualTimer] = field(default_factory=list)
    jobs: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = field(default_factory=list)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        self.timers.append(ManualTimer(self.clock.monotonic() + delay_s, callback))
        return self.timers[-1]

    def run_in_worker(self, job: Callable[[], None], finished: Callable[[BaseException | None], None]) -> None:
        self.jobs.append((job, finished))

    def run_one_job(self) -> None:
        job, finished = self.jobs.pop(0)
        error: BaseException | None = None
        try:
            job()
        except Exception as failure:
            error = failure
        finished(error)

    def settle(self) -> None:
        """Run everything that is due, until nothing is."""
        while self.jobs or self._fire_due():
            if self.jobs:
                self.run_one_job()

    def _fire_due(self) -> bool:
        now = self.clock.monotonic()
        due = [timer for timer in self.timers if timer.cancelled or timer.at_s <= now]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            if not timer.cancelled:
                timer.callback()
        return bool(due)


class Steps(ManualLoop):
    """The ``CommitDriver`` of a state table."""

    schedule = ManualLoop.call_later

    def run(self, job: Callable[[], None], finished: Callable[[], None]) -> None:
        def ended(error: BaseException | None) -> None:
            if error is not None:
                raise error
            finished()

        self.run_in_worker(job, ended)

    def close(self) -> None:
        for job, _ in self.jobs:
            job()

    def run_all(self, until_s: float = 0.0) -> None:
        self.clock.advance(round(until_s * 1000))
        self.settle()
