"""A producer for programs; and, for code that writes without one, the functions that put a message or a block."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Final, NamedTuple

from metaq.backends.metaq.batch_writer import RETRIES
from metaq.backends.metaq.pool import SessionPool, pair_policy
from metaq.backends.metaq.puts import Receipt, encode_block, put, put_batch
from metaq.backends.metaq.session import Session
from metaq.client.partitioners import Partitioner, by_key, one_at_a_time
from metaq.client.records import Sent, bytes_of, require_list, require_topic
from metaq.client.sending.batches import OpenBatches
from metaq.client.sending.blocks import (
    BLOCK_BYTES_MAX,
    BLOCK_MESSAGES_MAX,
    Block,
    BlockWriter,
    partition_of,
    reason_of,
    settle_block,
)
from metaq.client.sending.futures import future_of
from metaq.client.sending.submissions import MAX_BLOCK_S, WINDOW_BYTES, OnOverflow, Submissions
from metaq.client.shells import SubmittingProducer
from metaq.client.transactions import LocalTransaction, XaBranch
from metaq.discovery.base import Directory
from metaq.errors import MetaqError, SendFailed, TopicNotFound
from metaq.formats.frames import encode_message, walk
from metaq.model import Address, Message, Partition, Xid
from metaq.net.retry import RetryPolicy, persist
from metaq.sizes import parse_size

__all__ = ["Producer", "Receipt", "encode_block", "put", "put_batch"]


ROUTE_AGE_S: Final = 30.0
"""Seconds after which the brokers of a topic are looked up again, beside the sends. The same as for RocketMQ."""


NOTHING_KNOWN: Final[Mapping[Partition, Address]] = {}


class _Route(NamedTuple):
    """Where a topic can be sent to: its partitions in order, and the broker of each. It is looked up again at
    ``old_s``.
    """

    partitions: tuple[Partition, ...]
    addresses: Mapping[Partition, Address]
    old_s: float


KnownRoutes = dict[str, _Route]
"""By topic."""


class Producer(SubmittingProducer[Message, bytes, Sent]):
    """Sends messages to the partitions that ``partitioner`` chooses (default: by key, in turn without one).

    The brokers of a topic are looked up again after a failure, and every ``ROUTE_AGE_S`` while it sends. One thread at
    a time, except ``submit``. ``linger_s``, ``window`` (bytes, or a text such as ``4 MiB``), ``on_overflow`` and
    ``max_block_s`` are for ``submit``; see there.
    """

    def __init__(
        self,
        directory: Directory,
        pool: SessionPool,
        partitioner: Partitioner | None = None,
        *,
        linger_s: float = 0.0,
        window: int | str = WINDOW_BYTES,
        on_overflow: OnOverflow[Message] = "block",
        max_block_s: float = MAX_BLOCK_S,
        retries: int = RETRIES,
        routes: KnownRoutes | None = None,
    ) -> None:
        """``retries``: how often in a row blocks are sent again after a lost connection or a missed deadline.

        ``routes``: the known brokers of topics, which producers may share. After a failure they are used until a
        look-up has succeeded, which replaces them. So one broker that is away does not affect messages whose partitions
        are at others.
        """
        self._retries, self._keeps_routes = retries, routes is not None
        self._directory, self._pool = directory, pool
        self._partitioner = by_key() if partitioner is None else one_at_a_time(partitioner)
        self._routes: KnownRoutes = {} if routes is None else routes
        self._next = itertools.count()
        self.submissions = Submissions(
            *(self._store, _message_in, pool.clock),
            linger_s=linger_s,
            window_bytes=parse_size(window) if isinstance(window, str) else window,
            on_overflow=on_overflow,
            max_block_s=max_block_s,
            messages_max=BLOCK_MESSAGES_MAX,
            bytes_max=BLOCK_BYTES_MAX,
        )

    def publish(self, *topics: str) -> None:
        """Check early that topics can be sent to.

        Raises:
            TopicNotFound: No broker accepts one of them.
        """
        self.submissions.check_open()
        for topic in topics:
            self._route(topic)

    def accepts(self, topic: str, partition: Partition) -> bool:
        """Return whether a broker takes messages of ``topic`` for ``partition`` at the moment; looks the topic up if
        necessary.

        Raises:
            TopicNotFound: No broker accepts the topic.
        """
        self.submissions.check_open()
        self._find(topic, partition)
        return self.knows(topic, partition)

    def knows(self, topic: str, partition: Partition | None = None) -> bool:
        """Return whether the brokers of a topic, or of ``partition``, are known, so ``submit`` needs no look-up."""
        route = self._routes.get(topic)
        return route is not None and (partition is None or partition in route.addresses)

    def submit(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Future[Sent]:
        """Take a message to be sent in the background, and return a future of where it is stored.

        The acknowledgement settles the future, without further calls; its exception is the one that ``send`` would
        raise. Messages of one partition are stored in the order of their submission. If the window is full, the call
        waits, raises, or passes the message to a function, as ``on_overflow`` says. It waits ``max_block_s`` at most,
        for space or for the look-up of the topic's brokers. Thread-safe.

        Raises:
            TopicNotFound, ValueError, TypeError: As ``send``.
            TopicLookupTimeout: The look-up of the topic's brokers took longer than ``max_block_s``.
            MetaqError: The topic's brokers cannot be looked up.
            WindowFull: The window is full, with ``on_overflow="raise"``, or had no space within ``max_block_s``.
        """
        if not self.knows(topic, partition):
            self.submissions.lookups.wait(topic, self.renew)
        frame = encode_message(data if type(data) is bytes else bytes_of(data, "data"), attribute)
        return future_of(self.submissions.put(topic, self._choose(topic, partition, key), frame, len(frame)))

    def prepare(
        self,
        topic: str,
        data: bytes | str,
        attribute: str | None,
        partition: Partition | None,
        key: bytes | str | None,
    ) -> tuple[Partition, bytes]:
        """Return the partition and the frame of a message, for ``submissions``. Raises as ``send``; looks up no
        partition of a known topic.
        """
        frame = encode_message(data if type(data) is bytes else bytes_of(data, "data"), attribute)
        return self._choose(topic, partition, key), frame

    def transaction(self, timeout: int = 60) -> LocalTransaction:
        """Return a transaction for a ``with`` block; the broker drops it after ``timeout`` seconds (0: its maximum)."""
        self.submissions.check_open()
        return LocalTransaction(self._choose_at, _message_of, self._pool, timeout)

    def xa(self, xid: Xid, timeout: int = 60) -> XaBranch:
        """Return a branch of an XA transaction for a ``with`` block; see ``XaBranch``."""
        self.submissions.check_open()
        return XaBranch(xid, self._choose_at, _message_of, self._pool, timeout)

    def _choose_at(
        self, topic: str, partition: Partition | None, key: bytes | str | None, broker: int | None
    ) -> tuple[Partition, Address]:
        """Choose as ``send`` does, among the partitions of ``broker`` if ``broker`` is given."""
        self.submissions.check_open()
        self._find(topic, partition)
        if broker is None:
            where = self._choose(topic, partition, key)
            return where, self._route(topic).addresses[where]
        there = {where: at for where, at in self._route(topic).addresses.items() if where.broker == broker}
        if not there:
            raise TopicNotFound(topic, [f"broker {broker}, which has the transaction"])
        if partition is None:
            partition = self._partitioner(topic, list(there), None if key is None else bytes_of(key, "key"))
        _require_partition(topic, partition, there)
        return partition, there[partition]

    def put(self, topic: str, message: Message, partition: Partition | None = None) -> Receipt:
        """Store one message, with one attempt.

        Raises:
            TopicNotFound: No broker accepts the topic.
            ValueError: ``partition`` is none of the topic's.
            TypeError: ``message`` is not a ``Message``.
            BrokerError, ConnectionFailed, DeadlineExceeded, ProtocolError: As ``backends.metaq.puts.put``.
        """
        self.submissions.check_open()
        Message.require(message)
        self._find(topic, partition)
        partitions, addresses, _ = self._route(topic)
        if partition is None:
            partition = partitions[next(self._next) % len(partitions)]
        _require_partition(topic, partition, addresses)
        with self._pool.lease(addresses[partition]) as session:
            return put(session, topic, partition.index, message)

    def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Sent:
        """Store one message and return where it is, once the broker has acknowledged it.

        A text is sent as UTF-8. ``partition`` overrides the partitioner, which gets ``key``; the key is not stored.
        After a lost connection, or while the broker's disk is full, the message is sent again, up to five times; it may
        then be stored twice.

        Raises:
            TopicNotFound: No broker accepts the topic.
            ValueError: ``partition`` is none of the topic's, or a text cannot be written.
            TypeError: ``data`` is neither bytes nor text; ``topic``, ``partition`` or the attribute is of a wrong type.
            SendFailed: The broker refused the message or could not be reached.
        """
        self.submissions.check_open()
        self._find(topic, partition)
        return self._send(topic, [self.prepare(topic, data, attribute, partition, key)])[0]

    def send_many(
        self,
        topic: str,
        messages: Iterable[bytes | str | Message],
        *,
        partition: Partition | None = None,
        keys: Sequence[bytes | str | None] | None = None,
    ) -> list[Sent]:
        """Store messages in blocks, several of them in flight, and return where each is, in the order given.

        ``keys``: one for each message. Messages of one partition are stored in the order given, unless a connection
        was lost: then some may be stored twice.

        Raises:
            TopicNotFound, ValueError, TypeError: As ``send``; nothing was sent.
            SendFailed: A broker refused a block or could not be reached; ``sent`` is what was acknowledged.
        """
        self.submissions.check_open()
        require_list(messages)
        frames = [encode_message(one) if type(one) is bytes else _frame_of(one) for one in messages]
        if keys is not None and len(keys) != len(frames):
            raise ValueError(f"keys: expected one for each of {len(frames)} messages, got {len(keys)}")
        self._find(topic, partition)
        chosen = [self._choose(topic, partition, key) for key in keys or itertools.repeat(None, len(frames))]
        return self._send(topic, zip(chosen, frames, strict=True))

    def _find(self, topic: str, partition: Partition | None) -> None:
        """Look the topic up again if ``partition`` is not known: it may be new."""
        if partition is not None and not self.knows(topic, partition):
            self.renew(topic)

    def _choose(self, topic: str, partition: Partition | None, key: bytes | str | None) -> Partition:
        partitions, addresses, _ = self._routes.get(topic) or self._route(topic)
        if partition is None:
            partition = self._partitioner(topic, partitions, None if key is None else bytes_of(key, "key"))
        if partition not in addresses:
            _require_partition(topic, partition, addresses)
        return partition

    def _route(self, topic: str) -> _Route:
        route = self._routes.get(topic)
        if route is None:
            require_topic(topic)
            route = self._routes.setdefault(topic, self._look_up(topic))
        return route

    def _look_up(self, topic: str, known: Mapping[Partition, Address] = NOTHING_KNOWN) -> _Route:
        addresses = dict(sorted({**known, **self._directory.writable(topic)}.items()))
        return _Route(tuple(addresses), addresses, self._pool.clock.monotonic() + ROUTE_AGE_S)

    def _renewed_route(self, topic: str) -> _Route:
        """Return the known route. Look the topic up again in a thread, if that was long ago: there may be more brokers
        or partitions.

        The known ones are used meanwhile, and if that fails. One that is not listed now may only be restarting.
        """
        route, now_s = self._route(topic), self._pool.clock.monotonic()
        if now_s >= route.old_s:
            self._routes[topic] = route._replace(old_s=now_s + ROUTE_AGE_S)
            self.submissions.lookups.start(topic, self.renew)
        return route

    def renew(self, topic: str) -> None:
        """Look up a topic, known or not: there may be more brokers or partitions. Raises as ``publish``."""
        self.submissions.check_open()
        require_topic(topic)
        known = None if self._keeps_routes else self._routes.get(topic)
        try:
            self._routes[topic] = self._look_up(topic, NOTHING_KNOWN if known is None else known.addresses)
        except TopicNotFound as error:
            if self._keeps_routes and not error.electing:  # otherwise its master may be restarting
                self._routes.pop(topic, None)
            raise

    def _send(self, topic: str, rows: Iterable[tuple[Partition, bytes]]) -> list[Sent]:
        gathering: OpenBatches[bytes, Sent] = OpenBatches(BLOCK_MESSAGES_MAX, BLOCK_BYTES_MAX)
        taken = [gathering.add(topic, where, frame, len(frame)) for where, frame in rows]
        failure = self._store(topic, gathering.waiting)
        outcomes = [None if block.outcomes is None else block.outcomes[row] for block, row in taken]
        sent = [one for one in outcomes if one is not None]
        if failure is not None:
            failures = (block.failure for block in gathering.waiting)
            unanswered = any(isinstance(one, SendFailed) and one.unanswered for one in failures)
            raise SendFailed(topic, reason_of(failure), failure.retryable, tuple(outcomes), unanswered) from failure
        return sent

    def _store(self, topic: str, blocks: Iterable[Block]) -> MetaqError | None:
        """Store blocks, settle each, and return why not all are acknowledged.

        A broker that refuses a block or cannot be reached does not affect the blocks of the others.
        """
        failures: list[MetaqError | None] = []
        try:
            by_address, homeless = self._by_address(topic, blocks)
        except MetaqError as error:
            return self._failed(topic, blocks, error)
        for partition, some in homeless.items():
            text = f"no broker accepts partition {partition} at the moment"
            failures.append(self._failed(topic, some, SendFailed(topic, text, True, (None,))))
        writers: list[BlockWriter] = []
        with ExitStack() as stack:
            for address, some in by_address.items():
                try:
                    session, policy = self._connected(stack, address)
                    writers.append(BlockWriter(session, topic, some, policy))
                except MetaqError as error:
                    failures.append(self._failed(topic, some, error))
                else:
                    writers[-1].write()
            for writer in writers:
                writer.flush()
        failures += [writer.settle() for writer in writers]
        failure = next((one for one in failures if one is not None), None)
        if failure is not None:
            self._look_up_again(topic)  # the partition may have another master by now
        return failure

    def _failed(self, topic: str, blocks: Iterable[Block], failure: MetaqError) -> MetaqError:
        """Settle blocks that were not sent; return why."""
        self._look_up_again(topic)
        for block in blocks:
            settle_block(block, None, failure)
        return failure

    def _look_up_again(self, topic: str) -> None:
        """Forget the brokers of a topic; if ``routes`` are given, look them up in a thread, and use them meanwhile."""
        if not self._keeps_routes:
            self._routes.pop(topic, None)
        elif self.knows(topic):
            self.submissions.lookups.start(topic, self.renew)

    def _connected(self, stack: ExitStack, address: Address) -> tuple[Session, RetryPolicy]:
        """Lease a session, and return how often its blocks are sent again. The next master of a pair is waited for."""
        if not self._pool.members.is_member(address):
            return stack.enter_context(self._pool.lease(address)), RetryPolicy(self._retries)
        policy = pair_policy(self._retries, self._pool.timeouts)
        return persist(lambda: stack.enter_context(self._pool.lease(address)), policy, self._pool.clock), policy

    def _by_address(
        self, topic: str, blocks: Iterable[Block]
    ) -> tuple[dict[Address, list[Block]], dict[Partition, list[Block]]]:
        """Return the blocks by broker, and by partition where a partition has no broker."""
        addresses = self._renewed_route(topic).addresses
        found: dict[Address, list[Block]] = {}
        homeless: dict[Partition, list[Block]] = {}
        for block in blocks:
            partition = partition_of(block)
            if partition in addresses:
                found.setdefault(addresses[partition], []).append(block)
            else:
                homeless.setdefault(partition, []).append(block)
        return found, homeless


def _require_partition(topic: str, partition: Partition, addresses: Mapping[Partition, Address]) -> None:
    Partition.require(partition)
    if partition not in addresses:
        raise ValueError(f"partition {partition}: {topic} has {', '.join(map(str, addresses))}")


def _message_of(data: bytes | str, attribute: str | None) -> Message:
    return Message(bytes_of(data, "data"), attribute)


def _frame_of(given: bytes | str | Message) -> bytes:
    if isinstance(given, Message):
        return encode_message(given.payload, given.attribute)
    return encode_message(bytes_of(given, "message"))


def _message_in(frame: bytes) -> Message:
    return next(walk(frame)).message
