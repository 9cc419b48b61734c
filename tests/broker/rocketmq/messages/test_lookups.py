"""Messages by key: which are found, within which limits, and what a restart has to read again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from shutil import rmtree

import pytest
from metaq_broker.log.engine.maintenance import PartitionMaintenance
from metaq_broker.log.files.files import Files
from metaq_broker.rocketmq.key_index import key_index
from metaq_broker.rocketmq.messages.lookups import MESSAGES_MAX
from metaq_broker.rocketmq.messages.message_store import StoredBatch
from metaq_broker.rocketmq.parts import lookups
from remoting_brokers import WaitingBroker, play
from waiting import until

from metaq.formats.rocketmq.records import read_records
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.pulls import QueryMessage

ALWAYS = (1 << 63) - 1


class Lookups:
    """A broker whose messages are indexed."""

    def __init__(self, broker: WaitingBroker, folder: Path) -> None:
        self.broker = broker
        self.requests = lookups(broker.store, broker.engine, Files(), folder)
        self.index = self.requests._index
        self.requests.mount(broker.dispatcher)
        self.requests.start()

    def kill(self) -> None:
        """Leave the index as it is on the disk."""
        assert self.requests._reading is not None
        self.requests._reading.cancel()
        self.index._thread.shutdown()

    async def ask(
        self, key: str, count: int = 32, unique: bool | None = None, begin: int = 0, end: int = ALWAYS, topic: str = "t"
    ) -> RemotingCommand:
        header = QueryMessage(
            topic=topic, key=key, max_num=count, begin_timestamp=begin, end_timestamp=end, unique_key=unique
        )
        return await self.broker.ask(to_request(header, opaque=3))

    async def found(self, key: str, **more: object) -> list[bytes]:
        response = await self.ask(key, **more)  # type: ignore[arg-type]
        if response.code == 22:
            assert response.body == b""
            return []
        assert response.code == 0, response.remark
        return [each.body for each in read_records(response.body)]


def gaps(lookups: Lookups, topic: str, queue: int, first: int, end: int) -> list[tuple[int, int]]:
    log = lookups.broker.stores.get(topic, queue)
    assert log is not None
    return lookups.index.coverage().gaps(f"{topic}/{log.incarnation}", queue, first, end)


def look_up(folder: Path, test: Callable[[Lookups], Awaitable[None]], clean: bool = True) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        life = Lookups(broker, folder)
        await test(life)
        if clean:
            await life.requests.stop()
        else:
            life.kill()

    play(folder, scenario, clean=clean)


async def fill(lookups: Lookups) -> list[StoredBatch]:
    send = lookups.broker.stored
    return [
        await send(b"one", {"KEYS": "k1 k2", "UNIQ_KEY": "U1"}),
        await send(b"two", {"KEYS": "k2", "UNIQ_KEY": "U2"}, queue=3),
        await send(b"three", {"UNIQ_KEY": "U3", "note": "KEYS"}),
        await send(b"none"),
    ]


def test_by_key_and_by_unique_key(tmp_path: Path) -> None:
    async def test(lookups: Lookups) -> None:
        stored = await fill(lookups)
        assert await lookups.found("k1") == [b"one"]
        assert sorted(await lookups.found("k2")) == [b"one", b"two"]
        assert await lookups.found("U3", unique=True) == [b"three"]
        assert await lookups.found("U3") == [b"three"]
        assert await lookups.found("k1", unique=True) == []
        assert await lookups.found("k1 k2") == []
        assert await lookups.found("k2", topic="other") == []
        response = await lookups.ask("k1")
        assert response.ext == {
            "indexLastUpdateTimestamp": str(stored[2].store_time),
            "indexLastUpdatePhyoffset": str(stored[2].physical_offsets[0]),
        }

    look_up(tmp_path, test)


def test_others_are_served_between_messages_that_are_looked_at_in_vain(tmp_path: Path) -> None:
    async def test(lookups: Lookups) -> None:
        for _ in range(20):
            await lookups.broker.stored(bytes(100), {"KEYS": "k"})
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        served = asyncio.create_task(other())
        assert await lookups.found("k", unique=True) == []
        served.cancel()
        assert turns >= 20

    look_up(tmp_path, test)


def test_limits_of_number_and_time(tmp_path: Path) -> None:
    async def test(lookups: Lookups) -> None:
        for number in range(MESSAGES_MAX + 6):
            await lookups.broker.stored(b"%d" % number, {"KEYS": "k"})
        assert await lookups.found("k", count=2) == [b"68", b"69"]
        assert len(await lookups.found("k", count=10_000)) == MESSAGES_MAX
        assert await lookups.found("k", count=0) == []
        assert await lookups.found("k", count=-1) == []
        records = lookups.broker.records()
        first, last = records[0].store_timestamp, records[-1].store_timestamp
        assert await lookups.found("k", end=first - 1) == []
        assert await lookups.found("k", begin=last + 1) == []
        assert await lookups.found("k", begin=last, count=1) == [b"69"]

    look_up(tmp_path, test)


def test_a_restart_after_a_kill_reads_what_no_file_knows(tmp_path: Path) -> None:
    async def first(lookups: Lookups) -> None:
        await fill(lookups)

    async def again(lookups: Lookups) -> None:
        async with asyncio.timeout(60):
            while not await lookups.found("k1"):
                await asyncio.sleep(0.005)
            while await lookups.found("U3") != [b"three"]:
                await asyncio.sleep(0.005)

    async def second(lookups: Lookups) -> None:
        await again(lookups)
        await lookups.broker.stored(b"four", {"KEYS": "k1"})
        assert await lookups.found("k1") == [b"one", b"four"]
        await until(lambda: gaps(lookups, "t", 0, 0, 3) == [])

    async def third(lookups: Lookups) -> None:
        assert gaps(lookups, "t", 0, 0, 4) == []
        assert await lookups.found("k1") == [b"one", b"four"]

    look_up(tmp_path, first, clean=False)
    look_up(tmp_path, second)
    look_up(tmp_path, third)
    rmtree(tmp_path / "rocketmq-keys")
    look_up(tmp_path, again)


def test_messages_that_wait_are_not_found_before_they_are_delivered(tmp_path: Path) -> None:
    async def test(lookups: Lookups) -> None:
        await lookups.broker.stored(b"late", {"KEYS": "k", "DELAY": "3"})
        assert await lookups.found("k") == []
        assert await lookups.found("k", topic="SCHEDULE_TOPIC_XXXX") == []
        await lookups.broker.bodies_are(b"late")
        assert await lookups.found("k") == [b"late"]

    look_up(tmp_path, test)


def test_a_kill_while_memories_are_full_loses_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of several queues get durable together, and the index hears of one queue at a time.

    A file that is written in between is not to know those of which the index has not heard yet.
    """
    monkeypatch.setattr(key_index, "MEMORY_ENTRIES", 3)
    sent = {f"k{number}": b"%d" % number for number in range(24)}

    async def first(life: Lookups) -> None:
        send = life.broker.stored
        sends = [send(body, {"KEYS": key}, queue=at % 4) for at, (key, body) in enumerate(sent.items())]
        await asyncio.gather(*sends)
        await until(lambda: life.index._writing is None)

    async def second(life: Lookups) -> None:
        async with asyncio.timeout(60):
            for key, body in sent.items():
                while await life.found(key) != [body]:
                    await asyncio.sleep(0.005)

    look_up(tmp_path, first, clean=False)
    look_up(tmp_path, second)


def test_a_topic_that_was_made_anew_has_other_keys(tmp_path: Path) -> None:
    async def first(life: Lookups) -> None:
        for number in range(5):
            await life.broker.stored(b"old", {"KEYS": f"o{number}"})
        await life.index.flush()
        broker = life.broker
        maintenance = PartitionMaintenance(
            broker.engine, broker.commit, lambda *_: [], no_settling, lambda callback: callback(None)
        )
        await maintenance.delete("t", [0], force=True)
        for number in range(3):
            await broker.stored(b"%d" % number, {"KEYS": f"n{number}"})

    async def second(life: Lookups) -> None:
        async with asyncio.timeout(60):
            for number in range(3):
                while await life.found(f"n{number}") != [b"%d" % number]:
                    await asyncio.sleep(0.005)
        assert await life.found("o1") == []

    look_up(tmp_path, first, clean=False)
    look_up(tmp_path, second)


async def no_settling(*_: object) -> None:
    """Nothing is being moved."""


def test_messages_without_a_number_are_read_when_they_have_one(tmp_path: Path) -> None:
    """Such a message is stored, but has no message id: the disk takes no number for its queue."""

    async def first(life: Lookups) -> None:
        state = life.broker.state
        limit, state.bytes_max = state.bytes_max, 0
        assert (await life.broker.stored(b"one", {"KEYS": "k1"})).unnumbered is not None
        state.bytes_max = limit
        await life.broker.stored(b"two", {"KEYS": "k2"})
        assert life.broker.bodies() == [b"one", b"two"]
        await life.index.flush()
        assert gaps(life, "t", 0, 0, 2) == [(0, 1)]
        assert await life.found("k2") == [b"two"]
        await life.requests._read_gaps()
        assert await life.found("k1") == [b"one"]

    look_up(tmp_path, first)
