"""Positions that are saved late: by a consumer whose partition has become another one's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest
from storage_contract import P0, P1

from metaq.client.groups.ownership.membership import LoneMembership
from metaq.client.groups.ownership.saving import PositionSaver
from metaq.client.groups.partition import OwnedPartition, ReadSettings
from metaq.client.groups.state import ConsumerState
from metaq.client.offsets import GroupOffset, MemoryOffsets, OffsetStorage, file
from metaq.client.sql_offsets import sqlite
from metaq.errors import StoreFailed, ZooKeeperAway
from metaq.model import TopicPartition


class Members(LoneMembership):
    """A registry that says what a test wants; ``then`` happens right after it has answered, as if in a freeze."""

    def __init__(self, *, exclusive: bool = True) -> None:
        self.group, self.exclusive = "g", exclusive
        self.mine: Collection[TopicPartition] = {P0, P1}
        self.then: Callable[[], None] = lambda: None
        self.asked = 0

    def owned_now(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        self.asked += 1
        mine, then, self.then = set(partitions) & set(self.mine), self.then, lambda: None
        then()
        return mine


class Plain:
    """A storage of a program's own, which cannot compare."""

    def __init__(self) -> None:
        self.rows: dict[TopicPartition, GroupOffset] = {}

    def load(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, GroupOffset]:
        return {where: self.rows[where] for where in partitions if where in self.rows}

    def save(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        self.rows.update(offsets)

    def close(self) -> None:
        pass


class Consumer:
    """Owns both partitions, whose offset was 10, and has read them to 20."""

    def __init__(self, storage: OffsetStorage, members: Members) -> None:
        self.storage, self.members = storage, members
        storage.save("g", {P0: GroupOffset(10, 1), P1: GroupOffset(10, 1)})
        self.state: ConsumerState[object, object, object] = ConsumerState(  # type: ignore[type-var]
            retry_max_s=1, max_attempts=1, dedupe=0
        )
        for where in (P0, P1):
            settings = ReadSettings("g")
            one = OwnedPartition(where, GroupOffset(20, 2), 1, settings, self.state, GroupOffset(10, 1))
            self.state.add([one])  # type: ignore[list-item]
        self.saver = PositionSaver(self.state, members, storage)

    def stored(self) -> list[int]:
        there = self.storage.load("g", [P0, P1])
        return [there[P0].offset, there[P1].offset]

    def other_saves(self, offset: int) -> None:
        self.storage.save("g", {P0: GroupOffset(offset, 9)})


@pytest.fixture(params=["memory", "file", "sqlite", "plain"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> OffsetStorage:
    made: dict[str, Callable[[], OffsetStorage]] = {
        "memory": MemoryOffsets,
        "file": lambda: file(tmp_path / "offsets.json"),
        "sqlite": lambda: sqlite(tmp_path / "offsets.sqlite"),
        "plain": Plain,
    }
    return made[request.param]()


def test_what_is_owned_is_saved_once(storage: OffsetStorage) -> None:
    consumer = Consumer(storage, Members())
    assert consumer.saver.save()
    assert consumer.stored() == [20, 20]
    consumer.other_saves(11)
    assert consumer.saver.save(), "there is nothing new to save"
    assert (consumer.members.asked, consumer.stored()) == (1, [11, 20])
    storage.close()


def test_a_late_save_of_a_lost_partition_is_refused(storage: OffsetStorage, caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(storage, Members())
    consumer.members.mine = {P1}
    consumer.other_saves(90)
    with caplog.at_level(logging.WARNING):
        assert not consumer.saver.save()
    assert consumer.stored() == [90, 20]
    assert "another consumer owns orders/0-0" in caplog.text
    storage.close()


def test_a_freeze_between_the_answer_and_the_save(storage: OffsetStorage) -> None:
    """The registry has answered "yours"; before that gets here, the partition is another one's, which saves."""
    consumer = Consumer(storage, Members())

    def frozen() -> None:
        consumer.members.mine = {P1}
        consumer.other_saves(90)

    consumer.members.then = frozen
    saved = consumer.saver.save()
    if isinstance(storage, Plain):
        assert (saved, consumer.stored()) == (True, [20, 20]), "it cannot compare: messages are repeated"
    else:
        assert (saved, consumer.stored()) == (False, [90, 20])
    storage.close()


def test_an_owner_replaces_what_was_written_late(storage: OffsetStorage) -> None:
    consumer = Consumer(storage, Members())
    consumer.members.then = lambda: consumer.other_saves(12)
    assert consumer.saver.save()
    assert consumer.stored() == [20, 20]
    storage.close()


def test_a_position_that_was_moved_back_is_saved(storage: OffsetStorage) -> None:
    consumer = Consumer(storage, Members())
    consumer.state.partitions[P0].seek(5)
    assert consumer.saver.save([P0])
    assert consumer.stored() == [5, 10]
    storage.close()


@pytest.mark.parametrize(("other", "expected"), [(12, [20, 20]), (90, [90, 20])])
def test_where_nobody_has_a_partition_alone_who_is_further_wins(
    storage: OffsetStorage, other: int, expected: list[int]
) -> None:
    consumer = Consumer(storage, Members(exclusive=False))
    consumer.other_saves(other)
    assert consumer.saver.save() is (other == 12)
    assert consumer.stored() == expected
    storage.close()


def test_a_storage_that_never_stays_as_it_was_ends_the_save() -> None:
    class Busy(MemoryOffsets):
        def save_if_unchanged(
            self,
            group: str,
            offsets: Mapping[TopicPartition, GroupOffset],
            expected: Mapping[TopicPartition, GroupOffset | None],
        ) -> dict[TopicPartition, GroupOffset | None]:
            return {where: GroupOffset(11) for where in offsets}

    consumer = Consumer(Busy(), Members())
    assert not consumer.saver.save()
    assert consumer.members.asked == 3


@pytest.mark.parametrize("failure", [StoreFailed("table", "why"), ZooKeeperAway("zk", "why")])
def test_what_cannot_be_asked_or_stored_is_kept(failure: Exception) -> None:
    consumer = Consumer(MemoryOffsets(), Members())

    def fail() -> None:
        raise failure

    consumer.members.then = fail
    with pytest.raises(type(failure)):
        consumer.saver.save()
    assert consumer.stored() == [10, 10]
    assert consumer.saver.save()
    assert consumer.stored() == [20, 20]


def test_what_is_not_owned_any_more_is_saved_where_nobody_has_saved_since(storage: OffsetStorage) -> None:
    consumer = Consumer(storage, Members())
    consumer.members.mine = ()
    consumer.other_saves(12)
    consumer.saver.save_unclaimed([P0, P1])
    assert consumer.stored() == [12, 20]
    assert consumer.members.asked == 0
    storage.close()


def test_an_emptied_storage_gets_what_it_had_and_what_was_read() -> None:
    """Also of a partition of which nothing new was read: its next owner would begin anew."""
    offsets = MemoryOffsets()
    consumer = Consumer(offsets, Members())
    consumer.state.partitions[P1].saved = GroupOffset(20, 2)
    offsets.offsets.clear()
    consumer.saver.save_unclaimed([P0, P1])
    assert consumer.stored() == [20, 20]


def test_a_position_that_a_release_cannot_save_is_saved_later() -> None:
    consumer = Consumer(MemoryOffsets(), Members())
    consumer.saver.keep(consumer.state.remove([P0]))
    assert consumer.stored() == [10, 10]
    consumer.saver.save_unclaimed([], and_kept=True)
    assert consumer.stored() == [20, 10]
    assert consumer.saver.take_kept([P0], {P0: GroupOffset(20, 2)}) == {}


@pytest.mark.parametrize(("other", "expected"), [(None, 20), (10, 20), (15, 20), (90, None)])
def test_a_partition_that_comes_back_goes_on_at_the_later_position(other: int | None, expected: int | None) -> None:
    consumer = Consumer(MemoryOffsets(), Members())
    consumer.saver.keep(consumer.state.remove([P0]))
    stored = {} if other is None else {P0: GroupOffset(other, 1 if other == 10 else 9)}
    kept = consumer.saver.take_kept([P0], stored)
    assert kept == ({} if expected is None else {P0: GroupOffset(expected, 2)})


def test_a_kept_position_that_another_consumer_has_passed_is_forgotten() -> None:
    """Also if the partition is made again before this consumer gets it back, and the offsets are lower."""
    consumer = Consumer(MemoryOffsets(), Members())
    consumer.saver.keep(consumer.state.remove([P0]))
    consumer.other_saves(90)
    consumer.saver.save_unclaimed([], and_kept=True)
    assert consumer.saver.kept() == {}
    assert consumer.stored() == [90, 10]
    consumer.other_saves(5)
    assert consumer.saver.take_kept([P0], {P0: GroupOffset(5, 9)}) == {}


def test_partitions_that_were_made_anew_are_forgotten() -> None:
    consumer = Consumer(MemoryOffsets(), Members())
    consumer.state.partitions[P0].lost = True
    consumer.saver.keep(consumer.state.remove([P0, P1]))
    consumer.saver.forget([P1])
    assert consumer.saver.take_kept([P0, P1], {}) == {}


def test_where_a_group_begins_is_decided_by_who_is_first() -> None:
    offsets = MemoryOffsets()
    consumer = Consumer(offsets, Members())
    assert consumer.saver.save_first({P0: GroupOffset(50)}) == ({P0: GroupOffset(10, 1)}, {P0: GroupOffset(10, 1)})
    offsets.offsets.clear()
    assert consumer.saver.save_first({P0: GroupOffset(50)}) == ({P0: GroupOffset(50)}, {P0: GroupOffset(50)})
    assert offsets.load("g", [P0]) == {P0: GroupOffset(50)}
