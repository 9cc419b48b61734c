"""Texts of the ``stats`` command: MetaQ's items in MetaQ's format, and some of our own, listed in ``help``.

Source: docs/protocol.md (stats); the order of lines and the format of numbers follow the recorded replies of a Java
broker.
"""

from __future__ import annotations

import binascii
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from metaq.protocols.text.pair import pair_lines
from metaq_broker.log.engine.engine import NO_INCARNATION, Engine
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.retention.retention import Retention
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.sections import TopicConfig
from metaq_broker.operate.monitoring.disk_guard import DiskGuard
from metaq_broker.replication.driver.pair_replication import PairReplication
from metaq_broker.statistics import KINDS, Kind, RealtimeCount
from metaq_broker.transactions.interfaces import TransactionCounters

_HELP: Final = (
    "*EMPTY* Returns broker info.",
    "help Returns help menu.",
    "topics Returns topics statistics detail info.",
    "offsets Returns partitions detail info.",
    "realtime Returns realtime statistics detail info.",
    "config Returns broker's config file content.",
    "incarnations Returns per partition its incarnation and what can be read.",
    "segments Returns per partition its incarnation, its start, the start of its last segment and what can be read.",
    "state:FILE:POSITION:BYTES Returns bytes of the file with the state of RocketMQ's clients, for a slave.",
    "replication Returns the broker's part in keeping copies, and how far it is.",
    "durability Returns what an acknowledgement means, per topic.",
    "failures Returns partitions that take no more messages, damaged ranges, lost data and disks that take no puts.",
    "retention Returns per topic what becomes of old segments, when, and what was done.",
    "machine Returns the broker's clock, and the free space of the folders that it writes to.",
    "rates Returns what was stored and sent in the last minute.",
    "rates:TOPIC Returns what was stored and sent in the last minute in a topic, or per topic for *.",
)
_STATE: Final = re.compile(r"state:([0-9a-f]{16}):([0-9]{1,18}):([0-9]{1,9})")
TOPIC_RATES: Final = "rates:"
STATE_BYTES_MAX: Final = 4 << 20
"""Limit on the bytes of the state file in one reply."""
PART_LINES: Final = 500
"""Lines of a body that are made at once: a millisecond or two."""
_HAS_MESSAGES, _UNKNOWN, _EMPTY = 0, 1, 2


class StatsReport:
    """Makes the reply body of each item. ``version`` is the text of the version reply.

    ``rocketmq`` gives the lines that say where RocketMQ's clients are served; none if they are not. ``member``: this
    broker is one of a pair.
    """

    def __init__(
        self,
        engine: Engine,
        transactions: TransactionCounters,
        version: str,
        retention: Retention,
        guard: DiskGuard,
        replication: Callable[[], Iterable[str]] = lambda: ("role alone",),
        state: Callable[[], StateTable | None] = lambda: None,
        rocketmq: Callable[[], Iterable[str]] = tuple,
        member: PairReplication | None = None,
    ) -> None:
        self._engine, self._state, self._rocketmq, self._member = engine, state, rocketmq, member
        self._retention, self._guard = retention, guard
        self._transactions = transactions
        self._statistics = engine.statistics
        self._version = version
        self._counted: tuple[Sequence[PartitionLog], BrokerConfig | None, int] = ((), None, 0)
        self._items: dict[str, Callable[[], Iterable[str]]] = {
            "": self._broker,
            "help": lambda: _HELP,
            "topics": self._topics,
            "offsets": self._offsets,
            "incarnations": self._incarnations,
            "segments": self._segments,
            "realtime": self._realtime,
            "reset": self._reset,
            "replication": replication,
            "durability": self._durability,
            "failures": self._failures,
            "retention": self._plans,
            "machine": self._machine,
            "rates": self._rates,
        }

    @property
    def _config(self) -> BrokerConfig:
        return self._engine.config  # it changes at a reload

    def parts(self, item: str) -> Iterator[bytes | None]:
        """Yield the body of the reply at last, and ``None`` after each ``PART_LINES`` lines that were made before.

        An unknown item is treated as a topic, as in MetaQ. A line is of one moment, the whole body may not be.
        """
        if item == "config":
            yield self._config.shared_text
            return
        found = ["STATS"]
        for line in self._lines(item):
            found.append(line)
            if len(found) % PART_LINES == 0:
                yield None
        yield "\r\n".join((*found, "END", "")).encode("utf-8", "surrogateescape")

    def _lines(self, item: str) -> Iterable[str]:
        state = _STATE.fullmatch(item)
        if state is not None:
            return self._state_part(int(state[1], 16), int(state[2]), int(state[3]))
        if item.startswith(TOPIC_RATES):
            return self._topic_rates(item.removeprefix(TOPIC_RATES))
        return self._items[item]() if item in self._items else self._topic(item)

    def _state_part(self, number: int, position: int, bytes_max: int) -> Iterator[str]:
        state = self._state()  # a member of a pair has one once it is elected
        part = None if state is None else state.part(number, position, min(bytes_max, STATE_BYTES_MAX))
        if part is not None:
            data = binascii.b2a_base64(part.data, newline=False).decode()
            yield f"file {part.number:016x} {part.position} {part.size} {data}"

    def _broker(self) -> Iterator[str]:
        statistics, commands = self._statistics, self._statistics.commands
        logs = self._engine.stores.logs()
        yield f"pid {os.getpid()}"
        yield f"broker_id {self._config.system.broker_id}"
        yield f"port {self._engine.port}"
        yield f"uptime {statistics.uptime_s}"
        yield f"version {self._version}"
        yield f"slave {_word(self._engine.gate.slave)}"
        yield f"curr_connections {statistics.connection_counts.connections}"
        yield f"threads {threading.active_count()}"
        for name in ("put", "get", "offset"):
            yield f"cmd_{name} {commands[name]}"
        for name in ("tx_begin", "tx_xa_begin", "tx_commit", "tx_rollback"):
            yield f"{name} {getattr(self._transactions, name)}"
        for name in ("get_miss", "put_failed"):
            yield f"{name} {commands[name]}"
        yield f"total_messages {sum(log.message_count for log in logs)}"
        yield f"topics {self._topic_count(logs)}"
        yield f"config_checksum {self._config.checksum}"
        yield from self._rocketmq()
        if self._member is not None:
            yield from pair_lines(self._member.other, self._member.epoch)

    def _topic_count(self, logs: Sequence[PartitionLog]) -> int:
        """Return how many topics are shown; counted again when there are other partitions, or another configuration."""
        counted_logs, counted_config, count = self._counted
        if counted_logs is not logs or counted_config is not self._config:
            count = len(self._shown({log.topic for log in logs} | self._config.topics.keys()))
            self._counted = logs, self._config, count
        return count

    def _topics(self) -> Iterator[str]:
        stored = set()
        for topic, group in groupby(self._engine.stores.logs(), lambda log: log.topic):
            stored.add(topic)
            if self._config.hides(topic):
                continue
            logs, settings = list(group), self._config.topic_settings(topic)
            yield (
                f"{topic} partitions {len(logs)} message_count {_messages(logs)} message_bytes {_bytes(logs)} "
                f"accept_publish {_word(settings.accept_publish)} accept_subscribe {_word(settings.accept_subscribe)}"
            )
        for topic in self._shown(self._config.topics.keys() - stored):
            yield f"{topic} *Empty*"

    def _shown(self, topics: Iterable[str]) -> list[str]:
        return sorted(topic for topic in topics if not self._config.hides(topic))

    def _offsets(self) -> Iterator[str]:
        for log in self._engine.stores.logs():
            yield f"{log.topic} part {log.index} min_offset {log.start_offset} max_offset {log.readable_end}"

    def _incarnations(self) -> Iterator[str]:
        # With the offsets, so that both are from the same moment: a partition may be recreated between two answers.
        for log in self._engine.stores.logs():
            incarnation = log.incarnation or NO_INCARNATION
            yield f"{log.topic} {log.index} {incarnation} {log.start_offset} {log.readable_end}"

    def _segments(self) -> Iterator[str]:
        for log in self._engine.stores.logs():
            last = log.active  # before it has its name, it may be gone after a crash
            start = last.start if last.named else log.segment_start(min(last.start, log.readable_end) - 1)
            incarnation = log.incarnation or NO_INCARNATION
            yield f"{log.topic} {log.index} {incarnation} {log.start_offset} {start} {log.readable_end}"

    def _realtime(self) -> Iterator[str]:
        for kind in KINDS:
            yield f"realtime_{kind} {self._figures(self._statistics.realtime(kind))}"

    def _reset(self) -> Iterator[str]:
        self._statistics.reset()
        yield "reset ok"

    def _topic(self, topic: str) -> Iterator[str]:
        logs = [log for log in self._engine.stores.logs() if log.topic == topic]
        known = _HAS_MESSAGES if logs else _EMPTY if topic in self._config.topics else _UNKNOWN
        yield topic
        yield f"resultCode {known}"
        yield f"partitions {len(logs)}"
        yield f"message_count {_messages(logs)}"
        yield f"bytes {_bytes(logs)}"
        for kind in KINDS:
            yield f"topic_realtime_{kind} {self._topic_figures(kind, topic)}"

    def _rates(self) -> Iterator[str]:
        recent = self._statistics.last_minute()
        yield f"last_minute_s {recent.seconds}"
        yield f"last_minute_puts {recent.messages_in}"
        yield f"last_minute_gets {recent.gets}"
        yield f"last_minute_bytes_out {recent.bytes_out}"

    def _topic_rates(self, topic: str) -> Iterator[str]:
        for name in self._shown({log.topic for log in self._engine.stores.logs()} if topic == "*" else {topic}):
            of_topic = self._statistics.topic_last_minute(name)
            yield (
                f"{name} last_minute_s {of_topic.seconds} last_minute_puts {of_topic.messages_in} "
                f"last_minute_bytes_out {of_topic.bytes_out}"
            )

    def _durability(self) -> Iterator[str]:
        settings: dict[str, TopicConfig] = {"*SYSTEM*": self._config.system}
        settings |= {topic: self._config.topics[topic] for topic in self._shown(self._config.topics)}
        for name, topic in settings.items():
            if topic.unflush_threshold <= 0:
                yield f"{name} group_commit acknowledged_after fsync"
            else:
                limits = f"unflush_threshold {topic.unflush_threshold} unflush_interval_ms {topic.unflush_interval_ms}"
                yield f"{name} threshold acknowledged_after write {limits}"

    def _failures(self) -> Iterator[str]:
        for log in self._engine.stores.logs():
            if log.failure is not None:
                yield f"{log.topic} part {log.index} read_only {log.failure}"
            for damaged in log.quarantined:
                yield f"{log.topic} part {log.index} damaged_from {damaged.start} damaged_to {damaged.end}"
        for topic, index, reason in self._engine.stores.refused():
            yield f"{topic} part {index} not_served {reason}"
        for topic, index, loss in self._engine.stores.losses():
            yield f"{topic} part {index} lost_from {loss.start} lost_to {loss.end} {loss.reason}"
        if not self._engine.id_clock.is_trusted():
            yield f"clock puts_refused {self._engine.id_clock.fault}"
        if (doubt := self._engine.id_clock.doubt()) is not None:
            yield f"clock nothing_deleted_by_age {doubt}"
        for folder in self._guard.folders():
            if folder.refusal is not None:
                yield f"{folder.path} puts_refused {folder.refusal}"

    def _plans(self) -> Iterator[str]:
        for plan in self._retention.plan():
            next_run = "never" if plan.next_ms is None else plan.next_ms
            done = plan.figures
            yield (
                f"{plan.topic} policy {plan.policy.replace(' ', '')} next_run_ms {next_run} deleted {done.deleted} "
                f"archived {done.archived} bytes {done.byte_count} failures {done.failures}"
            )

    def _machine(self) -> Iterator[str]:
        yield f"now_ms {self._engine.now_ms()}"
        for folder in self._guard.folders():  # the path is last: it may contain blanks
            takes_puts = _word(folder.refusal is None)
            free = f"free_bytes {folder.free_bytes} free_bytes_min {folder.free_bytes_min}"
            yield f"folder {free} takes_puts {takes_puts} path {folder.path}"

    def _topic_figures(self, kind: Kind, topic: str) -> str:
        figures = self._statistics.topic_realtime(kind, topic)
        if figures is None and self._statistics.any_topic_counted(kind):
            return f"Invalid keyTwo:{topic}"  # MetaQ's text for "others were counted, this one was not"
        return self._figures(figures)

    def _figures(self, figures: RealtimeCount | None) -> str:
        if figures is None:
            return "null"
        seconds = self._statistics.realtime_s
        average, rate = _decimal(figures.value, figures.count), _decimal(figures.count, max(seconds, 1))
        quotients = f"Value/Count={average},Count/Duration={rate}"
        return f"Count={figures.count},Value={figures.value},{quotients},Duration={seconds}"


def _messages(logs: list[PartitionLog]) -> int:
    return sum(log.message_count for log in logs)


def _bytes(logs: list[PartitionLog]) -> int:
    return sum(log.readable_end - log.start_offset for log in logs)


def _word(value: bool) -> str:
    return "true" if value else "false"


def _decimal(amount: int, by: int) -> str:
    """Format a quotient as MetaQ does: at most two decimals, halves to even, no trailing zeros."""
    text = f"{amount / by:.2f}"
    return text.rstrip("0").rstrip(".")
