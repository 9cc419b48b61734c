"""Handles unusable records as the option ``onCorrupt`` says.

A dead letter is one message. Its body is the record's bytes, as far as they are known; its properties contain its
position (``origin_topic``, ``origin_queue``, ``origin_offset``) and why (``reason``). A repeated task stores it again.
"""

from __future__ import annotations

import logging
import zlib
from typing import Protocol

from metaq.backends.rocketmq.batch_writer import BatchWriter
from metaq.backends.rocketmq.errors import BatchNotStored, RequestRefused
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import CorruptFrame, TopicNotFound
from metaq.model import Partition, TopicPartition
from metaq_spark.backends.rocketmq.options import SourceOptions
from metaq_spark.columns.rocketmq.checks import UnusableRecord
from metaq_spark.errors import OptionError
from metaq_spark.sink.first_look import wait_for_offer

_log = logging.getLogger(__name__)


class BadRecordHandler(Protocol):
    """A value of the option. ``fails``: damage ends the task, and ``handle`` is not called."""

    fails: bool

    def handle(self, source: TopicPartition, found: UnusableRecord) -> None:
        """Handle a record before it is skipped."""


class FailRecords:
    """``fail``."""

    fails = True

    def handle(self, source: TopicPartition, found: UnusableRecord) -> None:
        """Not called."""


class SkipRecords:
    """``skip``."""

    fails = False

    def handle(self, source: TopicPartition, found: UnusableRecord) -> None:
        _log.warning("%s. Skipped, because onCorrupt is skip", found)


class RecordDeadLetters:
    """``deadletter``: stores bad records in ``topic``; all from one queue go to the same queue."""

    fails = False

    def __init__(self, topic: str, options: SourceOptions, pool: SessionPool, directory: NameServerDirectory) -> None:
        self._topic, self._options, self._pool, self._directory = topic, options, pool, directory

    def handle(self, source: TopicPartition, found: UnusableRecord) -> None:
        """Store a letter; returns when a broker has acknowledged it.

        Raises:
            TopicNotFound: No broker takes messages for the topic.
            OptionError: The letter was refused.
            MetaqError: The broker could not be asked, even after retries; the letter may be stored.
        """
        queues = wait_for_offer(self._writable, self._options.waiting_policy, self._pool.clock)
        queue = queues[zlib.crc32(str(source).encode()) % len(queues)]
        writer = BatchWriter(
            self._pool, self._directory, queue.broker_name,
            group=self._options.asking_group, policy=self._options.waiting_policy,
        )  # fmt: skip
        try:
            writer.send(self._topic, queue.index, found.record or b" ", _properties(source, found))
            (receipt,) = writer.flush()
        except BatchNotStored as failure:
            if not isinstance(failure.__cause__, RequestRefused):
                raise
            raise OptionError("deadLetterTopic", f"{found}; that could not be stored: {failure}") from failure
        finally:
            writer.close()
        _log.warning("%s. Stored in %s/%s at offset %d", found, self._topic, queue, receipt.offset)

    def _writable(self) -> list[Partition]:
        queues = self._directory.writable(self._topic)
        if not queues:
            raise TopicNotFound(self._topic, list(map(str, self._directory.servers)))
        return queues


def _properties(source: TopicPartition, found: CorruptFrame) -> str:
    pairs = {
        "origin_topic": source.topic,
        "origin_queue": str(source.partition),
        "origin_offset": str(found.offset),
        "reason": found.reason,
    }
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def damage_handler(options: SourceOptions, pool: SessionPool, directory: NameServerDirectory) -> BadRecordHandler:
    if options.dead_letter_topic is not None:
        return RecordDeadLetters(options.dead_letter_topic, options, pool, directory)
    return SkipRecords() if options.on_corrupt == "skip" else FailRecords()
