"""Finds single messages of a RocketMQ topic by id or key."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.backends.rocketmq.lookups import query_messages, view_message
from metaq.backends.rocketmq.names import with_namespace, without_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.client.rocketmq.records import RocketReceived
from metaq.discovery.name_server import NameServerDirectory
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import Record
from metaq.model import INT64_MAX, Address, Partition


class MessageLookup:
    """Asks the brokers of a topic, which use their indexes; nothing is scanned.

    Methods raise ``TopicNotFound`` for a topic that no name server knows, ``RequestRefused`` or ``AccessDenied`` if a
    broker refuses, ``CorruptRecord`` or ``CodecMissing`` for a message that cannot be read, and ``ConnectionFailed``,
    ``DeadlineExceeded`` or ``BrokerAway`` with the broker that could not be asked.
    """

    def __init__(self, directory: NameServerDirectory, pool: SessionPool) -> None:
        self._directory, self._pool = directory, pool

    def by_id(self, topic: str, message_id: str) -> list[RocketReceived]:
        """Return the message with an id: the broker's (offset message id), or its producer's (UNIQ_KEY).

        Both have the same form. An id that begins with the address of a known broker is taken for the broker's, or for
        the producer's if no message begins at its offset. A message sent twice is found twice.
        """
        brokers = self._brokers(topic)
        stored = self._at(topic, message_id)
        if stored is not None:
            return [stored]
        return list(self._queried(topic, message_id, brokers, unique=True, begin_ms=0, end_ms=INT64_MAX))

    def by_key(
        self, topic: str, key: str, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[RocketReceived]:
        """Return messages that have ``key`` among their keys, stored in ``[since_ms, until_ms]``; 64 from
        each broker.
        """
        begin_ms, end_ms = since_ms or 0, INT64_MAX if until_ms is None else until_ms
        return list(self._queried(topic, key, self._brokers(topic), unique=False, begin_ms=begin_ms, end_ms=end_ms))

    def _brokers(self, topic: str) -> dict[str, Address]:
        queues = [*self._directory.queues(topic), *self._directory.writable(topic)]
        names = sorted({queue.broker_name for queue in queues})
        return {name: self._directory.read_address(name, topic=topic) for name in names}

    def _at(self, topic: str, message_id: str) -> RocketReceived | None:
        """Read the message of an offset message id. Only brokers of this cluster are asked: an id may be forged."""
        try:
            asked = OffsetMessageId.parse(message_id)
        except ValueError:
            return None
        self._directory.masters()  # loads all brokers
        for name, addresses in self._directory.brokers().items():
            if asked.address in map(str, addresses.values()):
                address = next(at for at in addresses.values() if str(at) == asked.address)
                record = view_message(self._pool, name, address, asked.physical_offset, self._name(topic))
                return None if record is None else self._received(name, record)
        return None

    def _queried(
        self, topic: str, key: str, brokers: dict[str, Address], *, unique: bool, begin_ms: int, end_ms: int
    ) -> Iterator[RocketReceived]:
        for name, address in brokers.items():
            records = query_messages(
                self._pool, name, address, self._name(topic), key, unique=unique, begin_ms=begin_ms, end_ms=end_ms
            )
            ordered = sorted(records, key=lambda record: (record.queue_id, record.queue_offset))
            yield from (self._received(name, record) for record in ordered)

    def _received(self, broker_name: str, record: Record) -> RocketReceived:
        topic = without_namespace(record.topic, self._directory.namespace) or record.topic
        return RocketReceived.of(topic, Partition(broker_name, record.queue_id), record)

    def _name(self, topic: str) -> str:
        return with_namespace(topic, self._directory.namespace)
