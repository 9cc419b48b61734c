"""The loops over a batched put as machine code: checking and numbering its frames, some forty times faster on small
messages, and making its index entries. Needs numba and isal.

``blocks`` asks for it in a background thread and tries the whole against the plain code before it relies on it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from metaq.formats.message_id import SEQUENCE_BITS, IdRange
from metaq.formats.native_crc import required_crc32
from metaq.model import Buffer
from metaq_broker.log.segments.index import RECORD_BYTES
from metaq_broker.log.segments.marks import IndexPosition, Marks


def compiled() -> Callable[[Any, int, IdRange, int, int], Marks | None]:
    """Return the compiled loop: it writes the ids into a block and returns its marks, ``None`` if a frame is wrong.

    The marks have a loop that makes index entries.

    Raises:
        ImportError: numba or isal is not installed, or isal exports no usable CRC-32.
    """
    crc32 = required_crc32()
    import numpy

    from metaq_broker.log.engine.block_loop import index, number

    def number_in_place(block: Any, count: int, ids: IdRange, message_bytes_max: int, mark_bytes: int) -> Marks | None:
        marks = numpy.empty((len(block) // mark_bytes + 1, 2), numpy.int64)
        broker_bits = ids.broker_id << SEQUENCE_BITS
        data = numpy.frombuffer(block, numpy.uint8)
        made = number(data, count, ids.first_tick, broker_bits, message_bytes_max, mark_bytes, marks, crc32)
        return None if made < 0 else Marks(array("q", marks[:made].tobytes()), entries_of)

    def entries_of(
        block: Buffer, count: int, marks: Marks, before: IndexPosition, interval_bytes: int, now_ms: int
    ) -> tuple[bytes, IndexPosition]:
        state = numpy.array(before, numpy.int64)
        records = numpy.empty((len(marks) + 1) * RECORD_BYTES, numpy.uint8)
        data = numpy.frombuffer(block, numpy.uint8)
        pairs = numpy.frombuffer(marks.pairs, numpy.int64)
        made = index(data.ctypes.data, len(data), count, pairs, state, interval_bytes, now_ms, records, crc32)
        return records[: made * RECORD_BYTES].tobytes(), IndexPosition(*state.tolist())

    return number_in_place
