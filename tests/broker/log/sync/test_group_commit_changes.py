"""Group commit under changes: a partition that is settled or forgotten, and policies that change under way."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from metaq_broker.log.sync.group_commit import FlushPolicy, GroupCommit
from stored import ONE_SEGMENT, QuickFiles, frames, open_log
from test_group_commit import NEVER, GatedFiles, Put, committing, gated
from waiting import in_loop, until


class Policies:
    """What the policy of every topic is, until it changes."""

    def __init__(self, policy: FlushPolicy) -> None:
        self.policy = policy

    def __call__(self, topic: str) -> FlushPolicy:
        return self.policy


@asynccontextmanager
async def flushed(
    folder: Path, policy: FlushPolicy, files: GatedFiles | None = None
) -> AsyncIterator[tuple[Policies, GroupCommit, Put]]:
    """A group commit that begins with ``policy``, and a log to put to; it is stopped after the block."""
    policies = Policies(policy)
    commit = GroupCommit(policies)
    put = Put(commit, open_log(folder, files=files))
    yield policies, commit, put
    commit.stop()


async def all_readable_with(policy: FlushPolicy, policies: Policies, commit: GroupCommit, put: Put) -> None:
    """Change to ``policy``; return when everything that was put is readable."""
    policies.policy = policy
    commit.policies_changed()
    await until(lambda: put.log.readable_end == put.log.end_offset)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- settle and forget


@in_loop
async def test_settle_waits_until_everything_is_durable(tmp_path: Path) -> None:
    async with gated(tmp_path) as (files, commit, put):
        put()
        await until(lambda: files.under_way == 1)
        put()  # rides in the next sync
        settling = [asyncio.create_task(commit.settle(put.log)) for _ in range(2)]
        files.let()
        await until(lambda: put.reported == [0])
        await turns()
        assert not any(task.done() for task in settling)
        files.let()
        await asyncio.gather(*settling)
        assert (put.reported, put.log.readable_end) == ([0, 1], put.log.end_offset)


@in_loop
async def test_settle_syncs_what_a_threshold_left(tmp_path: Path) -> None:
    async with committing(NEVER) as commit:
        put = Put(commit, open_log(tmp_path))
        put()
        assert put.log.readable_end == 0
        await commit.settle(put.log)
        assert put.log.readable_end == put.log.end_offset


@in_loop
async def test_settle_of_a_log_with_nothing_to_do_returns(tmp_path: Path) -> None:
    async with committing() as commit:
        log = open_log(tmp_path)
        await commit.settle(log)
        await commit.settle(log)


@in_loop
async def test_settle_returns_when_the_disk_fails(tmp_path: Path) -> None:
    async with gated(tmp_path) as (files, commit, put):
        put()
        await until(lambda: files.under_way == 1)
        files.error = OSError(errno.EIO, "broken")
        settling = asyncio.create_task(commit.settle(put.log))
        files.let()
        await settling
        assert (put.reported, len(put.errors), put.log.sync_failed) == ([], 1, True)
        await commit.settle(put.log)


@in_loop
async def test_who_gives_up_waiting_does_not_disturb(tmp_path: Path) -> None:
    async with gated(tmp_path) as (files, commit, put):
        put()
        settling = asyncio.create_task(commit.settle(put.log))
        await until(lambda: files.under_way == 1)
        settling.cancel()
        await turns()
        files.let(5)
        await until(lambda: put.reported == [0])


@in_loop
async def test_a_forgotten_log_is_left_alone(tmp_path: Path) -> None:
    async with committing(FlushPolicy(unflush_threshold=1000, flush_interval_ms=1)) as commit:
        put = Put(commit, open_log(tmp_path))
        put()
        await commit.settle(put.log)
        put.log.append(frames(1))
        commit.schedule(put.log)
        commit.forget(put.log)
        commit.forget(put.log)
        put.log.close(clean=False)
        (tmp_path / "other").mkdir()
        later = Put(commit, open_log(tmp_path / "other"))
        later()  # its timer is set after the one that is not there any more
        await until(lambda: later.log.readable_end == later.log.end_offset)
        assert put.log.readable_end < put.log.end_offset


# ---- policies that change


@in_loop
async def test_from_threshold_to_group_commit_syncs_what_was_left(tmp_path: Path) -> None:
    async with flushed(tmp_path, NEVER) as (policies, commit, put):
        put()
        await asyncio.sleep(0)
        assert (put.reported, put.log.readable_end) == ([0], 0)
        await all_readable_with(FlushPolicy(), policies, commit, put)
        put()
        assert put.reported == [0]
        await until(lambda: put.reported == [0, 1])


@in_loop
async def test_from_group_commit_to_threshold_keeps_promises(tmp_path: Path) -> None:
    files = GatedFiles()
    async with flushed(tmp_path, FlushPolicy(), files) as (policies, commit, put):
        put()
        await until(lambda: files.under_way == 1)
        put()
        policies.policy = NEVER
        commit.policies_changed()
        assert put.reported == []  # these were promised to be on the disk
        put()
        await asyncio.sleep(0)
        assert put.reported == [2]
        files.let(2)
        await until(lambda: put.reported == [2, 0, 1])


@in_loop
async def test_a_shorter_interval_is_taken_up_at_once(tmp_path: Path) -> None:
    async with flushed(tmp_path, NEVER) as (policies, commit, put):
        put()
        await all_readable_with(FlushPolicy(unflush_threshold=1000, flush_interval_ms=1), policies, commit, put)


@in_loop
async def test_a_smaller_threshold_is_taken_up_at_once(tmp_path: Path) -> None:
    async with flushed(tmp_path, NEVER) as (policies, commit, put):
        for _ in range(3):
            put()
        await all_readable_with(FlushPolicy(unflush_threshold=2, flush_interval_ms=3_600_000), policies, commit, put)


@in_loop
async def test_the_same_policy_again_changes_nothing(tmp_path: Path) -> None:
    async with flushed(tmp_path, NEVER) as (_, commit, put):
        put()
        commit.policies_changed()
        await turns()
        assert put.log.readable_end == 0
        await commit.drain()


# ---- recovery beside the loop


def test_segments_that_were_forgotten_during_a_recovery_stay_so(tmp_path: Path) -> None:
    files = QuickFiles()
    log = open_log(tmp_path, files=files, settings=type(ONE_SEGMENT)(segment_bytes_max=200, index_interval_bytes=100))
    log.append(frames(20))
    log.sync()
    log.failure = "as after a failed write"
    loaded = log.load_again()
    start = log.segments()[2].start
    log.forget_segments(2)
    before = [(frame.offset, bytes(frame.body)) for frame in log.scan(start)]
    log.resume(loaded)
    assert (log.failure, log.start_offset) == (None, start)
    assert [(frame.offset, bytes(frame.body)) for frame in log.scan(log.start_offset)] == before
    log.append(frames(1, 20))
    log.sync()
    assert len(list(log.scan(log.start_offset))) == len(before) + 1
