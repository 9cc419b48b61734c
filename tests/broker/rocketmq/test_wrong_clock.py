"""A wall clock that jumps back an hour or ahead a day: what waits is delivered once, times lead to their messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from examples import rarely
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.id_clock import SETTLE_S
from metaq_broker.log.engine.outcomes import ClockImplausible
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.groups.members import ClientIdentity, ConsumerGroup
from metaq_broker.rocketmq.groups.queue_locks import QueueLocks
from metaq_broker.rocketmq.half_messages.half_messages import AskPolicy
from remoting_brokers import WaitingBroker, play
from waiting import until

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
JUMPS = pytest.mark.parametrize("jump_ms", [-HOUR_MS, DAY_MS], ids=["back", "ahead"])
NOW = 1_795_000_000_000


async def jump(broker: WaitingBroker, clock: ManualClock, jump_ms: int) -> None:
    """Set the clock, and let it go on until it is believed; meanwhile nothing is stored."""
    clock.set_now_ms(clock.now_ms() + jump_ms)
    assert isinstance(await broker.send(b"refused"), ClockImplausible)
    clock.advance(int(SETTLE_S * 1000))
    broker.parts.rounds.wake()


@JUMPS
def test_times_of_messages(tmp_path: Path, jump_ms: int) -> None:
    clock = ManualClock(NOW)

    async def scenario(broker: WaitingBroker) -> None:
        for each in (b"a", b"b"):
            await broker.stored(each)
            clock.advance(1000)
        await jump(broker, clock, jump_ms)
        for each in (b"c", b"d"):
            await broker.stored(each)
            clock.advance(1000)
        store = broker.store
        times = [each.store_timestamp for each in broker.records()]
        assert times == [store.store_time("t", 0, offset) for offset in range(4)]
        assert (times[1] < times[2]) is (jump_ms > 0)
        assert times[3] - times[2] == times[1] - times[0] == 1000
        for moment in sorted({0, NOW + HOUR_MS, *times, *(each + 1 for each in times), NOW + 2 * DAY_MS}):
            first = next((offset for offset, each in enumerate(times) if each >= moment), 4)
            assert store.offset_at("t", 0, moment) == first, moment - NOW

    play(tmp_path, scenario, clock=clock)


@JUMPS
def test_delayed_messages(tmp_path: Path, jump_ms: int) -> None:
    clock = ManualClock(NOW)

    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"level", {"DELAY": "5"})
        await broker.stored(b"moment", {"TIMER_DELIVER_MS": str(NOW + 2 * DAY_MS)})
        await jump(broker, clock, jump_ms)
        await broker.bodies_are(b"level")
        await broker.stored(b"second", {"DELAY": "1"})
        clock.advance(1000)
        await broker.bodies_are(b"level", b"second")
        clock.advance(3 * DAY_MS)
        broker.parts.rounds.wake()
        await until(lambda: broker.engine.id_clock.is_trusted())
        await broker.bodies_are(b"level", b"second", b"moment")

    play(tmp_path, scenario, clock=clock)


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, DAY_MS, *rarely(HOUR_MS, 3650 * DAY_MS)])
def test_nothing_is_delivered_early_or_late(tmp_path: Path, jump_ms: int) -> None:
    """Before a jump, while the clock is not trusted, after it, and when it is back."""
    clock = ManualClock(NOW)

    async def due(broker: WaitingBroker, at_s: float, *bodies: bytes) -> None:
        """Let time pass until ``at_s`` seconds from the start: one more message is there then, and not before."""
        clock.advance(round(1000 * (at_s - clock.monotonic())) - 1)
        await settled(broker)
        assert broker.bodies("t", 0) == list(bodies[:-1]), "early"

        def there() -> bool:
            clock.advance(20)
            broker.parts.rounds.wake()
            return len(broker.bodies("t", 0)) == len(bodies)

        await until(there)
        assert broker.bodies("t", 0) == list(bodies)
        assert clock.monotonic() < at_s + 5, "late"

    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"timed", {"TIMER_DELAY_SEC": "100"})
        await broker.stored(b"level", {"DELAY": "5"})  # a minute
        clock.set_now_ms(clock.now_ms() + jump_ms)
        await settled(broker)
        assert isinstance(await broker.send(b"refused"), ClockImplausible)
        await due(broker, 60, b"level")
        assert broker.engine.id_clock.is_trusted()
        later_s = clock.monotonic() + 80
        await broker.stored(b"timed later", {"TIMER_DELAY_SEC": "80"})
        await due(broker, 100, b"level", b"timed")
        await due(broker, later_s, b"level", b"timed", b"timed later")
        back_s = clock.monotonic() + 90
        await broker.stored(b"back", {"TIMER_DELAY_SEC": "90"})
        clock.set_now_ms(clock.now_ms() - jump_ms)
        await settled(broker)
        await due(broker, back_s, b"level", b"timed", b"timed later", b"back")
        assert broker.engine.id_clock.doubt() is None

    play(tmp_path, scenario, clock=clock)


def test_a_clock_that_is_behind_delivers_nothing_early(tmp_path: Path) -> None:
    """A small step back, which ids do not follow, and an elected member whose clock is behind its master's."""
    clock = ManualClock(NOW)

    async def waits(broker: WaitingBroker) -> None:
        await settled(broker)
        clock.advance(59_000)
        await settled(broker)
        assert broker.bodies() == []

    async def first(broker: WaitingBroker) -> None:
        await broker.stored(b"level", {"DELAY": "5"})
        clock.set_now_ms(NOW - 30_000)
        await waits(broker)

    async def elected(broker: WaitingBroker) -> None:
        clock.set_now_ms(NOW - 5_000)
        await waits(broker)
        clock.advance(1_000)
        await settled(broker)
        await broker.bodies_are(b"level")

    levels = DelayLevels((60_000,))
    play(tmp_path, first, clock=clock, levels=levels)
    play(tmp_path, elected, clock=clock, levels=levels)


def test_a_moment_that_is_over_by_a_wrong_clock_only_is_waited_for(tmp_path: Path) -> None:
    clock = ManualClock(NOW)

    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"first")
        await jump(broker, clock, 3650 * DAY_MS)
        await broker.stored(b"moment", {"TIMER_DELIVER_MS": str(NOW + 2 * HOUR_MS)})
        await settled(broker)
        await broker.bodies_are(b"first")
        clock.advance(2 * HOUR_MS)

        def there() -> bool:
            clock.advance(20)
            broker.parts.rounds.wake()
            return len(broker.bodies("t", 0)) == 2

        await until(there)
        assert broker.bodies("t", 0) == [b"first", b"moment"]

    play(tmp_path, scenario, clock=clock)


async def settled(broker: WaitingBroker) -> None:
    """Let what is due be delivered, if anything is."""
    for _ in range(20):
        broker.parts.rounds.wake()
        await asyncio.sleep(0)
        await broker.commit.drain()


@JUMPS
def test_transactions_are_asked_about_and_members_stay(tmp_path: Path, jump_ms: int) -> None:
    clock = ManualClock(NOW)

    async def scenario(broker: WaitingBroker) -> None:
        producer, locks = broker.producer("producers"), QueueLocks(clock.monotonic)
        broker.members.consumer_seen(ClientIdentity("c", "c"), ConsumerGroup("g"))
        assert locks.lock("g", "c", [("t", 0)])
        await broker.stored(b"half", {"TRAN_MSG": "true", "PGROUP": "producers"})
        clock.set_now_ms(clock.now_ms() + jump_ms)
        broker.members.expire()
        locks.expire()
        assert broker.members.client_ids("g") == ["c"]
        assert not locks.lock("g", "another", [("t", 0)])
        clock.advance(int(SETTLE_S * 1000))

        def asked() -> bool:
            clock.advance(500)
            broker.parts.rounds.wake()
            return bool(producer.pushed)

        await until(asked)
        assert producer.pushed[0].code == 39
        assert 90 <= clock.monotonic() < 95, "neither early nor late"

    policy = AskPolicy(patience_ms=90_000, interval_ms=1000)
    play(tmp_path, scenario, policy, clock=clock)
