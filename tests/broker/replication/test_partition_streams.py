"""Partitions as replicated streams: copied in runs, confirmed by a leader, cut and put aside at a follower."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from metaq_broker.log.engine.appends import Append, Terms
from metaq_broker.log.engine.outcomes import Appended, Refusal, StorageFailed
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.facts import EpochStart, StreamOrigin
from metaq_broker.log.streams.stream import JOURNAL, STATE, StreamBytes, StreamDamaged, StreamRefused
from pair_disks import PairDisk, bodies_in, copy, durable, follow, segments, until_true
from stored import put
from waiting import in_loop

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame


def numbered(count: int, mark: str = "m") -> list[bytes]:
    return [f"{mark} {number}".encode().ljust(40, b".") for number in range(count)]


@in_loop
async def test_a_copy_has_the_same_files_and_counts_its_messages(tmp_path: Path) -> None:
    leader, follower = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await leader.lead(1)
    await leader.put(numbered(30))
    await leader.put(numbered(3), 1)
    await leader.retention.remove_before(leader.stream("t-0").log, 900)  # type: ignore[attr-defined]
    await follow(leader, follower)
    assert follower.bodies() == leader.bodies()
    assert segments(leader) == segments(follower)
    mine, theirs = follower.streams.facts(), leader.streams.facts()
    assert mine == theirs
    assert mine["t-0"].origin.ordinal > 0
    await leader.put(numbered(10, "more"))
    await copy(leader.stream("t-0"), follower.stream("t-0"), leader.stream("t-0").end)
    assert segments(leader) == segments(follower)
    await leader.close()
    await follower.close()


@in_loop
async def test_nothing_is_readable_or_acknowledged_before_it_is_confirmed(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    await leader.lead(1)
    await leader.put(numbered(1))
    await leader.lead(2, alone=False)
    await leader.put(numbered(2, "new"))
    stream = leader.stream("t-0")
    assert stream.confirmed_end < stream.durable_end == stream.end
    assert (leader.bodies(), leader.answers) == (numbered(1), [None])
    stream.confirm(stream.end - 1)  # less than the sync: nothing moves
    assert leader.answers == [None]
    assert bodies_in(stream.read(stream.confirmed_end, stream.end, 1000).data) == numbered(2, "new")
    stream.confirm(stream.end)
    assert leader.bodies() == numbered(1) + numbered(2, "new")
    assert leader.answers == [None] * 3
    await leader.close()


@in_loop
async def test_what_the_broker_moves_itself_is_not_refused_with_the_puts(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    moved: list[Refusal | None] = []
    await leader.lead(1, alone=False)
    for body, answers, is_patient in ((b"put", leader.answers, False), (b"moved", moved, True)):
        frames = FrameBlock.of([encode_frame(0, 0, body)])
        outcome = leader.engine.append(Append("t", 0, frames, Terms.MADE, is_patient=is_patient), answers.append)
        assert isinstance(outcome, Appended), outcome
    leader.streams.refuse_waiting("too few members have it")
    assert [type(answer) for answer in leader.answers] == [StorageFailed]
    assert moved == []
    await until_true(lambda: leader.stream("t-0").durable_end == leader.stream("t-0").end)
    leader.stream("t-0").confirm(leader.stream("t-0").end)
    assert (moved, leader.bodies()) == ([None], [b"put", b"moved"])
    await leader.close()


@in_loop
async def test_a_fence_refuses_what_waits_and_moves_no_readable_end(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    await leader.lead(1, alone=False)
    await leader.put(numbered(2))
    leader.streams.fence("another broker leads")
    assert [type(answer) for answer in leader.answers] == [StorageFailed] * 2
    assert "another broker leads" in str(leader.answers[0])
    leader.stream("t-0").confirm(10_000)
    assert leader.bodies() == []
    leader.alone = True  # closing waits for no confirmation
    await leader.close()
    again = PairDisk(tmp_path)
    assert again.bodies() == numbered(2)  # they are there, and become readable if this member is elected
    await again.close()


@in_loop
async def test_a_leader_reports_streams_before_their_bytes(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    await leader.lead(1)
    await leader.put(numbered(1))
    await leader.put(numbered(1, "more"))
    end = leader.stream("t-0").end
    steps = [("added", end // 2), ("synced", end // 2), ("written", end), ("synced", end)]
    assert leader.events == [(what, "t-0", at) for what, at in steps]
    await leader.maintenance.delete("t", [0], force=True)
    leader.streams.deleted("t", 0)
    assert leader.events[-1] == ("removed", "t-0", 0)
    await leader.close()


@in_loop
async def test_a_partition_is_deleted_though_the_other_member_confirms_nothing(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    await leader.lead(1, alone=False)
    await leader.put(numbered(2))
    put(leader.engine, "t", 0, numbered(1, "not synced"), leader.answers.append)
    leader.stores.store_of("t").get_or_create("t", 1)  # as a transaction does that is rolled back
    async with asyncio.timeout(60):
        assert await leader.maintenance.delete("t", [0, 1], force=True) == [0, 1]
    assert [type(answer) for answer in leader.answers] == [StorageFailed] * 3
    assert "partition t-0 is being deleted" in str(leader.answers[2])
    await leader.put(numbered(3, "anew"))
    leader.stream("t-0").confirm(leader.stream("t-0").end)
    assert leader.bodies() == numbered(3, "anew")
    await leader.close()


@in_loop
async def test_a_deleted_stream_is_not_missed_at_the_next_start(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    await leader.put(numbered(1))
    await leader.put(numbered(1), 1)
    await leader.lead(1)
    await leader.maintenance.delete("t", [0], force=True)
    leader.streams.deleted("t", 0)
    await until_true(lambda: b" t-0\n" not in (leader.data / "stream-epochs").read_bytes())
    await leader.close()
    again = PairDisk(tmp_path)
    assert again.streams.unfit() is None
    await again.close()


@in_loop
async def test_epochs_are_one_write_for_all_streams_and_last(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    for partition in range(4):
        await leader.put(numbered(partition), partition)
    ends = await leader.lead(3)
    assert ends == {**{f"t-{index}": leader.stream(f"t-{index}").end for index in range(1, 4)}, JOURNAL: 0, STATE: 0}
    await leader.put(numbered(1), 1)
    await leader.lead(5)
    await leader.lead(6)  # nothing was written in epoch 5
    end = leader.stream("t-1").end
    assert leader.streams.epochs("t-1") == (EpochStart(3, ends["t-1"]), EpochStart(6, end))
    assert leader.streams.epochs("t-2") == (EpochStart(6, ends["t-2"]),)
    await leader.put(numbered(1), 0)  # created in epoch 6: no entry
    assert leader.streams.epochs("t-0") == ()
    await leader.close()
    again = PairDisk(tmp_path)
    assert again.streams.epochs("t-1") == (EpochStart(3, ends["t-1"]), EpochStart(6, end))
    with pytest.raises(StreamRefused, match="epoch 2 of stream t-1 at 0 follows"):
        await again.streams.adopt({"t-1": (again.stream("t-1").origin, [EpochStart(3, 100), EpochStart(2, 0)])})
    await again.close()


@in_loop
async def test_a_tail_that_the_leader_does_not_have_is_kept_and_cut(tmp_path: Path) -> None:
    old, new = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await old.lead(1)
    await old.put(numbered(20))
    await follow(old, new)
    await old.lead(1, alone=False)
    await old.put(numbered(15, "never acknowledged"))
    original = segments(old)
    old.streams.fence("another broker leads")
    await old.close()
    await new.lead(2)
    await new.put(numbered(7, "of epoch 2"))
    again = PairDisk(tmp_path / "a")
    await follow(new, again, epoch=2)
    assert segments(again) == segments(new)
    assert again.bodies() == numbered(20) + numbered(7, "of epoch 2")
    assert again.streams.epochs("t-0") == new.streams.epochs("t-0")
    [kept] = lost_found.kept(again.files, again.data)
    assert (kept.stream, kept.offset) == ("t-0", 20 * 60)
    assert bodies_in(kept.path.read_bytes()) == numbered(15, "never acknowledged")
    assert b"".join(original.values()).endswith(kept.path.read_bytes())
    assert not lost_found.unfinished(again.files, again.data)
    await again.close()
    last = PairDisk(tmp_path / "a")
    assert not last.stores.losses()
    assert last.bodies() == numbered(20) + numbered(7, "of epoch 2")
    await last.close()
    await new.close()


@in_loop
async def test_another_incarnation_is_put_aside_whole(tmp_path: Path) -> None:
    one, other = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await other.put(numbered(12, "foreign"))
    await other.put(numbered(2, "only here"), 3)
    before = other.stream("t-0").origin
    assert before is not None
    await one.lead(1)
    await one.put(numbered(5))
    await follow(one, other)
    assert other.bodies() == numbered(5)
    assert other.streams.get("t-3") is None
    found = {each.stream: each for each in lost_found.kept(other.files, other.data)}
    assert sorted(found) == ["t-0", "t-3"]
    assert found["t-0"].path.name.startswith(before.incarnation)
    assert b"foreign 3" in b"".join(each.read_bytes() for each in sorted(found["t-0"].path.glob("*.meta")))
    await other.close()
    again = PairDisk(tmp_path / "b")
    assert (again.bodies(), again.stores.losses()) == (numbered(5), [])
    await again.close()
    await one.close()


@in_loop
async def test_segments_that_the_leader_has_not_begun_do_not_stop_a_follower(tmp_path: Path) -> None:
    old, new = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b", segment_bytes=100_000)
    await old.lead(1)
    await old.put(numbered(7))  # exactly one segment, and the next has begun
    assert old.stream("t-0").log.active.start == old.stream("t-0").end  # type: ignore[attr-defined]
    await follow(old, new)
    await old.close()
    await new.lead(2)
    await new.put(numbered(7, "in the same segment"))
    again = PairDisk(tmp_path / "a")
    await follow(new, again)
    assert segments(again) == segments(new)
    await again.close()
    await new.close()


@in_loop
async def test_what_cannot_be_appended_is_refused_with_the_reason(tmp_path: Path) -> None:
    leader, follower = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await leader.lead(1)
    await leader.put(numbered(3))
    await follow(leader, follower)
    target, end = follower.stream("t-0"), follower.stream("t-0").end
    run = leader.stream("t-0").read(0, end, 1000)
    for wrong, reason in (
        (run, "ends at 180, and the run begins at 0"),
        (StreamBytes(end, 0, run.data[:-1]), "the last frame of the run at 180 is cut"),
        (StreamBytes(end, 0, run.data[:30] + b"?" + run.data[31:]), "the leader sent damaged bytes"),
        (StreamBytes(end, 120, run.data), "in the segment that begins at 0 in the copy, 120 in the original"),
    ):
        with pytest.raises(StreamRefused, match=reason):
            target.append_copy(wrong)
    with pytest.raises(StreamRefused, match=r"is here, f+ at the leader"):
        await follower.streams.adopt({"t-0": (StreamOrigin("t-0", "f" * 32, 0), ())})
    assert target.end == end
    target.append_copy(StreamBytes(end, 0, run.data))
    await durable(target)
    assert follower.bodies() == numbered(3) * 2
    await leader.close()
    await follower.close()


@in_loop
async def test_damage_is_never_sent(tmp_path: Path) -> None:
    leader = PairDisk(tmp_path)
    await leader.put(numbered(5))
    path = leader.data / "t-0" / f"{0:020d}.meta"
    data = bytearray(path.read_bytes())
    data[150] ^= 1  # in the third message
    path.write_bytes(data)
    stream = leader.stream("t-0")
    assert bodies_in(stream.read(0, stream.end, 1000).data) == numbered(2)
    with pytest.raises(StreamDamaged, match="stream t-0"):
        stream.read(120, stream.end, 1000)
    assert bodies_in(stream.read(180, stream.end, 1000).data) == numbered(5)[3:]
    await leader.close()


@in_loop
async def test_ids_of_an_elected_member_are_above_the_logs_whatever_its_clock_says(tmp_path: Path) -> None:
    leader, follower = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    leader.clock.set_now_ms(leader.clock.now_ms() + 3_600_000)  # the follower's is an hour behind
    await leader.lead(1)
    await leader.put(numbered(30))
    await follow(leader, follower)
    follower.engine.ids_above_stored()
    await follower.lead(2)
    await follower.put(numbered(5, "of epoch 2"))
    log = follower.stream("t-0").log  # type: ignore[attr-defined]
    ids = [frame.message_id for frame in log.scan(log.start_offset)]
    assert ids == sorted(set(ids))
    assert len(ids) == 35
    last = ids[-1]
    follower.engine.ids_above_stored(last + (1 << 40))  # an id in the journal
    assert follower.engine.reserve_ids(1).first > last + (1 << 40)
    await leader.close()
    await follower.close()


@in_loop
async def test_a_copy_that_fell_behind_retention_begins_again_and_is_not_kept(tmp_path: Path) -> None:
    leader, follower = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b")
    await leader.lead(1)
    await leader.put(numbered(10))
    await follow(leader, follower)
    await follower.close()
    await leader.lead(2)
    await leader.put(numbered(40, "more"))
    await leader.retention.remove_before(leader.stream("t-0").log, 1900)  # type: ignore[attr-defined]
    again = PairDisk(tmp_path / "b")
    assert again.stream("t-0").end < leader.stream("t-0").log.start_offset  # type: ignore[attr-defined]
    await follow(leader, again)
    assert segments(again) == segments(leader)
    assert list(lost_found.kept(again.files, again.data)) == []
    await again.close()
    await leader.close()
