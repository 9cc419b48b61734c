"""Puts inside a transaction: checked like plain puts, kept until the commit.

Topic, partition, checksum and size are checked at the put, so that a commit cannot fail for a reason that was known
then.

Source: docs/transactions.md. MetaQ's own broker does not check checksums here, and loses a put after PREPARE.
"""

from __future__ import annotations

from array import array
from typing import Final

from metaq.formats.checksum import checksum
from metaq.formats.frame_block import BlockRefused, FrameBlock, check_count
from metaq.formats.frames import HEADER_BYTES, encode_frame
from metaq.formats.message_id import IdRange
from metaq_broker.log.engine.outcomes import BlockInvalid, ChecksumMismatch, TooLarge
from metaq_broker.transactions.interfaces import TransactionLimits, TransactionStore
from metaq_broker.transactions.journal_writer import JournalWriter
from metaq_broker.transactions.outcomes import BatchEmpty, PartitionNotNamed, TransactionRefused, TransactionTooLarge
from metaq_broker.transactions.state import Event
from metaq_broker.transactions.transaction import PartitionKey, Transaction, TransactionMemory

ANY_PARTITION: Final = -1
NO_CHECKSUM: Final = (None, -1)
"""The checksum of a put that does not give one."""


class TransactionPuts:
    """Adds messages to transactions. ``pool`` counts the memory of all of them."""

    def __init__(
        self, writer: JournalWriter, store: TransactionStore, limits: TransactionLimits, pool: TransactionMemory
    ) -> None:
        self._writer = writer
        self._store = store
        self._limits = limits
        self._pool = pool

    def put(
        self, transaction: Transaction, topic: str, partition: int, flag: int, given: int | None, body: bytes
    ) -> int:
        """Add one message and return its id. ``given`` is the client's checksum, ``None`` or -1 if it gave none.

        Raises:
            TransactionRefused: Nothing was added.
        """
        self._check_partition(transaction, topic, partition)
        if len(body) > self._limits.message_bytes_max:
            raise TransactionRefused(TooLarge(len(body), self._limits.message_bytes_max))
        actual = checksum(body)
        if given not in NO_CHECKSUM and given != actual:
            raise TransactionRefused(ChecksumMismatch())
        self._check_size(transaction, HEADER_BYTES + len(body))
        message_id = self._store.next_ids(1).first
        frame = encode_frame(message_id, flag, body, actual)
        self._add(transaction, (topic, partition), FrameBlock(frame, 1, array("q", (len(frame),))))
        return message_id

    def put_batch(self, transaction: Transaction, topic: str, partition: int, block: FrameBlock) -> IdRange:
        """Add a copy of a block, whose ids are replaced, and return the ids.

        If one frame is wrong, none is added. A writable block gets its ids in place.

        Raises:
            TransactionRefused: Nothing was added.
        """
        self._check_partition(transaction, topic, partition)
        self._check_size(transaction, len(block))
        if block.count < 1:
            raise TransactionRefused(BatchEmpty(block.count))
        try:
            check_count(block)  # before ids are taken, which cannot be returned
            ids = self._store.next_ids(block.count)
            numbered = block.numbered(ids, self._limits.message_bytes_max)
        except BlockRefused as fault:
            raise TransactionRefused(BlockInvalid(str(fault))) from None
        self._add(transaction, (topic, partition), numbered)
        return ids

    def _check_partition(self, transaction: Transaction, topic: str, partition: int) -> None:
        transaction.after(Event.PUT)
        if partition == ANY_PARTITION:
            raise TransactionRefused(PartitionNotNamed(partition))
        self._store.check(topic, partition)

    def _check_size(self, transaction: Transaction, byte_count: int) -> None:
        total = transaction.byte_count + byte_count
        if total > self._limits.transaction_bytes_max:
            raise TransactionRefused(TransactionTooLarge(transaction.key, total, self._limits.transaction_bytes_max))

    def _add(self, transaction: Transaction, partition_key: PartitionKey, block: FrameBlock) -> None:
        size = len(block)
        crowded = self._pool.byte_count + size > self._limits.buffered_bytes_max
        if not crowded and transaction.buffered_bytes + size <= self._limits.spill_bytes:
            transaction.add(partition_key, block.copy())
            return
        transaction.add(partition_key, block)  # no copy: the journal has the block when this returns
        try:
            self._writer.spill(transaction)
        except TransactionRefused:
            transaction.take_back(partition_key, block)
            raise
