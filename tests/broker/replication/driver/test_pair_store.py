"""One contract for the stores of a pair's record: the one in memory, and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import pytest
from fix_zookeeper import SESSION_S, ZooKeeperRoot
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE
from memory_store import MemoryServer
from metaq_broker.replication.driver.store import (
    Conflict,
    LiveMember,
    PairStore,
    StoreAway,
    StoredRecord,
    StoreRefused,
)
from metaq_broker.replication.driver.zookeeper_store import ZooKeeperStore

from metaq.discovery.zk_client import end_session

DEADLINE_S = 60.0
ONE, TWO = LiveMember("10.0.0.1:8123", False), LiveMember("10.0.0.2:8123", True)


class Server(Protocol):
    """A store's server, as the contract needs it."""

    def client(self) -> PairStore: ...

    def put(self, content: bytes) -> None: ...

    def empty(self) -> None: ...

    def forbid_writes(self) -> None: ...

    def expire(self, client: PairStore) -> None: ...


class InMemory(MemoryServer):
    def forbid_writes(self) -> None:
        self.read_only = True


class RealZooKeeper:
    """A path of a real server that only one test uses."""

    def __init__(self, zookeeper: ZooKeeperRoot) -> None:
        self._zookeeper = zookeeper

    def client(self) -> ZooKeeperStore:
        return ZooKeeperStore(self._zookeeper.server.address, self._zookeeper.root, 3, SESSION_S)

    def put(self, content: bytes) -> None:
        self._zookeeper.put("/pairs/3", content.decode())

    def empty(self) -> None:
        self._zookeeper.client.delete(f"{self._zookeeper.root}/pairs", recursive=True)

    def forbid_writes(self) -> None:
        path = f"{self._zookeeper.root}/pairs/3"
        self._zookeeper.client.ensure_path(path)
        self._zookeeper.client.set_acls(path, READ_ACL_UNSAFE)

    def allow_writes(self) -> None:
        self._zookeeper.client.set_acls(f"{self._zookeeper.root}/pairs/3", OPEN_ACL_UNSAFE)

    def expire(self, client: PairStore) -> None:
        assert isinstance(client, ZooKeeperStore)
        end_session(client._client)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that runs in an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        async def finish() -> None:
            await test(**fixtures)

        asyncio.run(finish())

    return run


@pytest.fixture(params=["memory", "zookeeper"])
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "memory":
        return InMemory()
    return RealZooKeeper(request.getfixturevalue("zookeeper"))


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[PairStore]:
    store = server.client()
    try:
        await answered(store.read)
        yield store
    finally:
        await store.close()


async def answered(ask: Callable[[], Awaitable[object]]) -> object:
    """Ask until the store answers."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await ask()
            except StoreAway:
                await asyncio.sleep(0.01)


async def seen(store: PairStore, condition: Callable[[PairStore], Awaitable[bool]]) -> None:
    """Return when a change has been notified after which ``condition`` holds."""
    changed = asyncio.Event()
    store.watch(changed.set)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            changed.clear()
            try:
                if await condition(store):
                    return
            except StoreAway:
                pass
            await changed.wait()


@in_loop
async def test_the_first_one_to_store_a_record_wins(server: Server) -> None:
    async with connected(server) as one, connected(server) as two:
        assert await one.read() is None
        version = await one.compare_and_set(None, b"1")
        assert isinstance(version, int)
        assert await two.compare_and_set(None, b"2") is Conflict.CONFLICT
        assert await one.read() == await two.read() == StoredRecord(b"1", version)


@in_loop
async def test_a_record_changes_from_the_read_version_only(server: Server) -> None:
    async with connected(server) as one, connected(server) as two:
        first = await one.compare_and_set(None, b"1")
        assert isinstance(first, int)
        second = await two.compare_and_set(first, b"2")
        assert isinstance(second, int)
        assert second != first
        assert await one.compare_and_set(first, b"3") is Conflict.CONFLICT
        assert await one.read() == StoredRecord(b"2", second)


@in_loop
async def test_a_record_that_is_gone_does_not_come_back_by_a_change(server: Server) -> None:
    async with connected(server) as store:
        version = await store.compare_and_set(None, b"1")
        server.empty()
        assert await store.read() is None
        assert isinstance(version, int)
        assert await store.compare_and_set(version, b"2") is Conflict.CONFLICT
        assert await store.read() is None
        assert isinstance(await store.compare_and_set(None, b"3"), int)


@in_loop
async def test_foreign_content_is_returned_as_it_is_and_not_replaced(server: Server) -> None:
    async with connected(server) as store:
        server.put(b"of somebody else")
        found = await store.read()
        assert found is not None
        assert found.content == b"of somebody else"
        assert await store.compare_and_set(None, b"1") is Conflict.CONFLICT
        assert await store.read() == found


@in_loop
async def test_a_change_is_noticed(server: Server) -> None:
    async with connected(server) as one, connected(server) as two:
        version = await one.compare_and_set(None, b"1")

        async def has_two(store: PairStore) -> bool:
            record = await store.read()
            return record is not None and record.content == b"2"

        waiting = asyncio.create_task(seen(one, has_two))
        assert isinstance(version, int)
        await two.compare_and_set(version, b"2")
        await waiting


@in_loop
async def test_who_is_alive(server: Server) -> None:
    async with connected(server) as one:
        assert await one.alive() == {}
        await one.announce("u1", ONE)
        async with connected(server) as two:
            await two.announce("u2", TWO)
            assert await one.alive() == {"u1": ONE, "u2": TWO}

        async def alone(store: PairStore) -> bool:
            return await store.alive() == {"u1": ONE}

        await seen(one, alone)
        assert await one.read() is None  # announcements make no record


@in_loop
async def test_a_member_that_starts_again_is_announced_with_what_it_says_now(server: Server) -> None:
    async with connected(server) as before, connected(server) as after:
        await before.announce("u1", ONE)
        await after.announce("u1", TWO)
        assert await after.alive() == {"u1": TWO}


@in_loop
async def test_a_session_that_ends_is_followed_by_another_announcement(server: Server) -> None:
    async with connected(server) as one, connected(server) as two:
        await one.announce("u1", ONE)
        server.expire(one)

        async def back(store: PairStore) -> bool:
            return await store.alive() == {"u1": ONE}

        await seen(two, back)
        await answered(one.read)


@in_loop
async def test_a_store_that_refuses_changes_says_so(server: Server) -> None:
    async with connected(server) as store:
        server.forbid_writes()
        with pytest.raises(StoreRefused):
            await store.compare_and_set(None, b"1")
        assert await store.read() is None


@in_loop
async def test_a_lost_answer_leaves_open_what_became_of_the_change() -> None:
    server = InMemory()
    async with connected(server) as store:
        server.lose_answers = True
        with pytest.raises(StoreAway):
            await store.compare_and_set(None, b"1")
        found = await store.read()
        assert found is not None
        assert found.content == b"1"


@in_loop
async def test_a_frozen_zookeeper_is_away(zookeeper: ZooKeeperRoot) -> None:
    async with connected(RealZooKeeper(zookeeper)) as store:
        zookeeper.server.freeze()
        with pytest.raises(StoreAway):
            await store.compare_and_set(None, b"1")
        with pytest.raises(StoreAway):
            await store.read()
        zookeeper.server.thaw()
        await answered(store.read)


@in_loop
async def test_a_zookeeper_that_cannot_be_reached_is_away_at_once() -> None:
    store = ZooKeeperStore("127.0.0.1:1", "/meta", 3, SESSION_S)
    with pytest.raises(StoreAway, match="ZooKeeper cannot be reached"):
        await store.read()
    await store.close()
