"""Retention is at work while messages come and go, operators take partitions away, and the broker stops."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

from metaq_broker.log.partitions.partition_log import PartitionLog, ReadMoved
from metaq_broker.log.retention.retention import Retention, Retired
from metaq_broker.testing import Fault
from retained import ORDERS, SETTINGS, Harness, SlowWorker, contents, due_on_faulty_files, frames
from stored import drop_segments
from waiting import in_loop

ARCHIVED = ORDERS.replace("delete,10s", "archive,10s,true")


async def halted_run(
    harness: Harness, ini: str = ORDERS, *, passed: int = 0
) -> tuple[Retention, asyncio.Future[list[Retired]], SlowWorker]:
    """A run that waits before its first step behind those that are ``passed`` for the gate of its worker to open."""
    worker = harness.run_in_worker = SlowWorker(passed)
    retention = harness.retention(ini)
    harness.clock.advance(1000)
    running = asyncio.ensure_future(retention.run_now())
    await worker.waiting.wait()
    return retention, running, worker


@in_loop
async def test_messages_are_put_and_read_while_segments_leave(harness: Harness) -> None:
    log = harness.add()
    _, running, worker = await halted_run(harness, passed=1)  # the first entry of the index that is left is synced
    assert log.read(0, 100) == ReadMoved(1200)
    assert len(list(log.directory.glob("*.meta"))) == 5
    log.append(frames(20, 43))
    log.sync()
    worker.gate.set()
    assert [retired.segments for retired in await running] == [4]
    assert contents(log) == frames(23, 40)


@in_loop
async def test_a_segment_is_served_until_its_zip_is_whole(harness: Harness) -> None:
    log = harness.add()
    _, running, worker = await halted_run(harness, ARCHIVED)
    assert contents(log) == frames(43)
    worker.gate.set()
    await running
    assert contents(log) == frames(3, 40)


@in_loop
async def test_two_runs_at_a_time_are_one_after_the_other(harness: Harness) -> None:
    worker = harness.run_in_worker = SlowWorker()
    harness.add()
    retention = harness.retention()
    harness.clock.advance(1000)
    runs = [asyncio.ensure_future(retention.run_now()) for _ in range(3)]
    await worker.waiting.wait()
    worker.gate.set()
    assert [[retired.segments for retired in await run] for run in runs] == [[4], [], []]


@in_loop
async def test_a_stop_breaks_off_between_steps(harness: Harness) -> None:
    log, other = harness.add("orders", 0), harness.add("orders", 1)
    retention, running, worker = await halted_run(harness, ARCHIVED)
    stopping = asyncio.ensure_future(retention.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    worker.gate.set()
    await stopping
    assert await running == []
    assert (contents(log), contents(other)) == (frames(43), frames(43))
    assert not list(log.directory.glob("*.zip*"))
    assert await retention.run_now() == []


@in_loop
async def test_a_partition_that_is_withdrawn_is_let_alone(harness: Harness) -> None:
    log, other = harness.add("orders", 0), harness.add("orders", 1)
    retention, running, worker = await halted_run(harness, ARCHIVED)
    del harness.partitions["orders", 0]
    settling = asyncio.ensure_future(retention.settle(log))
    await asyncio.sleep(0)
    assert not settling.done()
    worker.gate.set()
    await settling
    await retention.settle(log)
    [retired] = await running
    assert (retired.partition, other.start_offset) == (1, 1200)
    assert (contents(log), len(list(log.directory.glob("*.zip*")))) == (frames(43), 0)


@in_loop
async def test_a_withdrawn_partition_is_left_even_if_files_remain(tmp_path: Path) -> None:
    files, harness, log, retention = due_on_faulty_files(tmp_path)
    files.fault = Fault(2, errno.EIO, calls=frozenset({"unlink"}))
    [retired] = await retention.run_now()
    assert retired.failure is not None
    left = sorted(path.name for path in log.directory.glob("*.meta"))
    del harness.partitions["orders", 0]
    await retention.settle(log)
    harness.partitions["orders", 0] = PartitionLog.open(files, harness.clock, log.directory, SETTINGS)
    harness.clock.set_now_ms(0)
    assert await retention.run_now() == []
    assert sorted(path.name for path in log.directory.glob("*.meta")) == left


@in_loop
async def test_a_log_that_changed_while_packed_is_left_for_the_next_run(harness: Harness) -> None:
    log = harness.add()

    async def meanwhile(step: Callable[[], None]) -> None:
        step()
        if log.start_offset == 0:
            drop_segments(log, 1)

    harness.run_in_worker = meanwhile
    retention = harness.retention(ARCHIVED)
    harness.clock.advance(1000)
    [retired] = await retention.run_now()
    assert retired.failure == "segments of orders-0 changed meanwhile; the next run looks again"
    assert log.start_offset == 300
    [retired] = await retention.run_now()
    assert (retired.segments, log.start_offset) == (3, 1200)
