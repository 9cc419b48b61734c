"""Delay levels: when messages are delivered, in which order, and what crashes and wrong clocks do to it."""

from __future__ import annotations

from random import Random

import pytest
from examples import in_one_test
from metaq_broker.log.engine.outcomes import DiskFull
from metaq_broker.rocketmq.delays.level_queues import IDLE_MS, RETRY_MS, LevelQueues
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.moves.log import Queue
from waiting_topics import BILLS, NOW, ORDERS, Disk, MemoryWaitingLog, Message, MovingBroker

LEVELS = DelayLevels.parse("1s 5s")


class Broker(MovingBroker):
    """Two levels on a memory log."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.wakes = 0
        self.levels = LevelQueues(LEVELS, MemoryWaitingLog(self.log, "waiting"), self.mover, self.log, self.wake)
        self.recover()

    def wake(self) -> None:
        self.wakes += 1

    def step(self, now_ms: int) -> int:
        return self.levels.run(now_ms)

    def store(self, text: str, level: int, stored_ms: int, target: Queue | None = ORDERS) -> None:
        waiting = self.log.disk.queues.setdefault(Queue("waiting", level - 1), [])
        waiting.append(Message(text, target=target, stored_ms=stored_ms))

    def run(self, now_ms: int) -> int:
        """Deliver all that is due, the disk being quick."""
        while True:
            wakes = self.wakes
            at = self.levels.run(now_ms)
            self.log.sync_all()
            if self.wakes == wakes:
                return at


def test_messages_are_delivered_when_their_delay_has_passed() -> None:
    broker = Broker(Disk())
    broker.store("a", 1, NOW)
    broker.store("b", 2, NOW)
    broker.store("c", 1, NOW + 500, BILLS)
    assert broker.run(NOW + 999) == NOW + 1000
    assert broker.delivered() == []
    assert broker.run(NOW + 1000) == NOW + 1500
    assert broker.delivered() == ["a"]
    broker.run(NOW + 5000)
    assert broker.delivered() == ["a", "b"]
    assert broker.delivered(BILLS) == ["c"]
    assert broker.levels.positions() == {1: 2, 2: 1}
    broker.store("d", 1, NOW + 9000)
    assert broker.levels.progress() == {1: (2, 3), 2: (1, 1)}


def test_delivered_messages_name_their_origin() -> None:
    broker = Broker(Disk())
    broker.store("b", 2, NOW)
    broker.run(NOW + 5000)
    assert broker.log.disk.queues[ORDERS][0].origin == 1001


def test_thousands_that_are_due_at_once_are_delivered_in_order() -> None:
    broker = Broker(Disk())
    for number in range(3000):
        broker.store(str(number), 1, NOW + number)
    broker.run(NOW + 10_000)
    assert broker.delivered() == [str(number) for number in range(3000)]


def test_it_looks_again_within_a_second_for_the_clock_may_be_set() -> None:
    broker = Broker(Disk())
    broker.store("b", 2, NOW)
    assert broker.run(NOW) == NOW + IDLE_MS


def test_a_clock_that_was_set_back_neither_lengthens_nor_shortens_a_delay() -> None:
    broker, back = Broker(Disk()), NOW - 3_600_000
    broker.store("a", 1, NOW)
    broker.store("b", 1, NOW + 10)
    assert broker.run(back) == back + 1000
    broker.run(back + 999)
    assert broker.delivered() == []
    broker.run(back + 1000)
    assert broker.delivered() == ["a", "b"]
    broker.store("c", 1, NOW + 20)
    broker.run(back + 1500)
    broker.run(back + 2499)
    assert broker.delivered() == ["a", "b"]
    broker.run(back + 2500)
    assert broker.delivered() == ["a", "b", "c"]


def test_a_clock_that_was_set_back_twice_lengthens_no_delay() -> None:
    broker, back = Broker(Disk()), NOW - 600_000
    broker.store("a", 1, NOW)
    broker.run(NOW - 300_000)
    assert broker.run(back) == back + 1000
    broker.run(back + 999)
    assert broker.delivered() == []
    broker.run(back + 1000)
    assert broker.delivered() == ["a"]


def with_orders_and_bills() -> Broker:
    """Three messages for each of two topics wait, in turn."""
    broker = Broker(Disk())
    for number in range(3):
        broker.store(f"a{number}", 1, NOW)
        broker.store(f"b{number}", 1, NOW, BILLS)
    return broker


def test_a_message_without_target_is_passed_over() -> None:
    broker = Broker(Disk())
    broker.store("lost", 1, NOW, None)
    broker.store("a", 1, NOW)
    broker.run(NOW + 1000)
    assert broker.delivered() == ["a"]


def test_what_the_disk_refuses_is_tried_again() -> None:
    broker = with_orders_and_bills()
    broker.log.refusals[ORDERS] = DiskFull("no space")
    assert broker.run(NOW + 1000) == NOW + 1000 + RETRY_MS
    assert broker.levels.positions()[1] == 0
    broker.log.refusals.clear()
    broker.run(NOW + 1000 + RETRY_MS)
    assert broker.delivered() == ["a0", "a1", "a2"]
    assert broker.delivered(BILLS) == ["b0", "b1", "b2"]  # once, though the batch was tried twice


def test_a_restart_goes_on_where_it_was() -> None:
    broker = Broker(Disk())
    broker.store("a", 1, NOW)
    broker.store("b", 1, NOW + 10_000)
    broker.run(NOW + 1000)
    broker = Broker(broker.log.crash(Random(1)))
    broker.run(NOW + 11_000)
    assert broker.delivered() == ["a", "b"]


@in_one_test("seed", range(60))
def test_kills_at_any_step_neither_lose_nor_double(seed: int) -> None:
    random, broker = Random(seed), Broker(Disk())
    for number in range(120):
        broker.store(str(number), random.randint(1, 2), NOW, random.choice((ORDERS, BILLS)))
    broker, now = broker.killed_at_any_step(random, 700)
    broker.run(now + 10_000)
    delivered = broker.delivered() + broker.delivered(BILLS)
    assert sorted(delivered, key=int) == [str(number) for number in range(120)]


# ---- a state that is of another time than the log


def test_an_older_position_repeats_and_loses_nothing() -> None:
    broker = Broker(Disk())
    for text in "abc":
        broker.store(text, 1, NOW)
    broker.run(NOW + 1000)
    disk = broker.log.disk
    disk.values = {"delay/1": b"1"}  # and the floors that would tell what was moved are older, too
    broker = Broker(disk)
    broker.run(NOW + 2000)
    assert broker.delivered() == ["a", "b", "c", "b", "c"]
    assert broker.levels.positions()[1] == 3


def test_what_the_floors_still_show_is_not_repeated() -> None:
    broker = Broker(Disk())
    broker.store("a", 1, NOW)
    broker.run(NOW + 1000)
    older = dict(broker.log.disk.values)
    for text in "bc":
        broker.store(text, 1, NOW)
    broker.run(NOW + 2000)
    broker.log.disk.values = older
    broker = Broker(broker.log.disk)
    broker.run(NOW + 3000)
    assert broker.delivered() == ["a", "b", "c"]


def test_a_position_behind_the_end_goes_back_to_it(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(values={"delay/1": b"5", "delay/2": b"1"})
    broker = Broker(disk)
    for number in range(7):
        broker.store(str(number), 1, NOW)
    broker.run(NOW + 1000)
    assert broker.delivered() == [str(number) for number in range(7)]
    assert [each.message for each in caplog.records].count(
        "delayed messages: the position is beyond the end of the queue"
    ) == 2


@pytest.mark.parametrize("position", [0, 3, 5, 900])
def test_all_is_delivered_of_a_queue_that_was_numbered_anew(position: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(values={"delay/1": str(position).encode()})
    broker = Broker(disk)
    for number in range(3):
        broker.store(str(number), 1, NOW)
    disk.values["delay/1"] = str(position).encode()
    disk.renumbered[Queue("waiting", 0)] = 0
    again = Broker(disk)
    again.run(NOW + 1000)
    assert again.delivered() == ["0", "1", "2"]
    assert "delayed messages: the queue was renumbered; all are delivered" in caplog.messages


def test_a_position_stays_while_its_queue_cannot_be_read() -> None:
    broker = Broker(Disk())
    for text in "ab":
        broker.store(text, 1, NOW)
    broker.run(NOW + 1000)
    waiting = Queue("waiting", 0)
    again = Broker(broker.log.disk)
    again.log.unreadable[waiting] = DiskFull("damaged")
    assert again.run(NOW + 2000) <= NOW + 2000 + RETRY_MS
    assert again.levels.positions()[1] == 2
    del again.log.unreadable[waiting]
    again.store("c", 1, NOW)
    again.run(NOW + 4000)
    assert again.delivered() == ["a", "b", "c"]


def test_a_clock_a_day_ahead_and_back() -> None:
    broker = Broker(Disk())
    broker.store("a", 2, NOW)
    broker.run(NOW + 86_400_000)
    broker.store("b", 2, NOW + 86_400_000)
    broker.run(NOW)
    broker.store("c", 2, NOW)
    assert broker.run(NOW + 4999) == NOW + 5000
    broker.run(NOW + 5000)
    assert broker.delivered() == ["a", "b", "c"]


# ---- defects


def test_a_defect_in_one_level_leaves_the_others_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(Disk())
    broker.store("a", 1, NOW)
    broker.store("b", 2, NOW)
    broker.log.defects[Queue("waiting", 0)] = RuntimeError("a defect")
    for step_ms in range(5_000, 65_000, 1_000):
        assert broker.run(NOW + step_ms) <= NOW + step_ms + RETRY_MS
    assert broker.delivered() == ["b"]
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    broker.run(NOW + 65_000)
    assert [each.fields["times"] for each in caplog.records] == [1, 60]  # type: ignore[attr-defined]
    broker.log.defects.clear()
    broker.run(NOW + 66_000)
    assert broker.delivered() == ["b", "a"]


def test_a_defect_when_one_queue_is_written_doubles_nothing_in_others() -> None:
    broker = with_orders_and_bills()
    broker.log.defects[ORDERS] = RuntimeError("a defect")
    broker.run(NOW + 1000)
    broker.run(NOW + 2000)
    assert broker.delivered(BILLS) == ["b0", "b1", "b2"]
    broker.log.defects.clear()
    broker.run(NOW + 3000)
    assert broker.delivered() == ["a0", "a1", "a2"]
    assert broker.delivered(BILLS) == ["b0", "b1", "b2"]
    for _ in range(4):
        broker.mover.tick()
        broker.log.sync_all()
    assert broker.log.table["move/floors"] == b"[]"


def test_what_the_disk_refuses_for_minutes_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(Disk())
    broker.store("a", 1, NOW)
    broker.log.refusals[ORDERS] = DiskFull("no space")
    for step_ms in range(1_000, 120_000, RETRY_MS):
        broker.run(NOW + step_ms)
    assert [each.message for each in caplog.records] == ["delayed messages not delivered yet"] * 2
