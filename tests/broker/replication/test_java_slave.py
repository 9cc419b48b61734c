"""A synchronous pair whose slave is a Java broker: after a restart it lists a partition only when it was written to."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from metaq_broker.app import Broker
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.replication import java_slave
from metaq_broker.replication.gregor import Answer, SyncSlave
from metaq_broker.replication.local import CopyRefused
from metaq_broker.replication.peer import CopiedMessage, Declined, PartitionKey, Peer, StoredRange
from metaq_broker.text.link import BrokerLink
from metaq_broker.text.peer import TextPeer
from replicated import (
    bodies,
    client,
    configured,
    put,
    put_many,
    running,
    samsa,
    until_in_sync,
    until_same,
)
from waiting import in_loop, until

from metaq.formats.checksum import checksum
from metaq.formats.frames import walk
from metaq.protocols.text.commands import Put, Sync

pytestmark = pytest.mark.usefixtures("plain_brokers")


class Unopened:
    """The partitions that the slave has and does not list yet; a ``sync`` opens one, as in a Java broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.partition_keys: set[PartitionKey] = set()
        self.stored = 0
        """Messages, since the last ``forget``."""
        stored_ranges, sync = TextPeer.stored_ranges, SyncSlave.sync

        async def listed(peer: TextPeer) -> dict[PartitionKey, StoredRange]:
            return {
                partition_key: there
                for partition_key, there in (await stored_ranges(peer)).items()
                if partition_key not in self.partition_keys
            }

        def opening(slave: SyncSlave, message: CopiedMessage, answer: Answer) -> None:
            self.partition_keys.discard(message.partition_key)
            self.stored += message.checksum == checksum(message.body)
            sync(slave, message, answer)

        monkeypatch.setattr(TextPeer, "stored_ranges", listed)
        monkeypatch.setattr(SyncSlave, "sync", opening)

    def forget(self, *partition_keys: PartitionKey) -> None:
        """The slave was restarted, and has not opened these."""
        self.partition_keys, self.stored = set(partition_keys), 0


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> Unopened:
    return Unopened(monkeypatch)


async def trouble(master: Broker, words: str) -> None:
    await until(lambda: words in str(master.replication.trouble), words)


@asynccontextmanager
async def pair_with(folder: Path, slave: Broker) -> AsyncIterator[tuple[Broker, BrokerLink]]:
    """Run the master of a running slave, and a connection to it."""
    async with running(configured(folder / "m", role=samsa(slave))) as master, client(master) as producer:
        yield master, producer


def slave_config(folder: Path, port: int = 0) -> BrokerConfig:
    return configured(folder / "s", role="[gregor]", port=port)


def stored_in(folder: Path, partition: str = "t-0") -> int:
    """How many messages a partition has on the disk."""
    return sum(len(list(walk(path.read_bytes()))) for path in sorted((folder / partition).glob("*.meta")))


@in_loop
async def test_a_slave_that_was_restarted_is_not_sent_everything_again(tmp_path: Path, unopened: Unopened) -> None:
    async with running(slave_config(tmp_path)) as slave:
        port = slave.port
        async with pair_with(tmp_path, slave) as (master, producer):
            await until_in_sync(master)
            await put_many(producer, bodies(50))
            await slave.close()
            unopened.forget(("t", 0))
            async with running(slave_config(tmp_path, port)):
                await until_in_sync(master)
                assert unopened.stored == 0
                await put_many(producer, bodies(20, mark=1))
                assert unopened.stored == 20
                await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_both_are_restarted_and_nothing_is_sent_again(tmp_path: Path, unopened: Unopened) -> None:
    for mark in range(3):
        async with running(slave_config(tmp_path)) as slave, pair_with(tmp_path, slave) as (master, producer):
            await until_in_sync(master)
            assert unopened.stored == 0
            assert not unopened.partition_keys
            for index in range(2):
                await put_many(producer, bodies(12, mark=mark), "t", index)
                await put_many(producer, bodies(12, mark=mark), "other", index)
            await until_same(tmp_path / "m", tmp_path / "s")
            assert unopened.stored == 48
        unopened.forget(("t", 1), ("other", 0))


@in_loop
async def test_a_slave_that_lost_its_messages_is_sent_them_again(tmp_path: Path, unopened: Unopened) -> None:
    async with running(slave_config(tmp_path)) as slave, pair_with(tmp_path, slave) as (master, producer):
        await until_in_sync(master)
        await put_many(producer, bodies(15))
    shutil.rmtree(tmp_path / "s" / "t-0")
    async with running(slave_config(tmp_path)) as slave, pair_with(tmp_path, slave) as (master, producer):
        await until_in_sync(master)
        await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_a_slave_has_answered_and_not_synced_yet(
    tmp_path: Path, unopened: Unopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports what it has synced, and stores the next message behind what it has not."""
    async with running(slave_config(tmp_path)) as slave:
        async with pair_with(tmp_path, slave) as (master, producer):
            await until_in_sync(master)
            await put_many(producer, bodies(15))
        unopened.forget()
        stored_ranges, synced = TextPeer.stored_ranges, False

        async def listed(peer: TextPeer) -> dict[PartitionKey, StoredRange]:
            found = await stored_ranges(peer)
            return found if synced else dict.fromkeys(found, StoredRange(0, 0))

        monkeypatch.setattr(TextPeer, "stored_ranges", listed)
        async with pair_with(tmp_path, slave) as (master, producer):
            await trouble(master, "the slave has not synced all messages of topic t yet")
            assert (await put(producer, b"no"))[0] == 500
            synced = True
            await until_in_sync(master)
            assert unopened.stored == 0
            await put_many(producer, bodies(5, mark=1))
            await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_a_slave_still_stores_what_an_earlier_connection_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_slave, "SETTLE_S", 0.0)
    ranges = [{("t", 0): StoredRange(0, end)} for end in (0, 120, 240, 240)]
    peer = SlowPeer(ranges)
    found = await java_slave.settled_ranges(cast(Peer, peer), [("t", 0), ("t", 1)])
    assert found == {("t", 0): StoredRange(0, 240), ("t", 1): Declined("500 no")}
    endless = SlowPeer([{("t", 0): StoredRange(0, 120 * number)} for number in range(100)])
    with pytest.raises(CopyRefused, match="still stores messages"):
        await java_slave.settled_ranges(cast(Peer, endless), [("t", 0)])


@dataclass
class SlowPeer:
    """A slave that has more at each look."""

    looks: list[dict[PartitionKey, StoredRange]]

    async def stored_ranges(self) -> dict[PartitionKey, StoredRange]:
        return self.looks.pop(0)

    async def opened(self, partition_keys: list[PartitionKey], group: str) -> list[Declined]:
        return [Declined("500 no") for _ in partition_keys]

    async def stored_bytes(self, topics: list[str]) -> list[int | None]:
        return [None for _ in topics]


@in_loop
async def test_a_master_that_lost_its_messages_sends_nothing(tmp_path: Path, unopened: Unopened) -> None:
    """Neither to a partition that it opens at its start, nor to one that is made later."""
    async with running(slave_config(tmp_path)) as slave:
        async with pair_with(tmp_path, slave) as (master, producer):
            await until_in_sync(master)
            await put_many(producer, bodies(15))
        shutil.rmtree(tmp_path / "m")
        unopened.forget(("t", 0))
        async with pair_with(tmp_path, slave) as (master, producer):
            await until_in_sync(master)
            assert (await put(producer, b"anew"))[0] == 500
            await trouble(master, "partition t-0: the copy ends at 1800, past the end of its original, 24")
        assert (unopened.stored, stored_in(tmp_path / "s")) == (0, 15)


@in_loop
async def test_a_slave_that_does_not_take_a_topic_is_named(tmp_path: Path, unopened: Unopened) -> None:
    config = slave_config(tmp_path)
    config = replace(config, topics={"u": config.topics["*"]})
    async with running(config) as slave, pair_with(tmp_path, slave) as (master, producer):
        await until_in_sync(master)
        assert (await put(producer, b"u", "u"))[0] == 200
        assert (await put(producer, b"t"))[0] == 500
        await trouble(master, "partition t-0: the slave does not take it: 500 ")
        await trouble(master, "do not accept topic t")


@in_loop
async def test_a_message_that_is_stored_in_a_wrong_place_is_the_last_one(tmp_path: Path, unopened: Unopened) -> None:
    """Another program has put one to the slave: the pair is out of sync until its partition is removed there."""
    async with running(slave_config(tmp_path)) as slave:
        port = slave.port
        async with pair_with(tmp_path, slave) as (master, producer):
            await until_in_sync(master)
            await put_many(producer, bodies(15))
        async with pair_with(tmp_path, slave) as (master, producer), client(slave) as other:
            await until_in_sync(master)
            await other.text(lambda opaque: Sync("t", 0, b"foreign", 0, 1, opaque, -1), "sync")
            unopened.forget()
            sent = [producer.send(lambda opaque, b=body: Put("t", 0, b, 0, opaque)) for body in bodies(10, mark=1)]
            for future in sent:
                assert (await producer.settle(future)).code == 500  # type: ignore[union-attr]
            await trouble(master, "partition t-0: the copy")
            assert (unopened.stored, stored_in(tmp_path / "s")) == (1, 17)
            await slave.close()
            shutil.rmtree(tmp_path / "s" / "t-0")
            async with running(slave_config(tmp_path, port)):
                await until_in_sync(master)
                await until_same(tmp_path / "m", tmp_path / "s")
                assert stored_in(tmp_path / "s") == 25
