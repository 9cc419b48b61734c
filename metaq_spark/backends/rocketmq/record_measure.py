"""Which records in the answer to a pull are wanted, by the fastest loop that this process has loaded. And frames."""

from __future__ import annotations

import numpy as np

from metaq.backends.rocketmq.reads import frame_pulls
from metaq.backends.rocketmq.reads.record_walk import MeasuredRecords, WantedRecords, measure_records
from metaq.model import Buffer
from metaq_spark.columns.engine import shared_engine
from metaq_spark.columns.rocketmq.checks import REASONS, ExpectedQueue, UnusableRecord
from metaq_spark.columns.rocketmq.record import Unusable, offsets_of, read_record


def measure_frames(data: Buffer, frames_max: int) -> tuple[int, int]:
    """A ``Measure`` of the frame reader."""
    if shared_engine().kernels_for(0) is None:
        return frame_pulls.measure_frames(data, frames_max)
    from metaq_spark.columns.rocketmq import frame_kernels

    run = np.frombuffer(data, dtype=np.uint8)
    run.flags.writeable = False
    count, size = frame_kernels.measure_frames(run, frames_max)
    return int(count), int(size)


class RecordMeasure:
    """A ``Measure`` of the pull reader. A bad record ends the run before it; at the start it raises.

    Raises:
        CorruptRecord: The first requested record is not valid.
    """

    def __init__(self, where: str, queue: ExpectedQueue) -> None:
        self._where, self._queue = where, queue

    def __call__(self, data: memoryview, wanted: WantedRecords) -> MeasuredRecords:
        found = self._measured(data, wanted)
        if found.begin and (not found.records or found.first > wanted.start):
            self._require_before(bytes(data[: found.begin]), wanted)
        return found

    def _require_before(self, older: bytes, wanted: WantedRecords) -> None:
        """Check an older record: a broker sends a batch that is stored as one record with the offset of its first
        message, so a later requested message is inside it, and not deleted.
        """
        at = 0
        while (following := at + int.from_bytes(older[at : at + 4], signed=True)) < len(older):
            at = following
        last = offsets_of(older, at)
        if wanted.start in last:
            count = min(last.stop, wanted.end) - wanted.start
            raise UnusableRecord(self._where, wanted.start, REASONS["kind"], older[at:], count)

    def _measured(self, data: memoryview, wanted: WantedRecords) -> MeasuredRecords:
        kernels = shared_engine().kernels_for(0)
        if kernels is None:
            found = measure_records(data, wanted)
            return found if found.problem is None else self._walked(data, wanted)
        from metaq_spark.columns.rocketmq import record_kernels

        run = np.frombuffer(data, dtype=np.uint8)
        run.flags.writeable = False
        topic = np.frombuffer(wanted.topic, dtype=np.uint8)
        numbers = record_kernels.measure_records(run, topic, wanted.queue_id, wanted.start, wanted.end)
        begin, stop, count, first, last, own_offset, reason = map(int, numbers)
        if reason and not count:
            raise self._corrupt(bytes(data[stop:]), own_offset, wanted, REASONS[_WORDS[reason - 1]])
        return MeasuredRecords(begin, stop, count, first, last, ends_early=reason != 0)

    def _walked(self, data: memoryview, wanted: WantedRecords) -> MeasuredRecords:
        """Measure in plain Python, which reports the fault of a record."""
        run = bytes(data)
        position = begin = count = 0
        first = last = -1
        ends_early = False
        while position < len(run):
            try:
                record = read_record(run, position)
                for fits, word in (
                    (record.topic == wanted.topic, "topic"),
                    (record.queue_id == wanted.queue_id, "queue"),
                    (record.offset > last, "offset"),
                ):
                    if not fits:
                        raise Unusable(position, record.offset, REASONS[word])
            except Unusable as found:
                if not count:
                    raise self._corrupt(run[position:], found.own_offset, wanted, found.reason) from None
                ends_early = True
                break
            if record.offset >= wanted.end:
                break
            position, last = position + record.size, record.offset
            if record.offset < wanted.start:
                begin = position
            else:
                first, count = (first if count else record.offset), count + 1
        return MeasuredRecords(begin, position, count, first, last, ends_early=ends_early)

    def _corrupt(self, record: bytes, own_offset: int, wanted: WantedRecords, reason: str) -> UnusableRecord:
        offset = own_offset if not self._queue.dense and wanted.start <= own_offset < wanted.end else wanted.start
        size = int.from_bytes(record[:4], signed=True)
        return UnusableRecord(self._where, offset, reason, record[: size if size > 0 else len(record)])


_WORDS = ("length", "magic", "topic", "queue", "offset")
