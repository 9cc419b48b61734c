"""One transaction: its key, its state, and the messages put into it so far.

Messages are kept in memory as finished frames, in the order of the puts per partition, until they move to the journal:
a chunk when there are too many, the rest at PREPARE or COMMIT. Then this object has only the number of chunks; the
ledger knows where their records are.

``OpenTransactions`` finds them. Local transactions are found by (connection, key): a key means nothing on another
connection. XA transactions are found by their key alone, from any connection.

Source: docs/transactions.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from metaq.formats.frame_block import FrameBlock
from metaq.model import TransactionId, Xid
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.transactions.interfaces import Done, Timer, Unit
from metaq_broker.transactions.outcomes import TooManyTransactions, TransactionRefused
from metaq_broker.transactions.records import Ends, Messages
from metaq_broker.transactions.state import Event, Kind, State, next_state

PartitionKey = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True)
class Content:
    """How much of a transaction is for one partition, in memory or in the journal. ``byte_count`` is bytes of frames.
    """

    messages: int = 0
    byte_count: int = 0


@dataclass(slots=True)
class TransactionMemory:
    """How many bytes of frames all transactions together have in memory."""

    byte_count: int = 0


SMALL_BYTES: Final = 1 << 14
"""Blocks below this size are joined as they arrive; larger ones are kept as they are."""


@dataclass(slots=True, eq=False)
class Transaction:
    """``serial`` identifies it in the journal; ``owner`` is the connection of a local transaction.

    ``messages`` and ``byte_count`` (of frames) count what was put so far; ``contents`` does so for each partition.
    ``order`` is the place of its commit among all commits; ``None`` before it.
    """

    key: TransactionId
    serial: int
    begun_ms: int
    owner: object | None = None
    pool: TransactionMemory = field(default_factory=TransactionMemory)
    state: State = State.OPEN
    chunks: int = 0
    messages: int = 0
    byte_count: int = 0
    contents: dict[PartitionKey, Content] = field(default_factory=dict)
    prepared_ms: int | None = None
    ends: Ends = field(default_factory=dict)
    order: int | None = None
    timer: Timer | None = None
    waiting: list[Done] = field(default_factory=list)
    failure: Refusal | None = None
    buffered_bytes: int = 0
    _chunks: dict[PartitionKey, list[FrameBlock]] = field(default_factory=dict)
    _kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        self._kind = Kind.XA if isinstance(self.key, Xid) else Kind.LOCAL

    def after(self, event: Event) -> State:
        """Return the state that ``event`` leads to.

        Raises:
            TransactionRefused: It is not possible now.
        """
        return next_state(self._kind, self.state, event)

    def add(self, partition_key: PartitionKey, block: FrameBlock) -> None:
        """Add frames for one partition. The block is kept, or joined to the last one."""
        chunks = self._chunks.setdefault(partition_key, [])
        small = len(block) < SMALL_BYTES
        if small and chunks and isinstance(chunks[-1].data, bytearray) and len(chunks[-1]) < SMALL_BYTES:
            chunks[-1].extend(block)
        else:
            chunks.append(block)
        self._hold(len(block))
        self.count(partition_key, len(block), block.count)

    def take_back(self, partition_key: PartitionKey, block: FrameBlock) -> None:
        """Undo the last ``add``, which was of this block."""
        chunks = self._chunks[partition_key]
        if chunks[-1].count > block.count:
            chunks[-1].cut(chunks[-1].count - block.count)
        else:
            chunks.pop()
        if not chunks:
            del self._chunks[partition_key]
        self._hold(-len(block))
        self.count(partition_key, -len(block), -block.count)
        if self.contents[partition_key].messages == 0:
            del self.contents[partition_key]

    def count(self, partition_key: PartitionKey, byte_count: int, messages: int) -> None:
        self.messages += messages
        self.byte_count += byte_count
        content = self.contents.setdefault(partition_key, Content())
        content.messages += messages
        content.byte_count += byte_count

    def next_chunk(self) -> Messages | None:
        """Return the record that would move the messages in memory to the journal; ``None`` if there are none.

        Its units are in the order of their partitions, and within each in the order of the puts.
        """
        if not self._chunks:
            return None
        units = [Unit(*partition_key, chunk) for partition_key, chunks in self._chunks.items() for chunk in chunks]
        return Messages(self.serial, self.chunks, tuple(units))

    def chunk_written(self) -> None:
        """Record that the chunk of ``next_chunk`` is in the journal, and release the memory."""
        self.chunks += 1
        self.drop_buffer()

    def drop_buffer(self) -> None:
        """Release the memory: its chunk is written, or no longer needed."""
        self._chunks.clear()
        self._hold(-self.buffered_bytes)

    def _hold(self, byte_count: int) -> None:
        self.buffered_bytes += byte_count
        self.pool.byte_count += byte_count

    def disarm(self) -> None:
        """Cancel the timeout."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def xid_of(transaction: Transaction) -> Xid:
    """Return the key of an XA transaction; the transition table ensures that it is one."""
    if not isinstance(transaction.key, Xid):
        raise AssertionError(f"{transaction.key} is not an XA transaction")
    return transaction.key


class OpenTransactions:
    """The transactions that have begun and not ended, at most ``open_max``."""

    def __init__(self, open_max: int) -> None:
        self._open_max = open_max
        self._xa: dict[Xid, Transaction] = {}
        self._local: dict[object, dict[TransactionId, Transaction]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Transaction]:
        yield from self._xa.values()
        for transactions in self._local.values():
            yield from transactions.values()

    def check_capacity(self) -> None:
        """Check that one more transaction may begin.

        Raises:
            TransactionRefused: The limit is reached.
        """
        if self._count >= self._open_max:
            raise TransactionRefused(TooManyTransactions(self._open_max))

    def find(self, key: TransactionId, connection: object | None) -> Transaction | None:
        if isinstance(key, Xid):
            return self._xa.get(key)
        return self._local.get(connection, {}).get(key)

    def add(self, transaction: Transaction) -> None:
        if isinstance(transaction.key, Xid):
            self._xa[transaction.key] = transaction
        else:
            self._local.setdefault(transaction.owner, {})[transaction.key] = transaction
        self._count += 1

    def remove(self, transaction: Transaction) -> None:
        if self.find(transaction.key, transaction.owner) is not transaction:
            return
        if isinstance(transaction.key, Xid):
            del self._xa[transaction.key]
        else:
            mine = self._local[transaction.owner]
            del mine[transaction.key]
            if not mine:
                del self._local[transaction.owner]
        self._count -= 1

    def of(self, connection: object) -> list[Transaction]:
        return list(self._local.get(connection, {}).values())

    def xa(self) -> Iterator[Transaction]:
        """Yield the XA transactions, oldest first."""
        yield from self._xa.values()
