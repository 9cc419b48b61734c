"""A broker whose machine's clock jumps: what it says of that, what it keeps, and how an operator accepts the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker import app
from metaq_broker.app import Broker
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.id_clock import SETTLE_S
from metaq_broker.log.engine.outcomes import Appended
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.control.measures import TopicLabels, gather
from operated import Answer, ctl
from stored import put
from waiting import in_loop, until

TEN_YEARS_MS, HOUR_MS = 3650 * 86_400_000, 3_600_000
KEPT = {"deletePolicy": "delete,1", "deleteWhen": "* * * * * ?", "maxSegmentSize": 300}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock(int(time.time() * 1000))
    monkeypatch.setattr(app, "Clock", lambda: made)
    return made


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Broker]:
    text = system_section(1, 1, dataPath=folder, **KEPT)
    broker = Broker(parse(f"{text}[topic=t]\n".encode()), None, lambda: None)
    try:
        await broker.open()
        await broker.serve()
        yield broker
    finally:
        await broker.close()


async def operator(folder: Path, *arguments: str) -> Answer:
    return await asyncio.to_thread(ctl, "--data", folder, *arguments)


async def fill(broker: Broker) -> None:
    """Put messages of some segments."""
    for _ in range(40):
        assert isinstance(put(broker.engine, "t", 0), Appended)
    await broker.commit.drain()


def segments(folder: Path) -> int:
    return len(list((folder / "t-0").glob("*.meta")))


def doubted(broker: Broker) -> float:
    assert broker.admin is not None
    found = [each for each in gather(broker.admin._parts, TopicLabels()) if each.name == "metaq_clock_doubted"]
    return found[0].values[0][1]  # type: ignore[union-attr]


@in_loop
async def test_nothing_is_deleted_that_only_a_clock_calls_old(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path) as broker:
        await fill(broker)
        written = segments(tmp_path)
        assert written > 2
        assert (await operator(tmp_path, "clock", "accept")).status == 1, "there is nothing to accept"
        assert doubted(broker) == 0
        clock.set_now_ms(clock.now_ms() + TEN_YEARS_MS)
        assert await broker.retention.tick() == []
        assert doubted(broker) == 1
        clock.advance(int(SETTLE_S * 1000))
        await fill(broker)  # it is trusted
        assert segments(tmp_path) > written
        written = segments(tmp_path)
        assert await broker.retention.tick() == []
        status = await operator(tmp_path, "status")
        assert any(line.startswith("NOTHING DELETED") and "since a jump" in line for line in status.lines)
        refused = await operator(tmp_path, "retention", "run")
        assert refused.status == 1
        assert "nothing is removed by age, the clock shows 20" in refused.error
        assert "since a jump" in refused.error
        assert doubted(broker) == 1
    assert (tmp_path / "clock-jumps").exists()
    clock.advance(1000)
    async with running(tmp_path) as broker:
        assert doubted(broker) == 1, "a restart does not end it"
        assert await broker.retention.tick() == []
        await fill(broker)
        accepted = await operator(tmp_path, "clock", "accept")
        assert accepted.lines == ["the clock is accepted; messages are deleted by age again"]
        assert doubted(broker) == 0
        assert not any("NOTHING DELETED" in line for line in (await operator(tmp_path, "status")).lines)
    async with running(tmp_path) as broker:
        assert doubted(broker) == 0
        assert segments(tmp_path) >= written


@in_loop
async def test_what_was_put_in_this_run_is_kept_as_long_as_the_policy_says(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path) as broker:
        await fill(broker)
        written = segments(tmp_path)
        clock.set_now_ms(clock.now_ms() + TEN_YEARS_MS)
        assert (await operator(tmp_path, "clock", "accept")).status == 0
        clock.advance(HOUR_MS - 1000)
        await broker.retention.tick()
        assert segments(tmp_path) == written
        clock.advance(2000)
        await until(lambda: segments(tmp_path) == 1, "old segments to be removed")
