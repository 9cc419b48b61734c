"""The other broker of a pair, as replication sees it: calls with plain values, independent of the protocol.

``text/peer.py`` implements ``Peer``. When the connection is lost, every call raises ``PeerLost``, including calls in
progress; then open another connection. If a peer refuses something for one partition, the result is a ``Declined``.
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
    """A partition of the other broker, readable from byte offset ``start`` to ``readable_end``.

    ``incarnation`` and ``last_start``, where the last segment begins, are ``None`` where the broker does not report it.
    """

    start: int
    readable_end: int
    incarnation: str | None = None
    last_start: int | None = None


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """Whole frames of a master's partition (possibly none) for its synchronous slave.

    ``run`` belongs at byte ``offset``, in the segment that begins at ``segment_start``. The master's partition begins
    at ``first``, before which there were ``ordinal`` messages.
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
    """One message for a synchronous slave; ``checksum`` is ``None`` or -1 if the master sends none."""

    partition_key: PartitionKey
    message_id: int
    flag: int
    body: bytes
    checksum: int | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    message_id: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class FetchedRun:
    """Bytes of a partition, at least one, and the start of their segment."""

    segment_start: int
    run: bytes


@dataclass(frozen=True, slots=True)
class Declined:
    """A peer refused a request; ``answer`` is its reply. ``absent``: there is nothing at that offset."""

    answer: str
    absent: bool = False


class PeerLost(MetaqError):
    """The broker at ``address`` cannot be reached, or the connection is lost; ``reason`` says why."""

    def __init__(self, address: Address, reason: str) -> None:
        self.address, self.reason = address, reason
        super().__init__(address, reason)

    def __str__(self) -> str:
        return f"broker {self.address}: {self.reason}"


class PeerRefused(MetaqError):
    """The other broker answered a request with the error ``code`` and ``text``."""

    def __init__(self, request: str, code: int, text: str) -> None:
        self.request, self.code, self.text = request, code, text
        super().__init__(request, code, text)

    def __str__(self) -> str:
        return f"{self.request} was answered with {self.code}: {self.text}"


class SlavePromoted(MetaqError):
    """The slave at ``address`` was promoted: this broker must not acknowledge anything any more."""

    def __init__(self, address: Address) -> None:
        self.address = address
        super().__init__(address)

    def __str__(self) -> str:
        return f"the slave {self.address} was promoted and is the master now"


class Peer(Protocol):
    """A connection to another broker. Every call raises ``PeerLost``; calls about the whole broker also
    ``PeerRefused``.

    A reply that cannot be decoded raises ``metaq.errors.ProtocolError``.
    """

    address: Address
    gone: asyncio.Event
    """Set when the connection is lost."""

    @property
    def takes_copies(self) -> bool:
        """Whether it accepts ``copy``: runs of frames. A Java broker accepts single messages only."""

    @property
    def reports_segments(self) -> bool:
        """Whether its ranges include incarnations and last segments."""

    @property
    def reports_state(self) -> bool:
        """Whether it gives out the state that it keeps beside its log."""

    def check(self) -> None:
        """Raise ``PeerLost`` if the connection is lost."""

    async def ping(self) -> None:
        """Return when it has answered."""

    async def close(self) -> None:
        """Close the connection; calls in progress raise ``PeerLost``."""

    # ---- about the broker

    async def broker_id(self) -> int:
        """Return its configured ``brokerId``."""

    async def role(self) -> str | None:
        """Return its role in replication, a word; ``None`` if it does not report one."""

    async def config_checksum(self) -> str | None:
        """Return a text that changes whenever its configuration changes; ``None`` if it does not report one."""

    async def config_text(self) -> bytes: ...

    async def stored_ranges(self) -> dict[PartitionKey, StoredRange]: ...

    async def state_part(self, number: int, position: int, bytes_max: int) -> StatePart | None:
        """Return a part of its state file from ``position`` on (``StateTable.part``); ``None`` if there is nothing, or
        not now.
        """

    # ---- about one partition

    async def ordinal(self, partition_key: PartitionKey, group: str, offset: int) -> int | None:
        """Return how many messages there were before ``offset``; ``None`` if it is not known."""

    async def read(self, partition_key: PartitionKey, group: str, offset: int, bytes_max: int) -> bytes | Declined:
        """Return bytes from ``offset`` on, as consumer ``group``."""

    async def fetch(
        self, partition_key: PartitionKey, group: str, offset: int, bytes_max: int
    ) -> FetchedRun | Declined:
        """Return bytes from ``offset`` on, which end within its segment, and the start of the segment."""

    async def copy(self, copied: CopiedRun) -> int | Declined:
        """Append a run of frames; return the slave's durable end. Raises ``SlavePromoted``."""

    async def opened(self, partition_keys: Sequence[PartitionKey], group: str) -> list[StoredRange | Declined]:
        """Open partitions that may be closed since its start, without storing anything, and return their ranges.

        For a slave without ``copy``, read as consumer ``group``. Raises ``SlavePromoted``.
        """

    async def stored_bytes(self, topics: Sequence[str]) -> list[int | None]:
        """Return the bytes of each topic's open partitions, synced or not; ``None`` if it does not report them."""

    async def store(self, messages: Sequence[CopiedMessage]) -> list[StoredMessage | Declined]:
        """Append messages; all are sent before the first reply is awaited. Raises ``SlavePromoted``."""


Connect = Callable[[Address, float], Awaitable[Peer]]
"""Opens a connection to a broker. The seconds limit that and every later call. Raises ``PeerLost``."""
