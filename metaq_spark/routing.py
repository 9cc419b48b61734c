"""Which partition each row of a write goes to. Pure: partitions are given, nobody is asked.

For every row, the first of these that it has:

1. ``partition``: a place in the topic's list of writable partitions, which is sorted by broker id and index. With one
broker this is the partition's index.
2. ``key``: the CRC-32 of the key, modulo the length of that list. The same key goes to the same partition as long as
the list does not change. CRC-32 is zlib's, of the bytes of a binary, the UTF-8 of a string, the decimal text of a
number. 3. neither: partitions in turn, a whole record batch to each, so that blocks stay large. Tasks and
micro-batches start at different turns.

Rows of one partition keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metaq.model import Partition, TopicPartition
from metaq_spark.columns.encode import Int64s, hash_keys
from metaq_spark.errors import RowError
from metaq_spark.sink_columns import SinkColumns

PartitionsOf = Callable[[str], Sequence[Partition]]
"""A topic's writable partitions, sorted, at least one."""


class Router:
    """Routes the batches of one task. ``place`` names the task in errors; ``first_turn`` is where turns begin."""

    def __init__(
        self, columns: SinkColumns, topic: str | None, partitions_of: PartitionsOf, first_turn: int, place: str
    ) -> None:
        self._columns, self._topic, self._partitions_of = columns, topic, partitions_of
        self._turn, self._place = first_turn, place
        self._rows_before = 0

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Int64s]]:
        """Yield each target with its rows (indices into ``batch``, ascending).

        Raises:
            RowError: A row has no value, no topic, or a partition that its topic does not have.
        """
        self._refuse_null(batch.column(self._columns.value), "value")
        for topic, rows in self._by_topic(batch):
            partitions = self._partitions_of(topic)
            targets = self._targets(batch, rows, topic, len(partitions))
            for target, group in _groups(targets, rows):
                yield TopicPartition(topic, partitions[target]), group
        self._rows_before += batch.num_rows

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Int64s]]:
        if self._topic is not None:
            yield self._topic, np.arange(batch.num_rows, dtype=np.int64)
            return
        assert self._columns.topic is not None
        column = batch.column(self._columns.topic)
        self._refuse_null(column, "topic")
        encoded = pc.dictionary_encode(column)
        codes = np.asarray(encoded.indices).astype(np.int64)
        for code, rows in _groups(codes, np.arange(batch.num_rows, dtype=np.int64)):
            yield encoded.dictionary[code].as_py(), rows

    def _targets(self, batch: pa.RecordBatch, rows: Int64s, topic: str, count: int) -> Int64s:
        """The place of each row's partition in the topic's list of ``count``; -1 while undecided."""
        targets = np.full(len(rows), -1, dtype=np.int64)
        if self._columns.partition is not None:
            self._take_given(targets, batch.column(self._columns.partition), rows, topic, count)
        if self._columns.key is not None and (targets < 0).any():
            keys = batch.column(self._columns.key)
            keyed = (targets < 0) & np.asarray(keys.is_valid())[rows]
            targets[keyed] = hash_keys(keys)[rows[keyed]] % count
        undecided = targets < 0
        if undecided.any():
            targets[undecided] = self._turn % count
            self._turn += 1
        return targets

    def _take_given(self, targets: Int64s, column: pa.Array, rows: Int64s, topic: str, count: int) -> None:
        given = np.asarray(column.is_valid())[rows]
        wanted = np.asarray(column.fill_null(0)).astype(np.int64)[rows]
        wrong = given & ((wanted < 0) | (wanted >= count))
        if wrong.any():
            first = int(np.argmax(wrong))
            reason = f"partition {wanted[first]}: topic {topic!r} has the partitions 0 to {count - 1}"
            raise RowError(self._place_of(int(rows[first])), reason)
        targets[given] = wanted[given]

    def _refuse_null(self, column: pa.Array, name: str) -> None:
        if column.null_count:
            first = int(np.argmin(np.asarray(column.is_valid())))
            raise RowError(self._place_of(first), f"column {name} is null")

    def _place_of(self, row: int) -> str:
        return f"row {self._rows_before + row + 1} of {self._place}"


def _groups(codes: Int64s, rows: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Each code with its rows, in the order of the codes; rows keep their order."""
    if len(codes) == 0:
        return
    if (codes == codes[0]).all():
        yield int(codes[0]), rows
        return
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    for code, group in zip(present, np.split(order, starts[1:]), strict=True):
        yield int(code), rows[group]
