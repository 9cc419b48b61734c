"""What a consumer does while it waits: counted, by a clock that only the test moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from storage_contract import P0, P1

from metaq.client.groups.ownership.assignment import range_of
from metaq.client.groups.ownership.coordinator import CoordinatorSettings, MemberCoordinator
from metaq.client.groups.ownership.membership import LoneMembership
from metaq.client.groups.ownership.schedule import AGAIN_S, LOOK_S, StepSchedule
from metaq.client.groups.partition import OwnedPartition, ReadSettings
from metaq.client.groups.state import ConsumerState
from metaq.client.offsets import GroupOffset, MemoryOffsets
from metaq.discovery.zk_groups import GroupView
from metaq.errors import ConnectionFailed, ConsumerIdInUse, MetaqError, StoreFailed, ZooKeeperAway
from metaq.model import Address, TopicPartition
from metaq.testing.manual_clock import ManualClock

WAIT_S = 600.0
SAVE_S = 5.0


class Members(LoneMembership):
    """A registry of which a test says what it cannot do."""

    def __init__(self) -> None:
        self.group, self.consumer_id, self.registered = "g", "g_me", False
        self.connected = True
        self.fails: dict[str, MetaqError] = {}
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def register(self) -> None:
        self._call("register")
        self.registered = True

    def view(self) -> GroupView:
        self._call("view")
        return GroupView({self.consumer_id: ["orders"]}, {"orders": [P0.partition, P1.partition]})

    def claim(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        self._call("claim")
        return set(partitions)

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        self._call("owned_now")
        return set(partitions)


class Offsets(MemoryOffsets):
    """A storage that a test takes away."""

    away = False
    loads = 0

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        self.loads += 1
        if self.away:
            raise StoreFailed("database", "it is away")
        return super().load(group, partitions)


class Begins:
    """Each partition is begun at 0."""

    def resolve(self, where: TopicPartition, since_ms: int | None = None) -> GroupOffset:
        return GroupOffset(0)


class Bench:
    """A consumer without threads."""

    def __init__(self) -> None:
        self.clock, self.members, self.offsets = ManualClock(), Members(), Offsets()
        self.state: ConsumerState[Any, Any, Any] = ConsumerState(retry_max_s=1, max_attempts=1, dedupe=0)
        settings = ReadSettings("g")
        self.coordinator = MemberCoordinator(
            *(self.state, self.members, self.offsets, Begins()),
            lambda where, start, generation, saved: OwnedPartition(
                where, start, generation, settings, self.state, saved
            ),
            CoordinatorSettings(range_of, save_s=SAVE_S, id_wait_s=2 * WAIT_S),
            self.clock,
        )

    def steps(self, seconds: float) -> int:
        """Let time pass; return how often the consumer was busy."""
        count, until_s = 0, self.clock.monotonic() + seconds
        while self.clock.monotonic() < until_s:
            count += 1
            assert count < 10_000, "it spins"
            self.clock.advance(max(self.coordinator.step(), 1e-6))
        return count


@pytest.fixture
def bench() -> Bench:
    return Bench()


def in_use(bench: Bench) -> None:
    bench.members.fails["register"] = ConsumerIdInUse("g", "another", "file")


def cannot_register(bench: Bench) -> None:
    bench.members.fails["register"] = ConnectionFailed(Address("127.0.0.1", 1), "connect", "refused")


def session_ended(bench: Bench) -> None:
    bench.steps(1)
    bench.members.registered = False
    cannot_register(bench)


def view_fails(bench: Bench) -> None:
    bench.steps(1)
    bench.members.fails["view"] = ZooKeeperAway("zk", "no answer")
    bench.coordinator._note_change()


def save_fails(bench: Bench) -> None:
    bench.steps(1)
    bench.members.fails["owned_now"] = ZooKeeperAway("zk", "no answer")
    bench.state.partitions[P0].seek(7)


def storage_is_away(bench: Bench) -> None:
    bench.offsets.away = True


@pytest.mark.parametrize("away", [in_use, cannot_register, session_ended, view_fails, save_fails, storage_is_away])
def test_it_tries_once_a_second_whatever_is_away_and_says_it_once(
    bench: Bench, away: Callable[[Bench], None], caplog: pytest.LogCaptureFixture
) -> None:
    away(bench)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert bench.steps(WAIT_S) <= WAIT_S / AGAIN_S + 2 * WAIT_S / SAVE_S + 2
    assert len({one.getMessage() for one in caplog.records}) == len(caplog.records) == 1


def test_it_looks_now_and_then_while_its_registry_is_away(bench: Bench) -> None:
    bench.steps(1)
    bench.members.connected = False
    calls = len(bench.members.calls)
    assert bench.steps(WAIT_S) <= WAIT_S / LOOK_S + 1
    assert len(bench.members.calls) == calls
    assert bench.state.paused == "the file of the group is away"
    bench.members.connected = True
    bench.coordinator._note_change()
    bench.steps(1)
    assert bench.state.paused is None


def test_a_member_with_nothing_to_do_does_next_to_nothing(bench: Bench) -> None:
    assert bench.steps(WAIT_S) <= WAIT_S / SAVE_S + WAIT_S / LOOK_S + 2
    assert bench.state.paused is None


def test_a_change_is_looked_at_at_once_and_once() -> None:
    clock = ManualClock()
    schedule = StepSchedule(SAVE_S, clock)
    assert schedule.begin_division()
    assert not schedule.begin_division()
    schedule.note_change()
    assert schedule.begin_division()
    clock.advance(AGAIN_S)
    assert schedule.begin_division(), "not all could be divided"
    schedule.divided(None)
    clock.advance(WAIT_S)
    assert not schedule.begin_division()
    schedule.divided(20.0)
    clock.advance(20.0)
    assert schedule.begin_division()


def test_the_sentence_names_the_consumer_that_is_waited_for(tmp_path: Path) -> None:
    first, second = (LoneMembership(None, "g", name, ["orders"], tmp_path / "g.lock") for name in ("g_1", "g_2"))  # type: ignore[arg-type]
    first.register()
    with pytest.raises(ConsumerIdInUse, match="'g_1' is running already"):
        second.register()
    first.close()
    second.register()
    with pytest.raises(ConsumerIdInUse, match="'g_2' is running already"):
        first.register()
    second.close()


def test_a_file_that_an_older_version_has_locked(tmp_path: Path) -> None:
    path = tmp_path / "g.lock"
    first, second = (LoneMembership(None, "g", name, ["orders"], path) for name in ("g_1", "g_2"))  # type: ignore[arg-type]
    first.register()
    path.write_text("")
    with pytest.raises(ConsumerIdInUse, match="'unknown' is running already"):
        second.register()
    first.close()


def test_nothing_is_asked_for_while_nothing_is_handed_out(bench: Bench) -> None:
    bench.steps(1)
    state, now_s = bench.state, bench.clock.monotonic()
    assert state.next_request_s(0) is not None
    bench.members.connected = False
    bench.steps(1)
    assert state.next_request_s(0) is None
    assert state.requests(0, now_s, 10) == []
    state.resume()
    assert len(state.requests(0, now_s, 10)) == 2


def test_a_reader_does_not_wake_up_for_a_message_that_it_may_not_have(bench: Bench) -> None:
    """One that was refused is due again, while the registry is away."""
    bench.steps(1)
    state, now_s = bench.state, bench.clock.monotonic()
    partition = state.partitions[P0]
    partition._again.append(object())
    partition._again_s = now_s - 1
    assert state.wait_s(0.5, now_s) < 0.01
    bench.members.connected = False
    bench.steps(1)
    assert state.wait_s(0.5, now_s) == 0.5
    state.resume()
    state.suspend([P0])
    assert state.wait_s(0.5, now_s) == 0.5
    state.keep([P0])
    partition.busy = True
    assert state.wait_s(0.5, now_s) == 0.5
