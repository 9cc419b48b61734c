"""Before a console is ready it has asked what its first page needs; a cluster that does not answer delays it little."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

from metaq_console.cluster.cluster_questions import ClusterQuestions
from metaq_console.cluster.questions import Questions
from metaq_console.cluster.system import QueueSystem
from metaq_console.errors import RequestFailed

DEADLINE_S = 60.0


class GatedSystem:
    """Answers the first page's questions when it is opened; counts them."""

    def __init__(self, *, is_open: bool) -> None:
        self.asked: list[str] = []
        self.opened = threading.Event()
        if is_open:
            self.opened.set()

    def all_topics(self) -> list[object]:
        return self._answer("topics")

    def brokers(self) -> list[object]:
        return self._answer("brokers")

    def findings(self, within_s: float) -> list[object]:
        return self._answer("findings")

    def warm(self) -> None:
        self._answer("places")

    def _answer(self, what: str) -> list[object]:
        self.asked.append(what)
        assert self.opened.wait(DEADLINE_S)
        return []


def questions_to(system: GatedSystem, within_s: float = DEADLINE_S) -> ClusterQuestions:
    return ClusterQuestions(cast(QueueSystem, system), Questions(within_s), within_s)


def test_the_first_page_finds_its_answers() -> None:
    system = GatedSystem(is_open=True)

    async def work() -> None:
        cluster = questions_to(system)
        await cluster.warm(DEADLINE_S)
        await asyncio.gather(cluster.all_topics(), cluster.brokers(), cluster.findings())

    asyncio.run(work())
    assert sorted(system.asked) == ["brokers", "findings", "places", "topics"]


def test_a_cluster_that_hangs_is_not_waited_for() -> None:
    system = GatedSystem(is_open=False)

    async def work() -> list[object]:
        cluster = questions_to(system)
        await cluster.warm(0.05)
        asked = asyncio.gather(cluster.brokers(), cluster.findings())
        system.opened.set()
        return [*await asked]

    assert asyncio.run(work()) == [[], []]
    assert sorted(system.asked) == ["brokers", "findings", "places", "topics"]


def test_errors_are_those_of_the_page() -> None:
    system = GatedSystem(is_open=False)

    async def work() -> str:
        cluster = questions_to(system, within_s=0.05)
        await cluster.warm(DEADLINE_S)
        try:
            await cluster.brokers()
        except RequestFailed as error:
            return error.body.code
        finally:
            system.opened.set()
        return "none"

    assert asyncio.run(work()) == "deadline_exceeded"
