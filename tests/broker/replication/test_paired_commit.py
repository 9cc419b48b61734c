"""Stories of a synchronous pair: what is acknowledged, or can be read, is on both brokers, in the same bytes."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from metaq_broker import app
from metaq_broker.app import Broker
from metaq_broker.log.engine import maintenance
from metaq_broker.log.engine.maintenance import MaintenanceRefused
from metaq_broker.log.files.files import Files
from replicated import (
    bodies,
    client,
    configured,
    holding_copies,
    put,
    put_block,
    put_many,
    read_all,
    running,
    samsa,
    segments,
    until_in_sync,
    until_same,
)
from stored import drop_segments
from waiting import in_loop, until

from metaq.errors import BrokerError
from metaq.formats.frames import walk
from metaq.formats.message_id import IdWorker
from metaq.model import LocalTransactionId
from metaq.protocols.text.commands import Put, Result, Sync, TransactionCommand

GREGOR = "[gregor]"


async def trouble(master: Broker, words: str) -> None:
    """Return when a pair does not take messages for a reason."""
    await until(lambda: words in str(master.replication.trouble), words)


@in_loop
async def test_acknowledged_puts_blocks_and_transactions_are_on_both(tmp_path: Path) -> None:
    async with (
        running(configured(tmp_path / "s", role=GREGOR)) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
        client(master) as producer,
        client(slave) as reader,
    ):
        await until_in_sync(master)
        for number in range(30):
            code, text = await put(producer, b"one at a time %d" % number)
            assert code == 200
            message_id, index, offset = map(int, text.split(" "))
            [frame] = walk(await read_all(reader, offset=offset), offset)
            assert (frame.offset, frame.message_id, index) == (offset, message_id, 0)
        await put_many(producer, bodies(200), "t", 1)
        assert (await put_block(producer, bodies(50), "blocks"))[0] == 200
        key = LocalTransactionId("S", 1)
        for command in (
            lambda opaque: TransactionCommand(key, "S", "BEGIN", opaque, 10),
            lambda opaque: Put("tx", 0, b"in a transaction", 0, opaque, -1, key),
            lambda opaque: TransactionCommand(key, "S", "COMMIT_ONE_PHASE", opaque),
        ):
            reply = await producer.ask(command)
            assert isinstance(reply, Result)
            assert reply.code == 200, reply
        assert len(await read_all(reader, "tx")) == 20 + len(b"in a transaction")
        await until_same(tmp_path / "m", tmp_path / "s")
        assert (await put(reader, b"x"))[0] == 403


class UnreadableDisk(Files):
    """A disk whose segments cannot be read while it ``is_broken``."""

    is_broken = False

    def pread(self, fd: int, count: int, position: int) -> bytes:
        if self.is_broken and ".meta" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(fd, count, position)


@in_loop
async def test_a_master_that_cannot_read_what_it_sends_is_out_of_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(configured(tmp_path / "s", role=GREGOR)) as slave:
        disk = UnreadableDisk()
        monkeypatch.setattr(app, "Files", lambda: disk)
        async with running(configured(tmp_path / "m", role=samsa(slave))) as master, client(master) as producer:
            await until_in_sync(master)
            assert (await put(producer, b"one"))[0] == 200
            disk.is_broken = True
            code, text = await put(producer, b"two")
            assert (code, "Slave is disconnected partition t-0: [Errno 5]" in text) == (500, True), text
            disk.is_broken = False
            await until_in_sync(master)
            assert (await put(producer, b"three"))[0] == 200
    assert segments(tmp_path / "m") == segments(tmp_path / "s")


@in_loop
async def test_without_the_slave_nothing_is_acknowledged(tmp_path: Path) -> None:
    config = configured(tmp_path / "s", role=GREGOR)
    async with running(config) as slave:
        port = slave.port
        async with running(configured(tmp_path / "m", role=samsa(port))) as master, client(master) as producer:
            await until_in_sync(master)
            await put_many(producer, bodies(10))
            await slave.close()
            await trouble(master, "127.0.0.1")
            code, text = await put(producer, b"no")
            assert (code, "Slave is disconnected " in text) == (500, True)
            assert (await put_block(producer, [b"no"]))[0] == 500
            key = LocalTransactionId("S", 1)
            begun = await producer.ask(lambda opaque: TransactionCommand(key, "S", "BEGIN", opaque, 10))
            assert begun.code == 500  # type: ignore[union-attr]
            again = configured(tmp_path / "s", role=GREGOR, port=port)
            async with running(again), client(master) as other:
                await until_in_sync(master)
                await put_many(other, bodies(30, 100, 2))
                await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_what_the_slave_does_not_have_cannot_be_read(tmp_path: Path) -> None:
    async with running(configured(tmp_path / "s", role=GREGOR)) as slave:
        role = samsa(slave, 2000)
        async with running(configured(tmp_path / "m", role=role)) as master, client(master) as producer:
            await until_in_sync(master)
            await put_many(producer, bodies(3))
            with holding_copies(slave):
                code, text = await put(producer, b"slow")
                assert code == 500
                assert "Slave is disconnected " in text
                assert text.endswith("no answer within 2 s; it may be stored, and is readable once the slave has it")
                assert BrokerError("", "put", code, text).may_be_stored, "clients recognise it"
                assert b"slow" not in await read_all(producer)
            await until_in_sync(master)
            await until_same(tmp_path / "m", tmp_path / "s")
            assert b"slow" in await read_all(producer)  # refused, but stored: as with every answer that is lost


@in_loop
async def test_a_slave_that_was_away_is_brought_into_step_first(tmp_path: Path) -> None:
    async with running(configured(tmp_path / "m")) as master, client(master) as producer:  # alone at first
        await put_many(producer, bodies(100))
        await put_many(producer, bodies(3, 7000, 1))
        log = master.stores.get("t", 0)
        assert log is not None
        drop_segments(log, 2)
    async with (
        running(configured(tmp_path / "s", role=GREGOR)) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
        client(master) as producer,
    ):
        await until_in_sync(master)
        await until_same(tmp_path / "m", tmp_path / "s")
        await put_many(producer, bodies(50, 100, 2))
        await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_a_slave_with_another_history_keeps_the_pair_out_of_step(tmp_path: Path) -> None:
    for name in ("m", "s"):
        async with running(configured(tmp_path / name)) as alone, client(alone) as producer:
            await put_many(producer, bodies(10, 100, ord(name)))
    before = segments(tmp_path / "s")
    async with (
        running(configured(tmp_path / "s", role=GREGOR)) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
    ):
        await trouble(master, "partition t-0: the copy is of another incarnation")
    assert segments(tmp_path / "s") == before


@in_loop
async def test_partitions_that_wait_for_the_slave_are_deleted_and_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SETTLE_S", 0.01)
    async with (
        running(configured(tmp_path / "s", role=GREGOR)) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
        client(master) as producer,
        client(master) as other,
    ):
        await until_in_sync(master)
        with holding_copies(slave):
            more = put_block(other, bodies(3, 700_000), "u")  # the second run is not read yet
            waiting = [asyncio.create_task(put(producer, b"held")), asyncio.create_task(more)]
            await until(lambda: [log.end_offset > 0 for log in master.stores.logs()] == [True, True], "both puts")
            master.maintenance.close("t", [0])
            with pytest.raises(MaintenanceRefused, match=r"partition t-0 are not .* slave does not have them"):
                await master.maintenance.move("t", [0], 1)
            assert await master.maintenance.delete("u", [0], force=True) == [0]
            code, text = await waiting[1]
            assert (code, "partition u-0 is being deleted" in text) == (500, True), text
        assert (await waiting[0])[0] == 200
        monkeypatch.setattr(maintenance, "SETTLE_S", 60.0)
        assert await master.maintenance.move("t", [0], 1) == [(0, 1)]
        code, text = await put(producer, b"other", "v")
        assert code == 200, text
        assert master.replication.trouble is None


@pytest.mark.parametrize(
    ("role", "broker_id", "words"),
    [("", 3, "is not the slave of a synchronous pair"), (GREGOR, 4, "has brokerId 4, this one has 3")],
)
@in_loop
async def test_who_is_not_the_slave_is_not_sent_anything(tmp_path: Path, role: str, broker_id: int, words: str) -> None:
    async with (
        running(configured(tmp_path / "s", role=role, broker_id=broker_id)) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
    ):
        await trouble(master, words)


@in_loop
async def test_a_java_slave_gets_message_by_message(tmp_path: Path, plain_brokers: None) -> None:
    async with (
        running(configured(tmp_path / "s", role=GREGOR)) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
        client(master) as producer,
    ):
        await until_in_sync(master)
        await put_many(producer, bodies(100))
        assert (await put(producer, b"and one"))[0] == 200
        await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_a_java_master_sends_message_by_message(tmp_path: Path) -> None:
    config = configured(tmp_path / "s", role=GREGOR)
    config = replace(config, topics={"t": config.topics["*"]})
    async with running(config) as slave, client(slave) as java:
        ids = IdWorker(3).reserve(3, 1_700_000_000_000)
        offset = 0
        for number, message_id in enumerate(ids):
            body = b"message %d" % number
            text = await java.text(
                lambda opaque, b=body, m=message_id: Sync("t", 1, b, 0, m, opaque, -1),  # type: ignore[misc]
                "sync",
            )
            assert text == f"{message_id} 1 {offset}"
            offset += 20 + len(body)
        frames = list(walk(await read_all(java, "t", 1)))
        assert [frame.message_id for frame in frames] == list(ids)
        wrong = await java.ask(lambda opaque: Sync("t", 1, b"x", 0, 1, opaque, 12345))
        assert wrong.code == 500  # type: ignore[union-attr]
        back = await java.ask(lambda opaque: Sync("_metaq_slave_status_test", 0, b"test", 0, 5, opaque, -1))
        assert (back.code, back.text) == (200, "5 0 0")  # type: ignore[union-attr]
        assert not list((tmp_path / "s").glob("_metaq*"))
    async with running(configured(tmp_path / "alone")) as alone, client(alone) as java:
        refused = await java.ask(lambda opaque: Sync("t", 1, b"x", 0, 1, opaque, -1))
        assert refused.code == 503  # type: ignore[union-attr]
