"""What a member of a group does about offsets that ZooKeeper has lost."""

from __future__ import annotations

import pytest

from metaq.discovery.kept_offsets import RETURN_S, YOUNG_S, KeptOffsets, OffsetAway
from metaq.discovery.zk_layout import GroupOffset
from metaq.model import Partition, TopicPartition
from metaq.testing.manual_clock import ManualClock

P0, P1 = (TopicPartition("orders", Partition(0, index)) for index in (0, 1))
OFFSET = GroupOffset(700, 7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_in_an_old_tree_a_partition_without_an_offset_was_never_read(clock: ManualClock) -> None:
    kept = KeptOffsets(clock)
    kept.registered(YOUNG_S)
    assert kept.look([P0, P1], {P0: OFFSET}) == {}
    kept.check_unread(P1)
    assert kept.look_again_s is None


def test_a_young_tree_may_be_an_emptied_one(clock: ManualClock) -> None:
    kept = KeptOffsets(clock)
    kept.registered(1.0)
    with pytest.raises(OffsetAway, match="ZooKeeper has no offset in orders/0-0"):
        kept.check_unread(P0)
    clock.advance(YOUNG_S - 1.0)
    kept.check_unread(P0)


def test_what_was_seen_is_written_again_unless_its_owner_comes_back(clock: ManualClock) -> None:
    kept = KeptOffsets(clock)
    kept.registered(1000.0)
    kept.look([P0, P1], {P0: OFFSET, P1: OFFSET})
    kept.registered(0.1)
    assert kept.look([P0, P1], {}) == {}
    assert kept.look_again_s == RETURN_S
    with pytest.raises(OffsetAway):
        kept.check_unread(P0)
    clock.advance(RETURN_S)
    assert kept.look([P0, P1], {P1: GroupOffset(900, 9)}) == {P0: OFFSET}
    clock.advance(YOUNG_S)
    with pytest.raises(OffsetAway):
        kept.check_unread(P0)
    assert kept.look([P0, P1], {P0: OFFSET, P1: OFFSET}) == {}
    assert kept.look_again_s is None


def test_partitions_whose_broker_is_not_there_yet_are_not_lost(clock: ManualClock) -> None:
    kept = KeptOffsets(clock)
    kept.registered(1000.0)
    kept.look([P0], {P0: OFFSET})
    assert kept.look([], {}) == {}
    assert kept.look_again_s is None
