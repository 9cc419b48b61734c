"""Which messages wait no more: in memory, after a restart, and how much of the table that takes."""

from __future__ import annotations

from random import Random

import pytest
from metaq_broker.log.files.errors import StateFull
from metaq_broker.rocketmq.delays.finished import CHUNK_MESSAGES, Finished
from metaq_broker.rocketmq.moves.log import Saved
from waiting_topics import Disk, MemoryLog


def test_all_below_a_number_and_some_above() -> None:
    log = MemoryLog(Disk())
    finished = Finished(log, "timed")
    finished.add([0, 1, 3])
    assert finished.below == 2
    assert [ordinal in finished for ordinal in range(5)] == [True, True, False, True, False]
    finished.add([2])
    assert finished.below == 4


def test_saved_is_called_when_all_is_durable() -> None:
    log, said = MemoryLog(Disk()), list[Exception | None]()
    finished = Finished(log, "timed")
    finished.add([0, CHUNK_MESSAGES + 1], said.append)
    finished.add([], said.append)
    assert said == []
    log.sync_all()
    assert said == [None, None]
    again = Finished(MemoryLog(log.disk), "timed")
    assert [ordinal in again for ordinal in (0, 1, CHUNK_MESSAGES, CHUNK_MESSAGES + 1)] == [True, False, False, True]


class FullTable(MemoryLog):
    """There is no space for the keys in ``full``."""

    full: tuple[str, ...] = ()

    def put(self, key: str, value: bytes, on_durable: Saved | None = None) -> None:
        if key in self.full:
            raise StateFull(key, 5)
        super().put(key, value, on_durable)


def test_what_a_full_table_refuses_is_finished_or_not_as_asked() -> None:
    log, said = FullTable(Disk()), list[Exception | None]()
    finished = Finished(log, "timed")
    finished.add([3])
    log.full = ("timed/0",)
    finished.add_saved(4, said.append)
    finished.add([5], said.append)
    assert [ordinal in finished for ordinal in (3, 4, 5)] == [True, False, True]
    assert [type(each) for each in said] == [StateFull, StateFull]
    log.full = ()
    finished.add_saved(4, said.append)
    log.sync_all()
    assert said[2:] == [None]
    again = Finished(MemoryLog(log.disk), "timed")
    assert [ordinal in again for ordinal in (3, 4, 5)] == [True, True, True]


def test_a_limit_that_a_full_table_refuses_is_put_with_the_next_messages() -> None:
    log, said = FullTable(Disk()), list[Exception | None]()
    finished = Finished(log, "timed")
    log.full = ("timed",)
    finished.add([0], said.append)
    log.sync_all()
    assert (said, finished.below, 0 in Finished(MemoryLog(log.disk), "timed")) == ([None], 0, True)
    log.full = ()
    finished.add([1])
    assert (finished.below, log.table["timed"]) == (2, b"2")


@pytest.mark.parametrize("seed", range(5))
def test_chunks_go_when_all_of_them_is_finished(seed: int) -> None:
    log, count = MemoryLog(Disk()), 3 * CHUNK_MESSAGES
    finished = Finished(log, "timed")
    ordinals = list(range(count))
    Random(seed).shuffle(ordinals)
    for at in range(0, count, 100):
        finished.add(ordinals[at : at + 100])
    assert finished.below == count
    assert set(log.table) <= {"timed", "timed/3"}


def test_nothing_behind_the_end_is_finished() -> None:
    disk = Disk()
    log = MemoryLog(disk)
    Finished(log, "timed").add([0, 1, 5, CHUNK_MESSAGES + 3, 9 * CHUNK_MESSAGES])
    log.sync_all()
    ends = (100 * CHUNK_MESSAGES, 5, False), (CHUNK_MESSAGES + 3, 3, True), (1, 1, True), (0, 0, True)
    for end, kept, found in ends:
        log = MemoryLog(disk)
        finished = Finished(log, "timed")
        assert finished.cut(end) is found
        log.sync_all()
        for each in (finished, Finished(MemoryLog(disk), "timed")):
            ordinals = (0, 1, 5, CHUNK_MESSAGES + 3, 9 * CHUNK_MESSAGES)
            assert [ordinal in each for ordinal in ordinals] == [number < kept for number in range(5)], end
