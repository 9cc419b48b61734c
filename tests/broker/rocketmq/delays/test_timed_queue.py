"""Messages that wait for a moment of their own: order, restarts, recall, limits, crashes."""

from __future__ import annotations

from random import Random

import pytest
from examples import in_one_test
from metaq_broker.log.engine.outcomes import DiskFull, PartitionClosed
from metaq_broker.rocketmq.delays.level_queues import BATCH_MESSAGES, IDLE_MS, RETRY_MS
from metaq_broker.rocketmq.delays.timed_queue import BATCH_BYTES, PAUSE_MS, READ_MESSAGES, TimedQueue
from metaq_broker.rocketmq.moves.log import Queue
from waiting_topics import BILLS, NOW, ORDERS, Disk, MemoryWaitingLog, Message, MovingBroker

TIMED = Queue("timed", 0)


class Broker(MovingBroker):
    def __init__(self, disk: Disk, waiting_max: int = 10_000) -> None:
        super().__init__(disk)
        self.waiting = MemoryWaitingLog(self.log, "timed")
        self.timed = TimedQueue(self.waiting, self.mover, self.log, lambda: None, waiting_max=waiting_max)
        self.recover()

    def store(self, text: str, due_ms: int, target: Queue = ORDERS) -> int:
        waiting = self.log.disk.queues.setdefault(TIMED, [])
        waiting.append(Message(text, target=target, due_ms=due_ms))
        return len(waiting) - 1

    def step(self, now_ms: int) -> int:
        return self.timed.run(now_ms)

    def run(self, now_ms: int) -> None:
        for _ in range(100):
            self.timed.run(now_ms)
            self.log.sync_all()


def test_messages_are_delivered_in_the_order_of_their_moments() -> None:
    broker = Broker(Disk())
    broker.store("late", NOW + 300_000)
    broker.store("early", NOW + 10)
    broker.store("past", NOW - 5)
    broker.run(NOW)
    assert broker.delivered() == ["past"]
    assert broker.timed.run(NOW) == NOW + 10
    broker.run(NOW + 300_000)
    assert broker.delivered() == ["past", "early", "late"]
    assert len(broker.timed) == 0


def test_a_restart_reads_in_parts_what_still_waits() -> None:
    broker = Broker(Disk())
    for number in range(3 * READ_MESSAGES):
        broker.store(str(number), NOW + number % 2 * 1000)
    broker.run(NOW)
    broker = Broker(broker.log.crash(Random(1)))
    assert broker.timed.run(NOW) == NOW  # not all is read yet
    broker.run(NOW)
    assert len(broker.timed) == 3 * READ_MESSAGES // 2
    broker.run(NOW + 1000)
    assert sorted(broker.delivered(), key=int) == [str(number) for number in range(3 * READ_MESSAGES)]


def test_a_recalled_message_is_not_delivered_also_after_a_restart() -> None:
    broker = Broker(Disk())
    recalled, other = broker.store("recalled", NOW + 10), broker.store("other", NOW + 10)
    broker.run(NOW)
    assert broker.timed.waits(recalled)
    broker.timed.recall(recalled, lambda error: None)
    assert not broker.timed.waits(recalled)
    assert broker.timed.waits(other)
    assert not broker.timed.waits(99)
    broker.log.sync_all()
    broker = Broker(broker.log.disk)
    broker.run(NOW + 10)
    assert broker.delivered() == ["other"]
    assert not broker.timed.waits(other)


def test_it_is_full_when_so_many_wait() -> None:
    broker = Broker(Disk(), waiting_max=3)
    for number in range(3):
        assert not broker.timed.is_full
        broker.store(str(number), NOW + 1000)
        broker.run(NOW)
    assert broker.timed.is_full


def test_large_messages_are_moved_a_few_at_a_time() -> None:
    broker = Broker(Disk())
    broker.waiting.size = BATCH_BYTES // 2
    for number in range(7):
        broker.store(str(number), NOW)
    broker.timed.run(NOW)
    while ORDERS not in broker.log.disk.queues:
        broker.log.sync_one(Random(1))
    assert broker.delivered() == ["0", "1"]
    broker.run(NOW)
    assert broker.delivered() == ["0", "1", "2", "3", "4", "5", "6"]


def test_what_the_disk_refuses_is_tried_again() -> None:
    broker = Broker(Disk())
    broker.store("a", NOW)
    broker.store("b", NOW, BILLS)
    broker.log.refusals[ORDERS] = DiskFull("no space")
    broker.run(NOW)
    broker.log.refusals.clear()
    broker.run(NOW + RETRY_MS)
    assert (broker.delivered(), broker.delivered(BILLS)) == (["a"], ["b"])


@pytest.mark.parametrize("first", [1, 3 * BATCH_MESSAGES])
def test_a_target_that_refuses_holds_up_no_other(first: int) -> None:
    broker = Broker(Disk())
    for number in range(first):
        broker.store(str(number), NOW)
    broker.log.refusals[ORDERS] = PartitionClosed(0)
    broker.run(NOW)
    later = broker.store("later", NOW + 10, BILLS)
    for passed in range(0, RETRY_MS, PAUSE_MS):
        broker.run(NOW + 10 + passed)
    assert broker.delivered(BILLS) == ["later"]
    assert not broker.timed.waits(later)
    broker.log.refusals.clear()
    broker.run(NOW + 3 * RETRY_MS)
    assert broker.delivered() == [str(number) for number in range(first)]
    assert len(broker.timed) == 0


def test_a_queue_that_is_empty_again_after_a_refusal_rests() -> None:
    broker = Broker(Disk())
    broker.store("once", NOW)
    broker.log.refusals[ORDERS] = PartitionClosed(0)
    broker.run(NOW)
    broker.log.refusals.clear()
    broker.run(NOW + 2 * RETRY_MS)
    assert (broker.delivered(), len(broker.timed)) == (["once"], 0)
    assert broker.timed.run(NOW + 10 * RETRY_MS) == NOW + 10 * RETRY_MS + IDLE_MS


def test_a_message_whose_target_refuses_can_be_recalled() -> None:
    broker = Broker(Disk())
    recalled = broker.store("recalled", NOW)
    broker.log.refusals[ORDERS] = PartitionClosed(0)
    broker.run(NOW)
    assert broker.timed.waits(recalled)
    broker.timed.recall(recalled, lambda error: None)
    broker.log.refusals.clear()
    broker.run(NOW + 2 * RETRY_MS)
    assert broker.delivered() == []


@in_one_test("seed", range(60))
def test_kills_at_any_step_neither_lose_nor_double(seed: int) -> None:
    random, broker = Random(seed), Broker(Disk())
    for number in range(120):
        broker.store(str(number), NOW + random.randrange(60_000), random.choice((ORDERS, BILLS)))
    broker, now = broker.killed_at_any_step(random, 500)
    broker.run(now + 100_000)
    delivered = broker.delivered() + broker.delivered(BILLS)
    assert sorted(delivered, key=int) == [str(number) for number in range(120)]


# ---- a state that is of another time than the log


def test_more_are_finished_than_there_are(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(Disk())
    for number in range(4):
        broker.store(str(number), NOW + 1000 * (number != 2))
    broker.run(NOW)
    broker.run(NOW + 1000)
    disk = broker.log.disk
    disk.queues = {ORDERS: []}  # another log
    again = Broker(disk)
    for number in range(6):
        again.store(f"new {number}", NOW)
    again.run(NOW)
    assert sorted(again.delivered()) == [f"new {number}" for number in range(6)]
    assert "timed messages: more are finished than there are" in caplog.messages


@pytest.mark.parametrize("below", [b"2", b"4", b"9000"])
def test_all_is_delivered_of_a_queue_that_was_numbered_anew(below: bytes, caplog: pytest.LogCaptureFixture) -> None:
    values = {"delay/timed": below, "delay/timed/0": b"\xff", "delay/timed/2": b"\x01"}
    disk = Disk(values=values, renumbered={TIMED: 0})
    broker = Broker(disk)
    for number in range(4):
        broker.store(str(number), NOW)
    broker.run(NOW)
    assert broker.delivered() == ["0", "1", "2", "3"]
    assert "timed messages: the queue was renumbered; all are delivered" in caplog.messages
    disk = broker.log.crash(Random(1))
    disk.renumbered.clear()
    assert disk.values["delay/timed"] == b"4"
    assert "delay/timed/2" not in disk.values
    again = Broker(disk)
    again.run(NOW)
    assert again.delivered() == ["0", "1", "2", "3"]


def test_messages_that_are_gone_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    for number in range(8):
        Broker(disk).store(str(number), NOW)
    disk.values = {"delay/timed": b"2", "delay/timed/0": b"\x40"}
    broker = Broker(disk)
    broker.waiting.first = 5
    broker.run(NOW)
    assert broker.delivered() == ["5", "7"]
    assert broker.timed.below == 8
    assert "delayed messages were removed before they were due" in caplog.messages


def test_an_older_state_repeats_and_loses_nothing() -> None:
    broker = Broker(Disk())
    broker.store("a", NOW)
    broker.run(NOW)
    broker.store("b", NOW)
    broker.run(NOW)
    broker.log.disk.values = {"delay/timed": b"1"}
    again = Broker(broker.log.disk)
    again.run(NOW)
    again.store("c", NOW)
    again.run(NOW)
    assert again.delivered() == ["a", "b", "b", "c"]


def test_a_clock_that_jumps() -> None:
    broker, now, hour = Broker(Disk()), 1_700_000_000_000, 3_600_000
    broker.store("a", now + hour)
    broker.run(now + hour // 2)
    broker.run(now - hour)
    broker.store("b", now - hour // 2)
    broker.run(now - hour // 2)
    assert broker.delivered() == ["b"]
    broker.run(now + 24 * hour)
    assert broker.delivered() == ["b", "a"]


def test_a_message_that_cannot_be_read_for_a_defect_holds_up_no_others(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(Disk())
    for number in range(70):
        broker.store(str(number), NOW + 10)
    broker.run(NOW)
    broker.waiting.broken_ordinal = 1
    for step_ms in range(10, 30_000, RETRY_MS):
        broker.run(NOW + step_ms)
    assert broker.delivered() == ["0", *(str(number) for number in range(2, 70))]
    assert len(caplog.records) == 1
    broker.waiting.broken_ordinal = None
    broker.run(NOW + 60_000)
    assert broker.delivered()[-1] == "1"
    assert len(broker.timed) == 0
