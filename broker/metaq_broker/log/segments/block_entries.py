"""Index entries of a block by compiled code: checksums are most of the event loop's work for a large block."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from metaq.formats.frame_block import FrameBlock
from metaq.formats.native_crc import required_crc32


class IndexPosition(NamedTuple):
    """The state of an index at the beginning or end of a block.

    ``offset`` and ``ordinal`` of the position; ``time_ms``: no message before it is later; ``marked``: offset of the
    last entry; ``span``: CRC-32 of the log from there to the position.
    """

    offset: int
    ordinal: int
    time_ms: int
    marked: int
    span: int


EntryLoop = Callable[[FrameBlock, IndexPosition, int, int, int], tuple[bytes, IndexPosition]]
"""Makes the entries of a block whose ids ascend: (block, position before it, log bytes until the first entry, log bytes
between the others, time now in ms, for ids without a time) -> (entries as in the file, position behind it).
"""


def compiled() -> EntryLoop:
    """Return the compiled loop.

    Raises:
        ImportError: numba or isal is not installed, or isal exports no usable CRC-32.
    """
    crc32 = required_crc32()
    import numpy

    from metaq_broker.log.segments.index_loop import RECORD_BYTES, entries

    def entries_of(
        block: FrameBlock, before: IndexPosition, interval_bytes: int, block_interval_bytes: int, now_ms: int
    ) -> tuple[bytes, IndexPosition]:
        state, data = numpy.array(before, numpy.int64), numpy.frombuffer(block.data, numpy.uint8)
        records = numpy.empty((len(block) // interval_bytes + 2) * RECORD_BYTES, numpy.uint8)
        ends = numpy.frombuffer(block.ends, numpy.int64)
        made = entries(data.ctypes.data, ends, state, interval_bytes, block_interval_bytes, now_ms, records, crc32)
        return records[: made * RECORD_BYTES].tobytes(), IndexPosition(*state.tolist())

    return entries_of
