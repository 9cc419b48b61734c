"""What one process of the console has: its settings, its cluster, and the recent past of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from metaq_console.cluster.cluster_questions import ClusterQuestions
from metaq_console.cluster.connect import open_cluster, ping
from metaq_console.cluster.history import History
from metaq_console.cluster.questions import Questions
from metaq_console.cluster.sampling import Sampler
from metaq_console.cluster.scan_jobs import ScanJobs
from metaq_console.cluster.system import QueueSystem
from metaq_console.cluster.watch import ServerWatch
from metaq_console.queries.board import LOOK_S, QueryBoard
from metaq_console.queries.opening import open_board
from metaq_console.settings import ConsoleSettings

WARM_S: Final = 3.0
"""How long the start may wait for the cluster."""
LOOKS_MAX: Final = 4
"""Looks at Spark queries that run at a time; one that hangs keeps its slot until it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The parts that the API and the pages share."""

    settings: ConsoleSettings
    cluster: ClusterQuestions
    history: History
    sampler: Sampler
    scans: ScanJobs
    queries: QueryBoard

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ask what the first page needs; take samples and look at queries while the block runs; then stop the scans and
        close the connections.
        """
        await self.cluster.warm(WARM_S)
        tasks = [
            asyncio.create_task(self.cluster.watch.run(), name="silent servers"),
            asyncio.create_task(self.sampler.run(), name="samples"),
            asyncio.create_task(self.queries.run(), name="looks at queries"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            self.scans.close()
            self.cluster.system.close()


def make_console(settings: ConsoleSettings, system: QueueSystem | None = None) -> Console:
    """Return the parts for ``settings``; ``system`` instead of the cluster of its profile.

    Raises:
        ValueError: The cluster has no known form.
    """
    profile = settings.client_profile
    watch = ServerWatch(lambda: opened.addresses(), partial(ping, profile))
    opened = open_cluster(profile, watch.away) if system is None else system
    cluster = ClusterQuestions(opened, Questions(settings.question_s, watch=watch), settings.question_s)
    history = History()
    looks = Questions(LOOK_S, running_max=LOOKS_MAX)  # of their own: a slow look takes no slot of a page's questions
    return Console(
        settings=settings,
        cluster=cluster,
        history=history,
        sampler=Sampler(cluster, history, settings.sample_s),
        scans=ScanJobs(opened),
        queries=open_board(settings, looks, history),
    )
