"""A synchronous pair whose slave is a Java broker: after a restart it lists a partition only when it was written to."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from metaq_broker.app import Broker
from metaq_broker.frontends.text.link import Link
from metaq_broker.frontends.text.peer import TextPeer
from metaq_broker.replication.gregor import Answer, SyncSlave
from metaq_broker.replication.peer import CopiedMessage, PartitionKey, StoredRange
from replicated import (
    bodies,
    client,
    configured,
    put,
    put_many,
    running,
    samsa,
    segments,
    until_in_sync,
    until_same,
)
from waiting import in_loop, until

from metaq.formats.frames import walk

pytestmark = pytest.mark.usefixtures("plain_brokers")


class Unopened:
    """The partitions that the slave has and does not list yet; a ``sync`` opens one, as in a Java broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.partition_keys: set[PartitionKey] = set()
        self.synced = 0
        stored_ranges, sync = TextPeer.stored_ranges, SyncSlave.sync

        async def listed(peer: TextPeer) -> dict[PartitionKey, StoredRange]:
            return {
                partition_key: there
                for partition_key, there in (await stored_ranges(peer)).items()
                if partition_key not in self.partition_keys
            }

        def opening(slave: SyncSlave, message: CopiedMessage, answer: Answer) -> None:
            self.partition_keys.discard(message.partition_key)
            self.synced += 1
            sync(slave, message, answer)

        monkeypatch.setattr(TextPeer, "stored_ranges", listed)
        monkeypatch.setattr(SyncSlave, "sync", opening)


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> Unopened:
    return Unopened(monkeypatch)


async def trouble(master: Broker, words: str) -> None:
    await until(lambda: words in str(master._replication.trouble), words)


@asynccontextmanager
async def pair_with(folder: Path, slave: Broker) -> AsyncIterator[tuple[Broker, Link]]:
    """Run the master of a running slave, and a connection to it."""
    async with running(configured(folder / "m", role=samsa(slave))) as master, client(master) as producer:
        yield master, producer


@in_loop
async def test_a_slave_that_was_restarted_is_not_sent_everything_again(tmp_path: Path, unopened: Unopened) -> None:
    async with running(configured(tmp_path / "s", role="[gregor]")) as slave:
        port = slave.port
        async with pair_with(tmp_path, slave) as (master, producer):
            await until_in_sync(master)
            await put_many(producer, bodies(50))
            await slave.close()
            unopened.partition_keys, unopened.synced = {("t", 0)}, 0
            async with running(configured(tmp_path / "s", role="[gregor]", port=port)):
                await until_in_sync(master)
                assert unopened.synced == 0
                await put_many(producer, bodies(20, mark=1))
                assert unopened.synced == 20
                await until_same(tmp_path / "m", tmp_path / "s")


@in_loop
async def test_a_master_that_does_not_know_what_the_slave_has_stops_after_one_message(
    tmp_path: Path, unopened: Unopened
) -> None:
    async with running(configured(tmp_path / "s", role="[gregor]")) as slave:
        port = slave.port
        async with pair_with(tmp_path, slave) as (master, producer):
            await until_in_sync(master)
            await put_many(producer, bodies(15))
        unopened.partition_keys, unopened.synced = {("t", 0)}, 0
        end = sum(map(len, segments(tmp_path / "m").values()))
        async with pair_with(tmp_path, slave) as (master, producer):
            await trouble(master, f"stored the message of offset 0 at {end}; nothing more is sent")
            await trouble(master, "remove this partition's folder there")
            assert (await put(producer, b"x"))[0] == 500
            assert unopened.synced == 1
            await slave.close()
            shutil.rmtree(tmp_path / "s" / "t-0")
            async with running(configured(tmp_path / "s", role="[gregor]", port=port)):
                await until_in_sync(master)
                await until_same(tmp_path / "m", tmp_path / "s")
                frames = [frame for data in segments(tmp_path / "s").values() for frame in walk(data)]
                assert len(frames) == 15
