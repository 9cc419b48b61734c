"""The interface of a directory: which brokers exist, and which partitions they hold or accept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from metaq.errors import MetaqError
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition

Away = Callable[[], Mapping[Address, MetaqError]]
"""Returns the servers that are not asked at the moment, each with the error that stands for its answer."""


def nobody() -> Mapping[Address, MetaqError]:
    """Return that no server is away: every one is asked."""
    return {}


def without(addresses: Sequence[Address], away: Mapping[Address, MetaqError]) -> list[Address]:
    """Return the addresses that are not in ``away``.

    Raises:
        MetaqError: All of them are; the error of the first one.
    """
    found = [address for address in addresses if address not in away]
    if addresses and not found:
        raise away[addresses[0]].with_traceback(None)
    return found


class Directory(Protocol):
    """Asks the cluster at each call; callers decide how often.

    Every method raises ``ConnectionFailed`` or ``DeadlineExceeded`` with the address of a broker that did not answer:
    an unreachable broker must not look like one without partitions.
    """

    def brokers(self) -> dict[int, Address]:
        """Return broker id -> address to read from: the master, else a slave of the same id."""

    def addresses(self) -> Collection[Address]:
        """Return the address of each broker that is known; asks none."""

    @property
    def left_out(self) -> frozenset[Address]:
        """The brokers that answers leave out now. A member of a pair whose master answers is not among them."""

    def topics(self, among: Collection[str] | None = None) -> dict[str, list[Partition]]:
        """Return each known topic with its partitions that have or had messages, sorted; the list may be empty.

        With ``among``, unreachable brokers that cannot have any of those topics are ignored.
        """

    def partitions(self, topic: str) -> dict[Partition, Address]:
        """Return the partitions of ``topic`` that have or had messages, with the address to read each from."""

    def writable(self, topic: str) -> dict[Partition, Address]:
        """Return all partitions that accept ``topic``, with the address of each one's master, written to before or not.

        Raises:
            TopicNotFound: No broker accepts the topic.
        """

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, OffsetRange]:
        """Return the readable range of each partition of these topics: ``[first, readable end)``."""

    def available(self, topics: Iterable[str] | None = None) -> Mapping[TopicPartition, PartitionState]:
        """Like ``ends``, for all topics if none is named, with each partition's incarnation if its broker reports it.

        Range and incarnation of a partition are read in one step, so they belong together. While nothing changes, the
        same object is returned.
        """

    def available_now(
        self, topics: Iterable[str] | None = None, among: Collection[int | str] | None = None
    ) -> tuple[Mapping[TopicPartition, PartitionState], dict[Address, MetaqError]]:
        """Like ``available``, for the brokers that answer without retries.

        The second value has the errors of the others. With ``among``, brokers with other ids are asked only if their
        ids must be asked for, too.
        """
