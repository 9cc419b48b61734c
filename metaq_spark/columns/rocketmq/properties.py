"""Properties of messages that are written: which a row may have, and where they are in a map column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from metaq.formats.rocketmq.properties import RESERVED
from metaq_spark.columns.blocks import Bytes
from metaq_spark.columns.encode import Int64s, VariableColumn

EMPTY: Final = (
    "a property has an empty name or an empty value, which a message cannot carry; leave it out, or make it null"
)


@dataclass(frozen=True, slots=True)
class PropertyColumn:
    """A column of maps as buffers: row i has the pairs ``ends[i]:ends[i + 1]``; those ``wanted`` are written."""

    ends: Int64s
    wanted: Bytes
    names: VariableColumn
    values: VariableColumn

    @classmethod
    def of(cls, array: pa.MapArray) -> PropertyColumn:
        """The buffers of a map array, sliced or not. A null map has no pairs."""
        ends = np.asarray(array.offsets).astype(np.int64)
        names, values = array.keys, array.items
        encoded = names.dictionary_encode()
        free = np.array([name not in RESERVED for name in encoded.dictionary.to_pylist()], dtype=np.bool_)
        wanted = np.array(values.is_valid())
        if len(free):
            wanted = wanted & free[np.asarray(encoded.indices)]
        if array.null_count:  # a null map may have pairs hidden below it
            hidden = np.repeat(~np.asarray(array.is_valid()), np.diff(ends))
            wanted[ends[0] : ends[-1]] &= ~hidden
        return cls(ends, wanted.astype(np.uint8), VariableColumn.of(names), VariableColumn.of(values))

    def row_with_empty(self) -> int | None:
        """The first row that has a wanted pair whose name or value is empty."""
        empty = (np.diff(self.names.ends) == 0) | (np.diff(self.values.ends) == 0)
        faulty = np.flatnonzero(empty & (self.wanted != 0))
        inside = faulty[(faulty >= self.ends[0]) & (faulty < self.ends[-1])]
        return int(np.searchsorted(self.ends, inside[0], side="right")) - 1 if len(inside) else None
