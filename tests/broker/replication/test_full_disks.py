"""Commits while the disk of a broker, or of the slave of a pair, is full for a while: finished without a restart."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from metaq_broker import app
from metaq_broker.log.files.files import Files
from metaq_broker.text.link import BrokerLink
from replicated import client, configured, put, read_all, running, samsa, until_in_sync, until_same
from waiting import in_loop, until

from metaq.model import Buffer, LocalTransactionId, TransactionId, Xid
from metaq.protocols.text.commands import Put, Result, TransactionCommand, TransactionType

BRANCH = Xid(1, b"batch", b"b1", "q1")
LOCAL = LocalTransactionId("S", 1)


class FullDisk(Files):
    """A disk that takes no messages while it is ``full``; the journal is on another one."""

    full = False

    def pwrite_all(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        if self.full and ".meta" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite_all(fd, parts, position)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    """The disk of brokers that are made from now on."""
    made = FullDisk()
    monkeypatch.setattr(app, "Files", lambda: made)
    return made


async def step(link: BrokerLink, key: TransactionId, kind: TransactionType) -> Result:
    reply = await link.ask(lambda opaque: TransactionCommand(key, "S", kind, opaque, 10 if kind == "BEGIN" else None))
    assert isinstance(reply, Result)
    return reply


async def begun(link: BrokerLink, key: TransactionId, body: bytes) -> None:
    assert (await step(link, key, "BEGIN")).code == 200
    reply = await link.ask(lambda opaque: Put("t", 0, body, 0, opaque, -1, key))
    assert isinstance(reply, Result)
    assert reply.code == 200, reply.text


@in_loop
async def test_local_and_two_phase_commits_are_readable_when_there_is_space(tmp_path: Path, disk: FullDisk) -> None:
    async with running(configured(tmp_path / "m")) as broker, client(broker) as producer:
        await begun(producer, BRANCH, b"branch")
        assert (await step(producer, BRANCH, "PREPARE")).code == 200
        await begun(producer, LOCAL, b"local")
        disk.full = True
        for key, kind in ((LOCAL, "COMMIT_ONE_PHASE"), (BRANCH, "COMMIT_TWO_PHASE")):
            reply = await step(producer, key, kind)  # type: ignore[arg-type]
            assert (reply.code, "is committed, and readable once" in reply.text) == (500, True), reply.text
        assert broker.transactions.stuck_commits() == [str(BRANCH), str(LOCAL)]
        assert await read_all(producer) == b""
        disk.full = False
        await until(lambda: not broker.transactions.stuck_commits(), "the commits to be finished")
        found = await read_all(producer)
        assert (found.count(b"branch"), found.count(b"local")) == (1, 1)
        assert found.index(b"local") < found.index(b"branch")
    async with running(configured(tmp_path / "m")) as broker, client(broker) as producer:
        assert await read_all(producer) == found


@in_loop
async def test_a_commit_of_a_pair_whose_slave_has_no_space(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(configured(tmp_path / "s", role="[gregor]")) as slave:
        monkeypatch.undo()
        async with running(configured(tmp_path / "m", role=samsa(slave))) as master, client(master) as producer:
            await until_in_sync(master)
            assert (await put(producer, b"before"))[0] == 200
            await begun(producer, BRANCH, b"branch")
            assert (await step(producer, BRANCH, "PREPARE")).code == 200
            disk.full = True
            committing = asyncio.create_task(step(producer, BRANCH, "COMMIT_TWO_PHASE"))
            await until(lambda: "No space" in str(master.replication.trouble), "the pair to be out of sync")
            assert not committing.done()
            disk.full = False
            assert (await committing).code == 200
            await until_in_sync(master)
            assert (await read_all(producer)).count(b"branch") == 1
            await until_same(tmp_path / "m", tmp_path / "s")
