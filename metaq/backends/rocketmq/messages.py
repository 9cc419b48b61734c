"""Messages of a range, decoded one by one: for programs that want objects, and for tests.

Tags are compared here: a broker compares their hashes, so that others may be among what it sends.
"""

from __future__ import annotations

from collections.abc import Generator

from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.pull_reader import PullSettings, pull_range
from metaq.backends.rocketmq.routes import Routes
from metaq.errors import CorruptRecord
from metaq.formats.rocketmq.properties import TAGS
from metaq.formats.rocketmq.records import Record, read_record
from metaq.model import OffsetRange, Partition


def read_messages(
    pool: SessionPool,
    routes: Routes,
    topic: str,
    queue: Partition,
    offset_range: OffsetRange,
    settings: PullSettings | None = None,
) -> Generator[Record, None, None]:
    """Yield the messages of ``queue`` in ``offset_range`` that the subscription wants, in order of their offsets.

    Bodies are as stored: ``Record.value`` decompresses them.

    Raises:
        CorruptRecord: The checksum of a message is wrong. Those before it were yielded.
        MetaqError: As ``pull_range``.
    """
    settings = PullSettings() if settings is None else settings
    tags = settings.subscription.tags
    runs = pull_range(pool, routes, topic, queue, offset_range, settings)
    try:
        for run in runs:
            at = 0
            while at < len(run.data):
                record = _read(run.data, at, f"{topic} queue {queue}, answer for offsets {run.start} to {run.end},")
                at += record.size
                if tags is None or record.property_map().get(TAGS) in tags:
                    yield record
    finally:
        runs.close()


def _read(data: memoryview, at: int, where: str) -> Record:
    try:
        return read_record(data, at)
    except CorruptRecord as error:
        raise CorruptRecord(where, error.offset, error.size, error.reason) from None
