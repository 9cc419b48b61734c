"""Message ids never go backwards: also not at the next start, or at a promoted slave, with a clock that is behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from metaq_broker import app
from metaq_broker.app import Broker
from metaq_broker.clock import Clock
from replicated import bodies, client, configured, put_many, read_all, running, slave_of, until_same
from waiting import in_loop

from metaq.formats.frames import walk
from metaq.formats.message_id import timestamp_ms

SetBehind = Callable[[int], None]


@pytest.fixture
def set_behind(monkeypatch: pytest.MonkeyPatch) -> SetBehind:
    """Return a function that sets by how many milliseconds the clocks of brokers are behind that are made then."""

    def set_behind(ms: int) -> None:
        class Behind(Clock):
            def now_ms(self) -> int:
                return super().now_ms() - ms

        monkeypatch.setattr(app, "Clock", Behind)

    return set_behind


async def ids(broker: Broker) -> list[int]:
    async with client(broker) as reader:
        return [frame.message_id for frame in walk(await read_all(reader))]


async def put_some(broker: Broker, count: int = 500, partition: int = 0) -> None:
    async with client(broker) as producer:
        await put_many(producer, bodies(count), partition=partition)


@in_loop
async def test_a_clock_that_was_set_back_between_two_runs_repeats_no_id(tmp_path: Path, set_behind: SetBehind) -> None:
    for behind_ms in (0, 20_000, 30_000):
        set_behind(behind_ms)
        async with running(configured(tmp_path)) as broker:
            await put_some(broker)
            found = await ids(broker)
    assert found == sorted(set(found))
    assert len(found) == 1500


@in_loop
async def test_messages_of_a_clock_that_was_wrong_once_change_nothing(tmp_path: Path, set_behind: SetBehind) -> None:
    set_behind(-86_400_000)
    async with running(configured(tmp_path)) as broker:
        await put_some(broker, partition=1)
    for behind_ms in (0, 20_000):
        set_behind(behind_ms)
        async with running(configured(tmp_path)) as broker:
            await put_some(broker)
            found, now_ms = await ids(broker), broker.engine.now_ms()
    assert found == sorted(set(found))
    assert len(found) == 1000
    assert (timestamp_ms(found[-1]) or 0) < now_ms + 3_600_000


@in_loop
async def test_a_promoted_slave_whose_clock_is_behind_repeats_no_id(tmp_path: Path, set_behind: SetBehind) -> None:
    async with running(configured(tmp_path / "m")) as master:
        await put_some(master)
        set_behind(3_600_000)
        async with running(configured(tmp_path / "s", role=slave_of(master))) as slave:
            await until_same(tmp_path / "m", tmp_path / "s")
            await slave.replication.promote(force=True)
            await put_some(slave)
            found = await ids(slave)
    assert found == sorted(set(found))
    assert len(found) == 1000
