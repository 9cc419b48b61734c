"""Copies that do not continue their originals are left as they are, with a reason, and cost the others nothing."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from metaq_broker.app import Broker
from metaq_broker.replication.agreement import Agreement, compare_ends, judge
from metaq_broker.replication.local import CopyRefused
from metaq_broker.replication.peer import StoredRange
from replicated import (
    bodies,
    client,
    configured,
    copied,
    copying,
    fed_master,
    put_many,
    running,
    samsa,
    segments,
    slave_of,
    until_in_sync,
    until_same,
)
from stored import drop_segments
from waiting import in_loop, until

from metaq.errors import CorruptFrame
from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame

A, B = "a" * 32, "b" * 32


def fault(slave: Broker, topic: str = "t", index: int = 0) -> str:
    """Return why a partition is not copied, empty if it is."""
    assert slave.replication.slave is not None
    found = [state.fault for state in slave.replication.slave.states() if state.partition_key == (topic, index)]
    return found[0] or "" if found else ""


@pytest.mark.parametrize(
    ("copy", "original", "verdict"),
    [
        (StoredRange(0, 50, A), StoredRange(0, 50, A), Agreement.CONTINUES),
        (StoredRange(0, 50, A), StoredRange(20, 90, A), Agreement.CONTINUES),
        (StoredRange(30, 50, A), StoredRange(20, 90, A), Agreement.CONTINUES),
        (StoredRange(0, 50, A), StoredRange(50, 90, A), Agreement.CONTINUES),
        (StoredRange(0, 50, A), StoredRange(0, 90, None), Agreement.CONTINUES),
        (StoredRange(0, 50, None), StoredRange(0, 90, A), Agreement.CONTINUES),
        (StoredRange(0, 50, A), StoredRange(51, 90, A), Agreement.REPLACE),
        (StoredRange(0, 0, A), StoredRange(0, 90, A), Agreement.CONTINUES),
        (StoredRange(0, 0, B), StoredRange(0, 90, A), Agreement.REPLACE),
        (StoredRange(0, 0, A), StoredRange(10, 90, A), Agreement.REPLACE),
        (StoredRange(99, 99, A), StoredRange(10, 90, A), Agreement.REPLACE),
        (StoredRange(90, 90, A), StoredRange(10, 90, A), Agreement.CONTINUES),
        (StoredRange(0, 50, B), StoredRange(0, 90, A), "another incarnation"),
        (StoredRange(0, 91, A), StoredRange(0, 90, A), "ends at 91, past the end of its original, 90"),
        (StoredRange(0, 91, A), StoredRange(0, 90, None), "ends at 91, past the end of its original, 90"),
        (StoredRange(0, 50, A), StoredRange(51, 90, None), "its original begins at 51 by now"),
    ],
)
def test_what_a_copy_is_to_its_original(copy: StoredRange, original: StoredRange, verdict: Agreement | str) -> None:
    if isinstance(verdict, Agreement):
        assert judge(copy, original) is verdict
    else:
        with pytest.raises(CopyRefused, match=verdict):
            judge(copy, original)


@pytest.mark.parametrize(
    ("copy", "original", "refused"),
    [
        (b"x" * 9000, b"x" * 9000 + b"more", False),
        (b"y" + b"x" * 8999, b"x" * 9001, False),  # so far from the end nothing is compared
        (b"x" * 8999 + b"y", b"x" * 9001, True),
        (b"", b"x", False),
    ],
)
def test_the_last_bytes_are_compared_however_they_come(copy: bytes, original: bytes, refused: bool) -> None:
    async def compare() -> None:
        async def read(of: bytes, offset: int, bytes_max: int) -> bytes:
            return of[offset : offset + min(bytes_max, 1000 if of is copy else 333)]

        stored_ranges = StoredRange(0, len(copy)), StoredRange(0, len(original))
        await compare_ends(*stored_ranges, lambda o, n: read(copy, o, n), lambda o, n: read(original, o, n))

    if refused:
        with pytest.raises(CopyRefused, match="differs from its original"):
            asyncio.run(compare())
    else:
        asyncio.run(compare())


def test_whole_frames_are_cut_from_a_run_and_checked() -> None:
    frames = [encode_frame(7, 0, b""), encode_frame(8, 3, b"abc")]
    run_ = b"".join(frames)
    for cut in range(len(run_) + 1):
        whole = [frame for frame, end in zip(frames, (20, 43), strict=True) if end <= cut]
        assert FrameBlock.checked(run_[:cut], 0, "t-0").split() == whole
    with pytest.raises(CorruptFrame, match=r"checksum \w+ in the header"):
        FrameBlock.checked(run_[:-1] + b"x", 100, "t-0")
    for nothing, reason in ((bytes(20), "an empty message with the id 0"), (b"\xff" * 20, "body length -1")):
        with pytest.raises(CorruptFrame, match=reason):
            FrameBlock.checked(run_ + nothing, 0, "t-0")


@in_loop
async def test_another_incarnation_is_not_mixed_with_the_one_that_is_here(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(30)) as (master, producer), copying(tmp_path, master) as slave:
        before = segments(tmp_path / "s")
        await maintenance(master).delete("t", [0], force=True)
        await put_many(producer, bodies(50, 120, 1))
        await put_many(producer, bodies(5), "t", 1)
        await until(lambda: "another incarnation" in fault(slave), "the slave to notice")
        await until(lambda: "t-1/00000000000000000000.meta" in segments(tmp_path / "s"), "the other to go on")
        assert {name: data for name, data in segments(tmp_path / "s").items() if "t-0" in name} == before
        await maintenance(slave).delete("t", [0], force=True)  # the operator decides
        await until_same(tmp_path / "m", tmp_path / "s")
        await until(lambda: not fault(slave), "the fault to end")


@in_loop
async def test_a_master_that_went_back_in_time_is_not_followed(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(15)):
        pass
    shutil.copytree(tmp_path / "m", tmp_path / "old")
    async with (
        fed_master(tmp_path / "m", bodies(15, 100, 1)) as (master, producer),
        running(configured(tmp_path / "s", role=slave_of(master))),
    ):
        before = await until_same(tmp_path / "m", tmp_path / "s")
    async with running(configured(tmp_path / "old")) as master, client(master) as producer:
        async with running(configured(tmp_path / "s", role=slave_of(master))) as slave:
            await until(lambda: "past the end of its original" in fault(slave), "the slave to notice")
        await put_many(producer, bodies(40, 100, 2))
        async with running(configured(tmp_path / "s", role=slave_of(master))) as slave:
            await until(lambda: "differs from its original" in fault(slave), "the slave to notice")
    assert segments(tmp_path / "s") == before


def lose_numbers(folder: Path) -> None:
    """Of a stopped broker, lose what tells how many messages were removed from t-0."""
    (folder / "durable-ends").unlink()
    (folder / "clean-shutdown").unlink()
    for path in (folder / "t-0").glob("*.index"):
        path.unlink()


GREGOR = "[gregor]"
COUNTS = r"the copy counts \d+ messages before offset \d+, and its original \d+; delete the copy"


@in_loop
async def test_a_copy_that_counts_its_messages_otherwise_is_refused(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(90)) as (master, _):
        log = master.stores.get("t", 0)
        assert log is not None
        drop_segments(log, 2)
        await copied(tmp_path, master)
    before = segments(tmp_path / "s")
    lose_numbers(tmp_path / "m")
    async with (
        running(configured(tmp_path / "m")) as master,
        client(master) as producer,
        running(configured(tmp_path / "s", role=slave_of(master))) as slave,
    ):
        await until(lambda: re.search(COUNTS, fault(slave)), "the slave to notice")
        assert segments(tmp_path / "s") == before
        await maintenance(slave).delete("t", [0], force=True)  # the operator decides
        await put_many(producer, bodies(5))
        await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_the_slave_of_a_pair_that_counts_its_messages_otherwise_is_refused(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(90)) as (master, _):
        log = master.stores.get("t", 0)
        assert log is not None
        drop_segments(log, 2)
    async with (
        running(configured(tmp_path / "s", role=GREGOR)) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
    ):
        await until_in_sync(master)
    lose_numbers(tmp_path / "m")
    async with (
        running(configured(tmp_path / "s", role=GREGOR)) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
    ):
        await until(lambda: re.search(COUNTS, str(master.replication.trouble)), "the master to hear of it")


@in_loop
async def test_other_segments_than_the_masters_are_refused(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(10)) as (master, producer), copying(tmp_path, master) as slave:
        copy = slave.stores.get("t", 0)
        assert copy is not None
        copy.begin_segment()
        await put_many(producer, bodies(2))
        await until(lambda: "in the segment that begins at 1200 in the copy, 0" in fault(slave), "the refusal")


@in_loop
async def test_damage_of_the_master_stays_with_the_master(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(60)) as (master, producer):
        await put_many(producer, bodies(60), "t", 1)
    path = tmp_path / "m" / "t-0" / "00000000000000002040.meta"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    async with (
        running(configured(tmp_path / "m", system="verifyAtStart=full")) as master,
        running(configured(tmp_path / "s", role=slave_of(master))) as slave,
    ):
        await until(lambda: "cannot be read at offset 2520: 301" in fault(slave), "the refusal")
        await until(lambda: len(segments(tmp_path / "s")) > 4, "the other partition")
        copy = slave.stores.get("t", 0)
        assert copy is not None
        assert copy.end_offset == 2520


@pytest.mark.parametrize(("broker_id", "reason"), [(4, "has brokerId 4, this slave has 3")])
@in_loop
async def test_who_is_not_the_master_is_not_copied(tmp_path: Path, broker_id: int, reason: str) -> None:
    async with (
        running(configured(tmp_path / "m", broker_id=broker_id)) as master,
        running(configured(tmp_path / "s", role=slave_of(master))) as slave,
    ):
        assert slave.replication.slave is not None
        await until(lambda: reason in str(slave.replication.slave.trouble), "the refusal")


def maintenance(broker: Broker):  # type: ignore[no-untyped-def]
    """Return what operators use on a broker."""
    return broker.maintenance
