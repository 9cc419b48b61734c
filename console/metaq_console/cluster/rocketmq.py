"""A cluster of RocketMQ brokers behind its name servers, as the console asks it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from metaq.client.browser import Start as ClientStart
from metaq.client.checkup.findings import Finding
from metaq.client.rocketmq.browser import RocketBrowser
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.cluster import QueueInfo
from metaq.client.rocketmq.statistics import RocketBrokerStatistics
from metaq.discovery.base import Away, nobody
from metaq.errors import MetaqError, TopicNotFound
from metaq.model import Address, OffsetRange, Partition
from metaq_console.cluster.dead_topic import DeadTopic
from metaq_console.cluster.resets import offset_changes, reset_rows
from metaq_console.cluster.rocketmq_messages import stored_message
from metaq_console.cluster.sends import Submitted, outcomes
from metaq_console.cluster.system import PartitionReader, QueueSystem, ReadStart
from metaq_console.cluster.values import (
    BrokerRow,
    ClientRow,
    DeadLetter,
    FoundMessage,
    LagRow,
    NewMessage,
    PartitionRow,
    ResendResult,
    ResetRow,
    SendResult,
    TopicRow,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from metaq.client.rocketmq.records import RocketSent


class RocketReader(PartitionReader):
    """Reads a queue with a browser, whose position stays between the pieces."""

    def __init__(self, browser: RocketBrowser) -> None:
        self._browser = browser

    def messages(self) -> Iterator[FoundMessage]:
        return self._read()

    def _read(self) -> Generator[FoundMessage, None, None]:
        found = self._browser.poll()
        try:
            for message in found:
                yield stored_message(message)
        finally:
            found.close()


class RocketmqSystem(QueueSystem):
    """A cluster behind ``RocketMQ``."""

    name = "rocketmq"
    unit = "messages"

    def __init__(self, client: RocketMQ, cluster: str, away: Away = nobody) -> None:
        """``away``: what ``client`` was given."""
        self._client, self._cluster, self._away = client, cluster, away
        self._producer = client.producer()

    @property
    def cluster(self) -> str:
        return self._cluster

    def close(self) -> None:
        self._client.close(timeout=1.0)

    def addresses(self) -> Collection[Address]:
        return self._client.cluster.addresses()

    def left_out(self) -> Mapping[Address, MetaqError]:
        away = self._away()
        return {address: away[address] for address in self._client.cluster.left_out if address in away}

    def topic_names(self) -> list[str]:
        return self._client.cluster.topic_names()

    def all_topics(self) -> list[TopicRow] | None:
        return None

    def topics_of(self, names: Sequence[str]) -> list[TopicRow]:
        found = []
        for name in names:
            try:
                found.append(_topic_row(name, self._client.cluster.describe(name)))
            except TopicNotFound:
                continue
            except MetaqError as error:
                if not any(error is one for one in self.left_out().values()):
                    raise  # else all brokers that have it are left out
        return found

    def partitions(self, topic: str) -> list[PartitionRow]:
        return [
            PartitionRow(
                topic=one.topic,
                partition=str(one.partition),
                broker=str(one.address),
                start=one.start,
                end=one.end,
                messages=one.messages,
                incarnation=None,
                last_ms=None,
            )
            for one in self._client.cluster.describe(topic)
        ]

    def brokers(self) -> list[BrokerRow]:
        return [_broker_row(one) for one in self._client.cluster.statistics()]

    def findings(self, within_s: float) -> list[Finding]:
        return list(self._client.checkup(within_s))

    def groups(self) -> list[str]:
        return self._client.cluster.groups()

    def members(self, group: str) -> list[str]:
        return self._client.cluster.members(group)

    def clients(self, group: str) -> list[ClientRow]:
        return [
            ClientRow(
                group=group,
                client=one.client_id,
                address=one.address,
                language=one.language,
                version=str(one.version),
            )
            for one in self._client.cluster.consumers(group)
        ]

    def lag(self, group: str, topics: Collection[str] | None = None) -> list[LagRow]:
        return [
            LagRow(
                group=group,
                topic=row.topic,
                partition=str(row.partition),
                position=row.position,
                end=row.end,
                lag=row.messages_behind,
                unit=self.unit,
            )
            for row in self._client.cluster.lag(group, topics)
        ]

    def plan_reset(
        self, group: str, topic: str, start: ReadStart, partitions: Collection[str] | None = None
    ) -> list[ResetRow]:
        wanted = None if partitions is None else [Partition.parse_queue(one) for one in partitions]
        return reset_rows(self._client.cluster.plan_reset(group, topic, _start(start), wanted))

    def reset(self, group: str, rows: Collection[ResetRow]) -> None:
        self._client.cluster.reset(group, offset_changes(rows, Partition.parse_queue))

    def reader(
        self, topic: str, partition: str, wanted: OffsetRange, *, is_bulk: bool = False, is_given: bool = False
    ) -> PartitionReader:
        queue = Partition.parse_queue(partition)
        return RocketReader(self._client.browse(topic, partitions=[queue], start={queue: wanted.start}))

    def positions(self, topic: str, start: ReadStart) -> dict[str, int]:
        match start:
            case "earliest":
                return {row.partition: row.start for row in self.partitions(topic)}
            case "latest":
                return {row.partition: row.end for row in self.partitions(topic)}
            case int(time_ms):
                return {str(where): at for where, at in self._client.cluster.offsets_at(topic, time_ms).items()}
            case given:
                return dict(given)

    def newest_positions(self, topic: str, count: int) -> dict[str, int]:
        return {row.partition: max(row.start, row.end - count) for row in self.partitions(topic)}

    def start_of_id(self, topic: str, message_id: str) -> dict[str, int]:
        return self.positions(topic, "earliest")

    def indexed(
        self, topic: str, *, message_id: str | None, key: str | None, since_ms: int | None, until_ms: int | None
    ) -> list[FoundMessage] | None:
        if message_id is not None:
            return [stored_message(one) for one in self._client.lookup.by_id(topic, message_id)]
        if key is not None:
            return [stored_message(one) for one in self._client.lookup.by_key(topic, key, since_ms, until_ms)]
        return None

    def send(self, topic: str, messages: Sequence[NewMessage], within_s: float) -> list[SendResult]:
        return [
            outcome.as_sent(topic)
            for outcome in outcomes([self._submission(topic, message) for message in messages], within_s)
        ]

    def dead_letters(self, group: str, start: int, count: int) -> tuple[list[DeadLetter], int]:
        return DeadTopic(self._client, self._producer, group).page(start, count)

    def resend(self, group: str, numbers: Sequence[str], topic: str | None, within_s: float) -> list[ResendResult]:
        return DeadTopic(self._client, self._producer, group).resend(numbers, topic, within_s)

    def _submission(self, topic: str, message: NewMessage) -> Callable[[], Submitted]:
        def submit() -> Submitted:
            future: Future[RocketSent] = self._producer.submit(
                topic,
                message.data,
                partition=None if message.partition is None else Partition.parse_queue(message.partition),
                key=message.key,
                tag=message.attribute,
                keys=() if message.key is None else (message.key,),
                properties=message.properties,
            )
            return future

        return submit


def _topic_row(topic: str, queues: Sequence[QueueInfo]) -> TopicRow:
    return TopicRow(
        topic=topic,
        partitions=len(queues),
        messages=sum(queue.messages for queue in queues),
        bytes=None,
        in_per_s=None,
        out_bytes_per_s=None,
    )


def _broker_row(one: RocketBrokerStatistics) -> BrokerRow:
    return BrokerRow(
        name=one.broker,
        address=str(one.address),
        role="master" if one.broker_id == 0 else "slave",
        version=one.version,
        uptime_s=one.uptime_s,
        messages=one.number("msgPutTotalTodayNow"),
        in_per_s=one.rate("putTps"),
        out_per_s=one.rate("getTransferredTps", "getTransferedTps"),
        disk_used_ratio=one.disk_ratio,
        figures=dict(one.figures),
    )


def _start(start: ReadStart) -> ClientStart:
    match start:
        case "earliest" | "latest" | int():
            return start
        case given:
            return {Partition.parse_queue(where): at for where, at in given.items()}
