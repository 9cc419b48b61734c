"""Where a query begins in a partition that appears while it runs, or that a later run finds.

A query that began with everything reads such a partition from its first message. One that began with ``latest`` or at a
time skips older messages: a partition's broker may have been away when the query began, and its messages from before
are skipped like those at the other brokers. So the checkpoint has the query's start time (``Progress.since``), and the
partition begins with the first message that its broker stored then or later.

If the broker listed all its partitions when the query began, a later one is new, and is read from its first message,
whatever the clocks say. If brokers store no times, a partition is read from its first message, too.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from metaq.errors import ExtensionMissing, MetaqError
from metaq.model import TopicPartition
from metaq_spark.offsets import AvailableRanges, Offsets, Progress, Since
from metaq_spark.options.positions import Latest, Position, Timestamps
from metaq_spark.source.backend import Cluster

_log = logging.getLogger(__name__)


def since_of(position: Position, now_ms: int, listed_whole: Callable[[], Collection[str]]) -> Since | None:
    """Return the start time of a query that begins at ``position`` now; ``None``: it skips nothing by time."""
    match position:
        case Latest():
            return Since(now_ms, frozenset(listed_whole()))
        case Timestamps(of_all_ms=int(of_all_ms)):
            return Since(min(of_all_ms, now_ms), frozenset(listed_whole()))
    return None


class Appeared:
    """Finds out where partitions begin that one run of a query meets; each is looked up once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: dict[tuple[TopicPartition, str | None], int] = {}

    def look_up(self, known: Progress, available: AvailableRanges, *, wait: bool) -> tuple[AvailableRanges, Offsets]:
        """Return the part of ``available`` that can be planned, and the start offsets of partitions missing in
        ``known``.

        With ``wait``, new partitions whose broker is away are left out until the next call.

        Raises:
            MetaqError: A broker refused to be asked, or without ``wait`` did not answer.
        """
        since, new = known.since, sorted(available.keys() - known.offsets.keys())
        if since is None or not new:
            return available, {}
        found, by_broker = {}, defaultdict[int | str, list[TopicPartition]](list)
        for where in new:
            if str(where.partition.broker) in since.brokers:
                found[where] = available[where].offsets.start
            elif (key := (where, available[where].incarnation)) in self._found:
                found[where] = self._found[key]
            else:
                by_broker[where.partition.broker].append(where)
        for broker, partitions in by_broker.items():
            try:
                first = self._first_since(partitions, available, since)
            except MetaqError as error:
                if not (wait and error.retryable):
                    raise
                _log.warning("%s. Where the query begins at broker %s is looked up when it is back", error, broker)
                continue
            self._found |= {(where, available[where].incarnation): at for where, at in first.items()}
            found |= first
        if len(found) < len(new):
            available = {where: one for where, one in available.items() if where in known.offsets or where in found}
        return available, found

    def _first_since(
        self, partitions: Sequence[TopicPartition], available: AvailableRanges, since: Since
    ) -> dict[TopicPartition, int]:
        spans = {where: available[where].offsets for where in partitions}
        time = datetime.fromtimestamp(since.ms / 1000, UTC).isoformat(timespec="milliseconds")
        try:
            found = self._cluster.positions.first_at(dict.fromkeys(partitions, since.ms))
        except ExtensionMissing as error:
            _log.warning(
                "%s appeared after the query began (%s) and is read from the first message on, however old: %s",
                ", ".join(map(str, partitions)), time, error,
            )  # fmt: skip
            return {where: span.start for where, span in spans.items()}
        first = {where: min(max(found[where], span.start), span.end) for where, span in spans.items()}
        for where, at in first.items():
            if at > spans[where].start:
                _log.warning(
                    "%s appeared after the query began (%s): the query does not read [%d, %d) of it, which its broker "
                    "had stored before", where, time, spans[where].start, at,
                )  # fmt: skip
        return first
