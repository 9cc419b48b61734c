"""``onCorrupt`` = ``deadletter``: stores damaged bytes in another topic. The form of a letter: ``source/losses.py``."""

from __future__ import annotations

import logging
import zlib

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.errors import BrokerError
from metaq.model import Message
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.options import SourceOptions
from metaq_spark.errors import OptionError
from metaq_spark.source.losses import LETTER_BYTES_MAX, Damage, DamageHandler, Fail, ReadDamaged, Skip

_log = logging.getLogger(__name__)


class DeadLetters:
    """Stores damage in ``topic``; that of one partition always in the same partition of it."""

    fails = False

    def __init__(self, topic: str, options: SourceOptions, pool: SessionPool) -> None:
        self._topic, self._pool = topic, pool
        self._cluster = Cluster(options, pool, pool.clock)

    def handle(self, damage: Damage, read: ReadDamaged) -> None:
        """Store a letter; returns when the broker has acknowledged it.

        Raises:
            TopicNotFound: No broker accepts the topic.
            OptionError: The letter was refused.
            MetaqError: A broker could not be asked.
        """
        size = min(len(damage.offsets), LETTER_BYTES_MAX) if damage.served else 0
        letter = Message(read(damage.offsets.start, size), damage.attribute)
        addresses = self._cluster.writable(self._topic)
        chosen = sorted(addresses)[zlib.crc32(str(damage.source).encode()) % len(addresses)]
        try:
            with self._pool.lease(addresses[chosen]) as session:
                receipt = put(session, self._topic, chosen.index, letter)
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
