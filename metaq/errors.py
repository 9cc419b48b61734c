"""Errors of the communication with a broker.

::

    MetaqError
    ├── ProtocolError          the peer (or the caller) violated the protocol
    ├── WrongServer            another server is at the address, or one with or without TLS
    ├── TlsRefused             this client or the server refuses a certificate
    ├── FieldError             a field of a RocketMQ command is missing or wrong
    ├── ConnectionFailed       no connection, or it was lost            (retryable)
    │   └── NotPairMaster      ... was given up: another member of the pair is its master
    ├── DeadlineExceeded       no answer in time                        (retryable)
    ├── TooManyInFlight        the limit of pending requests is reached (retryable)
    ├── BrokerError            the broker answered with an error code   (retryable for 503, and while its disk is full)
    │   ├── RepetitionRefused  ... after an earlier attempt that may have stored the messages
    │   └── TransactionError   ... about a transaction; carries the XA code
    ├── SendFailed             messages of a producer were not all acknowledged (retryable as its cause)
    ├── WindowFull             a message does not fit into a producer's window (retryable)
    ├── TransactionNotFound    no broker has the prepared branch
    ├── TopicNotFound          no broker knows the topic
    │   └── MasterMissing      no master of its broker is registered: it may be starting, or being elected (retryable)
    ├── TopicLookupTimeout     the brokers of a topic were not looked up in time (retryable)
    ├── MessageNotFound        a topic does not have the wanted message
    ├── BrokersMissing         a broker that a read requires is not found (retryable)
    ├── DirectoryConflict      two addresses report the same broker id
    ├── ZooKeeperAway          no connection to ZooKeeper, or no answer (retryable)
    ├── ZooKeeperRefused       ZooKeeper refuses a request, or its tree cannot be read
    │   └── ZooKeeperChanged   another client deleted nodes during the operation
    ├── ConsumerIdInUse        another consumer of the group has the same id
    ├── PartitionLost          a message cannot be acknowledged any more: another consumer may own its partition
    ├── StoreFailed            a store of offsets or of parked messages cannot be read or written (retryable)
    ├── ExtensionMissing       the broker does not support the request
    ├── OffsetMoved            the requested bytes are deleted; the broker names the next ones
    ├── DataMissing            a range ends later than the broker's readable bytes
    ├── CorruptFrame           stored or sent bytes fail their checksum or have an invalid header
    ├── CorruptRecord          the same for a RocketMQ record, batch or body
    └── CodecMissing           a body is compressed with a codec whose package is not installed

Every error has the values in its sentence as fields and can be pickled (Spark sends errors between processes);
``retryable`` tells whether the same call may succeed later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from metaq.statuses import STATUSES

_DISK_FULL: Final = re.compile("disk is (?:nearly )?full|No space left on device|Disk quota exceeded")
"""In the text of a refusal: the broker takes messages again when its disk has space."""

_MAY_BE_COMMITTED: Final = re.compile("is committed, and readable once|outcome of transaction .* is known after")
"""In the text of a refused commit: the transaction is committed, or may be."""

_MAY_BE_STORED: Final = "it may be stored"
"""In the text of a refused put: the message may become readable later, such as once the slave has it."""

_SAYS_STORED: Final = re.compile("(?<!others )may be stored|may have stored")
"""In the reason of a failed send: it says already that this message may be stored."""


def says_may_be_stored(text: str) -> bool:
    """Whether the text of a broker's refusal says that the refused messages may be stored nevertheless."""
    return _MAY_BE_STORED in text


class MetaqError(Exception):
    """Base of all errors of this package."""

    retryable = False
    away = False
    """Whether a server is unreachable, or takes no messages until its disk has space: it is worth waiting for."""
    electing = False
    """Whether a broker is known to the cluster and has no master now: an election or a restart may be under way."""


class ProtocolError(MetaqError):
    """Bytes that violate the protocol. ``what`` names the rule; ``line`` is the offending line or header, shortened.

    ``address`` is the broker that sent them, if known.
    """

    def __init__(self, what: str, line: bytes = b"", address: object = None) -> None:
        self.what, self.line = what, bytes(line[:200])
        self.address = None if address is None else str(address)
        super().__init__(what, self.line, self.address)

    def __str__(self) -> str:
        broker = f"broker {self.address}: " if self.address else ""
        return f"{broker}{self.what}: {self.line!r}" if self.line else f"{broker}{self.what}"


class FieldError(MetaqError):
    """Field ``field`` of ``command`` is missing (``value`` is ``None``) or is not what is ``allowed``."""

    def __init__(self, command: str, field: str, value: object, allowed: str) -> None:
        self.command, self.field, self.allowed = command, field, allowed
        self.value = None if value is None else str(value)[:200]
        super().__init__(command, field, self.value, allowed)

    def __str__(self) -> str:
        what = "is missing" if self.value is None else f"is {self.value!r}"
        return f"field {self.field!r} of {self.command} {what}; it must be {self.allowed}"


class ConnectionFailed(MetaqError):
    """No connection to ``address``, or it was lost during ``action``."""

    retryable = True
    away = True

    def __init__(self, address: object, action: str, reason: object) -> None:
        self.address, self.action, self.reason = str(address), action, str(reason)
        super().__init__(self.address, action, self.reason)

    def __str__(self) -> str:
        return f"broker {self.address}: {self.action} failed: {self.reason}; check that a broker listens there"


class NotPairMaster(ConnectionFailed):
    """The broker at ``address`` is a member of a pair, and not its master; the master is looked for with a retry."""

    electing = True

    def __str__(self) -> str:
        return f"broker {self.address} refused {self.action}: {self.reason}"


class WrongServer(MetaqError):
    """``found`` is at ``address``, not ``expected``: the port has another protocol, or differs in its use of TLS."""

    def __init__(self, address: object, expected: str, found: str) -> None:
        self.address, self.expected, self.found = str(address), expected, found
        super().__init__(self.address, expected, found)

    def __str__(self) -> str:
        return f"{self.address} is {self.found}, not {self.expected}; check the port, and whether to use TLS"


class TlsRefused(MetaqError):
    """This client or the server at ``address`` refuses a certificate; ``reason`` says whose, and why."""

    def __init__(self, address: object, reason: str) -> None:
        self.address, self.reason = str(address), reason
        super().__init__(self.address, reason)

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class DeadlineExceeded(MetaqError):
    """``action`` at ``address`` took longer than ``seconds``."""

    retryable = True
    away = True

    def __init__(self, address: object, action: str, seconds: float) -> None:
        self.address, self.action, self.seconds = str(address), action, seconds
        super().__init__(self.address, action, seconds)

    def __str__(self) -> str:
        return f"broker {self.address}: no answer to {self.action} within {self.seconds:g} s"


class TooManyInFlight(MetaqError):
    """``limit`` calls of ``kind`` (request or oneway) to ``address`` are in flight already; nothing was sent."""

    retryable = True

    def __init__(self, address: object, kind: str, limit: int) -> None:
        self.address, self.kind, self.limit = str(address), kind, limit
        super().__init__(self.address, kind, limit)

    def __str__(self) -> str:
        return f"{self.address}: {self.kind} not sent, {self.limit} are in flight already, which is the limit"


class BrokerError(MetaqError):
    """The broker at ``address`` answered ``action`` with ``code`` (not 200) and ``text``."""

    def __init__(self, address: object, action: str, code: int, text: str) -> None:
        self.address, self.action, self.code, self.text = str(address), action, code, text
        super().__init__(self.address, action, code, text)

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        """Whether the row of the code says so, as for 503: no thread is free; or the disk is full."""
        status = STATUSES.get(self.code)
        return self.away or (status is not None and status.retryable)

    @property
    def away(self) -> bool:  # type: ignore[override]
        """Whether the broker refuses messages only until its disk has space."""
        return _DISK_FULL.search(self.text) is not None

    @property
    def may_be_stored(self) -> bool:
        """Whether the refused messages may be stored nevertheless: the broker says so."""
        return says_may_be_stored(self.text)

    def __str__(self) -> str:
        status = STATUSES.get(self.code)
        text = self.text or (status.meaning if status is not None else "no reason given")
        return f"broker {self.address} refused {self.action} with {self.code}: {text}"


class RepetitionRefused(BrokerError):
    """The broker refused messages that were sent again. An earlier attempt, not acknowledged, may have stored them."""

    may_be_stored = True

    def __str__(self) -> str:
        return f"{super().__str__()}; an earlier attempt was not acknowledged, and may have stored them"


class TransactionError(BrokerError):
    """The broker refused a transaction step.

    ``xa_code`` is the XA error, if the broker sent one: -4 unknown, -6 wrong state, 6, 7, 8 heuristic completion.
    """

    def __init__(self, address: object, action: str, code: int, text: str, xa_code: int | None = None) -> None:
        super().__init__(address, action, code, text)
        self.xa_code = xa_code
        self.args = (*self.args, xa_code)

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        """Whether a retry may succeed, as of a ``BrokerError``; not of a commit that is done or may be: a program that
        repeated its transaction would send the messages twice.
        """
        return super().retryable and not self._may_be_committed

    @property
    def may_be_stored(self) -> bool:
        """Whether the messages may be stored nevertheless: the broker says so, or that the commit is done or may be."""
        return super().may_be_stored or self._may_be_committed

    @property
    def _may_be_committed(self) -> bool:
        return " COMMIT" in self.action and _MAY_BE_COMMITTED.search(self.text) is not None


class TopicNotFound(MetaqError):
    """None of ``brokers`` has ``topic``; ``known`` are the topics that they have, ``None`` = not asked."""

    def __init__(self, topic: str, brokers: list[str], known: list[str] | None = None) -> None:
        self.topic, self.brokers, self.known = topic, brokers, known
        super().__init__(topic, brokers, known)

    def __str__(self) -> str:
        sentence = f"topic {self.topic!r} does not exist on {', '.join(self.brokers)}"
        if self.known is None:
            return sentence
        return f"{sentence}; topics there: {', '.join(sorted(self.known)[:20]) or 'none'}"


class MasterMissing(TopicNotFound):
    """No registered master may have ``topic``: the masters of ``brokers``, which have had it, are away, or no broker at
    all is registered. ``brokers`` are texts; ``place`` says where they are registered.
    """

    retryable = away = electing = True

    def __init__(self, topic: str, brokers: list[str], place: str) -> None:
        super().__init__(topic, brokers)
        self.place = place
        self.args = (topic, brokers, place)

    def __str__(self) -> str:
        missing = f"no master of broker {', '.join(self.brokers)}" if self.brokers else "no broker"
        return f"topic {self.topic!r}: {missing} is registered {self.place} at the moment"


class MessageNotFound(MetaqError):
    """``topic`` does not have the message ``wanted``; ``scanned`` messages were read, ``None`` = an index was used."""

    def __init__(self, topic: str, wanted: str, scanned: int | None = None) -> None:
        self.topic, self.wanted, self.scanned = topic, wanted, scanned
        super().__init__(topic, wanted, scanned)

    def __str__(self) -> str:
        read = "" if self.scanned is None else f", of {self.scanned:,} that were read"
        return f"topic {self.topic!r}: no message {self.wanted}{read}"


class SendFailed(MetaqError):
    """Not all messages to ``topic`` were acknowledged. ``sent`` has a record or ``None`` for each message, in order.

    A message with ``None`` may still be stored if an attempt was not answered, or if the broker's refusal says so;
    ``unanswered`` says that this may be so.
    ``retryable`` is inherited from the cause.
    """

    def __init__(
        self, topic: str, reason: str, retryable: bool, sent: tuple[object, ...], unanswered: bool = False
    ) -> None:
        self.topic, self.reason, self.sent, self.unanswered = topic, reason, sent, unanswered
        self.retryable = retryable
        super().__init__(topic, reason, retryable, sent, unanswered)

    def __str__(self) -> str:
        acknowledged = sum(one is not None for one in self.sent)
        is_said = not self.unanswered or _SAYS_STORED.search(self.reason)
        more = "" if is_said else "; what was not acknowledged may be stored"
        what = f"topic {self.topic!r}: {acknowledged} of {len(self.sent)} messages were acknowledged"
        return f"{what}: {self.reason}{more}"


class WindowFull(MetaqError):
    """A message for ``topic`` was not taken: ``window_bytes`` are unacknowledged already, which is the limit."""

    retryable = True

    def __init__(self, topic: str, window_bytes: int) -> None:
        self.topic, self.window_bytes = topic, window_bytes
        super().__init__(topic, window_bytes)

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}: message not taken, the window of {self.window_bytes} unacknowledged bytes is full"
        )


class TopicLookupTimeout(MetaqError):
    """A message for ``topic`` was not taken: the look-up of the topic's brokers took longer than ``seconds``."""

    retryable = True

    def __init__(self, topic: str, seconds: float) -> None:
        self.topic, self.seconds = topic, seconds
        super().__init__(topic, seconds)

    def __str__(self) -> str:
        return f"topic {self.topic!r}: message not taken, its brokers were not found within {self.seconds:g} s"


class TransactionNotFound(MetaqError):
    """None of ``brokers`` has the prepared branch ``xid``: it was ended, or never prepared."""

    def __init__(self, xid: str, brokers: list[str]) -> None:
        self.xid, self.brokers = xid, brokers
        super().__init__(xid, brokers)

    def __str__(self) -> str:
        return f"branch {self.xid} is not prepared at {', '.join(self.brokers)}; it was ended, or never prepared"


class BrokersMissing(MetaqError):
    """``what`` requires ``brokers``, which are none of those ``there`` (both as text)."""

    retryable = away = True

    def __init__(self, what: str, brokers: list[str], there: str) -> None:
        self.what, self.brokers, self.there = what, brokers, there
        super().__init__(what, brokers, there)

    def __str__(self) -> str:
        return (
            f"{self.what}: broker {', '.join(self.brokers)} is none of the brokers {self.there}; start it, or leave it "
            "out"
        )


class DirectoryConflict(MetaqError):
    """``addresses`` all report broker id ``broker_id``; a partition would be read or written at the wrong broker."""

    def __init__(self, broker_id: int, addresses: list[str]) -> None:
        self.broker_id, self.addresses = broker_id, addresses
        super().__init__(broker_id, addresses)

    def __str__(self) -> str:
        places = " and ".join(self.addresses)
        return f"{places} report the same broker id, {self.broker_id}; name each broker once, with its own brokerId"


class ZooKeeperAway(MetaqError):
    """The ZooKeeper at ``hosts`` could not be asked; ``reason`` says why."""

    retryable = True
    away = True

    def __init__(self, hosts: str, reason: str) -> None:
        self.hosts, self.reason = hosts, reason
        super().__init__(hosts, reason)

    def __str__(self) -> str:
        return f"ZooKeeper at {self.hosts} cannot be reached: {self.reason}"


class ZooKeeperRefused(MetaqError):
    """The ZooKeeper at ``hosts`` refused a request, or the node ``path`` is not valid."""

    def __init__(self, hosts: str, path: str, reason: str) -> None:
        self.hosts, self.path, self.reason = hosts, path, reason
        super().__init__(hosts, path, reason)

    def __str__(self) -> str:
        return f"ZooKeeper at {self.hosts}, node {self.path}: {self.reason}"


class ZooKeeperChanged(ZooKeeperRefused):
    """Another client deleted nodes during the operation; retry it at once."""


class ConsumerIdInUse(MetaqError):
    """A consumer with the id ``consumer`` is running in ``group``; ``where`` is its node or file."""

    def __init__(self, group: str, consumer: str, where: str) -> None:
        self.group, self.consumer, self.where = group, consumer, where
        super().__init__(group, consumer, where)

    def __str__(self) -> str:
        return f"group {self.group!r}: a consumer with the id {self.consumer!r} is running already ({self.where})"


class PartitionLost(MetaqError):
    """The message at ``offset`` of ``where`` belongs to an assignment that has ended; it will be delivered again."""

    def __init__(self, where: str, offset: int, generation: int) -> None:
        self.where, self.offset, self.generation = where, offset, generation
        super().__init__(where, offset, generation)

    def __str__(self) -> str:
        return (
            f"{self.where} offset {self.offset}: not acknowledged, assignment {self.generation} of the partition has "
            "ended; the message will be delivered again"
        )


class StoreFailed(MetaqError):
    """The store at ``where`` could not be used; ``reason`` is the text of its driver or the system."""

    retryable = True

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(where, reason)

    def __str__(self) -> str:
        return f"{self.where} cannot be used: {self.reason}"


class ExtensionMissing(MetaqError):
    """The broker at ``address`` does not announce ``extension`` in its version reply."""

    def __init__(self, address: object, extension: str, needed_for: str) -> None:
        self.address, self.extension, self.needed_for = str(address), extension, needed_for
        super().__init__(self.address, extension, needed_for)

    def __str__(self) -> str:
        return f"broker {self.address} does not offer {self.extension!r}, which {self.needed_for} needs"


class OffsetMoved(MetaqError):
    """``where`` has no bytes at ``asked`` any more (or yet); the broker suggests to continue at ``to``.

    ``asked`` is the first byte that was not delivered. ``to`` is greater after retention deleted old segments, and
    smaller if the partition was deleted and created again.
    """

    def __init__(self, where: str, asked: int, to: int) -> None:
        self.where, self.asked, self.to = where, asked, to
        super().__init__(where, asked, to)

    def __str__(self) -> str:
        return f"{self.where} has nothing at offset {self.asked}: the broker moved on to offset {self.to}"


class DataMissing(MetaqError):
    """``where`` ends at ``offset``, before the expected ``end``; ``text`` is the broker's answer."""

    def __init__(self, where: str, offset: int, end: int, text: str) -> None:
        self.where, self.offset, self.end, self.text = where, offset, end, text
        super().__init__(where, offset, end, text)

    def __str__(self) -> str:
        return f"{self.where} has no data at offset {self.offset}, expected up to {self.end}: {self.text}"


class CorruptFrame(MetaqError):
    """Bytes at ``offset`` of ``where`` are not a valid frame; ``reason`` says which check failed."""

    def __init__(self, where: str, offset: int, reason: str) -> None:
        self.where, self.offset, self.reason = where, offset, reason
        super().__init__(where, offset, reason)

    def __str__(self) -> str:
        return f"corrupt frame in {self.where} at offset {self.offset}: {self.reason}"


class CorruptRecord(MetaqError):
    """The bytes at ``offset`` of ``where`` are not a valid record; ``reason`` says which check failed.

    ``size`` is the distance to the next record, 0 if unknown.
    """

    def __init__(self, where: str, offset: int, size: int, reason: str) -> None:
        self.where, self.offset, self.size, self.reason = where, offset, size, reason
        super().__init__(where, offset, size, reason)

    def __str__(self) -> str:
        return f"corrupt {self.where} at byte {self.offset}: {self.reason}"


class CodecMissing(MetaqError):
    """A body is compressed with ``codec``, which needs the package ``package``."""

    def __init__(self, codec: str, package: str) -> None:
        self.codec, self.package = codec, package
        super().__init__(codec, package)

    def __str__(self) -> str:
        return f"a message is compressed with {self.codec}; install the package {self.package!r} to read it"


def likeliest_to_pass(failures: Iterable[MetaqError]) -> MetaqError | None:
    """Return the first error for which a retry may help, or else the first; ``None`` without errors.

    Of errors of several servers: while one of them may come back, it does not matter that another can never be used.
    """
    return max(failures, key=lambda each: each.retryable, default=None)
