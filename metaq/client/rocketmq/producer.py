"""Sends messages to the queues of RocketMQ topics; each is acknowledged or raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Final, TypedDict, Unpack
from uuid import uuid4

from metaq.backends.rocketmq.errors import NoReply
from metaq.backends.rocketmq.names import PRODUCERS_BYTES_MAX, check_group, with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.replies import reply_properties, request_properties, send_reply
from metaq.backends.rocketmq.single_sends import recall, send_oneway
from metaq.client.partitioners import Partitioner, by_key
from metaq.client.records import require_list
from metaq.client.rocketmq.presence import Presence
from metaq.client.rocketmq.records import (
    NO_PROPERTIES,
    RocketMessage,
    RocketReceived,
    RocketSent,
    UnsendableMessage,
)
from metaq.client.rocketmq.requests import REPLY_S, RocketReply, SentRequest
from metaq.client.rocketmq.sending import Codec, Row, Sender
from metaq.client.sending.batches import MessageBatch
from metaq.client.sending.futures import future_of
from metaq.client.sending.submissions import BATCH_BYTES_MAX, MAX_BLOCK_S, WINDOW_BYTES, OnOverflow, Submissions
from metaq.client.shells import SubmittingProducer
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import FieldError, MetaqError, SendFailed
from metaq.formats.rocketmq.properties import CLUSTER
from metaq.model import Partition
from metaq.sizes import parse_size

DEFAULT_GROUP: Final = "metaq-producer"
"""Default producer group. Brokers list it and check its permissions."""

COMPRESS_FROM: Final = 4096
"""Default minimum size in bytes for compression of a body. The same as in Java's client."""

REPLY_S_MAX: Final = 86_400.0
"""Longest wait for a reply."""

SUBMITTED_MESSAGES_MAX: Final = 10_000
"""Limit on messages that are sent together. The sender splits them into requests by queue."""

Sendable = bytes | str | RocketMessage


class SendOptions(TypedDict, total=False):
    """Options of a producer beside its partitioner and group; see ``RocketProducer``."""

    linger_s: float
    window: int | str
    on_overflow: OnOverflow[RocketMessage]
    max_block_s: float
    compression: Codec | None
    compress_from: int | str
    failover: bool | None


class MessageOptions(TypedDict, total=False):
    """Options of a message beside its data; see ``RocketMessage``."""

    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str]
    delay_level: int
    delay: float | timedelta | None
    deliver_at: datetime | int | None


class RocketProducer(SubmittingProducer[RocketMessage, Row, RocketSent]):
    """Sends messages to the queues that ``partitioner`` chooses (default: by key, in turn without one).

    The first message for a missing topic creates it, at brokers that allow that (``autoCreateTopicEnable``).
    ``compression="zlib"`` compresses bodies of ``compress_from`` bytes and more; such messages are sent one by one.
    ``failover``: if a broker does not accept messages that have neither partition nor key, the partitioner chooses
    again among the queues of other brokers; ``None``: only with the default partitioner. ``linger_s``, ``window``
    (bytes, or a text such as ``4 MiB``), ``on_overflow`` and ``max_block_s`` are for ``submit``. Any number of threads
    may use it.

    Raises:
        ValueError: An option is outside its allowed range.
    """

    def __init__(
        self,
        directory: NameServerDirectory,
        pool: SessionPool,
        partitioner: Partitioner | None = None,
        *,
        group: str = DEFAULT_GROUP,
        linger_s: float = 0.0,
        window: int | str = WINDOW_BYTES,
        on_overflow: OnOverflow[RocketMessage] = "block",
        max_block_s: float = MAX_BLOCK_S,
        compression: Codec | None = None,
        compress_from: int | str = COMPRESS_FROM,
        failover: bool | None = None,
        presence: Presence | None = None,
    ) -> None:
        if not group:
            raise ValueError("group '': expected the name of a producer group")
        check_group(group, directory.namespace, PRODUCERS_BYTES_MAX)
        if compression not in ("zlib", None):
            raise ValueError(f"compression {compression!r}: expected 'zlib' or None")
        self._sender = Sender(
            *(directory, pool, partitioner or by_key(), group),
            codec=compression,
            compress_from=_bytes(compress_from),
            failover=partitioner is None if failover is None else failover,
            presence=presence,
        )
        self.submissions = Submissions(
            *(self._store, lambda row: row.message, pool.clock),
            linger_s=linger_s,
            window_bytes=_bytes(window),
            on_overflow=on_overflow,
            max_block_s=max_block_s,
            messages_max=SUBMITTED_MESSAGES_MAX,
            bytes_max=BATCH_BYTES_MAX,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(group={self.group!r})"

    @property
    def group(self) -> str:
        """The producer group."""
        return self._sender.group

    def publish(self, *topics: str) -> None:
        """Check early that topics can be sent to.

        Raises:
            TopicNotFound: No name server knows one of them, and no broker would create it.
            ValueError: One has no queue that may be written to.
        """
        self.submissions.check_open()
        for topic in topics:
            self._sender.writable(topic)

    def knows(self, topic: str, partition: Partition | None = None) -> bool:
        """Return whether the queues of a topic, with ``partition``, are known, so ``submit`` needs no look-up."""
        return self._sender.knows(topic, partition)

    def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        partition: Partition | None = None,
        key: bytes | str | None = None,
        **options: Unpack[MessageOptions],
    ) -> RocketSent:
        """Store one message and return where it is, once the broker has acknowledged it.

        ``options``: ``tag``, ``keys``, ``properties``, ``delay_level``, ``delay``, ``deliver_at``: a ``RocketMessage``.
        ``partition`` (``Partition("broker-a", 0)``) overrides the partitioner, which gets ``key``. After a lost
        connection the message is sent again, for about half a minute; it may then be stored twice, with one
        ``message_id``.

        Raises:
            TopicNotFound: No name server knows the topic.
            ValueError, TypeError: The message cannot be sent as it is; nothing was sent.
            ExtensionMissing: The broker does not support ``delay`` and ``deliver_at``; nothing was sent.
            SendFailed: The broker refused the message or could not be reached.
            NameServersAway, RouteUnusable: The topic's route could not be looked up.
        """
        self.submissions.check_open()
        message = message_of(data, **options)
        return self._sender.send(topic, [self._sender.row(topic, message, partition, key)])[0]

    def send_many(
        self,
        topic: str,
        messages: Iterable[Sendable],
        *,
        partition: Partition | None = None,
        keys: Sequence[bytes | str | None] | None = None,
    ) -> list[RocketSent]:
        """Store messages in batches, several of them in flight, and return where each is, in the order given.

        ``keys``: one for each message, for the partitioner. Messages of one queue are stored in the order given;
        delayed ones are sent one by one.

        Raises:
            TopicNotFound, ValueError, TypeError, ExtensionMissing: As ``send``; nothing was sent. ``UnsendableMessage``
                is a ``ValueError`` with the number of the message.
            SendFailed: A broker refused a batch or could not be reached; ``sent`` is what was acknowledged, also of
                what was sent beside a refused batch.
        """
        self.submissions.check_open()
        require_list(messages)
        listed = [one if isinstance(one, RocketMessage) else RocketMessage(data=one) for one in messages]
        if keys is not None and len(keys) != len(listed):
            raise ValueError(f"keys: expected one for each of {len(listed)} messages, got {len(keys)}")
        rows = []
        for number, message in enumerate(listed):
            try:
                rows.append(self._sender.row(topic, message, partition, None if keys is None else keys[number]))
            except ValueError as error:
                raise UnsendableMessage(number, str(error)) from None
        return self._sender.send(topic, rows) if rows else []

    def send_oneway(
        self,
        topic: str,
        data: bytes | str,
        *,
        partition: Partition | None = None,
        key: bytes | str | None = None,
        **options: Unpack[MessageOptions],
    ) -> str:
        """Send one message without a response; return its ``message_id``. The message may be lost.

        Nothing is retried, and the broker does not report refusals. Raises as ``send``; ``SendFailed`` means that the
        message could not be handed to the network.
        """
        self.submissions.check_open()
        message = message_of(data, **options)
        row = self._sender.row(topic, message, partition, key)
        try:
            send_oneway(
                *(self._sender.pool, self._sender.directory, self.group, topic, row.queue),
                *(row.body, row.properties, row.sys_flag),
            )
        except MetaqError as error:
            raise SendFailed(topic, str(error), error.retryable, (None,)) from error
        return row.message_id

    def request(
        self,
        topic: str,
        data: bytes | str,
        *,
        timeout: float = REPLY_S,
        partition: Partition | None = None,
        key: bytes | str | None = None,
        **options: Unpack[MessageOptions],
    ) -> RocketReply:
        """Store a message, and wait for the reply of the consumer that gets it, for ``timeout`` seconds in all.

        The consumer sends the reply with ``reply``, or with Java's or Go's client. The first request of a program
        announces it to all brokers before, and so does one to a broker that has not answered yet; that takes up to 10
        seconds more if one does not answer, also for many threads at once. Raises as ``send``, also if the broker does
        not acknowledge the message within ``timeout``.

        Raises:
            NoReply: No reply came in time. The message is stored.
        """
        sent = self.begin_request(topic, message_of(data, **options), timeout, partition, key)
        try:
            return sent.future.result(max(0.0, sent.deadline_s - self._sender.pool.clock.monotonic()))
        except TimeoutError:
            raise NoReply(topic, sent.message_id, timeout) from None
        finally:
            self.end_request(sent)

    def begin_request(
        self, topic: str, message: RocketMessage, timeout: float, partition: Partition | None, key: bytes | str | None
    ) -> SentRequest:
        """Send a request and return how to wait for its reply; ``end_request`` must follow. Raises as ``send``."""
        self.submissions.check_open()
        presence, clock = self._sender.presence, self._sender.pool.clock
        if presence is None:
            raise ValueError("a transactional producer sends no requests; use one of producer()")
        if not 0 < timeout <= REPLY_S_MAX:
            raise ValueError(f"timeout {timeout!r}: expected seconds above 0, at most {REPLY_S_MAX:g}")
        correlation_id = str(uuid4())
        more = request_properties(correlation_id, presence.client_id, round(timeout * 1000))
        row = self._sender.row(topic, message, partition, key, more)
        row.alone = True  # 5.x adds CLUSTER, which the reply's topic is made of, to no message of a batch
        group = with_namespace(self.group, self._sender.directory.namespace)
        presence.waits_for_replies(group, row.queue.broker_name)
        deadline_s = clock.monotonic() + timeout  # after the wait for brokers, of which one may hang
        future = presence.requests.add(correlation_id)
        try:
            self._sender.send(topic, [row], within_s=deadline_s - clock.monotonic())
        except BaseException:
            presence.requests.remove(correlation_id)
            raise
        return SentRequest(topic, row.message_id, correlation_id, timeout, deadline_s, future)

    def end_request(self, sent: SentRequest) -> None:
        """Stop waiting for a reply."""
        if self._sender.presence is not None:
            self._sender.presence.requests.remove(sent.correlation_id)

    def reply(
        self,
        request: RocketReceived,
        data: bytes | str,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> None:
        """Send the reply to a request, a message that a consumer got; return when its producer has it.

        The brokers of the request's cluster are tried in turn, first the one that has the request.

        Raises:
            ValueError, TypeError: The message is not a request, or the reply cannot be sent as it is.
            SendFailed: No broker could pass it on: the producer is gone, or not connected to any of them.
        """
        self.submissions.check_open()
        topic, answering = reply_properties(request.properties)
        message = message_of(data, tag=tag, keys=keys, properties=properties)
        directory = self._sender.directory
        try:
            all_properties = {**message.all_properties(self._sender.next_id()), **answering}
            names = [request.partition.broker_name, *directory.masters(request.properties[CLUSTER])]
            send_reply(self._sender.pool, directory, names, self.group, topic, message.body(), all_properties)
        except FieldError as error:
            raise ValueError(str(error)) from None
        except MetaqError as error:
            raise SendFailed(topic, str(error), error.retryable, (None,)) from error

    def submit(
        self,
        topic: str,
        data: bytes | str,
        *,
        partition: Partition | None = None,
        key: bytes | str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Future[RocketSent]:
        """Take a message to be sent in the background, and return a future of where it is stored.

        The acknowledgement settles the future, without further calls; its exception is the one that ``send`` would
        raise. Messages of one queue are stored in the order of their submission. If the window is full, the call waits,
        raises, or passes the message to a function, as ``on_overflow`` says. It waits ``max_block_s`` at most, for
        space or for the look-up of the topic's queues.

        Raises:
            TopicNotFound, ValueError, TypeError, NameServersAway, RouteUnusable: As ``send``.
            TopicLookupTimeout: The look-up of the topic's queues took longer than ``max_block_s``.
            WindowFull: The window is full, with ``on_overflow="raise"``, or had no space within ``max_block_s``.
        """
        if not self._sender.knows(topic):
            self.submissions.lookups.wait(topic, self.publish)
        message = message_of(data, **options)
        row = self.prepare(topic, message, partition, key)
        return future_of(self.submissions.put(topic, None, row, len(row.body)))

    def prepare(self, topic: str, message: RocketMessage, partition: Partition | None, key: bytes | str | None) -> Row:
        """Return a message in the form for ``submissions``, which use one queue for all. Raises as ``send``."""
        return self._sender.row(topic, message, partition, key)

    def _store(self, topic: str, batches: Sequence[MessageBatch[Row, RocketSent]]) -> None:
        """Store batches and settle each."""
        for batch in batches:
            outcome = self._sender.deliver(topic, batch.messages)
            batch.settle(outcome.sent, failures=outcome.errors(topic))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a message that waits for ``delay`` or ``deliver_at``; return its id. See ``RocketSent``.

        Raises:
            ValueError: ``recall_handle`` is not valid.
            RequestRefused, AccessDenied: The broker refuses; the message may have been delivered.
            ConnectionFailed, DeadlineExceeded, BrokerAway, NameServersAway: The broker could not be asked.
        """
        self.submissions.check_open()
        return recall(self._sender.pool, self._sender.directory, self.group, topic, recall_handle)


def message_of(data: bytes | str, **options: Unpack[MessageOptions]) -> RocketMessage:
    """Return a separate copy of the message: later changes of the caller's objects do not affect it."""
    own = options.copy()
    if "keys" in options and not isinstance(options["keys"], str):
        own["keys"] = tuple(options["keys"])
    if "properties" in options:
        own["properties"] = dict(options["properties"])
    return RocketMessage(data=bytes(data) if isinstance(data, bytearray | memoryview) else data, **own)


def _bytes(size: int | str) -> int:
    return parse_size(size) if isinstance(size, str) else size
