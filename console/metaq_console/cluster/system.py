"""What a cluster of either system answers. All methods block, may be called from several threads, and raise
``MetaqError``, or ``ValueError`` for a value that the cluster does not have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from metaq.client.checkup.findings import Finding
from metaq.errors import MetaqError
from metaq.model import Address, OffsetRange
from metaq_console.cluster.values import (
    BrokerRow,
    ClientRow,
    DeadLetter,
    FoundMessage,
    GroupRow,
    LagRow,
    NewMessage,
    PartitionRow,
    PassedMessages,
    ResendResult,
    ResetRow,
    SendResult,
    TopicRow,
    TransactionRows,
    Unit,
)
from metaq_console.errors import RequestFailed

ReadStart = Literal["earliest", "latest"] | int | Mapping[str, int]
"""Where to begin: the first message, the end, the first message at or after a time (ms since 1970), or an offset of
each partition.
"""


class PartitionReader(ABC):
    """Reads one partition of a topic from a position, in pieces: each call of ``messages`` goes on where the last one
    stopped. Not for several threads at a time.
    """

    @abstractmethod
    def messages(self) -> Iterator[FoundMessage]:
        """Yield messages up to the readable end. The iterator has to be closed before the next one is made."""

    def search(self, needles: Collection[bytes], end: int, most: int) -> Iterator[FoundMessage | PassedMessages]:
        """Yield, as ``messages``, at least those before ``end`` whose bytes contain one of ``needles``; and what was
        passed between them, where a system can pass messages without looking at each. It passes no more than ``most``.
        """
        yield from self.messages()


class QueueSystem(ABC):
    """A cluster of MetaQ or RocketMQ, behind a client of ``metaq``."""

    name: ClassVar[Literal["metaq", "rocketmq"]]
    unit: ClassVar[Unit]

    @property
    @abstractmethod
    def cluster(self) -> str:
        """The cluster as its user named it."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    def addresses(self) -> Collection[Address]:
        """Return the addresses of all servers that are known; asks a registry at most."""
        return ()

    def left_out(self) -> Mapping[Address, MetaqError]:
        """Return the brokers that answers are without, because they do not answer, with the reason of each."""
        return {}

    def require_all(self) -> None:
        """Raise the error of a broker that is left out, if there is one."""
        for error in self.left_out().values():
            raise error.with_traceback(None)

    def warm(self) -> None:  # noqa: B027 - not every system needs it
        """Ask what questions about one topic need, if that takes long in a large cluster."""

    @abstractmethod
    def topic_names(self) -> list[str]:
        """Return all topics, sorted, with one question to each server."""

    @abstractmethod
    def all_topics(self) -> list[TopicRow] | None:
        """Return all topics, sorted, with one question to each server; ``None`` if the system has no such question."""

    @abstractmethod
    def topics_of(self, names: Sequence[str]) -> list[TopicRow]:
        """Return rows for the named topics that still exist."""

    @abstractmethod
    def partitions(self, topic: str) -> list[PartitionRow]:
        """Return the partitions of a topic, sorted."""

    @abstractmethod
    def brokers(self) -> list[BrokerRow]:
        """Return all brokers with their figures."""

    @abstractmethod
    def findings(self, within_s: float) -> list[Finding]:
        """Check every server, each for ``within_s`` at most; servers that do not answer are findings."""

    @abstractmethod
    def groups(self) -> list[str]:
        """Return the names of the consumer groups, sorted."""

    @abstractmethod
    def members(self, group: str) -> list[str]:
        """Return the ids of the running consumers of a group, sorted."""

    @abstractmethod
    def lag(self, group: str, topics: Collection[str] | None = None) -> list[LagRow]:
        """Return the lag in ``topics``, by default in those for which the group has offsets."""

    @abstractmethod
    def plan_reset(
        self, group: str, topic: str, start: ReadStart, partitions: Collection[str] | None = None
    ) -> list[ResetRow]:
        """Return what ``reset`` would change."""

    @abstractmethod
    def reset(self, group: str, rows: Collection[ResetRow]) -> None:
        """Set the offsets of a group that is not running; ``ValueError`` if it is."""

    @abstractmethod
    def reader(
        self, topic: str, partition: str, wanted: OffsetRange, *, is_bulk: bool = False, is_given: bool = False
    ) -> PartitionReader:
        """Return a reader of one partition; ``is_bulk``: it will read through it. ``is_given``: a client has named the
        start, so that it may be none of a message; then ``ValueError``, or ``OffsetMoved``.
        """

    @abstractmethod
    def positions(self, topic: str, start: ReadStart) -> dict[str, int]:
        """Return the offset in each partition that ``start`` stands for."""

    @abstractmethod
    def newest_positions(self, topic: str, count: int) -> dict[str, int]:
        """Return the offset in each partition after which there are about ``count`` messages."""

    @abstractmethod
    def start_of_id(self, topic: str, message_id: str) -> dict[str, int]:
        """Return where a scan for an id begins, in the partitions that may have it; ``ValueError`` if it is no id."""

    @abstractmethod
    def indexed(
        self, topic: str, *, message_id: str | None, key: str | None, since_ms: int | None, until_ms: int | None
    ) -> list[FoundMessage] | None:
        """Return the messages with an id or a key from the brokers' index; ``None`` if there is none: scan."""

    @abstractmethod
    def send(self, topic: str, messages: Sequence[NewMessage], within_s: float) -> list[SendResult]:
        """Put messages, and return what became of each, in order."""

    @abstractmethod
    def dead_letters(self, group: str, start: int, count: int) -> tuple[list[DeadLetter], int]:
        """Return up to ``count`` messages that the group rejected, from the one at index ``start`` on, and how many
        there are.
        """

    @abstractmethod
    def resend(self, group: str, numbers: Sequence[str], topic: str | None, within_s: float) -> list[ResendResult]:
        """Send dead letters again, to their own topic or to ``topic``, and return what became of each."""

    def clients(self, group: str) -> list[ClientRow]:
        """Return the running consumers of a group, sorted."""
        return [ClientRow(group=group, client=client) for client in self.members(group)]

    def transactions(self, query_ids: Collection[str]) -> TransactionRows:
        """Return prepared branches, and the decisions for queries that have some, and for ``query_ids``;
        ``RequestFailed`` if the system has no such question.
        """
        raise RequestFailed(409, "not_supported_by_cluster", f"{self.name} has no question about transactions")

    def forget(self) -> None:  # noqa: B027 - not every system keeps something
        """Forget what is kept of the cluster, because something was changed."""

    def replication(self) -> list[Mapping[str, str]]:
        """Return what each broker says of its replication; ``RequestFailed`` if the system has no such question."""
        raise RequestFailed(409, "not_supported_by_cluster", f"{self.name} has no question about replication")

    def group_row(self, group: str) -> GroupRow:
        """Return a group with the sum of its lag."""
        rows = self.lag(group)
        return GroupRow(
            group=group,
            members=len(self.members(group)),
            topics=tuple(sorted({row.topic for row in rows})),
            partitions=len(rows),
            lag=sum(row.lag for row in rows),
            unit=self.unit,
        )
