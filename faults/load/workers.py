"""The workers of one broker, and their threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from faults.load.decider import Decider
from faults.load.followers import Follower
from faults.load.putters import Batcher, LargePutter, Pipeliner, SinglePutter
from faults.load.rocketmq import RocketmqMember, RocketmqProducer
from faults.load.transactors import Finisher, LocalTransactor, TwoPhaser, UnfinishedBranches, list_prepared
from faults.load.worker import SharedWork, Worker
from metaq.backends.metaq.session import Session

HOME_PATIENCE_S: Final = 60.0


class WorkersFailed(Exception):
    """A worker is stuck or failed: a bug of the test, or a broker that hangs."""


class Workers:
    """All workers. ``start`` and ``stop`` alternate; the workers keep their state in between."""

    def __init__(self, shift: SharedWork, seed: str) -> None:
        self.shift = shift
        self.unfinished = UnfinishedBranches()
        self._decider = Decider("decider", shift, seed, self.unfinished)
        self._finisher = Finisher("finisher", shift, seed, self.unfinished)
        self._branch_workers = [TwoPhaser(f"xa{n}", shift, seed, self.unfinished) for n in range(2)]
        self.workers: Sequence[Worker] = (
            *(SinglePutter(f"single{n}", shift, seed) for n in range(2)),
            Pipeliner("pipeline", shift, seed),
            Batcher("batch", shift, seed),
            LargePutter("large", shift, seed),
            *(Follower(f"follower{n}", shift, seed) for n in range(2)),
            LocalTransactor("local", shift, seed),
            *self._branch_workers,
            self._finisher,
            self._decider,
            *self._rocketmq_workers(seed),
        )
        self._threads: list[threading.Thread] = []
        self._broken: list[str] = []

    def _rocketmq_workers(self, seed: str) -> Sequence[Worker]:
        if self.shift.rocketmq is None:
            return ()
        producers = [RocketmqProducer(f"rocketmq{n}", self.shift, seed) for n in range(2)]
        return (*producers, RocketmqMember("member", self.shift, seed))

    def start(self) -> None:
        self.shift.over.clear()
        self._threads = [threading.Thread(target=self._run, args=(each,), name=each.name) for each in self.workers]
        for thread in self._threads:
            thread.daemon = True  # a stuck worker must not keep the test from exiting
            thread.start()

    def stop(self) -> None:
        """Let all workers finish what they have begun, and wait for them.

        Raises:
            WorkersFailed: A worker does not end, or failed.
        """
        self.shift.over.set()
        for thread in self._threads:
            thread.join(HOME_PATIENCE_S)
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        self._threads = []
        if stuck:
            raise WorkersFailed(f"workers that do not end in {HOME_PATIENCE_S:g} s: {', '.join(stuck)}")
        if self._broken:
            raise WorkersFailed("; ".join(self._broken))

    def sort_out(self, session: Session) -> None:
        """While no worker runs, ask which branches are prepared, to settle the unsure ones."""
        for worker in (*self._branch_workers, self._decider):
            self.unfinished.sort_out(worker.name, list_prepared(self.shift.history, session, worker.name))

    def conclude(self, session: Session) -> None:
        """While no worker runs, end every transaction that can be ended."""
        self._decider.conclude(session)
        self.sort_out(session)
        while self._finisher.finish_one(session):
            pass
        self.sort_out(session)

    def _run(self, worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:
            self._broken.append(f"{worker.name}: {type(error).__name__}: {error}")
            raise
