"""Moves: floors before appends, and after a crash at any step every message is where it belongs, once."""

from __future__ import annotations

from random import Random

import pytest
from examples import in_one_test
from metaq_broker.log.engine.outcomes import DiskFull, Refusal
from metaq_broker.rocketmq.moves.log import Queue
from metaq_broker.rocketmq.moves.mover import KEY, Mover, MoveReceipt
from waiting_topics import Disk, MemoryLog, Message

ORDERS, BILLS = Queue("orders", 0), Queue("bills", 1)


def recovered(log: MemoryLog) -> Mover[Message]:
    mover = Mover[Message](log, log)
    while not mover.recover():
        pass
    return mover


class Moves:
    """Moves of numbered messages, and what came of them."""

    def __init__(self, mover: Mover[Message]) -> None:
        self.mover = mover
        self.receipts: dict[int, MoveReceipt] = {}
        self.refused: list[Refusal] = []

    def begin(self, number: int, queue: Queue = ORDERS) -> None:
        def moved(outcome: MoveReceipt | Refusal) -> None:
            if isinstance(outcome, Refusal):
                self.refused.append(outcome)
            else:
                self.receipts[number] = outcome

        self.mover.move(queue, [Message(str(number), number)], moved)


def test_the_floor_is_durable_before_the_first_append() -> None:
    log = MemoryLog(Disk())
    moves = Moves(recovered(log))
    moves.begin(1)
    moves.begin(2)
    log.sync_one(Random(1))
    assert log.disk.values[KEY] == b'[["orders", 0, 0]]'
    assert not log.disk.queues
    log.sync_all()
    assert [each.text for each in log.disk.queues[ORDERS]] == ["1", "2"]
    assert sorted(moves.receipts) == [1, 2]
    moves.begin(3)
    log.sync_one(Random(1))  # no floor is waited for any more
    assert sorted(moves.receipts) == [1, 2, 3]


def test_what_was_appended_and_not_noted_is_found_after_a_restart() -> None:
    disk = Disk({ORDERS: [Message("older", 7)]})
    log = MemoryLog(disk)
    moves = Moves(recovered(log))
    moves.begin(8)
    log.sync_all()
    mover = recovered(MemoryLog(log.crash(Random(1))))
    assert mover.was_moved(8)
    assert not mover.was_moved(7)
    assert mover.forget([8]) == []
    assert not mover.was_moved(8)


def test_floors_rise_only_past_what_is_noted() -> None:
    log = MemoryLog(Disk())
    moves = Moves(recovered(log))
    for number in range(1, 4):
        moves.begin(number)
        log.sync_all()
        moves.mover.tick()
    assert log.table[KEY] == b'[["orders", 0, 0]]'
    for receipt in moves.receipts.values():
        receipt.noted()
    moves.begin(4)
    log.sync_all()
    moves.mover.tick()
    moves.mover.tick()
    assert log.table[KEY] != b'[["orders", 0, 0]]'
    mover = recovered(MemoryLog(log.disk))
    assert mover.was_moved(4)


def test_queues_that_get_nothing_more_lose_their_floors() -> None:
    log = MemoryLog(Disk())
    moves = Moves(recovered(log))
    moves.begin(1)
    log.sync_all()
    moves.receipts[1].noted()
    for _ in range(4):
        moves.mover.tick()
    log.sync_all()
    assert log.disk.values[KEY] == b"[]"


def test_a_move_that_is_not_noted_holds_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as of a message of a delay level whose next one waits for a closed queue, possibly for days."""
    monkeypatch.setattr(f"{Mover.__module__}.QUEUES_MAX", 4)
    log = MemoryLog(Disk())
    moves = Moves(recovered(log))
    moves.begin(1)
    for number in range(2, 20):
        moves.begin(number, Queue("retries", number))
        log.sync_all()
        moves.receipts[number].noted()
        moves.mover.tick()
    assert (moves.refused, len(moves.receipts)) == ([], 19)
    moves.begin(20, BILLS)
    log.sync_all()
    mover = recovered(MemoryLog(log.crash(Random(1))))
    assert [number for number in range(1, 21) if mover.was_moved(number)] == [1, 20]


def test_a_floor_of_a_topic_made_anew_does_not_rise_to_the_former_end() -> None:
    log = MemoryLog(Disk({ORDERS: [Message(str(number)) for number in range(5)]}))
    moves = Moves(recovered(log))
    moves.begin(1)
    log.sync_all()
    moves.receipts[1].noted()
    moves.mover.tick()
    log.disk.queues.clear()
    moves.begin(2)
    log.sync_all()
    moves.mover.tick()
    log.sync_all()
    assert recovered(MemoryLog(log.disk)).was_moved(2)


def test_floors_that_were_found_stay_while_they_are_kept() -> None:
    log = MemoryLog(Disk())
    moves = Moves(recovered(log))
    moves.begin(1)
    log.sync_all()
    log = MemoryLog(log.crash(Random(1)))
    mover = Mover[Message](log, log)
    hold = mover.hold()
    moves = Moves(mover)
    while not mover.recover():
        pass
    moves.begin(2, BILLS)
    log.sync_all()
    for _ in range(4):
        mover.tick()
    again = recovered(MemoryLog(log.crash(Random(1))))
    assert again.was_moved(1)
    assert again.was_moved(2)
    hold.noted()
    moves.receipts[2].noted()
    for _ in range(4):
        mover.tick()
    assert log.table[KEY] == b"[]"


def test_a_topic_that_was_made_anew_gets_a_floor_again() -> None:
    log = MemoryLog(Disk({ORDERS: [Message(str(number)) for number in range(5)]}))
    moves = Moves(recovered(log))
    moves.begin(1)
    log.sync_all()
    log.disk.queues.clear()
    moves.begin(2)
    log.sync_all()
    assert log.disk.values[KEY] == b'[["orders", 0, 0]]'
    assert recovered(MemoryLog(log.disk)).was_moved(2)


def test_a_refused_append_is_reported_and_keeps_no_floor_down() -> None:
    log = MemoryLog(Disk())
    log.refusals[ORDERS] = DiskFull("no space")
    moves = Moves(recovered(log))
    moves.begin(1)
    log.sync_all()
    assert moves.refused == [DiskFull("no space")]
    for _ in range(4):
        moves.mover.tick()
    assert log.table[KEY] == b"[]"


@in_one_test("seed", range(60))
def test_crashes_at_any_step_neither_lose_nor_double(seed: int) -> None:
    """A source of 30 messages notes how far it is moved, as delay levels do; it is killed again and again."""
    random, disk = Random(seed), Disk()
    while int(disk.values.get("position", b"0")) < 30:
        log = MemoryLog(disk)
        mover = recovered(log)
        hold = mover.hold()
        position = int(log.table.get("position", b"0"))
        life = random.randint(1, 40)

        def note(done: int, receipts: list[MoveReceipt], log: MemoryLog = log) -> None:
            log.put("position", str(done).encode(), lambda _: [each.noted() for each in receipts])

        while life:
            life -= 1
            if position < 30 and random.random() < 0.6:
                number, position = position + 1, position + 1
                if mover.was_moved(number):
                    note(number, [])
                else:
                    outcome: list[MoveReceipt | Refusal] = []
                    mover.move(random.choice((ORDERS, BILLS)), [Message(str(number), number)], outcome.append)
                    while not outcome:
                        if life <= 0:
                            break
                        life -= 1
                        log.sync_one(random)
                    if not outcome:
                        break
                    note(number, [each for each in outcome if isinstance(each, MoveReceipt)])
            elif random.random() < 0.3:
                mover.tick()
            elif log.under_way:
                log.sync_one(random)
            if position == 30:
                log.sync_all()
                hold.noted()
            life = max(life, 0)
        disk = log.crash(random)
    moved = [each.text for queue in (ORDERS, BILLS) for each in disk.queues.get(queue, ())]
    assert sorted(moved, key=int) == [str(number) for number in range(1, 31)]
