"""Sends a producer's messages: rows, batches, and failover to other brokers.

A row is a message that is ready to be sent. Rows of one broker share a connection; several brokers are sent to in
parallel. Rows that a broker refuses for a temporary reason, or does not acknowledge, are sent again: to the same
broker, or, if all its rows ``may_move``, at once to queues of brokers that have not failed yet. When no such broker is
left, each broker gets all retries that the policy allows.

When a broker refuses a row, the answers to its other rows are waited for: only rows that it refused, that were not sent
yet, or whose answer is lost go to another broker. A row that was refused for good does not.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Literal, NamedTuple

from metaq.backends.rocketmq.batch_writer import BatchWriter
from metaq.backends.rocketmq.body_limits import BODY_BYTES_MAX, body_bytes_max
from metaq.backends.rocketmq.errors import BatchNotStored as WriterFailed
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.bundled import require_timers as check_timers
from metaq.client.partitioners import Partitioner
from metaq.client.records import bytes_of, require_topic
from metaq.client.rocketmq.presence import Presence
from metaq.client.rocketmq.records import NO_PROPERTIES, RocketMessage, RocketSent, sent_to
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import FieldError, MetaqError, SendFailed
from metaq.formats.rocketmq.batches import OVERHEAD_BYTES, BatchElement, encode_batch
from metaq.formats.rocketmq.compression import compress
from metaq.formats.rocketmq.message_ids import UniqueKeys, month_start_ms
from metaq.formats.rocketmq.properties import write_properties
from metaq.formats.rocketmq.sys_flags import PREPARED
from metaq.model import Address, Partition
from metaq.net.clock import wall_clock_ms
from metaq.net.forks import notify_after_fork
from metaq.net.retry import RetryPolicy, TimeLimit

BLOCK_BYTES_MAX: Final = 512 << 10
"""Limit on bytes of one request; a longer message is sent alone."""
BLOCK_MESSAGES_MAX: Final = 1000
"""Limit on messages of one request."""

Codec = Literal["zlib"]

MONTH_AGE_MS_MAX: Final = 1000
"""Seconds in milliseconds for which the beginning of the month is cached."""

QUEUES_AGE_S_MAX: Final = 30.0
"""Seconds for which the queues of a topic are cached, unless a request fails. The same as in Java's client."""

_ONE_TRY: Final = RetryPolicy(retries=0)

_UNSENT: Final = "not sent, because another message was refused: "


@dataclass(slots=True)
class RowOutcomes:
    """What became of rows. ``sent`` has a record or ``None`` for each, in order.

    ``failures``: row number -> its own reason, or else why its broker was given up; rows of ``not_sent`` were not sent,
    because that broker refused another row. ``failure`` is the reason of the whole. ``unanswered`` are the numbers of
    rows that may be stored without being acknowledged, because the answer to an attempt is lost, or says so; some are
    stored by another attempt.
    """

    sent: list[RocketSent | None]
    failures: dict[int, MetaqError] = field(default_factory=dict)
    not_sent: set[int] = field(default_factory=set)
    failure: MetaqError | None = None
    unanswered: set[int] = field(default_factory=set)

    def errors(self, topic: str) -> dict[int, SendFailed]:
        """Return row number -> its error, as ``send`` would raise it for this row alone."""
        made: dict[tuple[int, str, bool], SendFailed] = {}
        found: dict[int, SendFailed] = {}
        for number, reason in self.failures.items():
            relation, unanswered = _UNSENT if number in self.not_sent else "", number in self.unanswered
            key = id(reason), relation, unanswered
            if key not in made:
                made[key] = _send_failed(topic, reason, (None,), unanswered, relation)
            found[number] = made[key]
        return found

    def open_rows(self) -> set[int]:
        """Return the numbers of rows that are not acknowledged, and may be stored."""
        return {number for number in self.unanswered if self.sent[number] is None}


class _Known(NamedTuple):
    """The writable queues of a topic, and until when they are cached."""

    queues: list[Partition]
    until_s: float


@dataclass(slots=True)
class Row:
    """A message that is ready to be sent; it takes ``size`` bytes of a batch.

    ``message`` is the program's object. A row with ``alone`` is not put into a batch: it is delayed, compressed, large,
    or a half message. ``may_move``: a queue of another broker is acceptable. ``number`` is its index in the call.
    """

    message: RocketMessage
    queue: Partition
    message_id: str
    body: bytes
    properties: str
    encoded: bytes
    size: int
    sys_flag: int = 0
    alone: bool = False
    may_move: bool = False
    is_timed: bool = False
    number: int = 0


class Sender:
    """Chooses queues and sends. Thread-safe. ``compress_from``: minimum size in bytes of a body to compress."""

    def __init__(
        self,
        directory: NameServerDirectory,
        pool: SessionPool,
        partitioner: Partitioner,
        group: str,
        *,
        codec: Codec | None,
        compress_from: int,
        failover: bool,
        policy: RetryPolicy | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.presence = presence
        self.directory, self.pool, self.group = directory, pool, group
        self._partitioner, self._failover = partitioner, failover
        self._codec, self._compress_from = codec, compress_from
        self._policy = RetryPolicy() if policy is None else policy
        self._ids = _new_ids()
        self._month_ms = self._month_until_ms = 0
        self._lock = threading.Lock()  # guards ids and the partitioner, which belongs to the program
        notify_after_fork(self._forked)
        self._queues: dict[str, _Known] = {}
        self._with_timers: set[Address] = set()
        self._largest: dict[Address, int] = {}

    def _forked(self) -> None:
        """In a child process: its ids must differ from the parent's, and no thread has the lock."""
        notify_after_fork(self._forked)
        self._ids, self._lock = _new_ids(), threading.Lock()

    def knows(self, topic: str, partition: Partition | None = None) -> bool:
        """Return whether the cached queues of a topic are valid, with ``partition``, so ``choose`` needs no look-up."""
        known = self._queues.get(topic)
        if known is None or self.pool.clock.monotonic() >= known.until_s:
            return False
        return partition is None or partition in known.queues

    def writable(self, topic: str) -> list[Partition]:
        """Return the writable queues of a topic, or the queues at which its first message will create it.

        Raises:
            TopicNotFound: No name server knows the topic.
            ValueError: The topic has no writable queue now.
            NameServersAway, RouteUnusable: The topic's route could not be looked up.
        """
        known, now_s = self._queues.get(topic), self.pool.clock.monotonic()
        if known is not None and now_s < known.until_s:
            return known.queues
        require_topic(topic)
        found = self.directory.writable_or_new(topic)
        if not found and known is not None:
            found = known.queues  # a master that has left the route may only be restarting
        if not found:
            raise ValueError(f"topic {topic!r} has no queue that may be written to now")
        self._queues[topic] = _Known(found, now_s + QUEUES_AGE_S_MAX)
        if self.presence is not None:
            self.presence.sends(with_namespace(self.group, self.directory.namespace), topic, found)
        return found

    def choose(self, topic: str, partition: Partition | None, key: bytes | str | None) -> Partition:
        """Return ``partition``, or the partitioner's choice. Raises as ``writable``."""
        queues = self.writable(topic)
        if partition is None:
            with self._lock:
                partition = self._partitioner(topic, queues, None if key is None else bytes_of(key, "key"))
        Partition.require(partition)
        if partition not in queues:  # a broker may have registered the topic meanwhile
            self._forget(topic)
            queues = self.writable(topic)
        if partition not in queues:
            raise ValueError(f"queue {partition}: {topic} has {', '.join(map(str, queues)) or 'none to write to'}")
        return partition

    def row(
        self,
        topic: str,
        message: RocketMessage,
        partition: Partition | None,
        key: bytes | str | None,
        more: Mapping[str, str] = NO_PROPERTIES,
        *,
        half: bool = False,
    ) -> Row:
        """Return a message in the form in which it is sent, with the properties ``more``; ``half``: as a half message.

        Raises:
            ValueError, TypeError: The message is not valid.
            ExtensionMissing: It has a delivery time, which its broker does not support.
            TopicNotFound, NameServersAway, RouteUnusable: As ``writable``.
            ConnectionFailed, DeadlineExceeded, ProtocolError: It is large, and its broker could not be asked for its
                limit.
        """
        queue = self.choose(topic, partition, key)
        if message.is_timed:
            self.require_timers(topic, queue)
        message_id = self.next_id()
        try:
            named = message.all_properties(message_id)
            properties = write_properties({**named, **more} if more else named)
            encoded = properties.encode()
        except FieldError as error:
            raise ValueError(str(error)) from None
        except UnicodeEncodeError as error:
            raise ValueError(f"properties: a text cannot be written as UTF-8, {error.reason}") from None
        body, sys_flag = message.body(), PREPARED if half else 0
        if self._codec is not None and len(body) >= self._compress_from:
            packed, flags = compress(body)
            if len(packed) < len(body):
                body, sys_flag = packed, sys_flag | flags
        size = OVERHEAD_BYTES + len(encoded) + len(body)
        if len(body) > BODY_BYTES_MAX:
            self._require_size(topic, queue, len(body))
        alone = bool(sys_flag or message.delay_level or message.is_timed or size > BODY_BYTES_MAX)
        may_move = self._failover and partition is None and key is None
        return Row(
            *(message, queue, message_id, body, properties, encoded, size),
            *(sys_flag, alone, may_move, message.is_timed),
        )

    def next_id(self) -> str:
        """Return a new message id."""
        now_ms = wall_clock_ms()
        with self._lock:
            if not self._month_ms <= now_ms < self._month_until_ms:
                self._month_ms, self._month_until_ms = month_start_ms(now_ms), now_ms + MONTH_AGE_MS_MAX
            return self._ids.next(now_ms, self._month_ms)

    def send(self, topic: str, rows: Sequence[Row], *, within_s: float = math.inf) -> list[RocketSent]:
        """Store messages, and return where each is stored. All tries take ``within_s`` seconds at most.

        Raises:
            SendFailed: A broker refused messages or could not be reached; ``sent`` is what was acknowledged.
        """
        outcome = self.deliver(topic, rows, within_s=within_s)
        if outcome.failure is not None:
            raise _send_failed(topic, outcome.failure, outcome.sent, bool(outcome.open_rows()))
        return [one for one in outcome.sent if one is not None]

    def deliver(self, topic: str, rows: Sequence[Row], *, within_s: float = math.inf) -> RowOutcomes:
        """Store messages as ``send`` does; return what became of each."""
        for number, row in enumerate(rows):
            row.number = number
        outcome = RowOutcomes([None] * len(rows))
        outcome.failure = self._deliver(topic, rows, outcome, within_s)
        if outcome.failure is not None:
            self._queues.pop(topic, None)  # its queues may have moved
        return outcome

    def require_timers(self, topic: str, queue: Partition) -> None:
        """Check that the broker of a queue supports delivery times; it is asked once.

        Raises:
            ExtensionMissing: It does not.
            ConnectionFailed, DeadlineExceeded, ProtocolError, BrokerAway, NameServersAway: It could not be asked.
        """
        address = self.directory.write_address(queue.broker_name, topic=topic)
        if address not in self._with_timers:
            check_timers(self.pool, queue.broker_name, address)
            self._with_timers.add(address)

    def _require_size(self, topic: str, queue: Partition, size: int) -> None:
        """Check that the broker of a queue accepts a body of ``size`` bytes; it is asked once for its limit."""
        address = self.directory.write_address(queue.broker_name, topic=topic)
        if size > self._largest.get(address, 0):
            self._largest[address] = limit = body_bytes_max(self.pool, queue.broker_name, address)
            if size > limit:
                what = f"the body has {size} bytes, and broker {queue.broker_name!r} takes at most {limit}"
                raise ValueError(f"{what} (its maxMessageSize)")

    def _deliver(self, topic: str, rows: Sequence[Row], outcome: RowOutcomes, within_s: float) -> MetaqError | None:
        """Send ``rows``, and record in ``outcome`` what becomes of each; return why not all are acknowledged."""
        failed: set[str] = set()
        limit = TimeLimit(max(0.0, min(within_s, self.pool.timeouts.all_tries_s)), self.pool.clock)
        while True:
            by_broker: dict[str, list[Row]] = {}
            for row in rows:
                by_broker.setdefault(row.queue.broker_name, []).append(row)
                outcome.failures.pop(row.number, None)
                outcome.not_sent.discard(row.number)
            quick = {name for name, some in by_broker.items() if self._may_move(topic, some, failed | {name})}
            failures = self._write(topic, by_broker, outcome, quick, limit)
            left = [row for row in rows if outcome.sent[row.number] is None]
            if len(left) < len(rows):
                limit.renew()
            for name, failure in failures.items():
                if name not in quick or not _may_pass(failure):
                    return failure
            rows = [row for row in left if _may_pass(outcome.failures[row.number])]
            if not rows:
                return next(iter(outcome.failures.values()), None)
            failed |= failures.keys()
            rows = self._moved(topic, rows, failed)

    def _write(
        self,
        topic: str,
        by_broker: Mapping[str, list[Row]],
        outcome: RowOutcomes,
        quick: set[str],
        limit: TimeLimit,
    ) -> dict[str, MetaqError]:
        """Send each broker's rows; brokers in ``quick`` get one attempt and half of the time.

        Returns:
            Broker name -> its error.
        """
        half = limit.half()
        with ExitStack() as stack:
            writers = {}
            for name, some in by_broker.items():
                policy, within = (_ONE_TRY, half) if name in quick else (self._policy, limit)
                writer = BatchWriter(self.pool, self.directory, name, group=self.group, policy=policy, limit=within)
                writers[name] = _BrokerRows(topic, writer, some)
                stack.callback(writer.close)
            for step in (_BrokerRows.post, _BrokerRows.wait, _BrokerRows.settle):
                for of_broker in writers.values():
                    step(of_broker)
            for of_broker in writers.values():
                of_broker.note(outcome)
            return {name: one.failure for name, one in writers.items() if one.failure is not None}

    def _may_move(self, topic: str, rows: Iterable[Row], failed: set[str]) -> bool:
        known = self._queues.get(topic)
        others = known is not None and any(queue.broker_name not in failed for queue in known.queues)
        return others and all(row.may_move for row in rows)

    def _moved(self, topic: str, rows: list[Row], failed: set[str]) -> list[Row]:
        """Return ``rows`` with queues of brokers that have not failed; unchanged if there are none."""
        self._forget(topic)
        try:
            others = [queue for queue in self.writable(topic) if queue.broker_name not in failed]
        except (MetaqError, ValueError):
            others = []
        if not others:
            return rows
        with self._lock:
            return [replace(row, queue=self._partitioner(topic, others, None)) for row in rows]

    def _forget(self, topic: str) -> None:
        self._queues.pop(topic, None)
        self.directory.invalidate()


def _new_ids() -> UniqueKeys:
    """Return a generator of ids that differ from every other producer's. They do not contain this machine's address."""
    return UniqueKeys(secrets.token_bytes(4), os.getpid(), secrets.randbits(32))


class _BrokerRows:
    """The rows of one broker, and their requests."""

    def __init__(self, topic: str, writer: BatchWriter, rows: Sequence[Row]) -> None:
        self._topic, self._writer = topic, writer
        self._of_queues: dict[Partition, list[Row]] = {}
        for row in rows:
            self._of_queues.setdefault(row.queue, []).append(row)
        self._requests: list[list[Row]] = []
        self.failure: MetaqError | None = None

    def post(self) -> None:
        """Send all requests, or until one fails; the last ones may still be in flight on return."""
        with self._failing():
            self._post()

    def wait(self) -> None:
        """Wait until all requests are stored, or one fails."""
        if self.failure is None:
            with self._failing():
                self._writer.wait()

    def settle(self) -> None:
        """After a failure: wait for the answers to the other requests that were sent."""
        if self.failure is not None:
            lost = self._writer.settle()
            if lost is not None:
                self.failure = _and_lost(self.failure, lost)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except MetaqError as error:
            self.failure = error

    def _post(self) -> None:
        for queue, rows in self._of_queues.items():
            for request in _requests(rows):
                self._requests.append(request)
                first = request[0]
                if first.alone:
                    self._writer.send(
                        *(self._topic, queue.index, first.body, first.properties),
                        sys_flag=first.sys_flag,
                        recallable=first.is_timed,
                    )
                else:
                    elements = (BatchElement(row.body, row.encoded) for row in request)
                    self._writer.write(self._topic, queue.index, encode_batch(elements), len(request))

    def note(self, outcome: RowOutcomes) -> None:
        """Record what was acknowledged, also after a failure, and why the other rows are not."""
        for number, receipt in self._writer.take_receipts().items():
            partition, offset, is_durable = receipt.queue.partition, receipt.offset, receipt.is_durable
            ids: list[str | None] = [*receipt.message_ids, *[None] * receipt.count]
            for row, message_id in zip(self._requests[number], ids, strict=False):
                outcome.sent[row.number] = sent_to(
                    self._topic, partition, offset, row.message_id, message_id, is_durable, receipt.recall_handle
                )
                offset += 1
        for number in self._writer.unanswered():
            outcome.unanswered |= {row.number for row in self._requests[number]}
        if self.failure is not None:
            self._note_failures(outcome, self.failure)

    def _note_failures(self, outcome: RowOutcomes, failure: MetaqError) -> None:
        refused = self._writer.failures()
        own = {row.number: error for number, error in refused.items() for row in self._requests[number]}
        is_refusal = not _may_pass(failure) and any(error is failure.__cause__ for error in refused.values())
        for row in chain.from_iterable(self._of_queues.values()):
            if outcome.sent[row.number] is None:
                outcome.failures[row.number] = own.get(row.number, failure)
                if is_refusal and row.number not in own and row.number not in outcome.unanswered:
                    outcome.not_sent.add(row.number)


def _requests(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows of one queue in requests: batches up to the limits, and rows that are sent alone."""
    taken: list[Row] = []
    size = 0
    for row in rows:
        full = len(taken) == BLOCK_MESSAGES_MAX or size + row.size > BLOCK_BYTES_MAX
        if taken and (full or row.alone or taken[-1].alone):
            yield taken
            taken, size = [], 0
        taken.append(row)
        size += row.size
    if taken:
        yield taken


def _and_lost(failure: MetaqError, lost: MetaqError) -> MetaqError:
    """Return ``failure``, which also says that other messages may be stored, because of ``lost``."""
    if not isinstance(failure, WriterFailed):
        return failure
    both = WriterFailed(failure.where, failure.count, f"{failure.reason}; others may be stored: {lost}")
    both.__cause__ = failure.__cause__
    return both


def _send_failed(
    topic: str,
    failure: MetaqError,
    sent: Sequence[RocketSent | None],
    unanswered: bool = False,
    relation: str = "",
) -> SendFailed:
    reason = failure.reason if isinstance(failure, WriterFailed) else str(failure)
    error = SendFailed(topic, relation + reason, _may_pass(failure), tuple(sent), unanswered)
    error.__cause__ = _cause(failure)
    return error


def _may_pass(failure: MetaqError) -> bool:
    """Whether a retry, or another broker, may succeed after this failure."""
    cause = _cause(failure)
    return isinstance(cause, MetaqError) and cause.retryable


def _cause(failure: MetaqError) -> BaseException | None:
    """Return why a writer failed; any other failure is its own cause."""
    return failure.__cause__ if isinstance(failure, WriterFailed) else failure
