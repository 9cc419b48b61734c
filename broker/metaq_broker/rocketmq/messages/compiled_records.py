"""Records of pulls made by machine code, some ten times faster on small messages. Needs numba and isal.

It handles RocketMQ's messages from IPv4 addresses, for pulls without a filter; the plain code handles all others. A
broker loads it in a background thread when it has served more than a few records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from metaq.compiled.lazy_loop import PLAIN_BYTES_MAX, LazyLoop
from metaq.errors import CorruptFrame
from metaq.formats.frames import encode_frame, encode_stored
from metaq.formats.message_id import TIME_SHIFT
from metaq.formats.native_crc import required_crc32
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.stored_form import encode_head
from metaq.formats.stored_records import Collected, QueueRecords, Wanted

OUT_BYTES: Final = 1 << 19
"""Memory for the records of one call."""

RecordLoop = Callable[[QueueRecords, bytes, int, int, int, int, Collected], tuple[int, bool]]
"""Makes records as ``QueueRecords.of_run`` does, but of usual frames only: (bytes passed, whether the next frame is for
the plain code)."""


def compiled() -> RecordLoop:
    """Return the compiled loop.

    Raises:
        ImportError: numba or isal is not installed, or isal exports no usable CRC-32.
    """
    crc32 = required_crc32()
    import numpy

    from metaq_broker.rocketmq.messages.record_loop import IS_FULL, IS_UNUSUAL, records

    out, limits = numpy.empty(OUT_BYTES, numpy.uint8), numpy.zeros(3, numpy.int64)
    limits[2] = crc32

    @lru_cache(maxsize=256)
    def as_array(ends: bytes) -> Any:
        return numpy.frombuffer(bytearray(ends), numpy.uint8)

    def make(
        queue: QueueRecords,
        run: bytes,
        offset: int,
        ordinal: int,
        physical_base: int,
        known_ms: int,
        into: Collected,
    ) -> tuple[int, bool]:
        wanted, made_before = into.wanted, into.count
        count_max = min(wanted.messages_max - made_before, wanted.looked_at_max - into.looked_at)
        limits[0], limits[1] = count_max, wanted.bytes_max
        data, ends = numpy.frombuffer(run, numpy.uint8), as_array(queue.ends)
        passed, made, made_bytes, reason = records(
            data,
            offset,
            ordinal,
            physical_base,
            known_ms,
            queue.magic,
            queue.queue_id,
            ends,
            out,
            made_before,
            into.record_bytes,
            limits,
        )
        if made:
            into.records.append(out[:made_bytes].tobytes())
        into.record_bytes += made_bytes
        into.count += made
        into.looked_at += made
        into.is_full = reason == IS_FULL
        return passed, reason == IS_UNUSUAL

    return make


class RecordMaker(LazyLoop[RecordLoop]):
    """Makes records with the plain loop at first, and with the compiled one when that pays off."""

    def __init__(self, plain_bytes_max: int = PLAIN_BYTES_MAX) -> None:
        super().__init__("pulls", compiled, _agrees, plain_bytes_max)

    def of_run(
        self,
        queue: QueueRecords,
        run: bytes,
        offset: int,
        ordinal: int,
        physical_base: int,
        known_ms: int,
        into: Collected,
        where: str,
    ) -> int:
        """Convert a run as ``QueueRecords.of_run`` does, and raise as it does."""
        if self.loop is None or into.wanted.picks or not queue.has_plain_host:
            passed = queue.of_run(run, offset, ordinal, physical_base, known_ms, into, where)
            if self.loop is None:
                self.went_without(passed)
            return passed
        before = into.looked_at
        passed, goes_on = self.loop(queue, run, offset, ordinal, physical_base, known_ms, into)
        if not goes_on:
            return passed
        ordinal += into.looked_at - before
        try:
            return passed + queue.of_run(run[passed:], offset + passed, ordinal, physical_base, known_ms, into, where)
        except CorruptFrame:
            if not passed:
                raise
            return passed


def _agrees(loop: RecordLoop) -> bool:
    """Return whether the loop has the same results as the plain code, on runs that reach all its branches."""
    queue, born = QueueRecords("orders", 3, host_bytes("127.0.0.1", 10911)), host_bytes("10.1.2.3", 4)
    usual = [
        encode_stored(
            b"t" * size,
            encode_head(size, 1, 1 << 40, born, 2, 3),
            b"K\x01v\x02" * size,
            b"x" * size,
            size << TIME_SHIFT,
        )
        for size in range(40)
    ]
    usual.append(encode_stored(b"", encode_head(-1, -1 & ~0x30, -1, born, -1, -1), b"", bytes(range(256)), -5))
    unusual = [
        encode_frame(1, 0, b"plain"),
        encode_frame(2, 3, b"\0\0\0\1\2"),
        encode_frame(3, 3, b"\0\0\0\x60\2004" + b"!" * 94),
        usual[5][:-1] + b"y",
    ]
    runs = [b"".join(usual), b"".join(usual)[:-1], *(usual[1] + each + usual[2] for each in unusual)]
    sizes = [Wanted(100, 1 << 20, 100), Wanted(7, 1 << 20, 100), Wanted(100, 2000, 100), Wanted(100, 1 << 20, 9)]
    for run in runs:
        for wanted in sizes:
            mine, plainly = Collected(wanted), Collected(wanted)
            passed, goes_on = loop(queue, run, 1000, 50, 7 << 40, 99, mine)
            plain_run = run[:passed] if goes_on else run
            if passed != queue.of_run(plain_run, 1000, 50, 7 << 40, 99, plainly, "a probe"):
                return False
            if replace(mine, records=[b"".join(mine.records)]) != replace(plainly, records=[b"".join(plainly.records)]):
                return False
    return True


RECORDS: Final = RecordMaker()
"""Makes the records of this process."""
