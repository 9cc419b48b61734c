"""Stories of an asynchronous slave: its segment files become those of its master, whatever happens in between."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from metaq_broker.app import Broker
from metaq_broker.log.engine.maintenance import MaintenanceRefused
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.control.measures import Measure, gather
from metaq_broker.text.link import BrokerLink
from replicated import (
    bodies,
    client,
    configured,
    copied,
    copying,
    fed_master,
    put,
    put_block,
    put_many,
    read_all,
    running,
    segments,
    slave_of,
    until_caught_up,
    until_same,
)
from stored import drop_segments
from waiting import in_loop, until

from metaq.protocols.text.commands import GetOffset, TransactionCommand

FIGURES = ("lag_bytes", "partitions_refused", "broken")


@asynccontextmanager
async def read_slave(folder: Path, master: Broker) -> AsyncIterator[tuple[Broker, BrokerLink]]:
    """Run a slave, and a connection to it."""
    async with running(configured(folder, role=slave_of(master))) as slave, client(slave) as reader:
        yield slave, reader


@in_loop
async def test_the_copy_is_byte_for_byte_the_same_across_rolls_and_topics(tmp_path: Path) -> None:
    async with (
        fed_master(tmp_path / "m", bodies(120)) as (master, producer),
        running(configured(tmp_path / "s", role=slave_of(master))),
    ):
        assert len(await until_same(tmp_path / "m", tmp_path / "s")) > 5
        await put_block(producer, bodies(60, 200), "t", 1)  # one unit, larger than a segment
        await put_many(producer, bodies(3, 90), "a-b", 0)  # a topic that appears later
        await put_many(producer, bodies(10, 5000, 1))  # every message a segment of its own
        found = await until_same(tmp_path / "m", tmp_path / "s")
        assert any(not data for data in found.values())  # the empty segment at the end is there as well


@in_loop
async def test_a_slave_answers_reads_as_its_master_and_takes_no_messages(tmp_path: Path) -> None:
    async with (
        fed_master(tmp_path / "m", bodies(50)) as (master, producer),
        read_slave(tmp_path / "s", master) as (slave, reader),
    ):
        await until_same(tmp_path / "m", tmp_path / "s")
        await until_caught_up(slave)
        assert await read_all(reader) == await read_all(producer) != b""
        for mode in ("segment", "boundary", "ordinal", "message", "incarnation", "timestamp"):
            for offset in (0, 17, 2500, 1 << 40):
                question = lambda opaque, m=mode, o=offset: GetOffset("t", "g", 0, o, opaque, m)  # noqa: E731
                assert await reader.text(question, mode) == await producer.text(question, mode)
        assert "slave true" in await reader.stats("")
        assert "slave false" in await producer.stats("")
        code, text = await put(reader, b"no")
        assert (code, "this broker is a slave" in text) == (403, True)
        assert (await put_block(reader, [b"no"]))[0] == 403
        begun = await reader.ask(lambda opaque: TransactionCommand(None, "S", "BEGIN", opaque, 10))
        assert begun.code == 403  # type: ignore[union-attr]


@in_loop
async def test_a_slave_that_was_away_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with running(configured(tmp_path / "m")) as master, client(master) as producer:
        config = configured(tmp_path / "s", role=slave_of(master))
        for mark in range(4):
            async with running(config) as slave:
                await put_many(producer, bodies(40, 100 + mark, mark))
                await until_same(tmp_path / "m", tmp_path / "s")
            assert slave.port
            await put_many(producer, bodies(25, 110, 10 + mark))


@in_loop
async def test_a_torn_tail_is_cut_before_the_copy_goes_on(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(30)) as (master, _):
        config = await copied(tmp_path, master)
        last = tmp_path / "s" / max(segments(tmp_path / "s"))
        last.write_bytes(last.read_bytes() + last.read_bytes()[:33])  # the beginning of a frame
        (tmp_path / "s" / "clean-shutdown").unlink()
        async with running(config):
            await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_the_master_may_restart_at_any_time(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(30)) as (master, producer):
        port, role = master.port, slave_of(master)
    async with running(configured(tmp_path / "s", role=role)) as slave:
        assert slave.replication.slave is not None
        await until(lambda: "refused" in str(slave.replication.slave.trouble), "the slave to notice")
        for mark in range(3):
            async with running(configured(tmp_path / "m", port=port)) as master, client(master) as producer:
                await put_many(producer, bodies(20, 100, mark))
                await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_a_copy_begins_where_the_master_begins_by_now(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(90)) as (master, producer):
        log = master.stores.get("t", 0)
        assert log is not None
        drop_segments(log, 2)
        async with read_slave(tmp_path / "s", master) as (slave, reader):
            await until_same(tmp_path / "m", tmp_path / "s")
            await until_caught_up(slave)
            start = log.start_offset
            question = lambda opaque: GetOffset("t", "g", 0, start + 240, opaque, "ordinal")  # noqa: E731
            assert await reader.text(question, "ordinal") == await producer.text(question, "ordinal") != "2"


@in_loop
async def test_a_copy_whose_master_dropped_more_than_it_has_begins_anew(tmp_path: Path) -> None:
    async with fed_master(tmp_path / "m", bodies(20)) as (master, producer):
        config = await copied(tmp_path, master)
        await put_many(producer, bodies(90))
        log = master.stores.get("t", 0)
        assert log is not None
        drop_segments(log, 4)
        async with running(config):
            await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_a_slave_keeps_what_its_own_rules_keep(tmp_path: Path) -> None:
    def shorter_by_two(folder: Path) -> bool:
        original, own = segments(folder / "m"), segments(folder / "s")
        return own == {name: original[name] for name in own} and len(own) == len(original) - 2

    async with fed_master(tmp_path / "m", bodies(90)) as (master, producer), copying(tmp_path, master) as slave:
        await until_caught_up(slave)
        copy = slave.stores.get("t", 0)
        assert copy is not None
        drop_segments(copy, 2)
        await put_many(producer, bodies(40))
        await until(lambda: shorter_by_two(tmp_path), "the copy to go on")


@in_loop
async def test_a_java_broker_can_be_the_master(tmp_path: Path, plain_brokers: None) -> None:
    async def until_same_bytes(folder: Path) -> None:
        # An empty last segment is not told by MetaQ's commands: it is made with its first byte.
        await until(lambda: filled(folder / "m") == filled(folder / "s"), "the same bytes")

    def filled(folder: Path) -> dict[str, bytes]:
        return {name: data for name, data in segments(folder).items() if data}

    async with running(configured(tmp_path / "m")) as master, client(master) as producer:
        assert not producer.extensions
        await put_many(producer, bodies(90))
        await put_many(producer, bodies(2, 100, 1), "t", 1)
        async with running(configured(tmp_path / "s", role=slave_of(master))):
            await until_same_bytes(tmp_path)
        await put_many(producer, bodies(40, 130, 2))
        async with running(configured(tmp_path / "s", role=slave_of(master))):
            await until_same_bytes(tmp_path)


@in_loop
async def test_a_frame_longer_than_one_reply_is_put_together(tmp_path: Path) -> None:
    narrow = "maxTransferSize=1000"
    config = configured(tmp_path / "m")
    text = config.text.replace(b"maxTransferSize=1024*1024", narrow.encode())
    async with running(parse(text)) as master, client(master) as producer:
        await put_many(producer, [*bodies(3, 4000), *bodies(3, 10)])
        async with running(configured(tmp_path / "s", role=slave_of(master))):
            await until_same(tmp_path / "m", tmp_path / "s")


@pytest.mark.slow
@pytest.mark.parametrize("count", [300])
@in_loop
async def test_many_partitions_follow(tmp_path: Path, count: int) -> None:
    async with running(configured(tmp_path / "m")) as master, client(master) as producer:
        for number in range(count):
            await put_many(producer, bodies(3), f"topic{number}")
        async with copying(tmp_path, master) as slave:
            await until_caught_up(slave)
            assert len(slave.replication.slave.states()) == count


@in_loop
async def test_a_copy_that_cannot_be_read_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PartitionLog.ordinal

    def broken(log: PartitionLog, offset: int) -> int:
        if log.topic == "bad":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(log, offset)

    async with fed_master(tmp_path / "m", bodies(5)) as (master, producer):
        await put_many(producer, bodies(5), "bad", 0)
        config = await copied(tmp_path, master)
        monkeypatch.setattr(PartitionLog, "ordinal", broken)
        await put_many(producer, bodies(5, mark=1))
        async with running(config) as broker:
            slave = broker.replication.slave
            assert slave is not None
            await until(lambda: any(each.fault for each in slave.states()), "a fault")
            states = {each.partition_key[0]: each for each in slave.states()}
            assert "Input/output error" in str(states["bad"].fault)
            assert slave.trouble is None
            await until(lambda: not any(each.lag_bytes for each in slave.states()), "the other one is copied")


@in_loop
async def test_status_and_metrics_report_how_far_a_copy_is(tmp_path: Path) -> None:
    async with (
        fed_master(tmp_path / "m", bodies(20)) as (master, _),
        read_slave(tmp_path / "s", master) as (slave, reader),
    ):
        await until_caught_up(slave)
        part = slave.replication
        quiet = {"trouble": None, "not_followed": None, "state_not_copied": None, "lag_bytes": 0, "not_copied": []}
        assert part.facts() == {"role": "slave", **quiet}
        lines = (await reader.stats("replication")).split("\r\n")
        assert lines == ["STATS", "role slave", "t part 0 lag_bytes 0", "END", ""]
        assert slave.admin is not None
        measures = [each for each in gather(slave.admin._parts, slave.admin._labels) if isinstance(each, Measure)]
        found = {measure.name: measure.values for measure in measures}
        assert [found[f"metaq_replication_{name}"] for name in FIGURES] == [[((), 0)]] * 3
        await master.close()
        await until(lambda: part.trouble is not None, "the slave to notice")
        assert (await reader.stats("replication")).split("\r\n")[2].startswith("trouble broker 127.0.0.1")


@in_loop
async def test_an_operator_and_the_copy_exclude_each_other(tmp_path: Path) -> None:
    async with (
        fed_master(tmp_path / "m", bodies(20)) as (master, _),
        running(configured(tmp_path / "s", role=slave_of(master))) as slave,
    ):
        await until_caught_up(slave)
        settle, go_on = slave.commit.settle, asyncio.Event()

        async def slow(log: PartitionLog) -> None:
            await go_on.wait()
            await settle(log)

        slave.commit.settle = slow  # type: ignore[method-assign]
        assert slave.admin is not None
        operator, local = slave.admin._parts.maintenance, slave.replication._local
        removing = asyncio.create_task(local.remove(("t", 0)))  # as before a partition is copied anew
        await until(lambda: slave.stores.get("t", 0) is None, "the removal to begin")
        with pytest.raises(MaintenanceRefused, match="another operation is in progress on partition t-0"):
            await operator.delete("t", [0], force=True)
        go_on.set()
        await removing
