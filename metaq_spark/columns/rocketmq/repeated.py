"""Messages that were written twice: known by a UNIQ_KEY that another message had shortly before in the same queue."""

from __future__ import annotations

from collections import deque
from typing import Final

import pyarrow as pa

KEY: Final = "message_id"
OFFSET: Final = "queue_offset"

_TYPES: Final = {KEY: pa.string(), OFFSET: pa.int64()}


class RepeatedMessages:
    """Drops messages whose key another one had among the ``within`` queue offsets before it.

    ``schema``: of the batches to take messages from, those that the read has and, if they are not among them, keys and
    offsets. ``key_schema``: of the batches to ``note``.
    """

    def __init__(self, read_schema: pa.Schema, within: int) -> None:
        self.within: Final = within
        self._read_schema = read_schema
        more = [pa.field(name, kind) for name, kind in _TYPES.items() if name not in read_schema.names]
        self.schema: Final = pa.schema([*read_schema, *more])
        self.key_schema: Final = pa.schema(list(_TYPES.items()))
        self._last: dict[str, int] = {}
        self._order: deque[tuple[int, str]] = deque()

    def note(self, batch: pa.RecordBatch) -> None:
        """Take note of messages that come before."""
        self._new(batch)

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the read, of those messages that are not repeated."""
        new = self._new(batch)
        kept = batch if all(new) else batch.filter(pa.array(new, pa.bool_()))
        return kept.select(self._read_schema.names)

    def _new(self, batch: pa.RecordBatch) -> list[bool]:
        """For each message whether it is new; one without a key always is."""
        last, order, within = self._last, self._order, self.within
        new = []
        for key, offset in zip(batch.column(KEY).to_pylist(), batch.column(OFFSET).to_pylist(), strict=True):
            while order and order[0][0] < offset - within:
                old_offset, old_key = order.popleft()
                if last.get(old_key) == old_offset:
                    del last[old_key]
            new.append(key is None or key not in last)
            if key is not None:
                last[key] = offset
                order.append((offset, key))
        return new
