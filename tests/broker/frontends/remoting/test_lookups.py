"""Messages by key: which are found, within which limits, and what a restart has to read again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from shutil import rmtree

from metaq_broker.frontends.remoting.lookups import MESSAGES_MAX, LookupRequests
from metaq_broker.frontends.remoting.message_store import StoredBatch
from metaq_broker.key_index.key_index import KeyIndex
from metaq_broker.storage.files import Files
from waiting_broker import WaitingBroker, play, until

from metaq.formats.rocketmq.records import read_records
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.pulls import QueryMessage

ALWAYS = (1 << 63) - 1


class Lookups:
    """A broker whose messages are indexed."""

    def __init__(self, broker: WaitingBroker, folder: Path) -> None:
        self.broker = broker
        self.index = KeyIndex.open(
            Files(), folder / "rocketmq-keys", lambda: {k: e for k, (_, e) in self._ranges().items()}
        )
        self.requests = LookupRequests(broker.store, self.index, self._ranges)
        self.requests.mount(broker.dispatcher)
        broker.store.when_stored(self.requests.stored)
        self.requests.start()

    def _ranges(self) -> dict[tuple[str, int], tuple[int, int]]:
        store = self.broker.store
        queues = [(log.topic, log.index) for log in self.broker.stores.logs()]
        return {queue: (store.min_offset(*queue), store.max_offset(*queue)) for queue in queues}

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


def look_up(folder: Path, test: Callable[[Lookups], Awaitable[None]], clean: bool = True) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        lookups = Lookups(broker, folder)
        await test(lookups)
        if clean:
            await lookups.requests.stop()
        else:
            lookups.requests._reading.cancel()  # type: ignore[union-attr]
            lookups.index._thread.shutdown()

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
        async with asyncio.timeout(10):
            while not await lookups.found("k1"):
                await asyncio.sleep(0.005)
            while await lookups.found("U3") != [b"three"]:
                await asyncio.sleep(0.005)

    async def second(lookups: Lookups) -> None:
        await again(lookups)
        await lookups.broker.stored(b"four", {"KEYS": "k1"})
        assert await lookups.found("k1") == [b"one", b"four"]
        await until(lambda: lookups.index.gaps("t", 0, 0, 3) == [])

    async def third(lookups: Lookups) -> None:
        assert lookups.index.gaps("t", 0, 0, 4) == []
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
