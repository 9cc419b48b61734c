"""A cluster of MetaQ brokers, bundled or Java, as the console asks it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from metaq.client.browser import Start as ClientStart
from metaq.client.checkup.findings import Finding
from metaq.client.metaq import MetaQ
from metaq.client.relay import Relay
from metaq.client.statistics import BrokerStatistics, TopicSize
from metaq.client.topic_reader import TopicReader
from metaq.client.transactions import Prepared
from metaq.discovery.base import Away, nobody
from metaq.errors import ExtensionMissing, MetaqError, TopicNotFound
from metaq.formats.message_id import IdRange, timestamp_ms
from metaq.formats.rocketmq.properties import KEYS
from metaq.model import INT64_MAX, INT64_MIN, Address, OffsetRange, Partition, Xid
from metaq_console.cluster.parked import ParkedLetters
from metaq_console.cluster.resets import offset_changes, reset_rows
from metaq_console.cluster.sends import Submitted, outcomes
from metaq_console.cluster.system import PartitionReader, QueueSystem, ReadStart
from metaq_console.cluster.values import (
    BrokerRow,
    DeadLetter,
    DecisionRow,
    FoundMessage,
    LagRow,
    NewMessage,
    PartitionRow,
    PassedMessages,
    PreparedRow,
    ResendResult,
    ResetRow,
    SendResult,
    TopicRow,
    TransactionRows,
)
from metaq_console.errors import RequestFailed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from metaq.client.records import Received, Sent


BROKERS_S: Final = 5.0
"""How long the list of brokers is kept: almost every question needs it."""


class MetaqReader(PartitionReader):
    """Reads a partition up to an end."""

    def __init__(self, reader: TopicReader, partition: Partition, wanted: OffsetRange, *, is_bulk: bool) -> None:
        self._reader, self._partition, self._is_bulk = reader, partition, is_bulk
        self._position, self._end = wanted.start, wanted.end

    def messages(self) -> Iterator[FoundMessage]:
        return self._read()

    def _read(self) -> Generator[FoundMessage, None, None]:
        found = self._reader.read(self._partition, self._position, self._end, is_bulk=self._is_bulk)
        with closing(found):
            for message in found:
                self._position = message.end
                yield stored_message(message)

    def search(self, needles: Collection[bytes], end: int, most: int) -> Iterator[FoundMessage | PassedMessages]:
        return self._search(needles, min(end, self._end), most)

    def _search(
        self, needles: Collection[bytes], end: int, most: int
    ) -> Generator[FoundMessage | PassedMessages, None, None]:
        with closing(self._reader.search(self._partition, self._position, end, needles, most)) as found:
            for one in found:
                self._position = one.end
                yield PassedMessages(*one) if isinstance(one, tuple) else stored_message(one)


class MetaqSystem(QueueSystem):
    """A cluster behind ``MetaQ``."""

    name = "metaq"
    unit = "bytes"

    def __init__(self, client: MetaQ, cluster: str, away: Away = nobody) -> None:
        """``away``: what ``client`` was given."""
        self._client, self._cluster, self._away = client, cluster, away
        self._producer = client.producer()
        self._view = client.cluster_kept(BROKERS_S)

    @property
    def cluster(self) -> str:
        return self._cluster

    def close(self) -> None:
        self._client.close(timeout=1.0)

    def addresses(self) -> Collection[Address]:
        return self._view.addresses()

    def left_out(self) -> Mapping[Address, MetaqError]:
        away = self._away()
        return {address: away[address] for address in self._view.left_out if address in away}

    def warm(self) -> None:
        with suppress(TopicNotFound):
            self._view.reader("")  # finds out where all topics are

    def topic_names(self) -> list[str]:
        return [row.topic for row in self._view.topic_sizes()]

    def all_topics(self) -> list[TopicRow] | None:
        return [_topic_row(one) for one in self._view.topic_sizes()]

    def topics_of(self, names: Sequence[str]) -> list[TopicRow]:
        wanted = set(names)
        return [row for row in self.all_topics() or () if row.topic in wanted]

    def partitions(self, topic: str) -> list[PartitionRow]:
        return [
            PartitionRow(
                topic=one.topic,
                partition=str(one.partition),
                broker=str(one.address),
                start=one.start,
                end=one.end,
                messages=one.messages,
                incarnation=one.incarnation,
                last_ms=None,
            )
            for one in self._view.describe(topic)
        ]

    def brokers(self) -> list[BrokerRow]:
        return [_broker_row(one) for one in self._view.statistics()]

    def findings(self, within_s: float) -> list[Finding]:
        return list(self._client.checkup(within_s))

    def groups(self) -> list[str]:
        with _needs_groups():
            return self._view.groups()

    def members(self, group: str) -> list[str]:
        with _needs_groups():
            return self._view.members(group)

    def lag(self, group: str, topics: Collection[str] | None = None) -> list[LagRow]:
        with _needs_groups():
            rows = self._view.lag(group, topics)
        return [
            LagRow(
                group=group,
                topic=row.topic,
                partition=str(row.partition),
                position=row.position,
                end=row.end,
                lag=row.bytes_behind,
                unit=self.unit,
            )
            for row in rows
        ]

    def plan_reset(
        self, group: str, topic: str, start: ReadStart, partitions: Collection[str] | None = None
    ) -> list[ResetRow]:
        wanted = None if partitions is None else [Partition.parse(one) for one in partitions]
        return reset_rows(self._view.plan_reset(group, topic, _start(start), wanted))

    def reset(self, group: str, rows: Collection[ResetRow]) -> None:
        self._view.reset(group, offset_changes(rows, Partition.parse))

    def reader(
        self, topic: str, partition: str, wanted: OffsetRange, *, is_bulk: bool = False, is_given: bool = False
    ) -> PartitionReader:
        reader, where = self._view.reader(topic), Partition.parse(partition)
        if is_given:
            reader.require_boundary(where, wanted.start)
        return MetaqReader(reader, where, wanted, is_bulk=is_bulk)

    def positions(self, topic: str, start: ReadStart) -> dict[str, int]:
        match start:
            case "earliest":
                return self._in_each(topic, TopicReader.start)
            case "latest":
                return self._in_each(topic, TopicReader.end)
            case int(time_ms):
                return self._in_each(topic, lambda reader, where: reader.at_time(where, time_ms))
            case given:
                return dict(given)

    def _in_each(self, topic: str, find: Callable[[TopicReader, Partition], int]) -> dict[str, int]:
        """Return what ``find`` says of each partition."""
        reader = self._view.reader(topic)
        return {str(where): find(reader, where) for where in sorted(reader.partitions)}

    def newest_positions(self, topic: str, count: int) -> dict[str, int]:
        return self._in_each(topic, lambda reader, where: reader.newest(where, count))

    def forget(self) -> None:
        self._view = self._client.cluster_kept(BROKERS_S)

    def start_of_id(self, topic: str, message_id: str) -> dict[str, int]:
        wanted = _message_number(message_id)
        broker, time_ms = IdRange.starting_at(wanted, 1).broker_id, timestamp_ms(wanted)
        found = self.positions(topic, "earliest")
        if time_ms is not None:
            with suppress(ExtensionMissing):  # a Java broker keeps no times: from the first message on
                found = self.positions(topic, time_ms)
        return {where: at for where, at in found.items() if Partition.parse(where).broker == broker}

    def indexed(
        self, topic: str, *, message_id: str | None, key: str | None, since_ms: int | None, until_ms: int | None
    ) -> list[FoundMessage] | None:
        return None

    def send(self, topic: str, messages: Sequence[NewMessage], within_s: float) -> list[SendResult]:
        if any(message.properties for message in messages):
            raise ValueError("properties: MetaQ stores none; allowed with a RocketMQ cluster")
        return [
            outcome.as_sent(topic)
            for outcome in outcomes([self._submission(topic, message) for message in messages], within_s)
        ]

    def dead_letters(self, group: str, start: int, count: int) -> tuple[list[DeadLetter], int]:
        return self._parked(group).page(start, count)

    def resend(self, group: str, numbers: Sequence[str], topic: str | None, within_s: float) -> list[ResendResult]:
        return self._parked(group).resend(numbers, topic, within_s)

    def transactions(self, query_ids: Collection[str]) -> TransactionRows:
        prepared = self._client.prepared()
        queries = {name for one in prepared if (name := batch_of(one.xid)) is not None}
        decided = self._client.last_decided(sorted({query for query, _ in queries} | set(query_ids)))
        last = {(one.query_id, one.broker): one.batch_id for one in decided}
        return TransactionRows(
            prepared=tuple(_prepared_row(one, last) for one in prepared),
            decisions=tuple(
                DecisionRow(query_id=one.query_id, broker=str(one.broker), batch_id=one.batch_id) for one in decided
            ),
        )

    def replication(self) -> list[Mapping[str, str]]:
        return [{"broker": str(at), **lines} for at, lines in self._view.replication().items()]

    @property
    def relay(self) -> Relay:
        """Passes on requests in MetaQ's own words."""
        return self._client.relay

    def _parked(self, group: str) -> ParkedLetters:
        return ParkedLetters(self._client.parked(group), self._producer)

    def _submission(self, topic: str, message: NewMessage) -> Callable[[], Submitted]:
        def submit() -> Submitted:
            future: Future[Sent] = self._producer.submit(
                topic,
                message.data,
                attribute=message.attribute,
                partition=None if message.partition is None else Partition.parse(message.partition),
                key=message.key,
            )
            return future

        return submit


def batch_of(xid: Xid) -> tuple[str, int] | None:
    """Return the query and the batch of a branch that a Spark query prepared; ``None`` for one of another program."""
    query, _, batch = xid.global_id.decode("ascii", "replace").rpartition("/")
    return (query, int(batch)) if query == xid.unique and batch.isdecimal() else None


def _prepared_row(one: Prepared, last: Mapping[tuple[str, int], int]) -> PreparedRow:
    batch = batch_of(one.xid)
    return PreparedRow(
        broker=str(one.broker),
        resource=one.xid.unique,
        global_id=one.xid.global_id.decode("utf-8", "backslashreplace"),
        branch=one.xid.branch.decode("utf-8", "backslashreplace"),
        decided=None if batch is None else batch[1] <= last.get((batch[0], one.broker), -1),
    )


def stored_message(message: Received) -> FoundMessage:
    properties = message.properties
    return FoundMessage(
        topic=message.topic,
        partition=str(message.partition),
        offset=message.offset,
        next_offset=message.end,
        message_id=str(message.message_id),
        timestamp_ms=message.timestamp_ms,
        attribute=message.attribute,
        keys=() if properties is None else tuple(properties.get(KEYS, "").split()),
        properties=properties,
        attempts=None,
        data=message.data,
    )


NO_GROUPS: Final = "not_supported_by_cluster"


@contextmanager
def _needs_groups() -> Iterator[None]:
    """Answer 409 where brokers keep no groups."""
    try:
        yield
    except ValueError as error:
        raise RequestFailed(409, NO_GROUPS, str(error)) from error


def _topic_row(one: TopicSize) -> TopicRow:
    recent = one.last_minute
    return TopicRow(
        topic=one.topic,
        partitions=one.partitions,
        messages=one.messages,
        bytes=one.bytes,
        in_per_s=None if recent is None else recent.puts_per_s,
        out_bytes_per_s=None if recent is None else recent.bytes_out_per_s,
    )


def _broker_row(one: BrokerStatistics) -> BrokerRow:
    return BrokerRow(
        name=str(one.broker),
        address=str(one.address),
        role="slave" if one.figures.get("slave") == "true" else "master",
        version=one.figures.get("version", "").partition(";")[0] or None,
        uptime_s=one.number("uptime"),
        messages=one.number("total_messages"),
        in_per_s=one.per_s("put"),
        out_per_s=one.per_s("get"),
        disk_used_ratio=None,
        figures=dict(one.figures),
    )


def _message_number(text: str) -> int:
    number = int(text) if text.removeprefix("-").isdecimal() and text.isascii() else None
    if number is None or not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"message id {text[:80]!r}: a MetaQ id is a whole number of 64 bits")
    return number


def _start(start: ReadStart) -> ClientStart:
    match start:
        case "earliest" | "latest" | int():
            return start
        case given:
            return {Partition.parse(where): at for where, at in given.items()}
