"""Runs of retention: what leaves when, what stays for a while, and what goes wrong."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest
from metaq_broker.log.engine.id_clock import IdClock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import PartitionLog, ReadMoved
from metaq_broker.log.retention.archive import archive_path, pack, zip_path
from metaq_broker.log.retention.retention import Retention
from metaq_broker.testing import Fault, FaultyFiles
from retained import (
    NOW_MS,
    ORDERS,
    SETTINGS,
    SYSTEM,
    Harness,
    at_once,
    config,
    contents,
    due_on_faulty_files,
    frames,
)
from waiting import in_loop

# ---- when


@in_loop
async def test_a_run_removes_what_is_too_old_and_nothing_else(harness: Harness) -> None:
    log = harness.add()
    retention = harness.retention()
    assert await retention.tick() == []
    harness.clock.advance(1000)
    [retired] = await retention.tick()
    assert retired[:2] == ("orders", 0)
    assert retired[3:] == (4, 1200, None)
    assert contents(log) == frames(3, 40)
    assert log.read(0, 100) == ReadMoved(1200)
    assert await retention.tick() == []


@in_loop
async def test_while_the_clock_is_not_believed_nothing_is_old(harness: Harness) -> None:
    log = harness.add()
    ids = IdClock(harness.clock)
    assert ids.is_trusted()
    arguments = harness.files, harness.clock, config(ORDERS), harness, harness.commits
    retention = Retention(*arguments, at_once, doubt=ids.doubt)
    right = harness.clock.now_ms()
    harness.clock.set_now_ms(4_070_908_800_000)
    assert await retention.tick() == []
    assert log.start_offset == 0
    harness.clock.set_now_ms(right)
    harness.clock.advance(1000)
    [retired] = await retention.tick()
    assert retired[3:] == (4, 1200, None)


@in_loop
async def test_segments_leave_one_by_one_as_they_get_old(harness: Harness) -> None:
    log = harness.add()
    retention = harness.retention(ORDERS.replace("10s", "39s"))
    starts = []
    for _ in range(42):
        harness.clock.advance(1000)
        await retention.tick()
        starts.append(log.start_offset)
    assert starts == [300] * 9 + [600] * 10 + [900] * 10 + [1200] * 13


@in_loop
async def test_every_topic_has_its_own_policy_and_schedule(harness: Harness) -> None:
    kept = "deletePolicy=delete,1h\n"
    hourly = f"[topic=hourly]\ndeleteWhen=0 0 * * * ?\n[topic=kept]\n{kept}[topic=a*]\n{kept}"
    logs = {name: harness.add(name) for name in ("orders", "hourly", "kept", "any", "not-configured")}
    retention = harness.retention(ORDERS + hourly)
    harness.clock.advance(1000)
    await retention.tick()
    # what only a wildcard admits, or nothing, goes by [system]
    assert {name for name, log in logs.items() if log.start_offset} == {"orders", "any", "not-configured"}
    harness.clock.advance(3_600_000)
    await retention.tick()
    assert {name for name, log in logs.items() if not log.start_offset} == set()


@in_loop
async def test_a_reload_changes_policy_and_schedule(harness: Harness) -> None:
    log = harness.add()
    never = ORDERS.replace("* * * * * ?", "0 0 6 * * ? 2090")
    retention = harness.retention(never)
    harness.clock.advance(3_600_000)
    assert await retention.tick() == []
    retention.update(config(ORDERS + "deletePolicy=archive,10s\n"))
    harness.clock.advance(1000)
    assert [retired.segments for retired in await retention.tick()] == [4]
    assert len(list(log.directory.glob("*.meta.arc"))) == 4


@in_loop
async def test_an_operator_need_not_wait_for_the_schedule(harness: Harness) -> None:
    logs = [harness.add("orders", 0), harness.add("orders", 1), harness.add("other")]
    retention = harness.retention(ORDERS.replace("* * * * * ?", "0 0 6 * * ? 2090"))
    harness.clock.advance(1000)
    assert [retired[:2] for retired in await retention.run_now("orders")] == [("orders", 0), ("orders", 1)]
    assert [log.start_offset for log in logs] == [1200, 1200, 0]
    assert [retired.topic for retired in await retention.run_now()] == ["other"]
    assert await retention.run_now("nothing") == []


@in_loop
async def test_it_keeps_time_by_itself(harness: Harness) -> None:
    log = harness.add()
    retention = harness.retention()
    retention.start()
    await asyncio.sleep(0)
    harness.clock.advance(1000)
    retention.update(config(ORDERS))  # wakes it, as the passing of a real second would
    while log.start_offset != 1200:
        await asyncio.sleep(0)
    await retention.stop()
    assert len(log.segments()) == 1


@in_loop
async def test_what_is_planned_can_be_asked(harness: Harness) -> None:
    harness.add("orders")
    harness.add("other")
    retention = harness.retention(ORDERS + "[topic=none]\n[topic=other]\ndeleteWhen=0 0 6 * * ? 1999\n")
    orders, other = retention.plan()
    assert (orders.topic, orders.policy, orders.schedule) == ("orders", "delete,10s", "* * * * * ?")
    assert orders.next_ms == NOW_MS + 1000
    assert (other.topic, other.next_ms) == ("other", None)
    harness.clock.advance(1000)
    await retention.run_now("orders")
    orders, other = retention.plan()
    assert (orders.figures.deleted, orders.figures.byte_count, orders.figures.failures) == (4, 1200, 0)
    assert other.figures.deleted == 0


# ---- archives


@in_loop
async def test_archives_hold_the_segments(harness: Harness) -> None:
    packed, renamed = harness.add("packed"), harness.add("renamed")
    paths = [info.path for info in (*packed.segments()[:-1], *renamed.segments()[:-1])]
    before = [path.read_bytes() for path in paths]
    topics = "[topic=packed]\ndeletePolicy=archive,10s,true\n[topic=renamed]\ndeletePolicy=archive,10s\n"
    retention = harness.retention(SYSTEM + topics)
    harness.clock.advance(1000)
    await retention.tick()
    assert not any(path.exists() for path in paths)
    assert [archive_path(path).read_bytes() for path in paths[4:]] == before[4:]
    assert all(zip_path(path).exists() for path in paths[:4])
    assert [plan.figures.archived for plan in retention.plan()] == [4, 4]


@in_loop
async def test_what_a_crash_left_of_archives_is_removed_at_the_start(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    log = harness.add()
    unfinished = log.directory / "00000000000000000000.meta.zip.tmp"
    unfinished.write_bytes(b"half")
    retention = harness.retention()
    with caplog.at_level(logging.WARNING):
        retention.start()
        while unfinished.exists():
            await asyncio.sleep(0)
        await retention.stop()
    assert "unfinished archive removed" in caplog.text
    assert contents(log) == frames(43)


# ---- transactions


@in_loop
async def test_what_an_unfinished_commit_may_need_is_kept(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    log = harness.add()
    retention = harness.retention()
    harness.clock.advance(1000)
    harness.commits.starts["orders", 0] = 700
    await retention.run_now()
    assert log.start_offset == 600
    assert "old segments are kept, they are needed still" in caplog.text
    harness.commits.starts["orders", 0] = 900
    await retention.run_now()
    assert log.start_offset == 900
    harness.commits.starts.clear()
    await retention.run_now()
    assert (log.start_offset, harness.commits.synced) == (1200, 3)


@in_loop
async def test_without_its_journal_nothing_is_removed(harness: Harness) -> None:
    log = harness.add()
    retention = harness.retention()
    harness.clock.advance(1000)
    harness.commits.failure = RuntimeError("the disk is gone")
    [retired] = await retention.run_now()
    assert (retired.segments, log.start_offset) == (0, 0)
    assert retired.failure == "the transaction journal cannot be synced, so nothing is removed: the disk is gone"


# ---- failures


@in_loop
async def test_a_file_that_cannot_be_removed_is_tried_again_before_newer_ones_go(tmp_path: Path) -> None:
    files, harness, log, retention = due_on_faulty_files(tmp_path, ORDERS.replace("10s", "29s"))
    files.fault = Fault(1, errno.EACCES, lasting=True, calls=frozenset({"unlink"}))
    [retired] = await retention.run_now()
    assert retired.failure is not None
    assert "Permission denied" in retired.failure
    assert (retired.segments, log.start_offset) == (0, 600)  # out of service all the same
    harness.clock.advance(10_000)
    [retired] = await retention.run_now()
    assert (retired.segments, log.start_offset) == (0, 600)
    files.fault = None
    [retired] = await retention.run_now()
    assert (retired.segments, retired.byte_count, retired.failure, log.start_offset) == (3, 900, None, 900)
    [plan] = retention.plan()
    assert (plan.figures.deleted, plan.figures.failures) == (3, 2)
    assert contents(PartitionLog.open(files, harness.clock, log.directory, SETTINGS)) == frames(13, 30)


@in_loop
async def test_one_partitions_failure_is_not_the_others(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    logs = [harness.add("orders", index) for index in range(3)]
    retention = harness.retention(ORDERS.replace("delete,10s", "archive,10s,true"))
    zip_path(logs[1].segments()[0].path).write_bytes(b"something else")
    harness.clock.advance(1000)
    failures = [retired.failure for retired in await retention.run_now()]
    assert [failure is None for failure in failures] == [True, False, True]
    assert "move it away" in str(failures[1])
    assert [log.start_offset for log in logs] == [1200, 0, 1200]


@in_loop
async def test_a_defect_is_reported_and_ends_nothing(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    broken, healthy = harness.add("orders", 0), harness.add("orders", 1)
    broken.segments = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    retention = harness.retention()
    harness.clock.advance(1000)
    failed, done = await retention.run_now()
    assert failed.failure == "ZeroDivisionError('division by zero')"
    assert (done.segments, healthy.start_offset) == (4, 1200)
    assert "retention failed" in caplog.text


@in_loop
async def test_a_full_disk_keeps_segments_from_being_packed_but_not_whole(tmp_path: Path) -> None:
    files, _, log, retention = due_on_faulty_files(tmp_path, ORDERS.replace("delete,10s", "archive,10s,true"))
    files.fault = Fault(1, errno.ENOSPC, lasting=True, calls=frozenset({"pwrite"}))
    [retired] = await retention.run_now()
    assert "No space left" in str(retired.failure)
    assert contents(log) == frames(43)
    assert not list(log.directory.glob("*.zip*"))
    files.fault = None
    assert [retired.segments for retired in await retention.run_now()] == [4]


@in_loop
async def test_a_log_that_is_read_only_loses_old_segments_as_well(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    harness = Harness(tmp_path, files)
    log = harness.add()
    log.append(frames(20, 43))  # finishes a segment that will never be durable
    files.fault = Fault(1, errno.EIO, calls=frozenset({"fdatasync"}))
    with pytest.raises(Exception, match="read-only"):
        log.sync()
    harness.clock.advance(3_600_000)
    await harness.retention(ORDERS.replace("10s", "0")).run_now()
    assert log.start_offset == 1200
    files.fault = None
    log.reopen()
    assert contents(log) == frames(3, 40)


@in_loop
async def test_a_zip_of_a_crashed_run_is_used(harness: Harness) -> None:
    log = harness.add()
    first = log.segments()[0].path
    pack(Files(), first)
    before = zip_path(first).stat().st_ino
    retention = harness.retention(ORDERS.replace("delete,10s", "archive,10s,true"))
    harness.clock.advance(1000)
    assert [retired.segments for retired in await retention.run_now()] == [4]
    assert zip_path(first).stat().st_ino == before
