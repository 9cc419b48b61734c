"""The store of a pair in memory: a server that tests stop, empty and put back, and its clients."""

from __future__ import annotations

from collections.abc import Mapping

from metaq_broker.replication.driver.store import (
    Conflict,
    LiveMember,
    OnChange,
    StoreAway,
    StoredRecord,
    StoreRefused,
)


class MemoryServer:
    """What all clients share. ``lose_answers``: changes are made, and their answers are lost."""

    def __init__(self) -> None:
        self.record: StoredRecord | None = None
        self.live: dict[str, tuple[MemoryStore, LiveMember]] = {}
        self.clients: list[MemoryStore] = []
        self.away = self.read_only = self.lose_answers = False

    def changed(self) -> None:
        for client in list(self.clients):
            client.callback()

    def put(self, content: bytes) -> None:
        """Store foreign content."""
        self.record = StoredRecord(content, 0 if self.record is None else self.record.version + 1)
        self.changed()

    def empty(self) -> None:
        self.record = None
        self.changed()

    def expire(self, client: MemoryStore) -> None:
        """End a client's session; it is connected again at once, in a new one."""
        self.live = {uuid: each for uuid, each in self.live.items() if each[0] is not client}
        self.changed()
        client.connect()

    def client(self) -> MemoryStore:
        self.clients.append(MemoryStore(self))
        return self.clients[-1]


class MemoryStore:
    """Implements ``PairStore``."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._announced: tuple[str, LiveMember] | None = None
        self.callback: OnChange = lambda: None
        self.is_cut = False
        """This client alone cannot reach the server."""

    def connect(self) -> None:
        if self._announced is not None:
            uuid, member = self._announced
            self._server.live[uuid] = self, member
        self._server.changed()

    async def read(self) -> StoredRecord | None:
        self._check()
        return self._server.record

    async def compare_and_set(self, version: int | None, content: bytes) -> int | Conflict:
        self._check(write=True)
        record = self._server.record
        if (None if record is None else record.version) != version:
            return Conflict.CONFLICT
        stored = StoredRecord(content, 1 if record is None else record.version + 1)
        self._server.record = stored
        self._server.changed()
        if self._server.lose_answers:
            raise StoreAway("the answer is lost")
        return stored.version

    def watch(self, callback: OnChange) -> None:
        self.callback = callback

    async def announce(self, uuid: str, member: LiveMember) -> None:
        self._check(write=True)
        self._announced = uuid, member
        self.connect()

    async def alive(self) -> Mapping[str, LiveMember]:
        self._check()
        return {uuid: member for uuid, (_, member) in self._server.live.items()}

    async def close(self) -> None:
        self._server.live = {uuid: each for uuid, each in self._server.live.items() if each[0] is not self}
        self._server.clients.remove(self)
        self._server.changed()

    def _check(self, *, write: bool = False) -> None:
        if self._server.away or self.is_cut:
            raise StoreAway("the server is away")
        if write and self._server.read_only:
            raise StoreRefused("the server is read-only")
