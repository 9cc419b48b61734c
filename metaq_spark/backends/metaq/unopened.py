"""Partitions that a broker offers and does not list: never written to, or not opened since the broker was restarted.

A Java broker opens only some of its partitions when it starts; the others answer 404, as if nobody had ever written to
them, until their next put. A broker that tells incarnations lists whatever it has on its disk, so what it leaves out
has no messages. Of other brokers nobody can know. Such a partition fails a batch read that names it, as a loss does.
Otherwise a warning names it: a partition of a new topic looks the same, and a stream reads one from its first byte on
when it is listed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from metaq.errors import TopicNotFound
from metaq.model import TopicPartition
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.options import SourceOptions
from metaq_spark.offsets import Holdings
from metaq_spark.options.positions import Specific, Timestamps
from metaq_spark.options.selection import Assigned, Selection, topics_of
from metaq_spark.source.losses import report_data_loss

_log = logging.getLogger(__name__)

_SHOWN_MAX = 10


def report_unopened(options: SourceOptions, available: Holdings, cluster: Cluster, *, streaming: bool) -> None:
    """Fail, or warn, because of partitions that may have messages and are not listed; see the module.

    Raises:
        DataLoss: An option of a batch read names one, and the option ``failOnDataLoss`` is true.
        ConnectionFailed, DeadlineExceeded: A broker could not be asked.
    """
    if available and all(one.incarnation is not None for one in available.values()):
        return
    missing = _unknowable(_offered(options.selection, available, cluster) - available.keys(), cluster)
    named = [] if streaming or options.wait_for_topic else sorted(_named(options) & missing)
    if named:
        report_data_loss(_text(named), fail=options.fail_on_data_loss)
    if others := sorted(missing.difference(named)):
        _log.warning("%s", _text(others))


def _offered(selection: Selection, available: Holdings, cluster: Cluster) -> set[TopicPartition]:
    if isinstance(selection, Assigned):
        return _assigned(selection)
    offered: set[TopicPartition] = set()
    for topic in topics_of(selection) or sorted({where.topic for where in available}):
        with suppress(TopicNotFound):  # closed for writing
            offered.update(TopicPartition(topic, partition) for partition in cluster.writable(topic))
    return offered


def _assigned(selection: Assigned) -> set[TopicPartition]:
    return {TopicPartition(topic, each) for topic, found in selection.partitions.items() for each in found}


def _named(options: SourceOptions) -> set[TopicPartition]:
    """The partitions that an option names one by one."""
    named = _assigned(options.selection) if isinstance(options.selection, Assigned) else set()
    for position in (options.start, options.end):
        match position:
            case Specific(offsets):
                named |= offsets.keys()
            case Timestamps(of_each_ms=of_each_ms):
                named |= of_each_ms.keys()
    return named


def _unknowable(partitions: Iterable[TopicPartition], cluster: Cluster) -> set[TopicPartition]:
    """Those on brokers that do not tell incarnations."""
    return {where for where, told in cluster.tells_incarnations(sorted(partitions)).items() if not told}


def _text(partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, partitions[:_SHOWN_MAX]))
    more = f" and {len(partitions) - _SHOWN_MAX} more" if len(partitions) > _SHOWN_MAX else ""
    return (
        f"{names}{more}: the broker offers this partition, but does not list it, so nothing of it is read. It was "
        "never written to, or the broker has not opened it since it was restarted: a Java broker opens some of its "
        "partitions only with their next put"
    )
