"""Checks that a query continues in the log that it has read: compares the message before each of its offsets.

An offset alone does not identify the log. A broker that was restored from an older copy of its data has the same
incarnations, and when it has grown to the offset again, messages stored since the copy would never be read. So the end
of each micro-batch also contains the message before each offset (``Progress.last``), as far as brokers report it. That
message is compared when a run begins, and after each new connection: without one no broker was restarted. Where a
partition ends before the offset, or is not listed, it is compared when it has grown there.

If it differs, messages are lost: messages stored since the copy have not been read. They were stored later than the
last message read, so a query that may continue does so at the first message stored later; if brokers store no times, or
the message before the offset has none that is later (the clock was set back), at the start of the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from metaq.errors import ExtensionMissing, MetaqError
from metaq.model import OffsetRange, TopicPartition
from metaq_spark.offsets import AvailableRanges, Progress
from metaq_spark.source.backend import Source
from metaq_spark.source.losses import ReportLoss

_log = logging.getLogger(__name__)

_NEVER: Final = -1


class Continuity:
    """The checks of one run of a query. ``report_loss`` raises, or returns if the query may continue."""

    def __init__(self, source: Source, report_loss: ReportLoss) -> None:
        self._source, self._report_loss = source, report_loss
        self._compared_at = _NEVER
        """How many connections there were when the messages were compared last."""
        self._beyond: Collection[TopicPartition] = ()
        """Partitions that ended before the offset then, or were not listed."""

    def resumed(self, known: Progress, available: AvailableRanges) -> dict[TopicPartition, int]:
        """Return where to continue in partitions that were restored from an older copy; nearly always empty.

        Raises:
            DataLoss: There is such a partition, and the query must not continue.
            MetaqError: A broker refused. One that is away is asked when it is back.
        """
        again = self._source.cluster.connections != self._compared_at
        wanted = known.last.keys() if again else known.last.keys() & self._beyond
        reached = {at for at in wanted if at in available and known.offsets[at] <= available[at].offsets.end}
        if not (reached or again):
            return {}
        differing = self._differing(known, available, reached)
        if differing is None:
            return {}
        for where in sorted(differing):
            self._report(where, known)
        after = self._after_last(known, differing)
        self._beyond = wanted - reached
        if again:
            self._compared_at = self._source.cluster.connections
        starts = {where: available[where].offsets.start for where in differing}
        return starts | {where: at for where, at in after.items() if at < known.offsets[where]}

    def require_planned(self, start: Progress, end: Progress, available: AvailableRanges) -> set[TopicPartition]:
        """Compare start and end of a batch that an earlier run has planned, if the query may continue.

        Return the partitions where the start is in another log. Nothing can be read there: ``resumed`` continues at the
        first message stored later than the one before ``end``. The others are read unchanged.

        Raises:
            DataLoss, MetaqError: As ``resumed``.
        """
        for where in sorted(self._differing(end, available, end.last.keys()) or ()):
            self._report(where, end)
        lost = self._differing(start, available, start.last.keys()) or set()
        for where in sorted(lost):
            self._report(where, start)
        return lost

    def noted(self, known: Progress, end: Progress, available: AvailableRanges) -> Progress:
        """Return ``end`` of a batch that begins at ``known``, with the messages before its offsets.

        A partition that has lost its end continues at the messages written since. With the option ``proveOffsets`` =
        ``false`` older versions can read the result.

        Raises:
            MetaqError: A broker refused."""
        lowered = {where for where, at in end.offsets.items() if at < known.offsets.get(where, at)}
        after = self._after_last(known, {where for where in lowered & known.last.keys() if _same(known, end, where)})
        offsets = dict(end.offsets) | {where: min(at, end.offsets[where]) for where, at in after.items()}
        if not self._source.options.prove_offsets:
            return replace(end, offsets=offsets, since=None)
        unmoved = {where for where in known.last if offsets.get(where) == known.offsets.get(where)}
        kept = {where: known.last[where] for where in unmoved if _same(known, end, where)}
        spans = {
            where: OffsetRange(_floor(known, where, available[where].offsets.start, at), at)
            for where, at in offsets.items()
            if where not in kept and where in available and available[where].offsets.start < at
        }
        try:
            last = self._source.cluster.last_messages.before(spans) if spans else {}
        except MetaqError as error:
            if not error.retryable:
                raise
            _log.warning("%s. The last messages are recorded with the next batch", error)
            last = {}
        return replace(end, offsets=offsets, last=kept | last)

    def _differing(
        self, known: Progress, available: AvailableRanges, wanted: Collection[TopicPartition]
    ) -> set[TopicPartition] | None:
        """Return the ``wanted`` partitions whose last message differs; ``None`` if a broker is away."""
        asked = {
            where: (known.offsets[where], known.last[where])
            for where in wanted
            if where in available
            and available[where].offsets.start < known.offsets[where] <= available[where].offsets.end
            and available[where].incarnation == known.incarnations.get(where)
        }
        try:
            return self._source.cluster.last_messages.differing(asked) if asked else set()
        except MetaqError as error:
            if not error.retryable:
                raise
            _log.warning("%s. The last messages are compared when it is back", error)
            return None

    def _report(self, where: TopicPartition, known: Progress) -> None:
        stored_ms = self._source.cluster.last_messages.stored_ms(known.last[where])
        to = "--to earliest" if stored_ms is None else f"--to-time {_time(stored_ms + 1)}"
        self._report_loss(
            f"{where}: offset {known.offsets[where]} was to be read next, but the message before it is not the one "
            f"that was read: {self._source.sentences.put_back}. To read that, move the query: metaq-spark checkpoint "
            f"move CHECKPOINT --topic {where.topic} --partition {where.partition} {to}"
        )

    def _after_last(self, known: Progress, wanted: set[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The first message of each partition that was stored later than the one read last, where times are known."""
        cluster = self._source.cluster
        stored_ms = {where: cluster.last_messages.stored_ms(known.last[where]) for where in wanted}
        times_ms = {where: ms + 1 for where, ms in stored_ms.items() if ms is not None}
        try:
            return cluster.positions.first_at(times_ms) if times_ms else {}
        except ExtensionMissing:
            return {}


def _same(known: Progress, end: Progress, where: TopicPartition) -> bool:
    return known.incarnations.get(where) == end.incarnations.get(where)


def _floor(known: Progress, where: TopicPartition, start: int, end: int) -> int:
    """Return a boundary before ``end``: the batch's start, if it is stored and the incarnation is the same."""
    at = known.offsets.get(where, start)
    return at if start <= at < end else start


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
