"""Assigns the rows of a write to partitions. Pure: partitions are given, no request is sent.

For every row, the first of these that it has:

1. ``partition``: an index into the topic's list of writable partitions, sorted by broker id and index. With one broker
this is the partition's index. The option ``orderedPartitions`` replaces it by a fixed list.
2. ``key``: the CRC-32 of the key, modulo the length of that list. The same key goes to the same partition as long as
the list does not change. CRC-32 is zlib's, of the bytes of a binary, the UTF-8 of a string, the decimal text of a
number.
3. neither: a topic's partitions in turn, a whole record batch to each, so that blocks stay large. Tasks and
micro-batches start at different turns.

Rows of one partition keep their order.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metaq.model import Partition, TopicPartition
from metaq_spark.columns.encode import Int64s, hash_keys
from metaq_spark.errors import RowError
from metaq_spark.sink.columns import SinkColumns

PartitionsOf = Callable[[str], Sequence[Partition]]
"""The list that places and keys count in, at least one: a topic's writable partitions, sorted, or a fixed list."""

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Router:
    """Routes the batches of one task. ``place`` names the task in errors; ``first_partition`` is where turns begin."""

    def __init__(
        self, columns: SinkColumns, topic: str | None, partitions_of: PartitionsOf, first_partition: int, place: str
    ) -> None:
        self._columns, self._topic, self._partitions_of = columns, topic, partitions_of
        self._next: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(first_partition))
        self._task_name = place
        self._rows_before = 0
        self._rows = _NONE  # the numbers from 0 on, as many as the largest batch had rows

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Int64s]]:
        """Yield each target with its rows (indices into ``batch``, ascending).

        Raises:
            RowError: A row has no value, no topic, or a partition that its topic does not have.
        """
        self._refuse_null(batch.column(self._columns.value), "value")
        targets_given = _RowTargets.of(batch, self._columns)
        for topic, rows in self._by_topic(batch):
            partitions = self._partitions_of(topic)
            if targets_given.none:
                yield TopicPartition(topic, partitions[next(self._next[topic]) % len(partitions)]), rows
                continue
            targets = self._targets(targets_given, rows, topic, len(partitions))
            for target, group in _groups(targets, rows):
                yield TopicPartition(topic, partitions[target]), group
        self._rows_before += batch.num_rows

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Int64s]]:
        if batch.num_rows == 0:
            return
        if self._topic is not None:
            yield self._topic, self._all_rows(batch.num_rows)
            return
        assert self._columns.topic is not None
        column = batch.column(self._columns.topic)
        self._refuse_null(column, "topic")
        encoded = column.dictionary_encode()
        codes = np.asarray(encoded.indices).astype(np.int64)
        for code, rows in _groups(codes, self._all_rows(batch.num_rows)):
            yield encoded.dictionary[code].as_py(), rows

    def _all_rows(self, count: int) -> Int64s:
        if len(self._rows) < count:
            self._rows = np.arange(count, dtype=np.int64)
        return self._rows[:count]

    def _targets(self, targets_given: _RowTargets, rows: Int64s, topic: str, count: int) -> Int64s:
        """The place of each row's partition in the topic's list of ``count``; -1 while undecided."""
        targets = np.full(len(rows), -1, dtype=np.int64)
        if targets_given.given is not None:
            self._take_given(
                targets, targets_given.given[rows], targets_given.partition_numbers[rows], rows, topic, count
            )
        if targets_given.keyed is not None:
            keyed = (targets < 0) & targets_given.keyed[rows]
            targets[keyed] = targets_given.hashes[rows[keyed]] % count
        undecided = targets < 0
        if undecided.any():
            targets[undecided] = next(self._next[topic]) % count
        return targets

    def _take_given(self, targets: Int64s, given: Bools, wanted: Int64s, rows: Int64s, topic: str, count: int) -> None:
        wrong = given & ((wanted < 0) | (wanted >= count))
        if wrong.any():
            first = int(np.argmax(wrong))
            reason = (
                f"{self._columns.partition_name} {wanted[first]}: topic {topic!r} has the partitions 0 to {count - 1}"
            )
            raise RowError(self._row_name(int(rows[first])), reason)
        targets[given] = wanted[given]

    def _refuse_null(self, column: pa.Array, name: str) -> None:
        if column.null_count:
            first = int(np.argmin(np.asarray(column.is_valid())))
            raise RowError(self._row_name(first), f"column {name} is null")

    def _row_name(self, row: int) -> str:
        return f"row {self._rows_before + row + 1} of {self._task_name}"


@dataclass(frozen=True, slots=True)
class _RowTargets:
    """The partitions and keys in the rows of a batch, looked up once for all topics of the batch.

    ``given`` and ``keyed`` are the rows that have a partition or a key; ``None`` = there is no such column.
    """

    given: Bools | None
    partition_numbers: Int64s
    keyed: Bools | None
    hashes: Int64s

    @property
    def none(self) -> bool:
        """Whether no row has a partition or a key."""
        return self.given is None and self.keyed is None

    @classmethod
    def of(cls, batch: pa.RecordBatch, columns: SinkColumns) -> _RowTargets:
        given = keyed = None
        partition_numbers = hashes = _NONE
        if columns.partition is not None:
            column = batch.column(columns.partition)
            given, partition_numbers = np.asarray(column.is_valid()), np.asarray(column.fill_null(0)).astype(np.int64)
        if columns.key is not None and (given is None or not given.all()):
            keys = batch.column(columns.key)
            keyed, hashes = np.asarray(keys.is_valid()), hash_keys(keys)
        return cls(given, partition_numbers, keyed, hashes)


_NONE: Final = np.zeros(0, dtype=np.int64)


def _groups(codes: Int64s, rows: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Yield each code with its rows, in the order of the codes; rows keep their order."""
    if len(codes) == 0:
        return
    if (codes == codes[0]).all():
        yield int(codes[0]), rows
        return
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    for code, group in zip(present, np.split(order, starts[1:]), strict=True):
        yield int(code), rows[group]
