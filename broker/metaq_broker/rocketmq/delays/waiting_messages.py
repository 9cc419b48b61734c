"""Messages that wait in system topics, in RocketMQ's form: their target, and how they are moved there.

A waiting message has the properties REAL_TOPIC and REAL_QID, and keeps them when it is delivered, as in RocketMQ. A
delivered message has the physical offset of the waiting one in its prepared transaction offset: the origin for
``moves``. RocketMQ sets the field this way only for committed transactions, else to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from metaq.formats.rocketmq.properties import BYTES_MAX, NAME_END, PAIR_END, parse_properties
from metaq.formats.rocketmq.records import Record, read_records
from metaq.formats.stored_records import Wanted
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq_broker.log.engine.outcomes import PartitionEmpty, PartitionUnknown, Refusal, TooLarge, TopicUnknown
from metaq_broker.rocketmq.messages.message_store import (
    MessageStore,
    NumberPending,
    OutgoingMessage,
    ReadRecords,
    StoredBatch,
)
from metaq_broker.rocketmq.moves.log import Origins, Queue, Stored
from metaq_broker.rocketmq.system_topics import OF_MANY_TOPICS

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"

NUMBER_DIGITS_MAX: Final = 18
"""Limit on the digits of a number in a property. Clients may send more, and ``int`` refuses several thousand."""

READ_BYTES: Final = 1 << 20
"""Approximate number of bytes of waiting messages that are read and moved at a time."""
ORIGINS_MAX: Final = 512


class SentMessage(Protocol):
    """A checked send: the request's header, and the target queue."""

    @property
    def header(self) -> SendMessage: ...
    @property
    def queue(self) -> int: ...
    @property
    def fields(self) -> dict[str, str]: ...


MakeTopic = Callable[[str, int, Callable[[Exception | None], None]], None]
"""Creates a topic with at least this number of queues, unless it exists, and calls back when that is durable."""


def with_properties(message: OutgoingMessage, added: Mapping[str, str]) -> OutgoingMessage | TooLarge:
    """Return a message with additional properties, which replace existing ones of the same names."""
    before = message.properties.rstrip(b"\x02")
    if any(f"{name}\x01".encode() in before for name in added):
        kept = {name: value for name, value in parse_properties(before).items() if name not in added}
        before = _text(kept)
    text = _text(added)
    properties = before + b"\x02" + text if before else text
    if len(properties) > BYTES_MAX:
        return TooLarge(len(properties), BYTES_MAX)
    return message._replace(properties=properties)


def _text(properties: Mapping[str, str]) -> bytes:
    return PAIR_END.join(f"{name}{NAME_END}{value}" for name, value in properties.items()).encode("utf-8", "replace")


def to_move(record: Record) -> OutgoingMessage:
    """Return the message to append when a waiting message is delivered."""
    return OutgoingMessage(
        record.body,
        record.properties,
        record.born_timestamp,
        record.born_host,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.physical_offset,
    )


def own_topic(record: Record) -> str:
    """Return the target topic of a stored message: its own, or the one that it waits for."""
    if record.topic in OF_MANY_TOPICS:
        return record.property_map().get(REAL_TOPIC) or record.topic
    return record.topic


def real_queue(properties: Mapping[str, str]) -> Queue | None:
    """Return the target queue of a waiting message, ``None`` if it has none."""
    topic, number = properties.get(REAL_TOPIC), number_of(properties.get(REAL_QUEUE))
    return Queue(topic, number) if topic and number is not None else None


def number_of(text: str | None) -> int | None:
    """Return the number in a property, limited to 18 digits; ``None`` if it is not a number."""
    if text is None or not text.isdecimal():
        return None
    return int(text) if len(text) <= NUMBER_DIGITS_MAX else 10**NUMBER_DIGITS_MAX - 1


def read_waiting(
    store: MessageStore, queue: Queue, first: int, count: int, wake: Callable[[], None]
) -> tuple[list[Record], int] | Refusal:
    """Return waiting messages from a queue offset on, or from the first stored one, and the next offset.

    ``wake`` is called when messages that have no physical offsets yet get them.
    """
    wanted = Wanted(count, READ_BYTES, count)
    found: ReadRecords | Refusal = store.read(*queue, first, wanted)
    if isinstance(found, ReadRecords) and first < found.min_offset:
        first = found.min_offset
        found = store.read(*queue, first, wanted)
    if isinstance(found, PartitionEmpty):
        return [], first
    if isinstance(found, NumberPending):
        store.when_numbered(found, lambda _refusal: wake())
    if isinstance(found, Refusal):
        return found
    return list(read_records(found.records)), found.next_offset


class StoreMoves:
    """``MoveLog`` on the broker's store. A topic that was deleted while messages waited for it is created again."""

    def __init__(self, store: MessageStore, make_topic: MakeTopic) -> None:
        self._store, self._make_topic = store, make_topic

    def append(self, queue: Queue, messages: Sequence[OutgoingMessage], stored: Stored) -> None:
        def done(outcome: StoredBatch | Refusal) -> None:
            stored(outcome if isinstance(outcome, Refusal) else None)

        def first_done(outcome: StoredBatch | Refusal) -> None:
            if isinstance(outcome, TopicUnknown | PartitionUnknown):
                self._make_topic(queue.topic, queue.number + 1, made(outcome))
            else:
                done(outcome)

        def made(refusal: Refusal) -> Callable[[Exception | None], None]:
            def again(error: Exception | None) -> None:
                if error is None:
                    self._store.append(*queue, messages, done, is_own=True)
                else:
                    stored(refusal)

            return again

        self._store.append(*queue, messages, first_done, is_own=True)

    def end(self, queue: Queue) -> int:
        return self._store.max_offset(*queue)

    def origins(self, queue: Queue, first: int) -> Origins | Refusal:
        read = read_waiting(self._store, queue, first, ORIGINS_MAX, lambda: None)
        if isinstance(read, Refusal):
            return read
        records, next_offset = read
        found = [each.prepared_transaction_offset for each in records if each.prepared_transaction_offset]
        return Origins(found, next_offset)
