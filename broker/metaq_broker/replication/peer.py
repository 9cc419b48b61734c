"""The other broker of a pair, as replication sees it: calls with plain values, whatever protocol carries them.

``Peer`` is what a frontend supplies (``text/peer.py``). A connection that is gone is ``PeerLost`` in every
call, for all that wait; then open another one. What a peer does not do for one partition is a value, ``Declined``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.log.state.state_table import StatePart

PartitionKey = tuple[str, int]
"""Topic and index."""


@dataclass(frozen=True, slots=True)
class StoredRange:
    """A partition elsewhere: byte offsets ``start`` and ``readable_end`` of what can be read.

    ``incarnation`` and ``last_start``, where the last segment begins, are ``None`` where the broker does not report it.
    """

    start: int
    readable_end: int
    incarnation: str | None = None
    last_start: int | None = None


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """Whole frames of a master's partition, or none, on the way to its synchronous slave.

    ``run`` belongs at byte ``offset``, in the segment that begins at ``segment_start``. The master keeps everything
    from ``first`` on, before which there were ``ordinal`` messages.
    """

    partition_key: PartitionKey
    run: bytes
    offset: int
    segment_start: int
    first: int
    ordinal: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class CopiedMessage:
    """One message on the way to a synchronous slave; ``checksum`` is ``None`` or -1 where the master sends none."""

    partition_key: PartitionKey
    message_id: int
    flag: int
    body: bytes
    checksum: int | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """Where a synchronous slave has stored a message."""

    message_id: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class FetchedRun:
    """Bytes of a partition, at least one, and where their segment begins."""

    segment_start: int
    run: bytes


@dataclass(frozen=True, slots=True)
class Declined:
    """A peer did not do what it was asked; ``answer`` is what it said. ``absent``: there is nothing at that offset."""

    answer: str
    absent: bool = False


class PeerLost(MetaqError):
    """The broker at ``address`` cannot be talked to, or not any more; ``reason`` says why."""

    def __init__(self, address: Address, reason: str) -> None:
        self.address, self.reason = address, reason
        super().__init__(address, reason)

    def __str__(self) -> str:
        return f"broker {self.address}: {self.reason}"


class RequestRefused(MetaqError):
    """The other broker answered a request with ``code`` and ``text`` where it should have carried it out."""

    def __init__(self, request: str, code: int, text: str) -> None:
        self.request, self.code, self.text = request, code, text
        super().__init__(request, code, text)

    def __str__(self) -> str:
        return f"{self.request} was answered with {self.code}: {self.text}"


class SlavePromoted(MetaqError):
    """The slave at ``address`` says that it was promoted: this broker must not acknowledge anything any more."""

    def __init__(self, address: Address) -> None:
        self.address = address
        super().__init__(address)

    def __str__(self) -> str:
        return f"the slave {self.address} was promoted and is the master now"


class Peer(Protocol):
    """A connection to another broker. Every call raises ``PeerLost``; those about the whole broker, ``RequestRefused``.

    An answer that cannot be read is ``metaq.errors.ProtocolError``.
    """

    address: Address
    gone: asyncio.Event
    """Set when the connection is lost."""

    @property
    def takes_copies(self) -> bool:
        """Whether it takes ``copy``: runs of frames as they are. A Java broker takes single messages."""

    @property
    def reports_segments(self) -> bool:
        """Whether its holdings name incarnations and last segments."""

    @property
    def reports_state(self) -> bool:
        """Whether it gives away the state that it has beside its log."""

    def check(self) -> None:
        """Raise ``PeerLost`` if the connection is gone."""

    async def ping(self) -> None:
        """Return once it has answered."""

    async def close(self) -> None:
        """Drop the connection; who waits for an answer gets ``PeerLost``."""

    # ---- about the broker

    async def broker_id(self) -> int:
        """Return the ``brokerId`` of its configuration."""

    async def role(self) -> str | None:
        """Return its role in replication in one word, ``None`` if it does not report it."""

    async def config_checksum(self) -> str | None:
        """Return a text that changes whenever its configuration does, ``None`` if it does not report it."""

    async def config_text(self) -> bytes:
        """Return its server.ini."""

    async def stored_ranges(self) -> dict[PartitionKey, StoredRange]:
        """Return what it has of each of its partitions."""

    async def state_part(self, number: int, position: int, bytes_max: int) -> StatePart | None:
        """Return what its state's file has behind a place (``StateTable.part``), ``None`` if nothing, or not now."""

    # ---- about one partition

    async def ordinal(self, partition_key: PartitionKey, group: str, offset: int) -> int | None:
        """Return how many messages there were before ``offset``, ``None`` if it cannot tell."""

    async def read(self, partition_key: PartitionKey, group: str, offset: int, bytes_max: int) -> bytes | Declined:
        """Return bytes from ``offset`` on, as consumer ``group``."""

    async def fetch(
        self, partition_key: PartitionKey, group: str, offset: int, bytes_max: int
    ) -> FetchedRun | Declined:
        """Return bytes from ``offset`` on, which never cross into the next segment, and where theirs begins."""

    async def copy(self, copied: CopiedRun) -> int | Declined:
        """Have a run appended; return the offset up to which the slave is durable. Raises ``SlavePromoted``."""

    async def opened(self, partition_keys: Sequence[PartitionKey], group: str) -> list[StoredRange | Declined]:
        """Have partitions opened that may not be since its start, and return what it has; it stores nothing thereby.

        For a slave that takes no copies, asked as consumer ``group``. Raises ``SlavePromoted``.
        """

    async def stored_bytes(self, topics: Sequence[str]) -> list[int | None]:
        """Return the bytes of each topic's open partitions, synced or not; ``None`` where it does not say."""

    async def store(self, messages: Sequence[CopiedMessage]) -> list[StoredMessage | Declined]:
        """Have messages appended, all sent before the first answer is waited for. Raises ``SlavePromoted``."""


Connect = Callable[[Address, float], Awaitable[Peer]]
"""Opens a connection to a broker; the seconds bound that and every later call. Raises ``PeerLost``."""
