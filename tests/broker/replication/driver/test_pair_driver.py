"""The driver runs the core on real logs: two members, whose connections and ZooKeeper are in memory."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from driven_pair import DrivenPair
from metaq_broker.log.engine.maintenance import MaintenanceRefused
from metaq_broker.log.files.errors import LogFailed
from metaq_broker.log.streams.stream import StreamBytes
from metaq_broker.replication.driver import driver, leader_links
from metaq_broker.replication.pair.actions import PairRole
from metaq_broker.replication.partition_stream import PartitionStream
from pair_disks import segments, until_true

from metaq.errors import says_may_be_stored


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[DrivenPair], Awaitable[None]]], None]:
    """Run a test with a pair, ``a`` and ``b``, that is in sync."""

    def in_loop(test: Callable[[DrivenPair], Awaitable[None]], min_in_sync: int = 1) -> None:
        async def with_pair() -> None:
            (tmp_path / "a").mkdir()
            (tmp_path / "b").mkdir()
            pair = DrivenPair(tmp_path, min_in_sync)
            await pair.start()
            try:
                await test(pair)
            finally:
                await pair.close()

        asyncio.run(with_pair())

    return in_loop


Run = Callable[..., None]


def test_two_blank_members_become_a_pair(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        assert pair.slave.role is PairRole.IN_SYNC
        assert (pair.master.led, pair.slave.led) == (1, 0)
        assert pair.master.gates[-1] == (True, "in sync")

    run(test)


def test_a_put_is_acknowledged_when_both_have_it(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        pair.master.put(b"one")
        await pair.master.acknowledged(1)
        assert pair.slave.disk.bodies() == [b"one"]
        assert segments(pair.a.disk) == segments(pair.b.disk)

    run(test)


def test_a_put_is_on_its_way_before_its_master_syncs_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the disks of both work one after the other, where a sync holds the loop."""

    async def test(pair: DrivenPair) -> None:
        pair.master.put(b"one")
        await pair.master.acknowledged(1)
        order = list[str]()

        def noting(what: str, where: object, name: str) -> None:
            original = getattr(where, name)

            def noted(argument: object) -> object:
                order.append(what)
                return original(argument)

            monkeypatch.setattr(where, name, noted)

        commit = pair.master.disk.commit
        monkeypatch.setattr(commit, "_are_quick", lambda due: True)
        noting("sync", commit, "_run")
        noting("send", pair.network.wires[-1], "write")
        for count in (2, 3):
            pair.master.put(b"next")
            await pair.master.acknowledged(count)
        assert order[:2] == ["send", "sync"]

    run(test)


def test_the_slave_is_elected_when_its_master_is_killed(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        old, new = pair.master, pair.slave
        old.put(b"one")
        await old.acknowledged(1)
        await old.kill()
        await pair.until(lambda: new.role is PairRole.MASTER and new.led == 1)
        new.put(b"two")
        await new.acknowledged(1)
        assert new.disk.bodies() == [b"one", b"two"]
        await old.start()
        await pair.until(lambda: pair.in_sync == {"a", "b"})
        new.put(b"three")
        await new.acknowledged(2)
        assert old.disk.bodies() == [b"one", b"two", b"three"]
        assert segments(pair.a.disk) == segments(pair.b.disk)

    run(test)


def test_a_master_that_is_cut_off_cannot_acknowledge_and_is_fenced(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        old = pair.master
        old.put(b"one")
        await old.acknowledged(1)
        pair.network.cut()
        pair.zookeeper.expire(old.store)
        pair.zookeeper.live.pop(old.name)
        old.put(b"lost")
        await pair.until(lambda: len(pair.masters) == 1)
        await until_true(lambda: pair.a.ended is not None or pair.b.ended is not None or pair.in_sync == {old.name})
        assert (old.ended is None) == (pair.in_sync == {old.name})

    run(test)


def test_a_master_is_told_whenever_the_other_member_begins_to_follow(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        master, slave = pair.master, pair.slave
        assert (master.followed, slave.followed) == (1, 0)
        await slave.kill()
        await pair.until(lambda: pair.in_sync == {master.name})
        await slave.start()
        await pair.until(lambda: pair.in_sync == {"a", "b"})
        assert (master.followed, slave.followed) == (2, 0)

    run(test)


@pytest.mark.parametrize("window_bytes", [1 << 20, 0], ids=["at once", "in its turn"])
def test_a_defect_while_sending_costs_the_connection_only(
    run: Run, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    """Otherwise pings keep the connection, and whoever has put something waits for a run that was never sent."""
    monkeypatch.setattr(leader_links, "WINDOW_BYTES", window_bytes)

    async def test(pair: DrivenPair) -> None:
        pair.master.put(b"one")
        await pair.master.acknowledged(1)
        read, faults, before = PartitionStream.read, [ValueError("a defect")], len(pair.network.wires)

        def broken(stream: PartitionStream, offset: int, limit: int, bytes_max: int) -> StreamBytes:
            if faults:
                raise faults.pop()
            return read(stream, offset, limit, bytes_max)

        monkeypatch.setattr(PartitionStream, "read", broken)
        pair.master.put(b"two")
        await pair.master.acknowledged(2)
        await pair.until(lambda: pair.slave.disk.bodies() == [b"one", b"two"])
        assert len(pair.network.wires) > before

    run(test)


def test_after_a_defect_while_connecting_it_is_tried_again(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        slave, master = pair.slave, pair.master
        await slave.kill()
        await pair.until(lambda: pair.in_sync == {master.name})
        pair.network.defects.append(ValueError("a defect"))
        await pair.until(lambda: not pair.network.defects)
        await slave.start()
        await pair.until(lambda: pair.in_sync == {"a", "b"})

    run(test)


def test_a_killed_slave_leaves_the_set_and_the_master_goes_on(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        master, slave = pair.master, pair.slave
        await slave.kill()
        master.put(b"one")
        await master.acknowledged(1)
        assert pair.in_sync == {master.name}

    run(test)


def test_with_two_required_a_master_alone_refuses(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        master, slave = pair.master, pair.slave
        await slave.kill()
        await until_true(lambda: not master.gates[-1][0])
        assert master.gates[-1][1] == "1 of 2 required members are in sync"
        await slave.start()
        await until_true(lambda: master.gates[-1][0])

    run(test, min_in_sync=2)


def test_a_planned_switch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SWITCH_S", 60.0)  # a busy machine

    async def test(pair: DrivenPair) -> None:
        old, new = pair.master, pair.slave
        old.put(b"one")
        await old.acknowledged(1)
        assert await old.driver.switch()
        await pair.until(lambda: new.role is PairRole.MASTER)
        assert old.ended is not None
        await old.kill()
        await old.start()
        await pair.until(lambda: pair.in_sync == {"a", "b"})
        assert pair.master is new

    run(test)


def test_a_switch_that_was_given_up_does_not_happen_later(run: Run) -> None:
    """The slave could not read the record when it was asked to stand for election."""

    async def test(pair: DrivenPair) -> None:
        old, new = pair.master, pair.slave
        new.store.is_cut = True
        assert not await old.driver.switch()
        assert old.gates[-1] == (True, "in sync")
        new.store.is_cut = False
        await pair.until(lambda: new.driver.store_trouble is None)
        old.put(b"one")
        await old.acknowledged(1)
        assert (old.role, new.role) == (PairRole.MASTER, PairRole.IN_SYNC)

    run(test)


def test_an_election_that_has_begun_when_a_switch_is_given_up_counts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is changed just too late."""

    async def test(pair: DrivenPair) -> None:
        old, new = pair.master, pair.slave
        change, has_begun, has_expired = new.store.compare_and_set, asyncio.Event(), asyncio.Event()
        is_replaced_within = old.driver._is_replaced_within

        async def late(version: int | None, content: bytes) -> object:
            has_begun.set()
            await has_expired.wait()
            return await change(version, content)

        async def until_begun(seconds: float) -> bool:
            if seconds != driver.SWITCH_S:
                return await is_replaced_within(seconds)
            await has_begun.wait()
            return False

        monkeypatch.setattr(old.driver, "_is_replaced_within", until_begun)
        monkeypatch.setattr(new.store, "compare_and_set", late)
        monkeypatch.setattr(driver, "OUTCOME_S", 60.0)  # a busy machine
        pair.network.answer_s = 30.0  # that it follows no more is heard later than that it has won
        switch = asyncio.create_task(old.driver.switch())
        await pair.until(lambda: old.gates[-1] == (True, "in sync") and len(old.gates) > 2)
        has_expired.set()
        assert await switch
        await pair.until(lambda: new.role is PairRole.MASTER)

    run(test)


def test_a_member_joins_while_clients_put_and_its_answers_take_long(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        master, slave = pair.master, pair.slave
        await slave.kill()
        await pair.until(lambda: pair.in_sync == {master.name})
        pair.network.answer_s = 0.2

        async def puts() -> None:
            while True:
                master.put(b"one of many")
                await asyncio.sleep(0.001)

        clients = asyncio.create_task(puts())
        await slave.start()
        await pair.until(lambda: pair.in_sync == {"a", "b"})
        clients.cancel()

    run(test)


def test_what_retention_removes_of_a_topic_that_was_made_anew_is_removed_at_both(run: Run) -> None:
    """The new topic begins at 0, before the start that the old one had."""

    async def test(pair: DrivenPair) -> None:
        master, slave = pair.master, pair.slave
        disk = master.disk
        disk.maintenance.deleted = disk.streams.deleted
        for messages in (60, 30):
            for number in range(messages):
                master.put(b"%d" % number)
            await pair.until(lambda: len(slave.disk.bodies()) == len(disk.bodies()) == messages)  # noqa: B023
            log = disk.stores.get("t", 0)
            assert log is not None
            await disk.retention.remove_before(log, log.active.start)
            assert log.start_offset > 0
            await pair.until(lambda: slave.disk.bodies() == disk.bodies())
            if messages == 60:
                await disk.maintenance.delete("t", [0], force=True)
                await pair.until(lambda: slave.disk.bodies() == [])

    run(test)


def test_a_partition_with_unconfirmed_messages_is_deleted_and_made_anew(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        master, slave = pair.master, pair.slave
        disk = master.disk
        disk.maintenance.deleted = disk.streams.deleted
        for name in ("one", "two"):
            for _ in range(3):
                master.put(name.encode())
            disk.stores.store_of("t").get_or_create("t", 1)  # it stays empty, and was never synced
            async with asyncio.timeout(60):
                assert await disk.maintenance.delete("t", [0, 1], force=True) == [0, 1]
        assert [answer is None for answer in disk.answers] == [False] * 6
        master.put(b"three")
        await pair.until(lambda: disk.answers[-1] is None)
        await pair.until(lambda: disk.bodies() == slave.disk.bodies() == [b"three"])
        assert segments(disk) == segments(slave.disk)
        assert pair.in_sync == {"a", "b"}

    run(test)


def test_a_master_never_cuts_what_the_other_member_may_have(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would acknowledge other messages at the same offsets, which the other member takes for its own."""

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(driver, "SWITCH_S", 60.0)  # a busy machine

    async def test(pair: DrivenPair) -> None:
        old, new = pair.master, pair.slave
        old.put(b"one")
        await old.acknowledged(1)
        with monkeypatch.context() as patch:
            patch.setattr(old.disk.files, "fdatasync", broken)
            old.put(b"two")
            commits: list[Exception | None] = []
            log = old.disk.stores.get("t", 0)
            assert log is not None
            old.disk.commit.wait_durable(log, log.end_offset, commits.append)
            await pair.until(lambda: old.disk.answers[-1] is not None and bool(commits))
        assert says_may_be_stored(str(old.disk.answers[-1])), "it is, after the switch below"
        assert isinstance(commits[0], LogFailed)
        assert not says_may_be_stored(str(commits[0])), "a commit that fails here is done all the same"
        await pair.until(lambda: new.disk.bodies() == [b"one", b"two"])
        with pytest.raises(MaintenanceRefused, match="hand over"):
            await old.disk.maintenance.reopen("t", 0)
        assert old.disk.bodies() == [b"one"]
        assert await old.driver.switch()
        await old.kill()
        await old.start()
        await pair.until(lambda: pair.in_sync == {"a", "b"} and new.led == 1)
        new.put(b"three")
        await new.acknowledged(1)
        assert old.disk.bodies() == new.disk.bodies() == [b"one", b"two", b"three"]
        assert segments(pair.a.disk) == segments(pair.b.disk)

    run(test)


def test_partitions_of_a_pair_are_not_moved(run: Run) -> None:
    """A put to the old or the new index would be acknowledged, or wait, against another partition's copy."""

    async def test(pair: DrivenPair) -> None:
        disk = pair.master.disk
        pair.master.put(b"one")
        await pair.master.acknowledged(1)
        disk.maintenance.close("t", [0])
        with pytest.raises(MaintenanceRefused, match="partition t-0 is at both members of a pair"):
            await disk.maintenance.move("t", [0], 1)
        assert disk.bodies() == pair.slave.disk.bodies() == [b"one"]

    run(test)


def test_a_member_leaves_and_joins(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        slave = pair.slave
        slave.driver.leave()
        await pair.until(lambda: pair.in_sync == {pair.master.name})
        pair.master.put(b"one")
        await pair.master.acknowledged(1)
        assert slave.role is PairRole.LEARNER
        slave.driver.join()
        await pair.until(lambda: pair.in_sync == {"a", "b"})

    run(test)


def test_foreign_content_at_the_records_path_is_reported_and_changes_nothing(run: Run) -> None:
    async def test(pair: DrivenPair) -> None:
        pair.zookeeper.put(b"of somebody else")
        await until_true(lambda: "cannot be used" in (pair.master.driver.store_trouble or ""))
        pair.master.put(b"one")
        await pair.master.acknowledged(1)
        assert pair.zookeeper.record is not None
        assert pair.zookeeper.record.content == b"of somebody else"

    run(test)
