"""Everything that is measured, gathered on the event loop into plain values that any thread may read afterwards.

Counters are those that the broker keeps anyway: nothing is counted for the sake of metrics but what ``statistics.py``
says. Names follow RocketMQ's where it has one. Topics get a label of their own up to a limit; the rest share one.

Source: docs/administration.md, "Metrics".
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import metaq
from metaq_broker.histogram import Histogram
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.retention.retention import Retention
from metaq_broker.operate.control.services import BrokerParts, GroupFigures
from metaq_broker.operate.monitoring.disk_guard import DiskGuard
from metaq_broker.replication.roles import Replication
from metaq_broker.transactions.manager import TransactionManager

if TYPE_CHECKING:
    from metaq_broker.operate.registration.registration import Registration

TOPIC_LABELS_MAX: Final = 500
"""Topics with a label of their own; later ones are counted together."""

OTHER_TOPICS: Final = "(other)"
"""The label of those."""

Labels = tuple[str, ...]


class Measure(NamedTuple):
    """One metric with its values. A counter's name is without the ``_total`` that Prometheus adds."""

    kind: Literal["counter", "gauge"]
    name: str
    text: str
    label_names: Labels
    values: Sequence[tuple[Labels, float]]


class Distribution(NamedTuple):
    """One histogram: ``buckets`` are (upper bound, number of values at most that), the last bound is infinite."""

    name: str
    text: str
    buckets: Sequence[tuple[float, int]]
    total: float


class TopicLabels:
    """Gives the first ``limit`` topics their names as labels, all others ``OTHER_TOPICS``; a topic's never changes."""

    def __init__(self, limit: int = TOPIC_LABELS_MAX) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def label(self, topic: str) -> str:
        """Return the label of a topic."""
        if topic not in self._known:
            if len(self._known) >= self._limit:
                return OTHER_TOPICS
            self._known.add(topic)
        return topic.encode("utf-8", "backslashreplace").decode()


def gather(parts: BrokerParts, labels: TopicLabels) -> list[Measure | Distribution]:
    """Return all figures as they are now (event loop only)."""
    logs = list(parts.engine.stores.logs())
    return [
        *_broker(parts.engine),
        *_requests(parts.engine),
        *_traffic(parts.engine, labels),
        *_storage(logs, labels),
        *_retention(parts.retention),
        *_clock(parts.engine),
        *_troubles(parts.engine, logs),
        *_disks(parts.guard),
        *_replication(parts.replication),
        *_registration(parts.registration()),
        *_transactions(parts.transactions),
        *_groups(parts.groups()),
        *_distributions(parts),
    ]


def disk_free(paths: Iterable[str], free_bytes: Callable[[str], int]) -> Measure:
    """Return the free space of the data folders (may block; any thread); a disk that does not tell is left out."""
    values: list[tuple[Labels, float]] = []
    for path in paths:
        with contextlib.suppress(OSError):
            values.append(((path,), free_bytes(path)))
    return Measure("gauge", "metaq_storage_disk_free_bytes", "Bytes that may still be written.", ("path",), values)


def _broker(engine: Engine) -> Iterator[Measure]:
    info = (str(engine.config.system.broker_id), metaq.__version__)
    yield Measure("gauge", "metaq_build_info", "Always 1; the labels say which.", ("broker_id", "version"), [(info, 1)])
    yield _gauge("metaq_uptime_seconds", "Time since the start.", engine.statistics.uptime_s)
    yield _gauge("metaq_connections", "Connections of clients.", engine.statistics.connections)
    refused = engine.statistics.connections_refused
    yield _counter("metaq_connections_refused", "Connections that were closed at once, there were too many.", refused)


def _requests(engine: Engine) -> Iterator[Measure]:
    commands = engine.statistics.commands
    for name, key, text in (
        ("metaq_put_messages", "put", "Messages that clients sent, accepted or not."),
        ("metaq_put_failed_messages", "put_failed", "Messages that were refused or could not be stored."),
        ("metaq_gets", "get", "Get commands, whatever their answer."),
        ("metaq_get_misses", "get_miss", "Get commands answered with 301 or 404."),
        ("metaq_file_lookups", "file_lookup", "Questions for the file of a partition, by readers on this machine."),
        ("metaq_offset_lookups", "offset", "Offset commands, and gets that were answered with another offset."),
    ):
        yield _counter(name, text, commands[key])


def _traffic(engine: Engine, labels: TopicLabels) -> Iterator[Measure]:
    messages: Counter[str] = Counter()
    bytes_in: Counter[str] = Counter()
    bytes_out: Counter[str] = Counter()
    for topic, traffic in engine.statistics.traffic.items():
        label = labels.label(topic)
        messages[label] += traffic.messages_in
        bytes_in[label] += traffic.bytes_in
        bytes_out[label] += traffic.bytes_out
    yield _by_topic("counter", "metaq_messages_in", "Messages that were stored.", messages)
    yield _by_topic("counter", "metaq_throughput_in_bytes", "Bytes of messages that were stored.", bytes_in)
    yield _by_topic("counter", "metaq_throughput_out_bytes", "Bytes of messages that were sent to readers.", bytes_out)


def _storage(logs: Sequence[PartitionLog], labels: TopicLabels) -> Iterator[Measure]:
    stored: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    partitions: Counter[str] = Counter()
    for log in logs:
        label = labels.label(log.topic)
        stored[label] += log.end_offset - log.start_offset
        messages[label] += log.message_count
        partitions[label] += 1
    behind = sum(log.end_offset - log.readable_end for log in logs)
    yield _by_topic("gauge", "metaq_storage_size_bytes", "Bytes of messages that are kept.", stored)
    yield _by_topic("gauge", "metaq_storage_messages", "Messages that are kept.", messages)
    yield _by_topic("gauge", "metaq_partitions", "Partitions in service.", partitions)
    yield _gauge("metaq_topic_number", "Topics that have partitions.", len({log.topic for log in logs}))
    yield _gauge("metaq_storage_flush_behind_bytes", "Bytes that were written and are not on the disk yet.", behind)
    yield _gauge("metaq_segments", "Segment files of all partitions.", sum(log.segment_count for log in logs))


def _troubles(engine: Engine, logs: Sequence[PartitionLog]) -> Iterator[Measure]:
    read_only = sum(log.failure is not None for log in logs)
    quarantined = sum(len(damaged) for log in logs for damaged in log.quarantined)
    not_served = len(list(engine.stores.refused()))
    lost = sum(loss.end - loss.start for _, _, loss in engine.stores.losses())
    closed = len(engine.closed_partitions())
    yield _gauge("metaq_partitions_read_only", "Partitions that take no messages since a disk failed.", read_only)
    yield _gauge("metaq_partitions_not_served", "Partitions on the disk that could not be opened.", not_served)
    yield _gauge("metaq_partitions_closed", "Partitions that an operator closed.", closed)
    yield _gauge("metaq_quarantined_bytes", "Damaged bytes that are not served.", quarantined)
    yield _gauge("metaq_lost_bytes", "Durable bytes that were found gone, until that is acknowledged.", lost)


def _clock(engine: Engine) -> Iterator[Measure]:
    doubted = "1 while the clock is wrong, or has jumped within a day: nothing is deleted by age."
    yield _gauge("metaq_clock_doubted", doubted, engine.id_clock.doubt() is not None)


def _retention(retention: Retention) -> Iterator[Measure]:
    done = retention.figures()
    ways: list[tuple[Labels, float]] = [(("delete",), done.deleted), (("archive",), done.archived)]
    yield Measure("counter", "metaq_segments_removed", "Segments that were too old.", ("how",), ways)
    yield _counter("metaq_segments_removed_bytes", "Bytes of these segments.", done.byte_count)
    failures = "Times that old segments of a partition could not be removed."
    yield _counter("metaq_retention_failures", failures, done.failures)


def _disks(guard: DiskGuard) -> Iterator[Measure]:
    folders = guard.folders()
    low: list[tuple[Labels, float]] = [((folder.path,), folder.low) for folder in folders]
    times: list[tuple[Labels, float]] = [((folder.path,), folder.times_low) for folder in folders]
    gone: list[tuple[Labels, float]] = [((folder.path,), folder.gone is not None) for folder in folders]
    removed = "1 while puts are refused because the folder, or a file in it, was removed or replaced."
    yield Measure("gauge", "metaq_storage_folder_gone", removed, ("path",), gone)
    yield Measure("gauge", "metaq_storage_disk_low", "1 while puts are refused for want of space.", ("path",), low)
    yield Measure("counter", "metaq_storage_disk_low_times", "Times that this began.", ("path",), times)


def _replication(replication: Replication) -> Iterator[Measure]:
    states = replication.slave.states() if replication.slave is not None else []
    lag = "Bytes that the master of this asynchronous slave has and it has not."
    yield _gauge("metaq_replication_lag_bytes", lag, sum(state.lag_bytes for state in states))
    refused = sum(state.fault is not None for state in states)
    yield _gauge("metaq_replication_partitions_refused", "Partitions that this slave does not copy.", refused)
    broken = "1 while the other broker cannot be reached, or the synchronous pair is out of sync."
    yield _gauge("metaq_replication_broken", broken, replication.trouble is not None)


def _registration(registration: Registration | None) -> Iterator[Measure]:
    values: list[tuple[Labels, float]] = [] if registration is None else [((), registration.registered)]
    text = "1 while this broker is registered in ZooKeeper; not there without ZooKeeper."
    yield Measure("gauge", "metaq_zookeeper_registered", text, (), values)


def _transactions(manager: TransactionManager) -> Iterator[Measure]:
    counters = manager.counters
    begun = [(("local",), float(counters.tx_begin)), (("xa",), float(counters.tx_xa_begin))]
    yield Measure("counter", "metaq_transactions_begun", "Transactions that were begun.", ("kind",), begun)
    yield _counter("metaq_transactions_committed", "Transactions that were committed.", counters.tx_commit)
    yield _counter("metaq_transactions_rolled_back", "Transactions that were rolled back.", counters.tx_rollback)
    yield _gauge("metaq_transactions_open", "Transactions that have not ended.", manager.open_count)
    yield _gauge("metaq_transactions_prepared", "Of these, those that are prepared.", len(manager.prepared()))
    yield _gauge("metaq_transaction_journal_bytes", "Size of the transaction journal.", manager.journal_bytes)


def _groups(figures: GroupFigures | None) -> Iterator[Measure]:
    names = {
        "metaq_rocketmq_groups": "Groups of RocketMQ's clients.",
        "metaq_rocketmq_members": "Their clients, each once for each of its groups.",
        "metaq_rocketmq_state_bytes": "What settings and offsets take.",
        "metaq_rocketmq_state_limit_bytes": "What they may take.",
    }
    values = (None,) * len(names) if figures is None else astuple(figures)
    for (name, text), value in zip(names.items(), values, strict=True):
        yield Measure("gauge", name, text, (), [] if value is None else [((), value)])


def _distributions(parts: BrokerParts) -> Iterator[Distribution]:
    statistics = parts.engine.statistics
    sizes = "Bytes of message bodies; messages that were put together count with their average."
    puts = "Time from writing a message until it may be acknowledged."
    yield _distribution("metaq_message_size_bytes", sizes, statistics.message_bytes)
    yield _distribution("metaq_put_latency_seconds", puts, statistics.put_seconds)
    syncs = "Time that making appended messages durable took, one partition at a time."
    yield _distribution("metaq_storage_flush_seconds", syncs, parts.commit.sync_seconds)


def _counter(name: str, text: str, value: float) -> Measure:
    return Measure("counter", name, text, (), [((), value)])


def _gauge(name: str, text: str, value: float) -> Measure:
    return Measure("gauge", name, text, (), [((), value)])


def _by_topic(kind: Literal["counter", "gauge"], name: str, text: str, values: Counter[str]) -> Measure:
    return Measure(kind, name, text, ("topic",), [((label,), value) for label, value in values.items()])


def _distribution(name: str, text: str, histogram: Histogram) -> Distribution:
    return Distribution(name, text, histogram.cumulative(), histogram.total)
