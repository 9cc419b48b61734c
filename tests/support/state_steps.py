"""The thread and the clock of a state table, run by the test."""

from __future__ import annotations

from collections.abc import Callable


class Steps:
    """A driver whose thread and clock run when a test says so: ``run_all`` lets everything happen that is due."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.calls: list[_Call] = []
        self.now = 0.0

    def run(self, job: Callable[[], None], finished: Callable[[], None]) -> None:
        self.jobs.append((job, finished))

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> _Call:
        self.calls.append(_Call(self.now + delay_s, callback))
        return self.calls[-1]

    def close(self) -> None:
        for job, _ in self.jobs:
            job()

    def run_all(self, until_s: float = 0.0) -> None:
        self.now += until_s
        while self.jobs or self._due():
            for call in self._due():
                self.calls.remove(call)
                call.callback()
            while self.jobs:
                job, finished = self.jobs.pop(0)
                job()
                finished()

    def _due(self) -> list[_Call]:
        self.calls = [call for call in self.calls if not call.cancelled]
        return [call for call in self.calls if call.at <= self.now]


class _Call:
    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at, self.callback, self.cancelled = at, callback, False

    def cancel(self) -> None:
        self.cancelled = True
