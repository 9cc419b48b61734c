"""The interface to the brokers: what a diagnosis asks them. Implemented by each backend."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from metaq.errors import MetaqError
from metaq.model import OffsetRange, TopicPartition
from metaq_spark.diagnosis.evidence import ServerFault
from metaq_spark.lag.unread import PartitionLag
from metaq_spark.offsets import Progress

SAMPLED_MAX = 200
"""Newest messages of a partition whose types are looked at, at most."""


class Probe(Protocol):
    """Asks the brokers of one source; nothing is retried, nothing is changed."""

    def lags_now(self, read_to: Progress) -> tuple[list[PartitionLag], Mapping[str, MetaqError]]:
        """Return the lag of every partition of the topics in ``read_to`` at the brokers that answer, and the errors of
        the others.
        """

    def offsets_at(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        """Return the offset of the first message at or after a time (ms since 1970), else the end.

        Raises:
            MetaqError: A broker has no times (a Java broker), or does not answer.
        """

    def last_put_ms(self, stored: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, int]:
        """Return when the last message of each non-empty range was stored (ms since 1970), where that is known.

        Raises:
            MetaqError: A broker does not answer.
        """

    def types(self, where: TopicPartition, stored: OffsetRange) -> dict[str, int]:
        """Return the types (RocketMQ: tags) of the newest messages of a partition, and how often each is there.

        Raises:
            MetaqError: The broker does not answer, or a message is damaged.
        """

    def faults(self) -> Iterator[ServerFault]:
        """Check each server, and yield what is not as it should be."""
