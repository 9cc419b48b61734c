"""Pulls the small ranges of one task in one round trip to each broker, instead of one or more for each range.

A response is used only if the range is intact: every requested message, in whole records of the queue with the right
checksums. After any other response (short, refused, missing or damaged messages) the range is left to ``read_queue``,
which reads it from the start and handles these cases. A broker that is away is asked again for all ranges of the
conversation, as often as for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pulls import PulledQueue, PulledRecords, read_outcome
from metaq.backends.rocketmq.reads.record_walk import WantedRecords
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import ConnectionFailed, CorruptFrame, DeadlineExceeded, MetaqError
from metaq.model import OffsetRange, TopicPartition
from metaq.net.retry import persist
from metaq.protocols.remoting.command import RemotingCommand
from metaq_spark.backends.rocketmq.options import SourceOptions
from metaq_spark.backends.rocketmq.range_task import QueuePartition, read_failed
from metaq_spark.backends.rocketmq.record_measure import RecordMeasure
from metaq_spark.columns.rocketmq.batches import RecordBatchMaker
from metaq_spark.columns.rocketmq.checks import ExpectedQueue
from metaq_spark.columns.rocketmq.decode import RecordDecoder
from metaq_spark.columns.schema import arrow_schema

ANSWER_BYTES_MAX: Final = 256 << 10
"""Limit on bytes that a broker returns for a pull, unless a single message is larger."""

PULLS_MAX: Final = 64
"""Limit on pulls in flight to one broker."""

ROWS_BYTES_MAX: Final = 32 << 20
"""Rows that are in memory at once; compressed bodies may make much of little. The other ranges are read one by one."""

Answer = tuple[OffsetRange, memoryview]
"""Requested offsets, and the records received."""


def read_small(
    parts: Sequence[QueuePartition], options: SourceOptions, pool: SessionPool, directory: NameServerDirectory
) -> dict[QueuePartition, list[pa.RecordBatch]]:
    """Return the rows of the ``parts`` that were read intact.

    Empty if offsets may be missing, as with a filter, and with the option ``dropRepeatedWithin``.

    Raises:
        ReadFailed: A broker could not be asked, even after retries.
    """
    if not options.subscription.is_all or options.compacted_topics or options.drop_repeated_within is not None:
        return {}
    found: dict[QueuePartition, list[pa.RecordBatch]] = {}
    left = ROWS_BYTES_MAX
    for asked in conversations(parts, options):
        try:
            pulled = persist(partial(_pulled, asked, options, pool, directory), options.waiting_policy, pool.clock)
        except MetaqError as error:
            if error.retryable:
                raise read_failed(asked[0], asked[0].offsets.start, error, options) from error
            continue
        for part, answers in pulled.items():
            rows = _rows(part, answers, options, directory.namespace, left) if left > 0 else None
            if rows is not None:
                found[part] = rows
                left -= sum(batch.nbytes for batch in rows)
    return found


def conversations(parts: Sequence[QueuePartition], options: SourceOptions) -> Iterator[list[QueuePartition]]:
    """Yield groups of parts to request together: neighbours at the same broker, up to the limit in flight; no large
    ones.
    """
    most = min(PULLS_MAX, max(1, options.fetch_bytes // ANSWER_BYTES_MAX))
    asked: list[QueuePartition] = []
    pulls = 0
    for part in parts:
        count = len(_ranges(part, options))
        if count > most:
            continue
        if asked and (_broker_name(part) != _broker_name(asked[0]) or pulls + count > most):
            yield asked
            asked, pulls = [], 0
        asked.append(part)
        pulls += count
    if asked:
        yield asked


def _broker_name(part: QueuePartition) -> str:
    return part.source.partition.broker_name


def _ranges(part: QueuePartition, options: SourceOptions) -> list[OffsetRange]:
    """Return the ranges of the pulls for a part."""
    start, end, step = part.offsets.start, part.offsets.end, options.pull_messages
    return [OffsetRange(first, min(first + step, end)) for first in range(start, end, step)]


def _pulled(
    asked: Sequence[QueuePartition], options: SourceOptions, pool: SessionPool, directory: NameServerDirectory
) -> dict[QueuePartition, list[Answer]]:
    """Return the data of the parts for which all pulls returned messages."""
    places = [(part, offsets) for part in asked for offsets in _ranges(part, options)]
    commands = [_command(part.source, offsets, options, directory.namespace) for part, offsets in places]
    found: dict[QueuePartition, list[Answer]] = {part: [] for part in asked}
    address = directory.read_address(_broker_name(asked[0]), topic=asked[0].source.topic)
    try:
        with pool.lease(address) as session:
            opaques = session.post_all(commands, f"pulls of {len(asked)} queues")
            responses = [session.wait(opaque) for opaque in opaques]
            for (part, offsets), command, response in zip(places, commands, responses, strict=True):
                try:
                    outcome = read_outcome(session, command, response)
                except RequestRefused:
                    outcome = None
                if isinstance(outcome, PulledRecords) and part in found:
                    found[part].append((offsets, outcome.data))
                else:
                    found.pop(part, None)
    except (ConnectionFailed, DeadlineExceeded):
        directory.avoid(address)
        raise
    return found


def _command(where: TopicPartition, offsets: OffsetRange, options: SourceOptions, space: str | None) -> RemotingCommand:
    names = [with_namespace(name, space) for name in (where.topic, options.asking_group)]
    return PulledQueue(names[0], where.partition.broker_name, where.partition.index, names[1]).pull(
        offsets.start, len(offsets)
    )


def _rows(
    part: QueuePartition, answers: Sequence[Answer], options: SourceOptions, space: str | None, bytes_max: int
) -> list[pa.RecordBatch] | None:
    """The rows of a range; ``None`` if a message is missing, a record is cut or damaged, or they are too large."""
    queue = ExpectedQueue(with_namespace(part.source.topic, space).encode(), part.source.partition.index)
    layout = options.row_layout
    maker = RecordBatchMaker(part.source, arrow_schema(layout), layout.types.get("value"), json=layout.json)
    measure = RecordMeasure(str(part.source), queue)
    decoder = RecordDecoder(queue, maker, lambda *_: None)
    rows: list[pa.RecordBatch] = []
    try:
        for offsets, data in answers:
            measured = measure(data, WantedRecords(queue.topic, queue.queue_id, offsets.start, offsets.end))
            # Offsets ascend, so that as many as there are numbers are all of them.
            if measured.records != len(offsets) or measured.problem is not None:
                return None
            for batch in decoder.decode(data[measured.begin : measured.stop], offsets.start, offsets.end):
                rows.append(batch)
                bytes_max -= batch.nbytes
                if bytes_max < 0:
                    return None
        return [*rows, *decoder.flush()]
    except CorruptFrame:
        return None
