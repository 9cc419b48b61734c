"""A wall clock that jumps back an hour or ahead a day: what waits is delivered once, times lead to their messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.engine.id_clock import SETTLE_S
from metaq_broker.engine.outcomes import ClockImplausible
from metaq_broker.groups.members import ClientIdentity, ConsumerGroup
from metaq_broker.groups.queue_locks import QueueLocks
from metaq_broker.half_messages.half_messages import AskPolicy
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

    policy = AskPolicy(patience_ms=2 * HOUR_MS if jump_ms < 0 else 1000, interval_ms=1000)
    play(tmp_path, scenario, policy, clock=clock)
