"""Reads the small ranges of a task in one round trip to each broker, instead of two for each range.

A reply is used only if the range is intact: of the same incarnation, with every requested byte, in whole frames with
the right checksums. After any other reply (short, refused, moved or damaged bytes, a broker that is away) the range is
left to ``read_partition``, which reads it from the start, retries, and handles these cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from metaq.backends.metaq.fetch import GROUP, Run, read_outcome
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session, call_all
from metaq.errors import BrokerError, CorruptFrame, MetaqError
from metaq.protocols.text.commands import Get, GetOffset, Reply
from metaq_spark.backends.metaq.cluster import pool_with
from metaq_spark.backends.metaq.options import SourceOptions
from metaq_spark.backends.metaq.partition_reader import RangePartition
from metaq_spark.columns.decode import BYTES_MAX, RunDecoder


def read_small(
    parts: Sequence[RangePartition], options: SourceOptions, pool: SessionPool | None
) -> dict[RangePartition, list[pa.RecordBatch]]:
    """Return the rows of the ``parts`` that were read intact; without those above a request or a batch of rows.

    Empty with the option ``messageTypes``, where the broker filters messages, and with ``pushFilters``, where ranges
    end in the middle of messages.
    """
    if options.message_types is not None or options.push_filters:
        return {}
    pool = pool or pool_with(options.timeouts, options.tls)
    found: dict[RangePartition, list[pa.RecordBatch]] = {}
    for asked in conversations(parts, min(options.fetch_bytes, BYTES_MAX)):
        for part, run in _fetched(asked, pool).items():
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


def _fetched(asked: Sequence[RangePartition], pool: SessionPool) -> dict[RangePartition, Run]:
    """Return the intact data that the broker of these parts sent."""
    gets = [_get(part) for part in asked]
    # Requested after the bytes: if the incarnation is still the planned one, it was so before, too.
    named = [part for part in asked if part.incarnation is not None]
    try:
        with pool.lease(asked[0].address) as session:
            replies = call_all(session, [*gets, *map(_incarnation_query, named)])
            changed = {part for part, reply in zip(named, replies[len(gets) :], strict=True) if not _same(part, reply)}
            runs = [_run(session, get, reply) for get, reply in zip(gets, replies[: len(gets)], strict=True)]
    except MetaqError:
        return {}
    return {part: run for part, run in zip(asked, runs, strict=True) if run is not None and part not in changed}


def _get(part: RangePartition) -> Get:
    offsets = part.offsets
    return Get(part.source.topic, GROUP, part.source.partition.index, offsets.start, len(offsets), 0)


def _incarnation_query(part: RangePartition) -> GetOffset:
    return GetOffset(part.source.topic, GROUP, part.source.partition.index, 0, 0, "incarnation")


def _same(part: RangePartition, reply: Reply) -> bool:
    # A broker without the extension answers with an offset instead, which is no incarnation either.
    return getattr(reply, "text", None) == part.incarnation


def _run(session: Session, get: Get, reply: Reply) -> Run | None:
    """Return all requested bytes, or ``None``."""
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
