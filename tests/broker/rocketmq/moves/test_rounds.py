"""One timer for all that waits: who is called when, and that nothing is while the broker takes no messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from metaq_broker.clock import Clock
from metaq_broker.rocketmq.moves import rounds as module
from metaq_broker.rocketmq.moves.mover import Mover
from metaq_broker.rocketmq.moves.rounds import Rounds
from waiting import in_loop, until
from waiting_topics import Disk, MemoryLog, Message

FAR_MS = 1 << 50


class Calls:
    """A ``Run`` that counts, and fails while ``broken``."""

    def __init__(self, every_ms: int) -> None:
        self.every_ms, self.count, self.broken = every_ms, 0, False

    def __call__(self, now_ms: int) -> int:
        self.count += 1
        if self.broken:
            raise RuntimeError("a defect")
        return now_ms + self.every_ms


def rounds(may_run: Callable[[], bool] = lambda: True) -> Rounds:
    log = MemoryLog(Disk())
    return Rounds(Mover[Message](log, log), Clock().now_ms, may_run)


@in_loop
async def test_each_is_called_when_it_asked_for_it() -> None:
    made, often = rounds(), Calls(5)
    made.add(often)
    made.start()
    await until(lambda: often.count > 5)
    made.stop()
    before = often.count
    await asyncio.sleep(0.02)
    assert often.count == before


@in_loop
async def test_a_wake_calls_at_once_and_several_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_MS", FAR_MS)
    made, seldom = rounds(), Calls(FAR_MS)
    made.add(seldom)
    made.start()
    await until(lambda: seldom.count == 1)
    for _ in range(5):
        made.wake()
    await until(lambda: seldom.count == 2)
    await asyncio.sleep(0.02)
    assert seldom.count == 2
    made.stop()


def with_one_broken() -> tuple[Rounds, Calls, Calls]:
    """Rounds that have started, of something that fails each time and of something else."""
    made, broken, other = rounds(), Calls(5), Calls(5)
    broken.broken = True
    made.add(broken)
    made.add(other)
    made.start()
    return made, broken, other


@in_loop
async def test_a_defect_in_one_leaves_the_others() -> None:
    made, broken, other = with_one_broken()
    await until(lambda: other.count > 3)
    assert broken.count >= other.count
    made.stop()


@in_loop
async def test_a_defect_is_logged_once_in_a_while_not_each_round(caplog: pytest.LogCaptureFixture) -> None:
    made, broken, _ = with_one_broken()
    await until(lambda: broken.count > 10)
    made.stop()
    assert len(caplog.records) == 1


@in_loop
async def test_a_defect_in_raising_floors_stops_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(mover: Mover[Message]) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Mover, "tick", broken)
    made, often = rounds(), Calls(5)
    made.add(often)
    made.start()
    await until(lambda: often.count > 3)
    made.stop()


@in_loop
async def test_nothing_is_called_while_it_may_not() -> None:
    allowed = False
    made, often = rounds(lambda: allowed), Calls(5)
    made.add(often)
    made.start()
    await asyncio.sleep(0.05)
    assert often.count == 0
    allowed = True
    await until(lambda: often.count > 2)
    made.stop()
