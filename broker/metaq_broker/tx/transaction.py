"""One transaction: its name, its state, and what was put into it so far.

Messages are kept in memory as finished frames, in the order of the puts per partition, until they move to the journal:
in a chunk when there are too many, and all that is left at PREPARE or COMMIT. Then this object knows only how many
chunks there are; their records are found through the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metaq.model import TransactionId, Xid
from metaq_broker.tx.records import Ends, Messages
from metaq_broker.tx.refusals import TransactionRefused
from metaq_broker.tx.seams import Done, Timer, Unit
from metaq_broker.tx.state import Event, Kind, State, next_state

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True)
class Content:
    """How much a transaction holds for one partition, wherever it is kept. ``byte_count`` is bytes of frames."""

    messages: int = 0
    byte_count: int = 0


@dataclass(slots=True)
class BufferPool:
    """How many bytes of frames all transactions together hold in memory."""

    byte_count: int = 0


@dataclass(slots=True)
class _Buffer:
    blocks: list[bytes] = field(default_factory=list)
    messages: int = 0


@dataclass(slots=True, eq=False)
class Transaction:
    """``serial`` is its name in the journal; ``owner`` is the connection of a local one.

    ``messages`` and ``byte_count`` (of frames) are what was put so far, ``contents`` says into which partitions.
    """

    key: TransactionId
    serial: int
    begun_ms: int
    owner: object | None = None
    pool: BufferPool = field(default_factory=BufferPool)
    state: State = State.OPEN
    chunks: int = 0
    messages: int = 0
    byte_count: int = 0
    contents: dict[Place, Content] = field(default_factory=dict)
    prepared_ms: int | None = None
    ends: Ends = field(default_factory=dict)
    timer: Timer | None = None
    waiting: list[Done] = field(default_factory=list)
    failure: TransactionRefused | None = None
    buffered_bytes: int = 0
    _buffers: dict[Place, _Buffer] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """Local or XA."""
        return Kind.XA if isinstance(self.key, Xid) else Kind.LOCAL

    def after(self, event: Event) -> State:
        """Return the state that ``event`` leads to.

        Raises:
            TransactionRefused: It is not possible now.
        """
        return next_state(self.kind, self.state, event)

    def add(self, place: Place, block: bytes, messages: int) -> None:
        """Take ``messages`` frames for one partition."""
        buffer = self._buffers.setdefault(place, _Buffer())
        buffer.blocks.append(block)
        buffer.messages += messages
        self._hold(len(block))
        self.count(place, len(block), messages)

    def take_back(self, place: Place, messages: int) -> None:
        """Undo the last ``add``."""
        buffer = self._buffers[place]
        size = len(buffer.blocks.pop())
        buffer.messages -= messages
        if not buffer.blocks:
            del self._buffers[place]
        self._hold(-size)
        self.count(place, -size, -messages)
        if self.contents[place].messages == 0:
            del self.contents[place]

    def count(self, place: Place, byte_count: int, messages: int) -> None:
        """Add to what the transaction holds for one partition."""
        self.messages += messages
        self.byte_count += byte_count
        content = self.contents.setdefault(place, Content())
        content.messages += messages
        content.byte_count += byte_count

    def buffered_units(self) -> list[Unit]:
        """Return what is in memory only, one unit per partition."""
        return [Unit(*place, b"".join(buffer.blocks), buffer.messages) for place, buffer in self._buffers.items()]

    def next_chunk(self) -> Messages | None:
        """Return the record that would move the memory to the journal; ``None`` if there is nothing to move."""
        units = self.buffered_units()
        return Messages(self.serial, self.chunks, tuple(units)) if units else None

    def drop_buffer(self) -> None:
        """Forget the memory: its chunk is written, or nobody wants it any more."""
        self._buffers.clear()
        self._hold(-self.buffered_bytes)

    def _hold(self, byte_count: int) -> None:
        self.buffered_bytes += byte_count
        self.pool.byte_count += byte_count

    def disarm(self) -> None:
        """Stop the clock: from here on the transaction cannot expire."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def xid_of(transaction: Transaction) -> Xid:
    """Return the key of a transaction that must be an XA one: the transition table lets no other come that far."""
    if not isinstance(transaction.key, Xid):
        raise AssertionError(f"{transaction.key} is not an XA transaction")
    return transaction.key
