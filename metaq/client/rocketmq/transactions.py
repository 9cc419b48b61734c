"""RocketMQ transactions: half messages, which the broker delivers when it learns that they are committed.

For the broker each message is a separate transaction, whose end it must learn. A broker that does not learn it asks a
member of the producer group (``check_backs``). So after any failure in between, the message is delivered if and only if
the program can still report that its own work was done::

    transaction.send     half message ── stored ──▶ │ killed here: asked, "rollback"
    the program's work   done                       │ killed here: asked, "commit"
    transaction.commit   end of each ──────────────▶ delivered

Source: docs/client.md, "RocketMQ's transactions".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Literal, Self, Unpack
from weakref import WeakValueDictionary

from metaq.backends.rocketmq.groups.heartbeats import Heartbeats, ProducerGroups
from metaq.backends.rocketmq.half_messages import HalfMessage, end_half_message
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.remoting import HEARTBEAT_S
from metaq.client.partitioners import Partitioner
from metaq.client.rocketmq.check_backs import Check, CheckBacks
from metaq.client.rocketmq.producer import RocketProducer, SendOptions, message_of
from metaq.client.rocketmq.records import NO_PROPERTIES, RocketMessage, RocketSent
from metaq.client.rocketmq.sending import Sender
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError, TransactionError
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.properties import CHECK_IMMUNITY_S, PRODUCER_GROUP, TRANSACTION_MESSAGE
from metaq.model import Address, Partition
from metaq.net.forks import forked_text, notify_after_fork
from metaq.net.remoting_client import RemotingClient

CHECK_WORKERS: Final = 4
"""Default limit on concurrent calls of ``check``."""

State = Literal["open", "committed", "rolled back", "left open"]
"""``left open``: the broker was not notified of the end, or may not have been; it will ask."""

_LOG: Final = logging.getLogger(__name__)


class TransactionalProducer(RocketProducer):
    """A ``RocketProducer`` with transactions, a member of a producer group, for a ``with`` block.

    ``check`` is called in a thread with a message of the group when a broker asks for the outcome of its transaction;
    it returns ``"commit"``, ``"rollback"`` or ``"unknown"``. An exception is logged and counts as ``"unknown"``. All
    members of the group must be able to answer for all of its messages. At most ``check_workers`` calls run at a time.
    Brokers know the producer from the beginning of the ``with`` block, or from its first transaction.
    """

    def __init__(
        self,
        directory: NameServerDirectory,
        pool: SessionPool,
        client: RemotingClient,
        group: str,
        check: Check,
        partitioner: Partitioner | None = None,
        *,
        check_workers: int = CHECK_WORKERS,
        heartbeat_s: float = HEARTBEAT_S,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(directory, pool, partitioner, group=group, **options)
        if not callable(check):
            raise TypeError(f"check: expected a function, got {type(check).__name__}")
        if not 0 < heartbeat_s <= HEARTBEAT_S:
            raise ValueError(f"heartbeat_s {heartbeat_s}: expected seconds above 0, at most {HEARTBEAT_S:g}")
        self._client, self._starting = client, threading.Lock()
        self._open: WeakValueDictionary[str, RocketTransaction] = WeakValueDictionary()
        self._group_name = with_namespace(group, directory.namespace)
        self._check_backs = CheckBacks(
            *(client, self._group_name, check),
            workers=check_workers,
            is_open=self._open.__contains__,
            broker_name=self._broker_name,
            namespace=directory.namespace,
        )
        groups = ProducerGroups(self._group_name).said
        self._heartbeats = Heartbeats(client, directory.masters, groups, heartbeat_s)
        self._started = self._ended = False
        self._ended_text = "the producer is closed"
        notify_after_fork(self._forked)

    def _forked(self) -> None:
        """In a child process: it may send, but the parent remains the member of the group, and has the connections."""
        self._starting = threading.Lock()
        self._started, self._ended, self._ended_text = False, True, forked_text("the membership of the producer group")

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Join the group, so that brokers ask; returns at once. Further calls do nothing.

        Raises:
            ValueError: The producer is closed, or belongs to the parent process.
        """
        with self._starting:
            if self._ended:
                raise ValueError(self._ended_text)
            if not self._started:
                self._started = True
                self._heartbeats.start()

    @property
    def reached(self) -> frozenset[str]:
        """Names of the brokers that know this producer."""
        return self._heartbeats.reached

    def transaction(self, ask_after: int | None = None) -> RocketTransaction:
        """Return a transaction for a ``with`` block.

        Brokers ask about it no earlier than after ``ask_after`` seconds (default: the broker's setting, 6).

        Raises:
            ValueError: ``ask_after`` is not a whole number of seconds above 0, or the producer is closed.
        """
        if ask_after is not None and (not isinstance(ask_after, int) or ask_after < 1):
            raise ValueError(f"ask_after {ask_after!r}: expected whole seconds, 1 or more")
        self.start()
        properties = {TRANSACTION_MESSAGE: "true", PRODUCER_GROUP: self._group_name}
        if ask_after is not None:
            properties[CHECK_IMMUNITY_S] = str(ask_after)
        return RocketTransaction(self._sender, self._heartbeats, self._open, properties, self.submissions.check_open)

    def close(self, timeout: float | None = None) -> None:
        """Leave the group and close the producer; see ``RocketProducer.close``."""
        super().close(timeout)
        with self._starting:
            started, self._ended = self._started and not self._ended, True
        if started:  # else there are no threads and no connections; a child must not end its parent's
            self._heartbeats.close()
            self._check_backs.close()
            self._client.close()

    def _broker_name(self, address: Address) -> str:
        brokers = self._sender.directory.brokers()
        return next((name for name, ids in brokers.items() if address in ids.values()), str(address))


class RocketTransaction:
    """A transaction. Leaving the ``with`` block commits it, an exception rolls it back.

    ``KeyboardInterrupt`` and other exceptions that are not an ``Exception`` leave it open, because it is unknown what
    was done; the broker asks ``check``. A lost connection leaves it open, too. Consumers get the messages one by one,
    as each is committed. Steps from several threads run one after the other.
    """

    def __init__(
        self,
        sender: Sender,
        heartbeats: Heartbeats,
        open_ones: WeakValueDictionary[str, RocketTransaction],
        properties: Mapping[str, str],
        check_producer: Callable[[], None],
    ) -> None:
        self._sender, self._heartbeats, self._open_ones = sender, heartbeats, open_ones
        self._properties, self._check_producer = properties, check_producer
        self._halves: list[HalfMessage] = []
        self._ids: list[str] = []
        self._state: State = "open"
        self._step = threading.Lock()
        self._ended_text = "the transaction has ended"
        notify_after_fork(self._forked)

    def _forked(self) -> None:
        """In a child process: only the parent ends the transaction."""
        self._state, self._ended_text = "left open", forked_text("the transaction")
        self._step = threading.Lock()

    def __repr__(self) -> str:
        return f"<RocketTransaction of {len(self._halves)} messages, {self._state}>"

    @property
    def state(self) -> State:
        """The state: ``open``, ``committed``, ``rolled back``, or ``left open`` for the broker to ask."""
        return self._state

    def send(
        self,
        topic: str,
        data: bytes | str,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
        partition: Partition | None = None,
        key: bytes | str | None = None,
    ) -> RocketSent:
        """Store a half message. The ``offset`` is -1: the message has none before the commit.

        ``check`` gets the same ``message_id``, keys and properties. Raises as ``RocketProducer.send``; after
        ``SendFailed`` the message may still be stored, and the broker may ask about it.

        Raises:
            ValueError: The transaction has ended.
        """
        message = message_of(data, tag=tag, keys=keys, properties=properties)
        with self._step:
            self._require_open()
            return self._send(topic, message, partition, key)

    def _send(
        self, topic: str, message: RocketMessage, partition: Partition | None, key: bytes | str | None
    ) -> RocketSent:
        row = self._sender.row(topic, message, partition, key, self._properties, half=True)
        self._open_ones[row.message_id] = self
        self._ids.append(row.message_id)
        (sent,) = self._sender.send(topic, [row])
        if sent.offset_message_id is None:
            raise self._error(sent, "send", "the answer to a half message has no message id")
        try:
            physical_offset = OffsetMessageId.parse(sent.offset_message_id).physical_offset
        except ValueError as error:
            raise self._error(sent, "send", str(error)) from None
        half = HalfMessage(
            topic=with_namespace(topic, self._sender.directory.namespace),
            group=self._properties[PRODUCER_GROUP],
            broker_name=sent.partition.broker_name,
            message_id=row.message_id,
            queue_offset=sent.offset,
            physical_offset=physical_offset,
        )
        self._halves.append(half)
        self._heartbeats.expect(half.broker_name)
        return replace(sent, offset=-1, offset_message_id=None)

    def commit(self) -> None:
        """Have the messages delivered. If a broker does not answer, the state is ``left open``, and the broker asks; so
        it is if a broker cannot store the commit now, such as on a full disk: it carries the commit out later.

        Raises:
            TransactionError: A broker refuses, because it has discarded a half message or rolled it back.
            ValueError: The transaction has ended.
        """
        with self._step:
            self._end("commit", "committed")

    def rollback(self) -> None:
        """Have the messages dropped. If a broker does not answer, or cannot store the rollback now, the state is
        ``left open``, as for ``commit``.

        Raises:
            TransactionError: A broker refuses.
            ValueError: The transaction has ended.
        """
        with self._step:
            self._end("rollback", "rolled back")

    def leave(self) -> None:
        """End the transaction without a decision: the broker asks ``check``.

        Raises:
            ValueError: The transaction has ended.
        """
        with self._step:
            if self._state != "open":
                raise ValueError(self._ended_text)
            self._ended("left open")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state != "open":
            return
        try:
            if kind is None:
                self.commit()
            elif issubclass(kind, Exception):
                with suppress(MetaqError, ValueError):  # the broker asks; the first error is raised
                    self.rollback()
        finally:
            if self._state == "open":  # also if the producer is closed
                self.leave()

    def _require_open(self) -> None:
        if self._state != "open":
            raise ValueError(self._ended_text)
        self._check_producer()

    def _end(self, how: Literal["commit", "rollback"], state: State) -> None:
        self._require_open()
        refusals: list[MetaqError] = []
        try:
            for half in self._halves:
                try:
                    address = self._sender.directory.write_address(half.broker_name)
                    end_half_message(self._sender.pool, address, half, how)
                except TransactionError as error:
                    refusals.append(error)
                except MetaqError as error:
                    state = "left open"
                    _LOG.warning("a %s is not known to be stored, the broker keeps it or asks: %s", how, error)
            if refusals:
                state = "left open"
                raise refusals[0]
        except BaseException:
            state = "left open"
            raise
        finally:
            self._ended(state)

    def _ended(self, state: State) -> None:
        self._state = state
        for message_id in self._ids:
            self._open_ones.pop(message_id, None)

    def _error(self, sent: RocketSent, action: str, reason: str) -> TransactionError:
        return TransactionError(sent.partition.broker_name, action, 0, reason)
