"""Reads the small ranges of a task in one round trip to each broker, instead of two for each range.

A reply is used only if the range is intact: of the same incarnation, with every requested byte, in whole frames with
the right checksums. After any other reply (short, refused, moved or damaged bytes) the range is left to
``read_partition``, which reads it from the start and handles these cases. A broker that is away is asked again for all
ranges of the conversation, as often as for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from metaq.backends.metaq.fetch import GROUP, Run, read_outcome
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session, call_all
from metaq.errors import BrokerError, CorruptFrame, MetaqError
from metaq.net.retry import persist
from metaq.protocols.text.commands import Command, Get, GetOffset, Reply
from metaq_spark.backends.metaq.cluster import RetryingSessions, pool_with
from metaq_spark.backends.metaq.options import SourceOptions
from metaq_spark.backends.metaq.partition_reader import RangePartition, read_failed
from metaq_spark.columns.decode import BYTES_MAX, RunDecoder


def read_small(
    parts: Sequence[RangePartition], options: SourceOptions, pool: SessionPool | None
) -> dict[RangePartition, list[pa.RecordBatch]]:
    """Return the rows of the ``parts`` that were read intact; without those above a request or a batch of rows.

    Empty with the option ``messageTypes``, where the broker filters messages, and with ``pushFilters``, where ranges
    end in the middle of messages.

    Raises:
        ReadFailed: A broker could not be asked, even after retries.
    """
    if options.message_types is not None or options.push_filters:
        return {}
    pool = pool or pool_with(options.reach)
    sessions = RetryingSessions(options, pool, pool.clock)
    found: dict[RangePartition, list[pa.RecordBatch]] = {}
    for asked in conversations(parts, min(options.fetch_bytes, BYTES_MAX)):
        try:
            runs = persist(partial(_fetched, asked, sessions), sessions.policy, sessions.clock)
        except MetaqError as error:
            if error.retryable:
                raise read_failed(asked[0], asked[0].offsets.start, error, options) from error
            continue
        for part, run in runs.items():
            rows = _rows(part, run, options)
            if rows is not None:
                found[part] = rows
    return found


def conversations(parts: Sequence[RangePartition], bytes_max: int) -> Iterator[list[RangePartition]]:
    """Which parts to ask for together: neighbours at the same broker, up to ``bytes_max``; larger ones not at all."""
    asked: list[RangePartition] = []
    size = 0
    for part in parts:
        if len(part.offsets) > bytes_max:
            continue
        if asked and (part.address != asked[0].address or size + len(part.offsets) > bytes_max):
            yield asked
            asked, size = [], 0
        asked.append(part)
        size += len(part.offsets)
    if asked:
        yield asked


def _fetched(asked: Sequence[RangePartition], sessions: RetryingSessions) -> dict[RangePartition, Run]:
    """Return the intact data that the broker of these parts sent."""
    commands: list[Get | GetOffset] = []
    for part in asked:
        topic, index = part.source.topic, part.source.partition.index
        commands.append(Get(topic, GROUP, index, part.offsets.start, len(part.offsets), 0))
        if part.incarnation is not None:  # asked for after the bytes: if it is the planned one, it was so before, too
            commands.append(GetOffset(topic, GROUP, index, 0, 0, "incarnation"))
    found: dict[RangePartition, Run] = {}
    with sessions.lease(asked[0].address, asked[0].source.partition.broker_id, retried=False) as session:
        answers = iter(zip(commands, call_all(session, commands), strict=True))
        for part in asked:
            run = _run(session, *next(answers))
            # A broker without the extension answers with an offset instead, which is not an incarnation either.
            same = part.incarnation is None or getattr(next(answers)[1], "text", None) == part.incarnation
            if run is not None and same:
                found[part] = run
    return found


def _run(session: Session, get: Command, reply: Reply) -> Run | None:
    """Return all requested bytes, or ``None``."""
    assert isinstance(get, Get)
    try:
        outcome = read_outcome(session, get, reply)
    except BrokerError:
        return None
    return outcome if isinstance(outcome, Run) and len(outcome.data) == get.max_bytes else None


def _rows(part: RangePartition, run: Run, options: SourceOptions) -> list[pa.RecordBatch] | None:
    """Return the rows of a range; ``None`` if one of its frames is cut or damaged."""
    decoder = RunDecoder(part.source, layout=options.row_layout, end=part.offsets.end)
    try:
        return [*decoder.decode(run.data, run.offset), *decoder.flush()]
    except CorruptFrame:
        return None
