"""A producer that keeps the order of each partition while its broker is away.

The program names the partitions, so that a key always goes to the same partition, whichever brokers run. While a
partition cannot be written, its messages are appended to a spool file on this machine, and one thread sends them in
order when the partition is back. A message is deleted from the file when it is acknowledged.

Source: docs/client.md, "In order, whatever happens".
"""

from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, Self

from metaq.backends.metaq.pool import SessionPool
from metaq.client.partitioners import Partitioner, by_key
from metaq.client.producer import KnownRoutes, Producer
from metaq.client.records import Sent, bytes_of
from metaq.client.sending.blocks import leading_block
from metaq.client.sending.spool import Spool
from metaq.client.sending.topic_lookups import TopicLookups
from metaq.client.shells import ClosedByBlock
from metaq.discovery.base import Directory
from metaq.errors import (
    BrokerError,
    ConnectionFailed,
    DeadlineExceeded,
    MetaqError,
    SendFailed,
    StoreFailed,
    TopicNotFound,
)
from metaq.model import Message, Partition, TopicPartition
from metaq.net.clock import lock_wait_s
from metaq.net.forks import forked_text, notify_after_fork
from metaq.statuses import FORBIDDEN

REPLAY_MESSAGES: Final = 500
"""Spooled messages that are read at a time."""

SEND_TIMEOUT_S: Final = 3.0
"""The same as in MetaQ's Java client."""

_NOT_WRITABLE: Final = "no broker that can be reached takes messages for it from this client"

_UNANSWERED: Final = "an attempt to send the message was not acknowledged, and may have stored it"

_Send = Callable[[TopicPartition, Sequence[Message]], list[Sent]]

_LOG: Final = logging.getLogger(__name__)


def parse_partition_map(text: str) -> list[Partition]:
    """Read ``BROKER:COUNT;BROKER:COUNT``, the form of MetaQ's ``topic.num.TOPIC``: the partitions, in order.

    Raises:
        ValueError: The text has another form.
    """
    pairs = [re.fullmatch(r"(\d{1,4}):([1-9]\d{0,4})", part.strip()) for part in text.split(";") if part.strip()]
    if not pairs or None in pairs:
        raise ValueError(f"partitions {text!r}: expected BROKER:COUNT;BROKER:COUNT, for example 0:4;1:4")
    found = [Partition(int(pair[1]), index) for pair in pairs if pair is not None for index in range(int(pair[2]))]
    if len(set(found)) < len(found):
        raise ValueError(f"partitions {text!r}: a broker is named twice")
    return found


class OrderedProducer(ClosedByBlock):
    """``partitions``: topic -> its fixed partitions. For a ``with`` block; any thread may send.

    ``retry_s``: pause between two attempts to send spooled messages. ``send_timeout_s``: how long ``send`` waits for a
    broker's answer; after two such waits it spools the message.
    """

    def __init__(
        self,
        directory: Directory,
        pool: SessionPool,
        partitions: Mapping[str, str],
        spool: Path,
        *,
        partitioner: Partitioner | None = None,
        retry_s: float = 5.0,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        for name, seconds in (("retry_s", retry_s), ("send_timeout_s", send_timeout_s)):
            if not 0 < seconds < 86400:
                raise ValueError(f"{name} {seconds!r}: expected seconds above 0, below a day")
        self._fixed = {topic: parse_partition_map(text) for topic, text in partitions.items()}
        routes: KnownRoutes = {}
        self._producer = Producer(directory, pool, retries=1, routes=routes)  # one, as a broker may have restarted
        self._hurried_pool = pool.hurried(send_timeout_s)
        self._hurried = Producer(directory, self._hurried_pool, retries=1, routes=routes)
        self._lookups = TopicLookups(send_timeout_s)
        self._partitioner, self._retry_s, self._spool = partitioner or by_key(), retry_s, Spool(spool)
        self._sending: defaultdict[TopicPartition, threading.Lock] = defaultdict(threading.Lock)
        """For each partition, held while a message is sent directly or it is decided to spool it."""
        self._reasons: dict[TopicPartition, str] = {}
        """Why the messages of a partition wait, as the log says it."""
        self._silent: set[int] = set()
        """Brokers that did not answer in this round of the thread, which asks them again in the next one."""
        self._asked_last: TopicPartition | None = None
        """The last partition whose broker did not answer: the next round begins after it."""
        self._wake, self._done = threading.Event(), threading.Condition()
        self._closed = False
        self._closed_text = "the ordered producer is not open; use it in a with block"
        self._parents: Spool | None = None
        self._thread: threading.Thread | None = None

    def _forked(self) -> None:
        """In a child process: the spool file and its messages belong to the parent."""
        self._closed, self._thread = True, None
        self._parents, self._spool = self._spool, Spool(Path())  # never closed: that would touch the parent's file
        self._closed_text = forked_text("the ordered producer")

    def __enter__(self) -> Self:
        if self._closed:
            raise ValueError("the ordered producer is closed" if self._parents is None else self._closed_text)
        with ExitStack() as opened:
            opened.callback(self._spool.close)
            self._spool.open()
            thread = threading.Thread(target=self._run, name="metaq-ordered", daemon=True)
            thread.start()
            self._thread = thread
            notify_after_fork(self._forked)
            opened.pop_all()
        return self

    def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        attribute: str | None = None,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> Sent | None:
        """Store one message; return where it is, or ``None`` if it was spooled.

        Raises:
            TopicNotFound: The topic has no fixed partitions.
            ValueError, TypeError: the topic does not have ``partition``; ``data`` or the attribute cannot be sent; the
                producer is not open.
            SendFailed: The broker refused the message permanently; it is not spooled. With ``unanswered``, it may be
                stored nevertheless.
            StoreFailed: The message must be spooled and cannot be. It is not sent, unless the error says that an
                attempt may have stored it.
        """
        self._require_open()
        message = Message(bytes_of(data, "data"), attribute)
        where = TopicPartition(topic, self._choose(topic, partition, key))
        unanswered = False
        with self._sending[where]:
            is_first = not self._spool.waiting(where)
            if is_first:
                sent, unanswered = self._try_send(where, [message], self._send_hurried)
                if sent:
                    return sent[0]
            self._add(where, message, unanswered)
        if is_first:
            self._wake.set()  # the broker may have restarted meanwhile
        return None

    def _add(self, where: TopicPartition, message: Message, unanswered: bool) -> None:
        try:
            self._spool.add(where, message)
        except StoreFailed as error:
            if not unanswered:
                raise
            raise StoreFailed(error.where, f"{error.reason}; {_UNANSWERED}") from error

    @property
    def spooled(self) -> dict[TopicPartition, int]:
        """Number of spooled messages, by partition."""
        return {where: self._spool.waiting(where) for where in self._spool.places()}

    def recover(self, timeout: float = 30.0) -> bool:
        """Send the spooled messages; return whether the spool is empty within ``timeout`` seconds."""
        self._require_open()
        with self._done:
            self._wake.set()
            self._done.wait_for(lambda: self._closed or not self._spool.places(), lock_wait_s(timeout))
        return not self._spool.places()

    def _require_open(self) -> None:
        if self._thread is None or self._closed:
            raise ValueError(self._closed_text)

    def _end_with_client(self, timeout: float | None = None) -> None:
        self.close(timeout)

    def close(self, timeout: float | None = None) -> None:
        """End the thread and close the file. Spooled messages are sent by the next producer with this file.

        Waits up to ``timeout`` seconds for messages in flight; messages that are still in flight then may be sent
        again. A ``with`` block that is left by Ctrl-C waits for 5 seconds.
        """
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(lock_wait_s(timeout))
        self._spool.close()
        self._producer.close()
        self._hurried_pool.close()

    def _choose(self, topic: str, partition: Partition | None, key: bytes | str | None) -> Partition:
        fixed = self._fixed.get(topic)
        if fixed is None:
            raise TopicNotFound(topic, ["the fixed partitions of this producer"], list(self._fixed))
        if partition is None:
            partition = self._partitioner(topic, fixed, None if key is None else bytes_of(key, "key"))
        if partition not in fixed:
            raise ValueError(f"partition {partition}: {topic} has {', '.join(map(str, fixed))}")
        return partition

    def _send_hurried(self, where: TopicPartition, messages: Sequence[Message]) -> list[Sent]:
        if not self._hurried.knows(where.topic, where.partition):
            self._lookups.wait(where.topic, lambda topic: self._hurried.accepts(topic, where.partition))
            if not self._hurried.knows(where.topic, where.partition):
                return self._none(where, _NOT_WRITABLE)
        return self._send_with(self._hurried, where, messages)

    def _send_waiting(self, where: TopicPartition, messages: Sequence[Message]) -> list[Sent]:
        if where.partition.broker_id in self._silent:
            return []
        if not self._producer.accepts(where.topic, where.partition):
            return self._none(where, _NOT_WRITABLE)
        try:
            return self._send_with(self._producer, where, messages)
        except SendFailed as error:
            if isinstance(error.__cause__, ConnectionFailed | DeadlineExceeded):
                self._silent.add(where.partition.broker_id)
                self._asked_last = where
            raise

    def _send_with(self, producer: Producer, where: TopicPartition, messages: Sequence[Message]) -> list[Sent]:
        try:
            return producer.send_many(where.topic, messages, partition=where.partition)
        except ValueError:
            if producer.knows(where.topic, where.partition):
                raise
            return self._none(where, _NOT_WRITABLE)  # a look-up has just found that no broker has it

    def _try_send(self, where: TopicPartition, messages: Sequence[Message], send: _Send) -> tuple[list[Sent], bool]:
        """Send messages; return the positions of the leading ones that were acknowledged, possibly none, and whether
        others may be stored.

        Raises:
            SendFailed: The broker refused the first one permanently.
        """
        try:
            sent = send(where, messages)
        except SendFailed as error:
            cause = error.__cause__
            refused = isinstance(cause, BrokerError) and cause.code != FORBIDDEN  # a partition may be closed for a time
            front = [one for one in takewhile(bool, error.sent) if isinstance(one, Sent)]
            if refused and not error.retryable and not front:
                raise
            return front or self._none(where, str(error)), error.unanswered
        except TopicNotFound as error:
            return self._none(where, str(error)), False
        except MetaqError as error:
            if not error.retryable:
                raise
            return self._none(where, str(error)), False
        if sent:
            self._reasons.pop(where, None)
        return sent, False

    def _none(self, where: TopicPartition, reason: str) -> list[Sent]:
        """Nothing was sent; a reason that is new is logged."""
        if self._reasons.get(where) != reason:
            self._reasons[where] = reason
            _LOG.warning("messages for %s wait in %s: %s", where, self._spool, reason)
        return []

    def _run(self) -> None:
        while not self._closed:
            self._wake.clear()
            self._send_spooled()
            with self._done:
                self._done.notify_all()
            self._wake.wait(self._retry_s)
        self._tidy_at_end()
        with self._done:
            self._done.notify_all()

    def _send_spooled(self) -> None:
        """Try once to send the messages of each partition; a broker that does not answer is asked once."""
        self._silent.clear()
        places = self._spool.places()
        begin = places.index(self._asked_last) + 1 if self._asked_last in places else 0
        steps: list[Callable[[], None]] = [self._spool.tidy]
        steps += [partial(self._replay, where) for where in places[begin:] + places[:begin]]
        for step in steps:
            try:
                step()
            except MetaqError as error:  # the messages stay spooled
                _LOG.warning("messages in %s are kept and sent later: %s", self._spool, error)
            except Exception:  # this thread must survive: without it nothing would be sent
                _LOG.exception("messages in %s are kept and sent later", self._spool)

    def _tidy_at_end(self) -> None:
        try:
            self._spool.tidy()
        except StoreFailed as error:
            if count := self._spool.repeated():
                _LOG.error("the next producer with %s will send %d messages again: %s", self._spool, count, error)

    def _replay(self, where: TopicPartition) -> None:
        while not self._closed and (rows := self._spool.first(where, REPLAY_MESSAGES)):
            if not self._replay_rows(where, rows):
                return

    def _replay_rows(self, where: TopicPartition, rows: list[tuple[int, Message]]) -> bool:
        """Send rows, one block at a time, because a block in flight behind a refused one would be stored before it.

        Return whether all are sent.

        Raises:
            SendFailed: The broker refused a message permanently. The ones before it are sent.
        """
        count = len(rows)
        while rows and not self._closed:
            block = [message for _, message in rows[:count]]
            del block[leading_block(block) :]
            try:
                sent, _ = self._try_send(where, block, self._send_waiting)
            except SendFailed:
                if len(block) == 1:
                    raise
                count = len(block) // 2  # the refused message may be after others in the block
                continue
            if not sent:
                return False
            self._spool.remove(where, [number for number, _ in rows[: len(sent)]])
            rows = rows[len(sent) :]
        return not rows
