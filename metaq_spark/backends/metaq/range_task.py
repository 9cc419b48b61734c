"""Reads one byte range of a partition over one session, and handles losses and damage.

Damaged bytes are handled as the option ``onCorrupt`` says; the form of a dead letter: ``source/losses.py``.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from metaq.backends.metaq.fetch import GROUP
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.positions import incarnation as reported_incarnation
from metaq.backends.metaq.positions import lookup
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.range_reader import RangeReader
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.slices import SlicedPartition
from metaq.backends.metaq.type_reader import read_types
from metaq.errors import BrokerError, CorruptFrame, DataMissing, ExtensionMissing, OffsetMoved
from metaq.model import Message, OffsetRange, TopicPartition
from metaq.net.retry import ONCE, persist_over
from metaq.protocols.text.extensions import EXT_FILTER
from metaq.statuses import BAD_REQUEST, FAILED, NOT_FOUND
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.options import SourceOptions
from metaq_spark.backends.metaq.resync import next_frame, read_slice
from metaq_spark.columns.decode import RunDecoder
from metaq_spark.errors import OptionError
from metaq_spark.sink.first_look import wait_for_offer
from metaq_spark.source.losses import (
    LETTER_BYTES_MAX,
    DamageHandler,
    Fail,
    ReadDamaged,
    Skip,
    UnreadableRange,
    report_data_loss,
)

T = TypeVar("T")

_DAMAGED_OR_NO_FRAME: Final = (BAD_REQUEST, FAILED)
"""Refusals of ``fget`` that reading the plain bytes explains: no message begins there, or it is damaged."""


class RangeTask:
    """Yields the batches of ``offsets``; everything before ``position`` is decoded."""

    def __init__(
        self,
        session: Session,
        source: TopicPartition,
        offsets: OffsetRange,
        incarnation: str | None,
        options: SourceOptions,
        handler: DamageHandler,
    ) -> None:
        self._session, self._source, self._incarnation, self._options = session, source, incarnation, options
        self._topic_and_index = source.topic, source.partition.index
        self._handler = handler
        self.position, self._end = offsets.start, offsets.end
        self._policy = options.waiting_policy
        self._has_looked = False
        """Whether the broker was looked for because of damage."""
        self._report_loss = partial(report_data_loss, fail=options.fail_on_data_loss)
        self._filter_here = options.message_types is None
        self._decoder = RunDecoder(source, layout=options.row_layout, types=options.message_types, end=offsets.end)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the range; raise for data loss and damage unless the options accept it."""
        if not self._same_incarnation():
            self.position = self._end
        while self.position < self._end:
            try:
                yield from self._plain() if self._filter_here or not self._broker_filters() else self._filtered()
            except CorruptFrame as damage:
                self.position = damage.offset  # the frames before it are decoded
                has_looked, self._has_looked = self._has_looked, True
                if has_looked or not self._is_served_elsewhere():
                    self._pass_damage(damage)
            except OffsetMoved as moved:
                if not self._is_served_elsewhere():
                    self._pass_gap(moved)
            except DataMissing as missing:
                if not self._is_served_elsewhere():
                    self._report_loss(f"{self._source}: {missing}")
                    self.position = self._end
        yield from self._decoder.flush()

    def _plain(self) -> Iterator[pa.RecordBatch]:
        options, source = self._options, SlicedPartition(*self._topic_and_index, GROUP)
        reader = RangeReader(
            self._session, source, OffsetRange(self.position, self._end), options.fetch_bytes,
            policy=self._policy,
        )  # fmt: skip
        with closing(reader):
            while (run := reader.next_run()) is not None:
                count = yield from self._decoder.decode(run.data, run.offset, may_be_cut=True)
                reader.took(count)
                self.position = run.offset + count

    def _broker_filters(self) -> bool:
        return EXT_FILTER in self._ask(lambda: self._session.extensions)

    def _filtered(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages that the broker selects; the decoder checks their types again."""
        options = self._options
        chunks = read_types(
            self._session, self._source.topic, self._source.partition.index, OffsetRange(self.position, self._end),
            options.message_types or (), options.fetch_bytes, policy=self._policy,
        )  # fmt: skip
        try:
            with closing(chunks):
                for chunk in chunks:
                    yield from self._decoder.decode_addressed(chunk.data)
                    self.position = chunk.end
        except CorruptFrame as damage:
            if not self.position <= damage.offset < self._end:
                raise self._session.protocol_error(
                    f"a filtered get came with a frame of offset {damage.offset}"
                ) from damage
            self.position = damage.offset  # the frames before it are decoded
        except BrokerError as refusal:
            if refusal.code not in _DAMAGED_OR_NO_FRAME:
                raise
        except ExtensionMissing:
            pass
        self._filter_here = self._filter_here or self.position < self._end

    def _same_incarnation(self) -> bool:
        """Whether the partition is still the one that the range was planned for."""
        if self._incarnation is None:
            return True
        try:
            reported = self._ask(lambda: reported_incarnation(self._session, *self._topic_and_index))
        except BrokerError as refusal:
            if refusal.code != NOT_FOUND:
                raise
            return True  # there is nothing to read: the first get reports the reason
        if reported is None or reported == self._incarnation:
            return True
        if self._is_served_elsewhere():
            return self._same_incarnation()
        self._report_loss(
            f"{self._source}: the partition was deleted and recreated since this read was planned (its incarnation was "
            f"{self._incarnation}, now it is {reported}); offsets {self.position} to {self._end} are of the old one"
        )
        return False

    def _is_served_elsewhere(self) -> bool:
        """Look for the broker again before data counts as lost or damaged; return whether it is at another address.

        A member of a pair that was stopped for a while still answers as the master for a moment, and lacks what was
        sent to the other member meanwhile. The other member does not have the damage on its disk.
        """
        before = self._session.address
        self._ask(self._session.reopen)
        return self._session.address != before

    def _pass_damage(self, found: CorruptFrame) -> None:
        """Handle a damaged frame and continue after it."""
        if not self._same_incarnation():
            self.position = self._end
            return
        if self._handler.fails:
            raise CorruptFrame(str(self._source), found.offset, found.reason) from found
        following = self._ask(lambda: next_frame(self._session, self._source, found.offset, self._end))
        damage = UnreadableRange(self._source, OffsetRange(found.offset, following), found.reason)
        self._handler.handle(damage, self._read)
        self.position = following

    def _pass_gap(self, moved: OffsetMoved) -> None:
        """Handle bytes that the broker does not serve: known damage, or deleted bytes."""
        at = moved.asked
        if moved.to > at and not self._handler.fails and self._ask(self._first_offset) <= at:
            damage = UnreadableRange(self._source, OffsetRange(at, moved.to), "quarantined by the broker", served=False)
            self._handler.handle(damage, self._read)
        else:
            self._report_loss(f"{self._source}: {moved}")
        self.position = moved.to if moved.to > at else self._end

    def _first_offset(self) -> int:
        return lookup(self._session, *self._topic_and_index, 0, "segment")

    def _read(self, offset: int, size: int) -> bytes:
        return self._ask(lambda: read_slice(self._session, self._source, offset, size))

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer, over as many connections as the options allow."""
        return persist_over(self._session, question, self._policy, self._session.clock)


_log = logging.getLogger(__name__)


class DeadLetters:
    """Stores damaged frames in ``topic``; all from one partition go to the same partition."""

    fails = False

    def __init__(self, topic: str, options: SourceOptions, pool: SessionPool) -> None:
        self._topic, self._options, self._pool = topic, options, pool
        self._cluster = Cluster(options, pool, pool.clock, ONCE)  # wait_for_offer repeats it

    def handle(self, damage: UnreadableRange, read: ReadDamaged) -> None:
        """Store a letter; returns when the broker has acknowledged it.

        Raises:
            TopicNotFound: No broker accepts the topic.
            OptionError: The letter was refused.
            MetaqError: A broker could not be asked, even after retries.
        """
        size = min(len(damage.offsets), LETTER_BYTES_MAX) if damage.served else 0
        letter = Message(read(damage.offsets.start, size), damage.attribute)
        wait_for_offer(lambda: self._store(damage, letter), self._options.waiting_policy, self._pool.clock)

    def _store(self, damage: UnreadableRange, letter: Message) -> None:
        addresses = self._cluster.writable(self._topic)
        chosen = sorted(addresses)[zlib.crc32(str(damage.source).encode()) % len(addresses)]
        try:
            with self._pool.lease(addresses[chosen]) as session:
                receipt = put(session, self._topic, chosen.index, letter)
        except BrokerError as refusal:
            if refusal.retryable:
                raise
            raise OptionError("deadLetterTopic", f"{damage}; that could not be stored: {refusal}") from refusal
        _log.warning("%s. Stored in %s/%s at offset %d", damage, self._topic, chosen, receipt.offset)


def damage_handler(options: SourceOptions, pool: SessionPool) -> DamageHandler:
    if options.dead_letter_topic is not None:
        return DeadLetters(options.dead_letter_topic, options, pool)
    return Skip() if options.on_corrupt == "skip" else Fail()
