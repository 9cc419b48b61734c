"""Locks of queues: one client each, for a time."""

from __future__ import annotations

import pytest
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.groups.limits import DEFAULT_LIMITS, GroupLimits, NameRefused
from metaq_broker.rocketmq.groups.queue_locks import QueueLocks

T0, T1 = ("T", 0), ("T", 1)


class Locks(QueueLocks):
    def __init__(self, limits: GroupLimits = DEFAULT_LIMITS) -> None:
        self.now = 100.0
        super().__init__(lambda: self.now, limits)


def test_a_queue_is_locked_by_one_client_of_a_group() -> None:
    locks = Locks()
    assert locks.lock("g", "a", [T0]) == [T0]
    assert locks.lock("g", "b", [T0, T1]) == [T1]
    assert locks.lock("h", "b", [T0]) == [T0]  # another group
    assert locks.lock("g", "a", [T0, T1]) == [T0]
    locks.unlock("g", "a", [T0, T1])  # T1 is not a's
    assert locks.lock("g", "a", [T0, T1]) == [T0]
    assert locks.owner("g", T1) == "b"
    assert locks.owner("g", ("U", 0)) is None


def test_a_lock_runs_out_unless_it_is_asked_for_again() -> None:
    locks = Locks()
    locks.lock("g", "a", [T0, T1])
    locks.now += 59
    assert locks.lock("g", "b", [T0]) == []
    locks.lock("g", "a", [T0])
    locks.now += 2
    assert locks.lock("g", "b", [T0, T1]) == [T1]
    locks.now += 100
    assert locks.owner("g", T0) is None
    locks.expire()
    assert locks.lock("g", "b", [T0, T1]) == [T0, T1]


def test_limits_count_only_locks_that_somebody_has() -> None:
    locks = Locks(RocketmqConfig(locks_max=3, queues_of_group_max=2))
    assert locks.lock("g", "a", [(f"T{number}", 0) for number in range(5)]) == [("T0", 0), ("T1", 0)]
    assert len(locks.lock("h", "a", [(f"T{number}", 0) for number in range(5)])) == 1
    assert locks.lock("i", "a", [T0]) == []
    locks.now += 61
    assert locks.lock("i", "a", [T0, T1]) == [T0, T1]
    locks.unlock("i", "a", [T0])
    assert locks.lock("g", "a", [T0, T1]) == [T0, T1]


@pytest.mark.parametrize("long", ["group", "client", "topic"])
def test_long_names_are_not_kept(long: str) -> None:
    locks, name = Locks(), "n" * 256
    with pytest.raises(NameRefused, match="256 bytes"):
        locks.lock(
            name if long == "group" else "g", name if long == "client" else "a", [(name if long == "topic" else "T", 0)]
        )
    assert locks.lock("g", "b", [T0]) == [T0]
