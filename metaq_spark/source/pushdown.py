"""A batch read with pushed-down filters, which fetches less because of them.

==========================================  =====================================================  =================
condition on                                what it does                                           Spark checks again
==========================================  =====================================================  =================
a column with one value in a partition      partitions in which it is false are not read           no
the type: equal to, one of                  brokers leave the other messages out                   no
the offset: comparisons, one of             narrows every partition's range to message boundaries  yes
the timestamp: equal to, from               starts at the first message of that time               yes
==========================================  =====================================================  =================

``Source.pushed_columns`` says which columns these are. A condition on the timestamp cannot determine the end: times
mostly grow within a partition, but a transaction's messages have times before their append, and clocks are set back. In
any case all messages before the *first* one at or after T are older. Everything else is left to Spark.

Spark refuses a reader that takes filters unless ``spark.sql.python.filterPushdown.enabled`` is true, so it is used only
with the option ``pushFilters``.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from metaq.errors import ExtensionMissing
from metaq.model import INT64_MAX, OffsetRange, TopicPartition
from metaq_spark.offsets import Ranges
from metaq_spark.source.backend import Cuts, Positions, PushedColumns
from metaq_spark.source.batch_reader import BatchReader


def _among(value: Any, named: Sequence[Any]) -> bool:
    return value in named


_COMPARE: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: _among,
}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass
class PushedConditions:
    """The conjunction of the accepted conditions. ``types`` ``None`` = any message."""

    columns: PushedColumns
    constants: list[tuple[str, Callable[[Any, Any], bool], Any]] = field(default_factory=list)
    types: frozenset[str] | None = None
    offset_min: int = 0
    offset_max: int = INT64_MAX
    time_ms_min: int | None = None

    def take(self, condition: Filter) -> bool:
        """Narrow by ``condition`` as far as possible; return whether it then holds exactly for every row."""
        path: Sequence[str] = getattr(condition, "attribute", ())
        value = getattr(condition, "value", None)
        compare = _COMPARE.get(type(condition))
        if compare is None or len(path) != 1 or value is None:
            return False
        name, columns = path[0], self.columns
        if name == columns.types:
            return self._take_types(condition, value)
        if name == columns.offset:
            self._take_offset(condition, value)
        elif name == columns.timestamp:
            self._take_time(condition, value)
        elif name in columns.constants:
            return self._take_constant(name, compare, value)
        return False

    def _take_constant(self, name: str, compare: Callable[[Any, Any], bool], value: Any) -> bool:
        if not all(type(one) is self.columns.constants[name][1] for one in _values(value)):
            return False
        self.constants.append((name, compare, value))
        return True

    def _take_types(self, condition: Filter, value: Any) -> bool:
        named = _values(value)
        if not isinstance(condition, EqualTo | EqualNullSafe | In) or not named:
            return False
        if not all(type(one) is str and self.columns.is_type(one) for one in named):
            return False
        self.types = frozenset(named) if self.types is None else self.types & frozenset(named)
        return True

    def _take_offset(self, condition: Filter, value: Any) -> None:
        named = _values(value)
        if not named or not all(type(one) is int for one in named):
            return
        low, high = min(named), max(named)
        if isinstance(condition, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe | In):
            self.offset_min = max(self.offset_min, low)
        if isinstance(condition, LessThan | LessThanOrEqual | EqualTo | EqualNullSafe | In):
            self.offset_max = min(self.offset_max, high)

    def _take_time(self, condition: Filter, value: Any) -> None:
        from_then_on = isinstance(condition, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe)
        if from_then_on and isinstance(value, dt.datetime) and value.tzinfo is not None:
            time_ms = max(0, (value - _EPOCH) // dt.timedelta(milliseconds=1))
            self.time_ms_min = max(self.time_ms_min or 0, time_ms)

    def ranges(self, ranges: Ranges, positions: Positions) -> Ranges:
        """Return the parts of ``ranges`` that may hold wanted messages; starts stay where messages begin."""
        if self.types is not None and not self.types:
            return {}
        kept = {
            where: OffsetRange(one.start, min(one.end, self.offset_max + 1))
            for where, one in ranges.items()
            if self._allows(where) and one.end > self.offset_min
        }
        return self._from_time(self._from_offset(_pending(kept, {}), positions), positions)

    def _allows(self, where: TopicPartition) -> bool:
        return all(compare(self.columns.constants[name][0](where), value) for name, compare, value in self.constants)

    def _from_offset(self, ranges: Ranges, positions: Positions) -> Ranges:
        inside = {
            where: Cuts(one.start, (self.offset_min,)) for where, one in ranges.items() if one.start < self.offset_min
        }
        starts = positions.boundaries(inside)
        # An answer above the requested offset: messages were deleted meanwhile, and the task must notice.
        return _pending(ranges, {where: at for where, (at,) in starts.items() if at <= self.offset_min})

    def _from_time(self, ranges: Ranges, positions: Positions) -> Ranges:
        if self.time_ms_min is None:
            return ranges
        try:
            return _pending(ranges, positions.first_at(dict.fromkeys(ranges, self.time_ms_min)))
        except ExtensionMissing:  # a Java broker keeps no times: everything is read, and Spark filters
            return ranges


def _values(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _pending(ranges: Ranges, starts: Mapping[TopicPartition, int]) -> Ranges:
    """Return ``ranges`` without the parts before ``starts``; empty ranges are dropped."""
    later = {where: OffsetRange(max(one.start, starts.get(where, 0)), one.end) for where, one in ranges.items()}
    return {where: one for where, one in later.items() if one}


class PushdownReader(BatchReader):
    """A ``BatchReader`` with filters, which are pickled with it."""

    _narrowing: PushedConditions | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply the filters that narrow the read; return the filters that Spark must check on the rows.

        Source: the table above.
        """
        narrowing = PushedConditions(self._source.pushed_columns)
        left = [one for one in filters if not narrowing.take(one)]
        if narrowing.types is not None:
            narrowing.types = frozenset(filter(self._source.wants_type, narrowing.types))
        if narrowing.types:
            self._source = self._source.with_types(tuple(sorted(narrowing.types)))
        self._narrowing = narrowing
        return left

    def _narrow(self, ranges: Ranges) -> Ranges:
        return ranges if self._narrowing is None else self._narrowing.ranges(ranges, self._source.cluster.positions)
