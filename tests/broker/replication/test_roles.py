"""Stories of promotion: who may become a master, and what keeps the old one from acknowledging anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.app import Broker, StartFailed
from metaq_broker.log.files.files import Files
from metaq_broker.replication.roles import (
    FENCED,
    PROMOTED,
    PromotionRefused,
    RoleRecord,
    RoleRecordDamaged,
    read_role_record,
    write_role_record,
)
from replicated import (
    bodies,
    client,
    configured,
    put,
    put_many,
    read_all,
    running,
    samsa,
    slave_of,
    until_caught_up,
    until_in_sync,
    until_same,
)
from waiting import in_loop, until


async def refusal(broker: Broker, *, force: bool = False) -> str:
    """Return why a broker cannot be promoted."""
    with pytest.raises(PromotionRefused) as refused:
        await broker.replication.promote(force=force)
    return str(refused.value)


@pytest.mark.parametrize("role_record", [RoleRecord(PROMOTED, 17), RoleRecord(FENCED, 18, "[::1]:8123")])
def test_a_standing_is_read_back(tmp_path: Path, role_record: RoleRecord) -> None:
    assert read_role_record(Files(), tmp_path) is None
    write_role_record(Files(), tmp_path, role_record)
    assert read_role_record(Files(), tmp_path) == role_record


@in_loop
async def test_a_damaged_standing_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    write_role_record(Files(), tmp_path, RoleRecord(PROMOTED, 17))
    path = tmp_path / "standing"
    path.write_bytes(path.read_bytes().replace(b"promoted", b"PROMOTED"))
    with pytest.raises(RoleRecordDamaged, match="whether this broker may be a master"):
        read_role_record(Files(), tmp_path)

    with pytest.raises(StartFailed, match="whether this broker may be a master"):
        async with running(configured(tmp_path)):
            pass


@in_loop
async def test_an_asynchronous_slave_takes_over_from_a_master_that_is_gone(tmp_path: Path) -> None:
    async with running(configured(tmp_path / "m")) as master:
        config = configured(tmp_path / "s", role=slave_of(master))
        async with client(master) as producer:
            await put_many(producer, bodies(50))
        async with running(config) as slave:
            await until_same(tmp_path / "m", tmp_path / "s")
            await until_caught_up(slave)
            assert f"the master 127.0.0.1:{master.port} is running" in await refusal(slave)
            await master.close()
            async with client(slave) as other:
                assert (await put(other, b"too early"))[0] == 403
                await slave.replication.promote(force=False)
                before = await read_all(other)
                await put_many(other, bodies(50, 100, 1))
                assert (await read_all(other)).startswith(before)
                assert "slave false" in await other.stats("")
                assert "role promoted" in await other.stats("replication")
                assert "is no slave" in await refusal(slave)
        async with running(config) as again, client(again) as other:  # its configuration still calls it a slave
            await put_many(other, bodies(5, 100, 2))
            old = configured(tmp_path / "m", role=slave_of(again))
            async with running(old):  # nothing was lost, so the old master can be the slave now
                await until_same(tmp_path / "s", tmp_path / "m")


@in_loop
async def test_the_old_master_of_a_pair_is_fenced_when_it_comes_back(tmp_path: Path) -> None:
    async with running(configured(tmp_path / "s", role="[gregor]")) as slave:
        role = configured(tmp_path / "m", role=samsa(slave))
        async with running(role) as master, client(master) as producer:
            await until_in_sync(master)
            await put_many(producer, bodies(50))
        assert "make sure that it is gone" in await refusal(slave)
        await slave.replication.promote(force=True)
        async with client(slave) as other:
            await put_many(other, bodies(30, 100, 1))
        async with running(role) as master, client(master) as producer:
            await until(lambda: master.replication.fenced, "the old master to be told")
            code, text = await put(producer, b"no")
            assert (code, "fenced" in text) == (403, True)
        async with running(configured(tmp_path / "m")) as master, client(master) as producer:
            assert (await put(producer, b"no"))[0] == 403  # also alone: the mark is in its data folder
            assert "role fenced" in await producer.stats("replication")
    async with (
        running(configured(tmp_path / "m", role="[gregor]")) as slave,
        running(configured(tmp_path / "s", role=samsa(slave))) as master,
        client(master) as producer,
    ):
        await until_in_sync(master)  # the other way round, when roles are changed in both configurations
        await put_many(producer, bodies(30, 100, 2))
        await until_same(tmp_path / "s", tmp_path / "m")


@in_loop
async def test_a_promotion_takes_the_power_of_a_master_that_lives(tmp_path: Path) -> None:
    async with (
        running(configured(tmp_path / "s", role="[gregor]")) as slave,
        running(configured(tmp_path / "m", role=samsa(slave))) as master,
        client(master) as producer,
    ):
        await until_in_sync(master)
        await put_many(producer, bodies(5))
        await slave.replication.promote(force=True)  # the operator was wrong: the master lives
        code, text = await put(producer, b"no")
        assert (code, "promoted" in text) in [(500, True), (403, True)]
        await until(lambda: master.replication.fenced, "the master to be fenced")
        assert (await put(producer, b"no"))[0] == 403


@in_loop
async def test_only_slaves_are_promoted(tmp_path: Path) -> None:
    async with running(configured(tmp_path)) as alone:
        assert await refusal(alone, force=True) == "this broker is no slave"
