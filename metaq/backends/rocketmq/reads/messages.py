"""Reads a range of a queue as objects, one for each message: for programs, and for tests.

Without a filter, the bundled broker sends stored frames (``frame_reader``), which cost it no work per message. Other
messages are pulled. Tags are compared here, because a broker compares only their hashes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Final

from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.frame_reader import read_range
from metaq.backends.rocketmq.reads.pull_reader import PullSettings, RecordRun, pull_range
from metaq.backends.rocketmq.routes import Routes
from metaq.errors import CorruptFrame, CorruptRecord
from metaq.formats.rocketmq.properties import TAGS
from metaq.formats.rocketmq.records import Record, read_record
from metaq.formats.stored_records import Collected, FrameRun, QueueRecords, Wanted
from metaq.model import OffsetRange, Partition

_NO_LIMIT: Final = 1 << 62


def read_messages(
    pool: SessionPool,
    routes: Routes,
    topic: str,
    queue: Partition,
    offset_range: OffsetRange,
    settings: PullSettings | None = None,
) -> Generator[Record, None, None]:
    """Yield the messages of ``queue`` in ``offset_range`` that match the subscription, in order of their offsets.

    Bodies are as stored: ``Record.value`` decompresses them.

    Raises:
        CorruptRecord: The checksum of a message is wrong. Earlier messages were yielded.
        MetaqError: As ``pull_range``.
    """
    settings = PullSettings() if settings is None else settings
    if not settings.subscription.is_all:
        yield from _pulled(pool, routes, topic, queue, offset_range, settings)
        return
    runs = read_range(pool, routes, topic, queue, offset_range, settings)
    name = with_namespace(topic, routes.namespace)
    try:
        for run in runs:
            if isinstance(run, RecordRun):
                yield from _records(run, topic, queue)
                continue
            collected = _collect(run, name, queue)
            for record in collected.records:
                yield read_record(record, 0, check_crc=False)  # the frame's checksum was verified
            if (read := run.start + collected.looked_at) < run.end:  # pulls report the kind of damage
                yield from _pulled(pool, routes, topic, queue, OffsetRange(read, run.end), settings)
    finally:
        runs.close()


def _collect(run: FrameRun, topic: str, queue: Partition) -> Collected:
    """Decode whole frames into records, up to a damaged one."""
    count = run.end - run.start
    collected = Collected(Wanted(count, _NO_LIMIT, count))
    maker = QueueRecords(topic, queue.index, run.store_host)
    with suppress(CorruptFrame):  # a damaged first frame; others end the loop
        maker.of_run(bytes(run.data), 0, run.start, run.physical_offset, run.known_ms, collected, str(queue))
    return collected


def _pulled(
    pool: SessionPool,
    routes: Routes,
    topic: str,
    queue: Partition,
    offset_range: OffsetRange,
    settings: PullSettings,
) -> Iterator[Record]:
    tags = settings.subscription.tags
    runs = pull_range(pool, routes, topic, queue, offset_range, settings)
    try:
        for run in runs:
            for record in _records(run, topic, queue):
                if tags.is_all or tags.matches(record.property_map().get(TAGS)):
                    yield record
    finally:
        runs.close()


def _records(run: RecordRun, topic: str, queue: Partition) -> Iterator[Record]:
    at, where = 0, f"{topic} queue {queue}, answer for offsets {run.start} to {run.end},"
    while at < len(run.data):
        record = _read(run.data, at, where)
        at += record.size
        yield record


def _read(data: memoryview, at: int, where: str) -> Record:
    try:
        return read_record(data, at)
    except CorruptRecord as error:
        raise CorruptRecord(where, error.offset, error.size, error.reason) from None
