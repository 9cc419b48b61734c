"""Damage on one member of a pair: it is noticed at the opening, never spreads, and is healed by a copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from metaq_broker.log.partitions.damage import COPIED
from metaq_broker.log.streams import lost_found
from pair_disks import PairDisk, bodies_in, follow, segments
from waiting import in_loop

BODIES = [f"message {number}".encode().ljust(40, b".") for number in range(40)]


def segment(disk: PairDisk, number: int) -> Path:
    return sorted((disk.data / "t-0").glob("*.meta"))[number]


def flip_last(disk: PairDisk) -> None:
    path = segment(disk, -1)
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)


def shorten(disk: PairDisk) -> None:
    path = segment(disk, -1)
    path.write_bytes(path.read_bytes()[:-70])


def shorten_first(disk: PairDisk) -> None:
    path = segment(disk, 0)
    path.write_bytes(path.read_bytes()[:-70])


def remove_middle(disk: PairDisk) -> None:
    segment(disk, 2).unlink()


def remove_last(disk: PairDisk) -> None:
    segment(disk, -1).unlink()


def empty(disk: PairDisk) -> None:
    shutil.rmtree(disk.data / "t-0")
    (disk.data / "t-0").mkdir()


def remove(disk: PairDisk) -> None:
    shutil.rmtree(disk.data / "t-0")


def remove_with_ends(disk: PairDisk) -> None:
    shutil.rmtree(disk.data / "t-0")
    (disk.data / "durable-ends").unlink()


async def pair_with_damage(
    tmp_path: Path, damage: Callable[[PairDisk], None]
) -> tuple[PairDisk, PairDisk, dict[str, bytes]]:
    """A leader, and a member that is damaged while it is down."""
    leader, member = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await leader.lead(1)
    await leader.put(BODIES)
    await follow(leader, member)
    good = segments(leader)
    member.stores.each_store()[0].note_ends(member.stores.each_store()[0].ends())
    await member.close(clean=False)
    damage(member)
    return leader, PairDisk(tmp_path / "b"), good


@pytest.mark.parametrize(
    "damage", [flip_last, shorten, shorten_first, remove_middle, remove_last, empty, remove, remove_with_ends]
)
@in_loop
async def test_a_damaged_member_is_unfit_and_healed_by_a_copy(
    damage: Callable[[PairDisk], None], tmp_path: Path
) -> None:
    leader, member, good = await pair_with_damage(tmp_path, damage)
    assert member.streams.unfit() is not None
    assert "t-0" in str(member.streams.unfit())
    await leader.lead(2)
    await follow(leader, member)
    assert segments(leader) == segments(member) == good
    assert (leader.bodies(), member.bodies()) == (BODIES, BODIES)
    await member.close()
    again = PairDisk(tmp_path / "b")
    assert (again.streams.unfit(), again.bodies()) == (None, BODIES)
    await again.close()
    await leader.close()


@pytest.mark.parametrize("damage", [flip_last, shorten, remove_last])
@in_loop
async def test_damage_of_a_lone_leader_never_reaches_the_member_that_has_the_bytes(
    damage: Callable[[PairDisk], None], tmp_path: Path
) -> None:
    other, damaged, good = await pair_with_damage(tmp_path, damage)
    await other.close()
    await damaged.lead(2)  # it was alone in the set
    await damaged.put([b"of epoch 2"])
    again = PairDisk(tmp_path / "a")
    await follow(damaged, again, epoch=2)
    kept = [each for each in lost_found.kept(again.files, again.data) if each.stream == "t-0"]
    for path, data in good.items():
        if path in segments(again) and not kept:
            assert segments(again)[path].startswith(data)
    found = again.bodies()
    assert found[-1] == b"of epoch 2"
    in_lost_found = b"".join(
        path.read_bytes()
        for each in kept
        for path in ([each.path] if each.offset is not None else sorted(each.path.glob("*.meta")))
    )
    everything = found + bodies_in(in_lost_found)
    assert set(BODIES) <= set(everything)  # nothing that the good member had is gone
    await again.close()
    await damaged.close()


@in_loop
async def test_a_member_without_the_bytes_gets_a_leaders_damage_quarantined(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path / "a")
    await leader.put(BODIES)
    await leader.close(clean=False)
    data = bytearray(segment(leader, -1).read_bytes())
    data[100] ^= 1  # in the second message
    segment(leader, -1).write_bytes(data)
    again = PairDisk(tmp_path / "a")
    assert "damaged bytes" in str(again.streams.unfit())
    await again.lead(1)
    await again.put([b"more"])
    member = PairDisk(tmp_path / "b")
    await follow(again, member)
    assert member.bodies() == again.bodies()
    assert len(member.bodies()) == len(BODIES)  # one is lost, one is new
    assert segments(member) == segments(again)
    mine, theirs = (disk.stream("t-0").log for disk in (member, again))  # type: ignore[attr-defined]
    assert mine.end_ordinal == theirs.end_ordinal == len(BODIES) + 1
    assert [each.reason for each in mine.layout.damage] == [COPIED]
    await member.close()
    last = PairDisk(tmp_path / "b")
    assert (last.streams.unfit(), last.bodies()) == (None, again.bodies())
    await last.close()
    await again.close()
