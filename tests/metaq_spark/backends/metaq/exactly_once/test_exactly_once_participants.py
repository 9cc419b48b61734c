"""Which brokers take part in an exactly-once write, against brokers in memory: all that are named, or none."""

from __future__ import annotations

import pytest
from metaq_harness import ADDRESSES, MemoryBrokers

from metaq.backends.metaq.pair_members import PairFacts
from metaq.backends.metaq.pool import SessionPool
from metaq.errors import ConnectionFailed, DirectoryConflict, NotPairMaster, TransactionError
from metaq.protocols.text.commands import Command, Stats
from metaq.protocols.text.extensions import (
    EXT_CONTENTS,
    EXT_DECIDE,
    EXT_DECIDED_CONTENTS,
    EXT_DECISIONS,
    EXT_PUT_BATCH,
)
from metaq.testing.manual_clock import ManualClock
from metaq.testing.memory import MemoryBroker
from metaq_spark.backends.metaq.cluster import ROUTE_AGE_S_MAX, RetryingSessions
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.participants import Found, ParticipantMemory
from metaq_spark.backends.metaq.options import parse_sink_options
from metaq_spark.errors import ExactlyOnceError
from metaq_spark.options.table import Use

OURS = frozenset({EXT_PUT_BATCH, EXT_DECIDE, EXT_DECISIONS, EXT_CONTENTS, EXT_DECIDED_CONTENTS})


class Harness(MemoryBrokers):
    """Two brokers in memory and what a driver remembers of them."""

    def __init__(self, *brokers: MemoryBroker) -> None:
        super().__init__(*brokers)
        options = parse_sink_options({"brokers": "b0:1,b1:1", "topic": "t", "retries": "2"}, Use.STREAM_WRITE)
        self.sessions = RetryingSessions(options, self.pool, self.clock, options.retry_policy)
        self.memory = ParticipantMemory()

    def find(self) -> Found:
        return self.memory.find(ADDRESSES, self.sessions)


def broker(broker_id: int, extensions: frozenset[str] = OURS, *, slave: bool = False) -> MemoryBroker:
    return MemoryBroker({"t": 1}, broker_id=broker_id, extensions=extensions, slave=slave)


def test_all_named_brokers_take_part_and_are_remembered_for_a_while() -> None:
    harness = Harness(broker(4), broker(2))
    found = Found({4: ADDRESSES[0], 2: ADDRESSES[1]}, 60)
    assert harness.find() == found
    harness.brokers[0].kill()
    harness.clock.advance(ROUTE_AGE_S_MAX - 1)
    assert harness.find() == found
    harness.clock.advance(1)
    before_s = harness.clock.monotonic()
    with pytest.raises(ConnectionFailed, match="broker b0:1"):
        harness.find()
    assert harness.clock.monotonic() - before_s == pytest.approx(0.2 + 0.4)


def test_a_driver_waits_for_a_broker_that_is_away_as_the_options_say() -> None:
    harness = Harness(broker(4), broker(2))
    harness.brokers[1].kill()
    coordinator, before_s = Coordinator({4: ADDRESSES[0], 2: ADDRESSES[1]}, harness.sessions), harness.clock.monotonic()
    with pytest.raises(ConnectionFailed, match="broker b1:1"):
        coordinator.last_decided("query")
    assert harness.clock.monotonic() - before_s == pytest.approx(0.2 + 0.4)


class Outages(ManualClock):
    """Lets the first broker be away for ``away_s`` seconds, and then the next one."""

    def __init__(self, brokers: tuple[MemoryBroker, ...], away_s: float) -> None:
        super().__init__(0.0)
        self._brokers, self._away_s = brokers, away_s
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        away = int(self.monotonic() // self._away_s)
        for number, each in enumerate(self._brokers):
            (each.kill if number == away else each.start)()


def test_brokers_that_restart_one_after_the_other_are_each_waited_for() -> None:
    harness = Harness(broker(2), broker(4))
    given = {"brokers": "b0:1,b1:1", "topic": "t", "brokerWaitMs": "10000"}
    options, clock = parse_sink_options(given, Use.STREAM_WRITE), Outages(harness.brokers, away_s=9.0)
    sessions = RetryingSessions(options, SessionPool(transport=harness.transport, clock=clock), clock)
    with pytest.raises(TransactionError, match="DECIDED_CONTENTS"):  # brokers in memory have no decisions
        Coordinator({2: ADDRESSES[0], 4: ADDRESSES[1]}, sessions).last_decided("query")
    assert clock.monotonic() >= 18


@pytest.mark.parametrize(
    ("extensions", "missing"),
    [
        (frozenset(), "mput and decide and decisions and contents and decided-contents"),
        (frozenset({EXT_PUT_BATCH}), "decide and decisions and contents and decided-contents"),
        (frozenset({EXT_PUT_BATCH, EXT_DECIDE}), "decisions and contents and decided-contents"),
        (frozenset({EXT_PUT_BATCH, EXT_DECIDE, EXT_DECISIONS}), "contents and decided-contents"),
        (OURS - {EXT_DECIDED_CONTENTS}, "decided-contents"),
    ],
)
def test_a_broker_that_cannot_take_part_is_named_with_what_to_do(extensions: frozenset[str], missing: str) -> None:
    harness = Harness(broker(1), broker(2, extensions))
    words = f"delivery = exactly_once: broker b1:1 does not offer {missing}, which it needs; .* at_least_once"
    with pytest.raises(ExactlyOnceError, match=words):
        harness.find()
    assert not any(each.partitions for each in harness.brokers)


def test_slaves_take_no_part() -> None:
    assert Harness(broker(1), broker(1, frozenset(), slave=True)).find() == Found({1: ADDRESSES[0]}, 60)
    with pytest.raises(ExactlyOnceError, match=r"none of the brokers .* is a master"):
        Harness(broker(1, slave=True), broker(2, slave=True)).find()


@pytest.mark.parametrize("master", [0, 1])
def test_the_members_of_a_pair_are_one_participant(master: int) -> None:
    harness = Harness(broker(1), broker(1))
    for number, each in enumerate(harness.brokers):
        each.pair = PairFacts(ADDRESSES[1 - number], number == master, 3)
    assert harness.find() == Found({1: ADDRESSES[master]}, 60)
    harness.brokers[1 - master].kill()
    harness.clock.advance(ROUTE_AGE_S_MAX)
    assert harness.find() == Found({1: ADDRESSES[master]}, 60)


def test_a_member_that_does_not_know_yet_that_it_was_replaced_takes_no_part() -> None:
    harness = Harness(broker(1), broker(1))
    replaced, elected = harness.brokers
    replaced.pair, elected.pair = PairFacts(ADDRESSES[1], True, 3), PairFacts(ADDRESSES[0], True, 4)

    def another_thread_meets_the_next_one(command: Command) -> None:
        if isinstance(command, Stats) and command.item == "config":
            harness.pool.members.note_facts(ADDRESSES[1], PairFacts(ADDRESSES[0], True, 4))

    replaced.before_command = another_thread_meets_the_next_one
    assert harness.find() == Found({1: ADDRESSES[1]}, 60)


@pytest.mark.parametrize("number", range(4))
def test_a_connection_that_ends_with_a_question_is_opened_again(number: int) -> None:
    harness, asked = Harness(broker(4), broker(2)), list[Command]()
    first = harness.brokers[0]

    def restart(command: Command) -> None:
        asked.append(command)
        if len(asked) == number + 1:
            first.kill()
            first.start()

    first.before_command = restart
    assert harness.find() == Found({4: ADDRESSES[0], 2: ADDRESSES[1]}, 60)
    assert len(asked) > number


def test_a_pair_without_a_master_is_waited_for() -> None:
    harness = Harness(broker(1), broker(1))
    for number, each in enumerate(harness.brokers):
        each.pair = PairFacts(ADDRESSES[1 - number], False, 3)
    with pytest.raises(NotPairMaster, match="broker b0:1 refused stats: it is not the master of its pair, nor is b1:1"):
        harness.find()


def test_two_addresses_of_one_broker() -> None:
    with pytest.raises(DirectoryConflict, match="b0:1 and b1:1 report the same broker id, 1"):
        Harness(broker(1), broker(1)).find()
