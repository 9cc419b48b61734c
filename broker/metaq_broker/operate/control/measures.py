"""All metrics: a row for each, from which a scrape and the page on metrics are made.

Values are gathered on the event loop into plain objects that any thread may read afterwards. The broker has most
counters anyway; only the ones in ``statistics`` are kept for metrics alone. Names are RocketMQ's if it has the same
metric. Topics get a label of their own up to a limit; the rest share one.

Source: docs/administration.md, "Metrics", which is made from the rows.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import metaq
from metaq_broker.histogram import Histogram
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.operate.control.services import BrokerParts, GroupFigures
from metaq_broker.replication.driver.pair_replication import PairReplication

TOPIC_LABELS_MAX: Final = 500
"""Limit on topics with a label of their own; further ones are counted together."""

OTHER_TOPICS: Final = "(other)"
"""The label of all further topics."""

Labels = tuple[str, ...]
Kind = Literal["counter", "gauge", "histogram"]


class Measure(NamedTuple):
    """One metric with its values. The name of a counter is without Prometheus's suffix ``_total``."""

    kind: Literal["counter", "gauge"]
    name: str
    text: str
    label_names: Labels
    values: Sequence[tuple[Labels, float]]


class Distribution(NamedTuple):
    """One histogram: ``buckets`` are (upper bound, number of values at most that); the last bound is infinite."""

    name: str
    text: str
    buckets: Sequence[tuple[float, int]]
    total: float


class TopicLabels:
    """Gives the first ``limit`` topics labels of their own, all others ``OTHER_TOPICS``; a topic's label never changes.
    """

    def __init__(self, limit: int = TOPIC_LABELS_MAX) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def label(self, topic: str) -> str:
        if topic not in self._known:
            if len(self._known) >= self._limit:
                return OTHER_TOPICS
            self._known.add(topic)
        return topic.encode("utf-8", "backslashreplace").decode()


class ScrapeValues:
    """The source of the values of one scrape."""

    def __init__(self, parts: BrokerParts, labels: TopicLabels) -> None:
        self.parts, self._labels = parts, labels
        self.engine, self.statistics = parts.engine, parts.engine.statistics
        self.counters = parts.transactions.counters
        self.logs = list(parts.engine.stores.logs())
        self.folders = parts.guard.folders()

    def commands(self, name: str) -> int:
        """Return the count of a command, or of an outcome of one."""
        return self.statistics.commands[name]

    def traffic(self, name: str) -> Counter[str]:
        """Return a figure of the topics' traffic by label."""
        return self._by_label((topic, getattr(traffic, name)) for topic, traffic in self.statistics.traffic.items())

    def stored(self, value: Callable[[PartitionLog], int]) -> Counter[str]:
        """Return a figure of the partitions, summed by their topic's label."""
        return self._by_label((log.topic, value(log)) for log in self.logs)

    def _by_label(self, values: Iterable[tuple[str, int]]) -> Counter[str]:
        found: Counter[str] = Counter()
        for topic, value in values:
            found[self._labels.label(topic)] += value
        return found

    @cached_property
    def copies(self) -> Sequence[Any]:
        slave = self.parts.replication.slave
        return slave.states() if slave is not None else []

    def pair(self, value: Callable[[PairReplication], float]) -> float | None:
        """Return a figure of a member of a pair; ``None`` if this broker is not in a pair."""
        found = self.parts.replication
        return value(found) if isinstance(found, PairReplication) else None

    def group(self, value: Callable[[GroupFigures], int]) -> int | None:
        """Return a figure of RocketMQ's groups; ``None`` if RocketMQ's clients are not served."""
        figures = self.parts.groups()
        return None if figures is None else value(figures)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. ``value`` returns a number, ``None`` for no value, numbers by label, or a ``Histogram``."""

    kind: Kind
    name: str
    text: str
    value: Callable[[ScrapeValues], Any]
    labels: Labels = ()

    @property
    def shown_name(self) -> str:
        """The name as Prometheus shows it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def measure(self, moment: ScrapeValues) -> Measure | Distribution:
        value = self.value(moment)
        if self.kind == "histogram":
            assert isinstance(value, Histogram)
            return Distribution(self.name, self.text, value.cumulative(), value.total)
        if not self.labels:
            return Measure(self.kind, self.name, self.text, (), [] if value is None else [((), value)])
        pairs = [(label if isinstance(label, tuple) else (label,), each) for label, each in value.items()]
        return Measure(self.kind, self.name, self.text, self.labels, pairs)


def _counter(name: str, text: str, value: Callable[[ScrapeValues], Any], *labels: str) -> Metric:
    return Metric("counter", name, text, value, labels)


def _gauge(name: str, text: str, value: Callable[[ScrapeValues], Any], *labels: str) -> Metric:
    return Metric("gauge", name, text, value, labels)


def _histogram(name: str, text: str, value: Callable[[ScrapeValues], Histogram]) -> Metric:
    return Metric("histogram", name, text, value)


def _registered(moment: ScrapeValues) -> bool | None:
    registration = moment.parts.registration()
    return None if registration is None else registration.registered


# fmt: off
METRICS: Final = (
    _gauge("metaq_build_info", "Always 1; the labels say which.",
           lambda m: {(str(m.engine.config.system.broker_id), metaq.__version__): 1}, "broker_id", "version"),
    _gauge("metaq_uptime_seconds", "Time since the start.", lambda m: m.statistics.uptime_s),
    _gauge("metaq_connections", "Connections of clients.", lambda m: m.statistics.connection_counts.connections),
    _counter("metaq_connections_refused",
             "Connections that were closed at once: there were too many, or no file descriptor was left.",
             lambda m: m.statistics.connection_counts.connections_refused),
    _counter("metaq_put_messages", "Messages that clients sent, accepted or not.", lambda m: m.commands("put")),
    _counter("metaq_put_failed_messages", "Messages that were refused or could not be stored.",
             lambda m: m.commands("put_failed")),
    _counter("metaq_gets", "Get commands, whatever their answer.", lambda m: m.commands("get")),
    _counter("metaq_get_misses", "Get commands answered with 301 or 404.", lambda m: m.commands("get_miss")),
    _counter("metaq_offset_lookups", "Offset commands, and gets that were answered with another offset.",
             lambda m: m.commands("offset")),
    _counter("metaq_messages_in", "Messages that were stored, those of committed transactions included.",
             lambda m: m.traffic("messages_in"), "topic"),
    _counter("metaq_throughput_in_bytes", "Bytes of messages that were stored, headers of 20 bytes included.",
             lambda m: m.traffic("bytes_in"), "topic"),
    _counter("metaq_throughput_out_bytes",
             "Bytes of messages that were sent to readers. (The broker does not know how many messages a reply "
             "contains.)", lambda m: m.traffic("bytes_out"), "topic"),
    _gauge("metaq_storage_size_bytes", "Bytes of messages that are kept.",
           lambda m: m.stored(lambda log: log.end_offset - log.start_offset), "topic"),
    _gauge("metaq_storage_messages", "Messages that are kept.", lambda m: m.stored(lambda log: log.message_count),
           "topic"),
    _gauge("metaq_partitions", "Partitions in service.", lambda m: m.stored(lambda log: 1), "topic"),
    _gauge("metaq_topic_number", "Topics that have partitions.", lambda m: len({log.topic for log in m.logs})),
    _gauge("metaq_storage_flush_behind_bytes", "Bytes that were written and are not on the disk yet.",
           lambda m: sum(log.end_offset - log.readable_end for log in m.logs)),
    _gauge("metaq_segments", "Segment files of all partitions.", lambda m: sum(log.segment_count for log in m.logs)),
    _counter("metaq_segments_removed", "Segments that were too old; `how` is `delete` or `archive`.",
             lambda m: {"delete": m.parts.retention.figures().deleted, "archive": m.parts.retention.figures().archived},
             "how"),
    _counter("metaq_segments_removed_bytes", "Bytes of these segments.",
             lambda m: m.parts.retention.figures().byte_count),
    _counter("metaq_retention_failures", "Times that old segments of a partition could not be removed.",
             lambda m: m.parts.retention.figures().failures),
    _gauge("metaq_clock_doubted",
           "1 while the clock is wrong, or has jumped within a day: nothing is deleted by age.",
           lambda m: m.engine.id_clock.doubt() is not None),
    _gauge("metaq_partitions_read_only", "Partitions that take no messages since a disk failed.",
           lambda m: sum(log.failure is not None for log in m.logs)),
    _gauge("metaq_partitions_not_served", "Partitions on the disk that could not be opened.",
           lambda m: len(list(m.engine.stores.refused()))),
    _gauge("metaq_partitions_closed", "Partitions that an operator closed.",
           lambda m: len(m.engine.closed_partitions())),
    _gauge("metaq_quarantined_bytes", "Damaged bytes that are not served.",
           lambda m: sum(len(damaged) for log in m.logs for damaged in log.quarantined)),
    _gauge("metaq_lost_bytes", "Durable bytes that were found gone, until `ctl acknowledge`.",
           lambda m: sum(loss.end - loss.start for _, _, loss in m.engine.stores.losses())),
    _gauge("metaq_storage_folder_gone",
           "1 while puts are refused because the folder, or a file in it, was removed or replaced.",
           lambda m: {folder.path: folder.gone is not None for folder in m.folders}, "path"),
    _gauge("metaq_storage_disk_low", "1 while puts are refused for want of space.",
           lambda m: {folder.path: folder.low for folder in m.folders}, "path"),
    _counter("metaq_storage_disk_low_times", "Times that this began.",
             lambda m: {folder.path: folder.times_low for folder in m.folders}, "path"),
    _gauge("metaq_replication_lag_bytes", "Bytes that the master of this asynchronous slave has and it has not.",
           lambda m: sum(state.lag_bytes for state in m.copies)),
    _gauge("metaq_replication_partitions_refused", "Partitions that this slave does not copy.",
           lambda m: sum(state.fault is not None for state in m.copies)),
    _gauge("metaq_replication_broken",
           "1 while the other broker cannot be reached, or the synchronous pair is out of sync and takes no messages.",
           lambda m: m.parts.replication.trouble is not None),
    _gauge("metaq_pair_in_sync", "Members of the pair in sync, as this one knows; no value without a pair.",
           lambda m: m.pair(lambda pair: len(pair.in_sync()))),
    _gauge("metaq_pair_master", "1 while this member of a pair is its master.",
           lambda m: m.pair(lambda pair: int(pair.is_master))),
    _gauge("metaq_pair_epoch", "Epoch of the pair: it rises with every election.",
           lambda m: m.pair(lambda pair: pair.epoch)),
    _counter("metaq_pair_elections", "Elections that this member has won since it was started.",
             lambda m: m.pair(lambda pair: pair.elections)),
    _counter("metaq_pair_without_master_seconds", "Time without a master since this member was started.",
             lambda m: m.pair(lambda pair: pair.seconds_without_master)),
    _gauge("metaq_zookeeper_registered",
           "1 while this broker is registered in ZooKeeper; no value without ZooKeeper.", _registered),
    _counter("metaq_transactions_begun", "Transactions that were begun; `kind` is `local` or `xa`.",
             lambda m: {"local": m.counters.tx_begin, "xa": m.counters.tx_xa_begin}, "kind"),
    _counter("metaq_transactions_committed", "Transactions that were committed.", lambda m: m.counters.tx_commit),
    _counter("metaq_transactions_rolled_back", "Transactions that were rolled back.",
             lambda m: m.counters.tx_rollback),
    _gauge("metaq_transactions_open", "Transactions that have not ended.", lambda m: m.parts.transactions.open_count),
    _gauge("metaq_transactions_prepared", "Of these, those that are prepared.",
           lambda m: len(m.parts.transactions.prepared())),
    _gauge("metaq_transaction_journal_bytes", "Size of the transaction journal.",
           lambda m: m.parts.transactions.journal_bytes),
    _gauge("metaq_rocketmq_groups",
           "Groups of RocketMQ's clients with settings; no value where no clients are served.",
           lambda m: m.group(lambda figures: figures.groups)),
    _gauge("metaq_rocketmq_members", "Their clients, each once for each of its groups.",
           lambda m: m.group(lambda figures: figures.members)),
    _gauge("metaq_rocketmq_state_bytes", "What settings and offsets of groups and topics take.",
           lambda m: m.group(lambda figures: figures.state_bytes)),
    _gauge("metaq_rocketmq_state_limit_bytes", "What they may take.",
           lambda m: m.group(lambda figures: figures.state_bytes_max)),
    _histogram("metaq_message_size_bytes",
               "Bytes of message bodies; messages that were put together count with their average.",
               lambda m: m.statistics.message_bytes),
    _histogram("metaq_put_latency_seconds", "Time from writing a message until it may be acknowledged.",
               lambda m: m.statistics.put_seconds),
    _histogram("metaq_storage_flush_seconds",
               "Time that making appended messages durable took, one partition at a time.",
               lambda m: m.parts.commit.sync_seconds),
)
DISK_FREE: Final = _gauge("metaq_storage_disk_free_bytes", "Bytes that may still be written.", lambda m: {}, "path")
"""Read outside of the event loop: a disk may be slow."""
# fmt: on


def gather(parts: BrokerParts, labels: TopicLabels) -> list[Measure | Distribution]:
    """Return all figures (event loop only)."""
    moment = ScrapeValues(parts, labels)
    return [metric.measure(moment) for metric in METRICS]


def disk_free(paths: Iterable[str], free_bytes: Callable[[str], int]) -> Measure:
    """Return the free space of the data folders (may block; any thread); a disk that cannot be read is left out."""
    values: list[tuple[Labels, float]] = []
    for path in paths:
        with contextlib.suppress(OSError):
            values.append(((path,), free_bytes(path)))
    return Measure("gauge", DISK_FREE.name, DISK_FREE.text, DISK_FREE.labels, values)
