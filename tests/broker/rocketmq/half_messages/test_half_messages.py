"""Half messages: decisions carried out once, producers asked, and kills between any two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from examples import in_one_test
from metaq_broker.log.engine.outcomes import DiskFull, Refusal
from metaq_broker.rocketmq.half_messages.half_log import (
    ASKED,
    ENDED,
    GroupWrong,
    HalfEnded,
    HalfKept,
    HalfMessageDecided,
    HalfUnknown,
    Note,
    OriginWrong,
    StoredHalf,
)
from metaq_broker.rocketmq.half_messages.half_messages import RETRY_MS, AskPolicy, HalfMessages
from metaq_broker.rocketmq.moves.log import Queue
from metaq_broker.rocketmq.moves.mover import Mover
from waiting_topics import NOW, ORDERS, Disk, MemoryLog, Message, MovingBroker

HALF, NOTES, GIVEN_UP = Queue("half", 0), Queue("notes", 0), Queue("given-up", 0)
POLICY = AskPolicy(patience_ms=6_000, interval_ms=60_000, asks_max=3, open_max=5)


class Halves:
    """``HalfLog`` on a memory log. Half message n stands at origin n + 1; ``text`` is the group, a colon, the text."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.asked: list[tuple[str, int]] = []

    def fault(self) -> Refusal | None:
        return self.log.fault(HALF) or self.log.fault(NOTES)

    def halves(self, first: int, count: int) -> tuple[Sequence[StoredHalf[Message]], int] | Refusal:
        found = self.log.disk.queues.get(HALF, [])[first : first + count]
        return [_stored(ordinal, each) for ordinal, each in enumerate(found, first)], first + len(found)

    def notes(self, first: int) -> tuple[Sequence[Note], int] | Refusal:
        found = self.log.disk.queues.get(NOTES, [])[first : first + 4]
        notes = [Note(ordinal, each.text[0], each.text[1:].encode()) for ordinal, each in enumerate(found, first)]
        return notes, first + len(found)

    def ends(self) -> tuple[int, int]:
        return self.log.end(HALF), self.log.end(NOTES)

    def renumbered(self) -> tuple[int | None, int | None]:
        renumbered = self.log.disk.renumbered
        return renumbered.get(HALF), renumbered.get(NOTES)

    def append_note(self, kind: str, body: bytes, stored: Callable[[int | Refusal], None]) -> None:
        def done(refusal: Refusal | None) -> None:
            stored(self.log.end(NOTES) - 1 if refusal is None else refusal)

        self.log.append(NOTES, [Message(kind + body.decode())], done)

    def ask(self, half: StoredHalf[Message], times: int) -> bool:
        self.asked.append((half.message.text, times))
        return True


def _stored(ordinal: int, message: Message) -> StoredHalf[Message]:
    group, _, text = message.text.partition(":")
    made = Message(text, ordinal + 1)
    return StoredHalf(
        ordinal, ordinal + 1, group, message.stored_ms, message.due_ms or None, message.target, made, GIVEN_UP, made
    )


class Broker(MovingBroker):
    def __init__(self, disk: Disk, policy: AskPolicy = POLICY, unreadable: Queue | None = None) -> None:
        super().__init__(disk)
        if unreadable is not None:
            self.log.unreadable[unreadable] = DiskFull("damaged")
        self.halves = Halves(self.log)
        self.half_messages = HalfMessages(self.halves, self.mover, self.log, lambda: None, policy)
        self.outcomes: list[HalfMessageDecided | Refusal] = []
        self.recover()

    def store(self, text: str, stored_ms: int = NOW, group: str = "shop", patience_ms: int = 0) -> int:
        stored = self.log.disk.queues.setdefault(HALF, [])
        stored.append(Message(f"{group}:{text}", target=ORDERS, stored_ms=stored_ms, due_ms=patience_ms))
        return len(stored) - 1

    def decide(self, ordinal: int, commit: bool = True, group: str = "shop", origin: int | None = None) -> None:
        self.half_messages.decide(
            ordinal, ordinal + 1 if origin is None else origin, group, commit, self.outcomes.append
        )

    def step(self, now_ms: int) -> object:
        return self.half_messages.run(now_ms)

    def run(self, now_ms: int = NOW) -> None:
        for _ in range(20):
            self.half_messages.run(now_ms)
            self.log.sync_all()

    def notes(self) -> list[str]:
        return [each.text for each in self.log.disk.queues.get(NOTES, ())]


def started(disk: Disk | None = None, policy: AskPolicy = POLICY) -> Broker:
    broker = Broker(Disk() if disk is None else disk, policy)
    broker.run()
    return broker


def test_a_commit_delivers_and_a_rollback_does_not() -> None:
    broker = started()
    first, second = broker.store("a"), broker.store("b")
    broker.decide(first, commit=True)
    broker.decide(second, commit=False)
    assert broker.outcomes == []
    broker.run()
    assert len(broker.outcomes) == 2
    assert set(broker.outcomes) == {HalfMessageDecided(True), HalfMessageDecided(False)}
    assert broker.delivered() == ["a"]
    assert broker.log.disk.queues[ORDERS][0].origin == first + 1
    assert broker.notes() == [f"{ENDED}1", f"{ENDED}0"]
    assert len(broker.half_messages) == 0


@pytest.mark.parametrize("again", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("first", [True, False], ids=["committed", "rolled back"])
def test_a_second_decision_changes_nothing(first: bool, again: bool) -> None:
    broker = started()
    ordinal = broker.store("a")
    broker.decide(ordinal, first)
    broker.decide(ordinal, again)
    assert broker.outcomes == [HalfEnded(ordinal)]
    broker.run()
    broker.decide(ordinal, again)
    assert broker.outcomes == [HalfEnded(ordinal), HalfMessageDecided(first), HalfEnded(ordinal)]
    broker = started(broker.log.disk)
    broker.decide(ordinal, again)
    broker.run()
    assert broker.outcomes == [HalfEnded(ordinal)]
    assert broker.delivered() == ["a"] * first


def test_other_groups_and_wrong_places_decide_nothing() -> None:
    broker = started()
    ordinal = broker.store("a")
    broker.decide(ordinal, group="others")
    broker.decide(ordinal, origin=77)
    broker.decide(5)
    broker.run()
    assert broker.outcomes == [GroupWrong("shop"), OriginWrong(ordinal + 1), HalfUnknown(5)]
    assert broker.delivered() == []
    assert len(broker.half_messages) == 1


def test_producers_are_asked_and_then_it_is_given_up() -> None:
    broker = started()
    broker.store("a", NOW - 50_000)
    broker.store("young", NOW + 59_000)
    broker.store("patient", NOW, patience_ms=600_000)
    broker.run(NOW + 59_999)
    assert broker.halves.asked == []
    for minute in (1, 2, 3):
        broker.run(NOW + minute * 60_000)
    assert [text for text, _ in broker.halves.asked] == ["a", "a", "young", "a", "young"]
    assert [times for text, times in broker.halves.asked if text == "a"] == [1, 2, 3]
    broker = started(broker.log.disk)  # how often it was asked is not forgotten
    broker.run(NOW + 60_000)
    assert broker.delivered(GIVEN_UP) == ["a"]
    assert broker.delivered() == []
    broker.decide(0)
    assert broker.outcomes == [HalfEnded(0)]


def test_notes_of_a_round_are_one() -> None:
    broker = started()
    for text in "abc":
        broker.store(text, NOW - 10_000)
    broker.run(NOW + 60_000)
    assert broker.notes() == [f"{ASKED}0,1,2"]


def test_what_the_disk_refuses_can_be_decided_again() -> None:
    broker = started()
    ordinal = broker.store("a")
    broker.log.refusals[ORDERS] = DiskFull("no space")
    broker.decide(ordinal)
    broker.run()
    assert broker.outcomes == [HalfKept(True, DiskFull("no space"))]
    broker.log.refusals.clear()
    broker.decide(ordinal)
    broker.run()
    assert broker.outcomes[1:] == [HalfMessageDecided(True)]
    assert broker.delivered() == ["a"]


def test_a_note_that_the_disk_refuses_is_written_as_soon_as_it_can_be() -> None:
    broker = started()
    ordinal = broker.store("a")
    broker.log.refusals[NOTES] = DiskFull("no space")
    broker.decide(ordinal)
    broker.run()
    assert broker.outcomes == [HalfMessageDecided(True)]
    assert broker.half_messages.run(NOW) <= NOW + RETRY_MS
    broker.decide(ordinal, commit=False)
    assert broker.outcomes[1:] == [HalfEnded(ordinal)]
    broker.log.refusals.clear()
    broker.run()
    assert broker.notes() == [f"{ENDED}0"]


def test_decisions_that_come_before_all_is_read_are_not_lost() -> None:
    broker = started()
    ordinal = broker.store("a")
    broker = Broker(broker.log.disk)
    broker.decide(ordinal)
    broker.run()
    assert broker.outcomes == [HalfMessageDecided(True)]
    assert broker.delivered() == ["a"]


def test_it_is_full_when_so_many_are_open() -> None:
    broker = started()
    for number in range(5):
        assert not broker.half_messages.is_full
        broker.store(str(number), NOW - 10_000)
        broker.run(NOW + 60_000)
    assert broker.half_messages.is_full


@in_one_test("seed", range(60))
def test_kills_between_any_two_steps(seed: int) -> None:
    """Producers decide again until they are told; every message that one wanted committed is there, once."""
    random, now = Random(seed), NOW
    policy = AskPolicy(interval_ms=1_000, patience_ms=100, asks_max=1_000_000)
    broker = Broker(Disk(), policy)
    wanted = {}
    for number in range(40):
        wanted[broker.store(str(number), NOW - 10_000)] = random.random() < 0.6
    for _ in range(400):
        now += random.randrange(400)
        broker.half_messages.run(now)
        if random.random() < 0.5:
            ordinal = random.choice(list(wanted))
            broker.decide(ordinal, wanted[ordinal])
        broker.sync_some(random, ticks=0.2)
        if random.random() < 0.1:
            reported = [each for each in broker.outcomes if isinstance(each, HalfMessageDecided)]
            assert len(reported) <= 40
            broker = Broker(broker.log.crash(random), policy)
    broker.run(now)
    for ordinal, commit in wanted.items():
        broker.decide(ordinal, commit)
    broker.run(now)
    expected = sorted(str(ordinal) for ordinal, commit in wanted.items() if commit)
    assert sorted(broker.delivered()) == expected
    assert len(broker.half_messages) == 0
    broker = Broker(broker.log.crash(random), policy)
    broker.run(now)
    assert len(broker.half_messages) == 0
    assert sorted(broker.delivered()) == expected


# ---- a state that is of another time than the log, and wrong clocks


def test_an_older_state_reads_what_was_ended_from_the_notes() -> None:
    broker = Broker(Disk())
    broker.run()
    for number in range(3):
        broker.decide(broker.store(str(number)))
        broker.run()
    broker.log.disk.values = {}
    again = Broker(broker.log.disk)
    again.run()
    again.run(NOW + 200_000)
    again.decide(1)
    again.run()
    assert again.delivered() == ["0", "1", "2"]
    assert again.outcomes == [HalfEnded(1)]
    assert again.halves.asked == []


def test_positions_behind_the_ends_go_back_to_them(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(Disk(values={"half/positions": b"7,9"}))
    first = broker.store("first")
    broker.run()
    second = broker.store("second")
    for each in (first, second):
        broker.decide(each)
    broker.run()
    assert broker.delivered() == ["first", "second"]
    assert broker.outcomes == [HalfMessageDecided(True)] * 2
    again = Broker(broker.log.disk)
    again.run()
    assert (len(again.half_messages), again.delivered()) == (0, ["first", "second"])
    assert caplog.messages.count("half messages: the positions are beyond the ends of their topics") == 1


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_a_decision_on_a_full_disk_is_carried_out_with_space(commit: bool) -> None:
    broker = started()
    half = broker.store("a")
    refused = ORDERS if commit else NOTES
    broker.log.refusals[refused] = DiskFull("there is no space")
    broker.decide(half, commit)
    broker.run()
    assert broker.outcomes == [HalfKept(commit, DiskFull("there is no space"))]
    for minute in range(1, 9):
        broker.run(NOW + minute * 60_000)
    assert (broker.halves.asked, broker.delivered()) == ([], []), "nobody has to decide again"
    broker.log.refusals.clear()
    broker.run(NOW + 9 * 60_000 + RETRY_MS)
    assert (broker.delivered(), len(broker.half_messages)) == (["a"] if commit else [], 0)
    assert len(broker.outcomes) == 1
    broker.run(NOW + 30 * 60_000)
    assert broker.delivered() == (["a"] if commit else [])


def test_a_producer_may_change_a_decision_that_the_disk_has_refused() -> None:
    broker = started()
    half = broker.store("a")
    broker.log.refusals[ORDERS] = DiskFull("there is no space")
    broker.decide(half, commit=True)
    broker.run()
    broker.decide(half, commit=False)
    broker.run()
    broker.log.refusals.clear()
    broker.run(NOW + 60_000)
    assert broker.outcomes == [HalfKept(True, DiskFull("there is no space")), HalfMessageDecided(False)]
    assert broker.delivered() == []


@pytest.mark.parametrize("positions", [b"1,1", b"7,9"])
def test_topics_that_were_numbered_anew_are_read_from_their_starts(
    positions: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(values={"half/positions": positions}, renumbered={HALF: 0, NOTES: 0})
    before = Broker(Disk(queues=disk.queues))
    first, second = before.store("first"), before.store("second")
    broker = Broker(disk)
    broker.run()
    for each in (first, second):
        broker.decide(each)
    broker.run()
    assert broker.delivered() == ["first", "second"]
    assert broker.outcomes == [HalfMessageDecided(True)] * 2
    assert caplog.messages.count("half messages: a topic was renumbered; producers are asked") == 1


def test_positions_stay_while_the_topics_cannot_be_read() -> None:
    broker = Broker(Disk())
    broker.decide(broker.store("a"))
    broker.run()
    again = Broker(broker.log.disk, unreadable=HALF)
    assert again.half_messages.run(NOW) == NOW + RETRY_MS
    del again.log.unreadable[HALF]
    again.run()
    assert (len(again.half_messages), again.delivered()) == (0, ["a"])


@pytest.mark.parametrize("jump_ms", [-3_600_000, 86_400_000])
def test_a_clock_that_jumps_neither_forgets_nor_gives_up(jump_ms: int) -> None:
    broker = Broker(Disk())
    broker.run()
    ordinal = broker.store("a")
    for rounds in range(3):  # patience begins in the first one, if the clock is behind the message
        broker.run(NOW + jump_ms + rounds * POLICY.interval_ms)
    assert broker.halves.asked[0] == ("a", 1)
    assert len(broker.halves.asked) <= 3
    broker.decide(ordinal)
    broker.run(NOW + jump_ms + 2 * POLICY.interval_ms)
    assert broker.delivered() == ["a"]


def test_what_a_restart_reads_is_needed_until_all_is_read() -> None:
    """Retention asks meanwhile. Without their notes, messages that are ended would be asked about, and doubled."""
    halves = [Message(f"g:{number}", target=ORDERS) for number in range(3)]
    log = MemoryLog(Disk({HALF: halves, NOTES: [Message("d1"), Message("d2")]}))
    mover = Mover[Message](log, log)
    half_messages = HalfMessages(Halves(log), mover, log, lambda: None, POLICY)
    rounds = 0
    while not half_messages.recovered:
        assert half_messages.positions() == (0, 0)
        half_messages.run(NOW)
        rounds += 1
    assert rounds > 2
    assert half_messages.positions() == (0, 0), "the first one is open"
    half_messages.decide(0, 1, "g", False, lambda outcome: None)
    half_messages.run(NOW)
    log.sync_all()
    assert half_messages.positions() == (3, 3)
