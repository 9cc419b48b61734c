"""The record of a pair in ZooKeeper; the event loop never waits for ZooKeeper.

::

    ROOT/pairs/BROKERID              persistent: the record, as JSON; changed with its node's version only
    ROOT/pairs/BROKERID/live/UUID    ephemeral: a member that is alive, with its address

Calls run one after the other in a worker thread.

Source: docs/replication.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from metaq.discovery.zk_client import SessionState, ZooKeeperClient
from metaq.discovery.zk_layout import ZooKeeperLayout
from metaq.errors import ZooKeeperAway, ZooKeeperChanged, ZooKeeperRefused
from metaq_broker.replication.driver.store import (
    Conflict,
    LiveMember,
    OnChange,
    StoreAway,
    StoredRecord,
    StoreRefused,
)

ANSWER_S_MAX: Final = 5.0
"""Longest wait for ZooKeeper's answer to one call."""

_T = TypeVar("_T")


class ZooKeeperStore:
    """One session at ``hosts``, for the pair of ``broker_id`` below the path ``root``; create it on the event loop."""

    def __init__(self, hosts: str, root: str, broker_id: int, session_s: float) -> None:
        self.path: Final = ZooKeeperLayout(root).pair(broker_id)
        self._live: Final = f"{self.path}/live"
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="zookeeper-pair")
        answer_s = min(session_s, ANSWER_S_MAX)
        self._client = ZooKeeperClient(hosts, session_s, answer_s, self._state_changed, self._node_changed)
        self._callback: OnChange = lambda: None
        self._announced: tuple[str, LiveMember] | None = None
        self._connected = False
        self._started = False

    async def read(self) -> StoredRecord | None:
        return await self._work(self._read)

    def _read(self) -> StoredRecord | None:
        self._client.sync(self.path)  # a server that lags behind must not show an old record
        [node] = self._client.read([self.path], watch=True)
        if node is None or not (node.text or node.version):
            return None  # an empty node was made as a parent, and never set
        return StoredRecord(node.text.encode(), node.version)

    async def compare_and_set(self, version: int | None, content: bytes) -> int | Conflict:
        return await self._work(lambda: self._set(version, content.decode()))

    def _set(self, version: int | None, text: str) -> int | Conflict:
        if version is None:
            self._client.ensure([self.path])
            if self._read() is not None:
                return Conflict.CONFLICT
            version = 0  # of a node that was made as a parent, and never set
        refused = self._client.replace({self.path: (text, version)})
        return Conflict.CONFLICT if refused else version + 1

    def watch(self, callback: OnChange) -> None:
        self._callback = callback

    async def announce(self, uuid: str, member: LiveMember) -> None:
        self._announced = uuid, member
        await self._work(self._announce)

    def _announce(self) -> None:
        if self._announced is None:
            return
        uuid, member = self._announced
        path, text = f"{self._live}/{uuid}", member.to_json()
        [node] = self._client.read([path])
        if node is not None and node.owner == self._client.session_id and node.text == text:
            return
        self._client.ensure([self._live])
        if node is None:
            self._client.create_ephemeral({path: text})
        else:  # an earlier session of this member: it may live until it expires
            self._client.replace_ephemeral({path: text})

    async def alive(self) -> Mapping[str, LiveMember]:
        return await self._work(self._read_alive)

    def _read_alive(self) -> Mapping[str, LiveMember]:
        [names] = self._client.children([self._live], watch=True)
        nodes = self._client.read([f"{self._live}/{name}" for name in names or ()])
        found = {
            name: LiveMember.from_json(node.text)
            for name, node in zip(names or (), nodes, strict=True)
            if node is not None
        }
        return {uuid: member for uuid, member in found.items() if member is not None}

    async def close(self) -> None:
        self._callback = lambda: None
        if self._started:
            await self._loop.run_in_executor(self._worker, self._client.close)
        self._worker.shutdown(wait=False)

    # ---- the session

    async def _work(self, call: Callable[[], _T]) -> _T:
        if not self._started:
            self._started = True
            self._client.start()
        if not self._connected:
            raise StoreAway("ZooKeeper cannot be reached")
        try:
            return await self._loop.run_in_executor(self._worker, call)
        except (ZooKeeperAway, ZooKeeperChanged) as error:
            raise StoreAway(str(error)) from error
        except ZooKeeperRefused as error:
            raise StoreRefused(str(error)) from error

    def _state_changed(self, state: SessionState) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take_state, state)

    def _take_state(self, state: SessionState) -> None:
        self._connected = state is SessionState.CONNECTED
        if self._connected and self._announced is not None:  # the session may be a new one
            self._loop.run_in_executor(self._worker, self._announce_again)
        self._callback()

    def _announce_again(self) -> None:
        with contextlib.suppress(ZooKeeperAway, ZooKeeperRefused):
            self._announce()

    def _node_changed(self, path: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._callback)
