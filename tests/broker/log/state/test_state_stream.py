"""The state of RocketMQ's clients as a replicated stream: generations are copied whole, acknowledged when confirmed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.log.state.state_records import encode_state
from metaq_broker.log.state.state_table import COMPACT_BYTES_MIN, StateTable
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.stream import STATE, StreamBytes, StreamDamaged, StreamRefused
from pair_disks import PairDisk, copy, durable, follow, until_true
from waiting import in_loop


async def elected(disk: PairDisk, epoch: int, *, alone: bool = True) -> StateTable:
    await disk.lead(epoch)
    table = disk.open_state()
    disk.alone = alone
    return table


async def put(table: StateTable, **values: str) -> None:
    """Set keys, and wait until they are acknowledged."""
    answers: list[Exception | None] = []
    for key, value in values.items():
        table.put(key, value.encode(), answers.append)
    await until_true(lambda: len(answers) == len(values))
    assert set(answers) == {None}


def entries(table: StateTable) -> dict[str, str]:
    return {key: value.decode() for key, value in table.items()}


async def copied(leader: PairDisk, follower: PairDisk, run_bytes: int = 1000) -> None:
    await copy(leader.state, follower.state, leader.state.end, run_bytes)


@in_loop
async def test_what_was_acknowledged_is_there_after_an_election(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    first = await elected(one, 1)
    await put(first, a="1", b="2")
    await follow(one, other)
    await put(first, c="3")
    first.delete("a")
    await put(first, d="4")
    await copied(one, other)
    assert (other.data / STATE).read_bytes() == (one.data / STATE).read_bytes()
    second = await elected(other, 2)
    assert entries(second) == {"b": "2", "c": "3", "d": "4"}
    await put(second, e="5")
    await one.close()
    again = PairDisk(tmp_path / "a")
    await follow(other, again, epoch=2)
    third = await elected(again, 3)
    assert entries(third) == {"b": "2", "c": "3", "d": "4", "e": "5"}
    await again.close()
    await other.close()


@in_loop
async def test_a_state_of_a_broker_without_a_pair_is_taken_over(tmp_path: Path) -> None:
    disk = PairDisk(tmp_path)
    assert disk.state.is_blank
    (disk.data / STATE).write_bytes(encode_state(7, {"old": b"1"}))
    await disk.close()
    again = PairDisk(tmp_path)
    assert (again.state.origin, again.state.loss, again.state.is_blank) == (None, None, False)
    assert entries(await elected(again, 1)) == {"old": "1"}
    assert again.state.origin is not None
    await again.close()
    last = PairDisk(tmp_path)
    assert last.state.origin == again.state.origin
    await last.close()


@in_loop
async def test_nothing_is_acknowledged_before_the_set_has_it(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    table = await elected(leader, 1, alone=False)
    answers: list[Any] = []
    table.put("k", b"v", answers.append)
    await until_true(lambda: ("synced", STATE, leader.state.end) in leader.events and leader.state.end > 60)
    assert answers == []
    assert leader.state.confirmed_end < leader.state.durable_end
    leader.state.confirm(leader.state.durable_end)
    assert answers == [None]
    leader.alone = True
    await leader.close()


@in_loop
async def test_a_fence_refuses_whoever_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leader = PairDisk(tmp_path)
    table = await elected(leader, 1, alone=False)
    answers: list[Any] = []
    table.put("k", b"v", answers.append)
    await until_true(lambda: leader.state.end > leader.state.confirmed_end)
    table.put("l", b"w", answers.append)
    leader.streams.fence("b leads in epoch 2")
    assert len(answers) == 2
    assert all("b leads in epoch 2" in str(answer) for answer in answers)
    with pytest.raises(ValueError, match="is closed"):
        table.put("m", b"x", answers.append)
    leader.state.confirm(1 << 40)
    assert len(answers) == 2
    await leader.close()
    assert "not written at the end" not in caplog.text, "nothing has failed"


@in_loop
async def test_a_leader_that_stops_reports_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leader = PairDisk(tmp_path)
    table = await elected(leader, 1)
    await put(table, k="v")
    table.put("l", b"w")
    await leader.close()
    assert "not written at the end" not in caplog.text


async def grown(table: StateTable) -> None:
    """Let the file grow until the next commit is a new generation."""
    while True:
        await put(table, big="x" * (COMPACT_BYTES_MIN // 4))
        if table.end - table.start > COMPACT_BYTES_MIN:
            break


@in_loop
async def test_a_new_generation_replaces_the_old_one_when_the_set_has_it(tmp_path: Path) -> None:
    leader, follower = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    table = await elected(leader, 1)
    await put(table, a="1")
    await grown(table)
    await follow(leader, follower, run_bytes=1 << 20)
    old = (follower.data / STATE).read_bytes()
    leader.alone = False
    answers: list[Any] = []
    end = table.end
    table.put("b", b"2", answers.append)
    await until_true(lambda: leader.state.end > end)
    assert leader.state.origin is not None
    assert leader.state.origin.start < end  # the old one has the name still
    part = leader.state.read(end, leader.state.end, 100)  # its header and the first record
    assert part.file_start == end
    follower.state.append_copy(part)
    await durable(follower.state)
    assert (follower.data / STATE).read_bytes() == old
    await copied(leader, follower, 1 << 20)
    leader.state.confirm(leader.state.end)
    await until_true(lambda: bool(answers))
    assert answers == [None]
    assert leader.state.origin.start == end
    assert (follower.data / STATE).read_bytes() == (leader.data / STATE).read_bytes()
    assert follower.state.origin == leader.state.origin
    assert entries(await elected(follower, 2)) == entries(table)
    leader.alone = True
    await leader.close()
    await follower.close()


@in_loop
async def test_a_generation_goes_on_in_its_middle_after_a_lost_connection(tmp_path: Path) -> None:
    """The member has said that it has the front, so that the leader sends what is behind it."""
    leader, follower = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    table = await elected(leader, 1)
    await grown(table)
    await follow(leader, follower, run_bytes=1 << 20)
    await put(table, a="1", b="2")
    for _ in range(2):
        middle = follower.state.end
        follower.state.append_copy(leader.state.read(middle, leader.state.end, 100))
        await durable(follower.state)
        noted, theirs = follower.streams.facts()[STATE].end, leader.streams.facts()[STATE]
        await follower.streams.adopt({STATE: (theirs.origin, theirs.epochs)})
        assert follower.state.end == noted > middle
    await copied(leader, follower, 1 << 20)
    assert (follower.data / STATE).read_bytes() == (leader.data / STATE).read_bytes()
    await leader.close()
    await follower.close()


@in_loop
async def test_a_generation_that_gets_no_name_leaves_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other member has it: the next one must not be at the same offsets of the stream."""

    def broken(_old: Path, _new: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    table = await elected(one, 1)
    await grown(table)
    await follow(one, other)
    one.alone, answers = False, list[Exception | None]()
    table.put("a", b"1", answers.append)
    end = one.state.end
    await until_true(lambda: one.state.durable_end > end)
    await copied(one, other)
    with monkeypatch.context() as patch:
        patch.setattr(one.files, "rename", broken)
        one.state.confirm(other.state.durable_end)
        await until_true(lambda: len(answers) == 1)
    table.put("b", b"2", answers.append)
    end = other.state.durable_end
    await until_true(lambda: one.state.durable_end > end)
    await copied(one, other)
    one.state.confirm(other.state.durable_end)
    await until_true(lambda: len(answers) == 2)
    assert [str(each) for each in answers if each is not None] == [str(answers[0])]
    assert (other.data / STATE).read_bytes() == (one.data / STATE).read_bytes()
    await one.close()
    assert {"a": "1", "b": "2"}.items() <= entries(await elected(other, 2)).items()
    await other.close()


@in_loop
async def test_an_unfinished_generation_is_dropped_at_an_election_and_at_a_start(tmp_path: Path) -> None:
    leader, follower = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    table = await elected(leader, 1)
    await put(table, a="1")
    await grown(table)
    await follow(leader, follower, run_bytes=1 << 20)
    before = entries(table)
    leader.alone = False
    end = table.end
    table.put("b", b"2")
    await until_true(lambda: leader.state.end > end)
    follower.state.append_copy(leader.state.read(end, leader.state.end, 100))
    await durable(follower.state)
    leader.streams.fence("b leads")
    await leader.close()
    assert entries(await elected(follower, 2)) == before
    again = PairDisk(tmp_path / "a")
    assert again.state.end == end  # its own unconfirmed generation is gone, too
    await follow(follower, again, epoch=2, run_bytes=1 << 20)
    assert entries(await elected(again, 3)) == before
    await again.close()
    await follower.close()


@in_loop
async def test_a_tail_that_the_leader_does_not_have_is_kept_and_cut(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    first = await elected(one, 1)
    await put(first, a="1")
    await follow(one, other)
    one.alone = False
    first.put("lost", b"never acknowledged", lambda error: None)
    await until_true(lambda: one.state.end > one.state.confirmed_end)
    one.streams.fence("b leads")
    await one.close()
    second = await elected(other, 2)
    await put(second, b="2")
    again = PairDisk(tmp_path / "a")
    await follow(other, again, epoch=2)
    [kept] = [each for each in lost_found.kept(again.files, again.data) if each.stream == STATE]
    assert b"never acknowledged" in kept.path.read_bytes()
    assert entries(await elected(again, 3)) == {"a": "1", "b": "2"}
    await again.close()
    await other.close()


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)


def header_flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [shortened, flipped, header_flipped, removed])
@in_loop
async def test_damage_is_a_loss_and_healed_by_a_copy(damage: Callable[[Path], None], tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    first = await elected(one, 1)
    await put(first, a="1" * 50, b="2" * 50)
    await put(first, c="3" * 50)
    await follow(one, other)
    await other.close()
    damage(other.data / STATE)
    again = PairDisk(tmp_path / "b")
    assert again.state.loss is not None
    await follow(one, again)
    assert again.state.loss is None
    assert (again.data / STATE).read_bytes() == (one.data / STATE).read_bytes()
    await again.close()
    last = PairDisk(tmp_path / "b")
    assert last.state.loss is None
    assert entries(await elected(last, 2)) == entries(first)
    await last.close()
    await one.close()


@in_loop
async def test_damage_is_never_sent(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    table = await elected(leader, 1)
    await put(table, a="1" * 50)
    flipped(leader.data / STATE)
    with pytest.raises(StreamDamaged):
        leader.state.read(60, leader.state.end, 1000)
    await leader.close()


@in_loop
async def test_wrong_runs_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await put(await elected(one, 1), a="1")
    await follow(one, other)
    end, good = other.state.end, one.state.read(0, one.state.end, 1 << 20)
    for wrong, reason in (
        (good, "the run begins at 0"),
        (StreamBytes(end, 0, good.data[-20:]), "is damaged, or cut"),
        (StreamBytes(end, 7, b""), "in the file that begins at 7"),
        (StreamBytes(end, end, b"no header"), "a damaged header"),
    ):
        with pytest.raises(StreamRefused, match=reason):
            other.state.append_copy(wrong)
    assert other.state.end == end
    await one.close()
    await other.close()
