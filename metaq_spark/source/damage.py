"""What happens to damaged messages: the option ``onCorrupt`` as an object.

``fail``        the task fails; nothing else is done
``skip``        a warning in the executor's log, and on with the next message
``deadletter``  the same, after the damaged bytes were stored in another topic

A dead letter is one message. Its payload is the damaged bytes, header included, at most ``LETTER_BYTES_MAX`` of them;
its attribute says ``topic=..;partition=..;start=..;end=..;reason=..``, which ``attributeFormat`` = ``map`` reads. The
bytes that a broker has quarantined are not served by it, so their letter has an empty payload. A task that runs again
stores it again.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass
from typing import Final, Protocol

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.errors import BrokerError
from metaq.model import Message, OffsetRange, TopicPartition
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.resync import read_slice
from metaq_spark.errors import OptionError
from metaq_spark.options.parsing import SourceOptions

LETTER_BYTES_MAX: Final = 1_000_000
"""So that a letter with its header and attribute fits into one transfer of a broker with default settings."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of ``source`` that are no messages, as far as anybody knows; ``served`` if the broker gives them out."""

    source: TopicPartition
    offsets: OffsetRange
    reason: str
    served: bool = True

    def __str__(self) -> str:
        start, end = self.offsets.start, self.offsets.end
        return f"{self.source}: bytes [{start}, {end}) are damaged: {self.reason}"

    @property
    def attribute(self) -> str:
        """What a dead letter's attribute says."""
        where = self.source
        pairs = {
            "topic": where.topic,
            "partition": where.partition,
            "start": self.offsets.start,
            "end": self.offsets.end,
            "reason": self.reason,
        }
        return ";".join(f"{key}={str(value).replace(';', ',')}" for key, value in pairs.items())


class DamageHandler(Protocol):
    """One way to go on."""

    fails: bool
    """Whether damage ends the task; then ``handle`` is not called."""

    def handle(self, damage: Damage, session: Session) -> None:
        """Do what is to be done before the damage is passed over; ``session`` is to the broker that has it."""


class Fail:
    """``fail``."""

    fails = True

    def handle(self, damage: Damage, session: Session) -> None:
        """Not called."""


class Skip:
    """``skip``."""

    fails = False

    def handle(self, damage: Damage, session: Session) -> None:
        """Warn."""
        _log.warning("%s. Skipped, because onCorrupt is skip", damage)


class DeadLetters:
    """``deadletter``: stores damage in ``topic``; that of one partition always in the same partition of it."""

    fails = False

    def __init__(self, topic: str, options: SourceOptions, pool: SessionPool) -> None:
        self._topic, self._pool = topic, pool
        self._cluster = Cluster(options, pool, pool.clock)

    def handle(self, damage: Damage, session: Session) -> None:
        """Store a letter; returns when the broker has acknowledged it.

        Raises:
            TopicNotFound: No broker accepts the topic.
            OptionError: The letter was refused.
            MetaqError: A broker could not be asked.
        """
        size = min(len(damage.offsets), LETTER_BYTES_MAX) if damage.served else 0
        letter = Message(read_slice(session, damage.source, damage.offsets.start, size), damage.attribute)
        places = self._cluster.writable(self._topic)
        chosen = sorted(places)[zlib.crc32(str(damage.source).encode()) % len(places)]
        try:
            with self._pool.lease(places[chosen]) as to:
                receipt = put(to, self._topic, chosen.index, letter)
        except BrokerError as refusal:
            if refusal.retryable:
                raise
            raise OptionError("deadLetterTopic", f"{damage}; that could not be stored: {refusal}") from refusal
        _log.warning("%s. Stored in %s/%s at offset %d", damage, self._topic, chosen, receipt.offset)


def damage_handler(options: SourceOptions, pool: SessionPool) -> DamageHandler:
    """The handler that the options ask for."""
    if options.dead_letter_topic is not None:
        return DeadLetters(options.dead_letter_topic, options, pool)
    return Skip() if options.on_corrupt == "skip" else Fail()
