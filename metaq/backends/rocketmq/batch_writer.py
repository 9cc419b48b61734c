"""Sends batches of messages to one broker: pipelined, at least once, each acknowledged or an error.

Batches of one queue are sent one after the other, unless ``in_order`` is false: a batch is sent when the previous one
is stored, because a broker processes the requests of a connection in several threads. Batches of different queues are
sent in parallel, and no queue waits for another. Every call of ``write`` and ``send`` processes the responses that have
arrived, without waiting, so that the broker works while its client encodes.

Responses and their handling:

================================  ====================================================================================
0                                 stored
10, 11, 12                        stored, less durable than configured; a warning is logged once
2, 14, 215, 501, 1500             sent again after a pause that doubles, to the broker in the current route
with a text of ``BUSY_TEXTS``     the same, whatever the code
16, 17                            the same: the broker may take no writes now, or not have the topic yet
connection lost, no response      all unacknowledged batches are sent again; the first copies stay in order
another code                      an error
================================  ====================================================================================

After an error, or when retries did not help, the writer raises ``BatchNotStored`` from every further call.
Unacknowledged messages may or may not be stored. A refusal closes no connection: ``settle`` then waits for the
responses to everything else that was sent, so that nobody has to send it again. The writer does so itself before it
leaves a connection because of a refusal: ``GO_AWAY``, or a broker that is at another address now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from metaq.backends.rocketmq.answers import one_line
from metaq.backends.rocketmq.body_limits import BODY_BYTES_MAX
from metaq.backends.rocketmq.errors import BatchNotStored, RequestRefused
from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pulls import GROUP
from metaq.backends.rocketmq.routes import Routes
from metaq.backends.rocketmq.session import OUTSTANDING_MAX, Session
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError
from metaq.formats.topic_names import TEMPLATE_TOPIC
from metaq.model import Address, Buffer, Partition, TopicPartition
from metaq.net.clock import wall_clock_ms
from metaq.net.retry import Attempts, RetryPolicy, TimeLimit
from metaq.protocols.remoting.codes import STORED_SEND_CODES, VERSION, VERSION_5, ResponseCode, name_of
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SendMessage, SendMessageResponse

PENDING_BYTES_MAX: Final = 16 << 20
BATCHES_MAX: Final = 64

NEW_TOPIC_QUEUES: Final = 4
"""Number of queues of such a topic, if its broker allows as many."""
_LOG: Final = logging.getLogger(__name__)

_ROUTE_MAY_CHANGE: Final = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})
"""Refusals that are final for other requests. A send is repeated, because it was routed by an older route."""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """``count`` messages are stored in ``queue`` from ``offset`` on; ``code`` is 0, or 10..12 = less durable."""

    queue: TopicPartition
    offset: int
    count: int
    ids: str = field(repr=False)
    code: int
    recall_handle: str | None = field(default=None, repr=False)
    """Cancels a delayed message; from a broker of 5.x."""

    @property
    def is_durable(self) -> bool:
        """Whether the messages are stored as durably as the broker is configured for."""
        return self.code == ResponseCode.SUCCESS

    @property
    def message_ids(self) -> list[str]:
        """The broker's id of each message; empty if the broker returns none."""
        return self.ids.split(",") if self.ids else []


@dataclass(slots=True)
class _Unit:
    """A request in flight. ``opaque`` is ``None`` while it has to be sent (again).

    ``failure``: it was refused and not sent again, or its response was lost.
    ``earlier_may_be_stored``: the response to an earlier attempt was lost, or is a refusal that says so.
    """

    number: int
    queue: TopicPartition
    command: RemotingCommand
    body: Buffer
    count: int
    opaque: int | None = None
    failure: MetaqError | None = None
    earlier_may_be_stored: bool = False

    @property
    def may_be_stored(self) -> bool:
        """Whether it may be stored: an attempt was not answered, or a refusal says so."""
        return self.earlier_may_be_stored or self.opaque is not None


class BatchWriter:
    """Sends to the broker ``broker_name`` over a session of ``pool``, which it holds until ``close``.

    Topics and ``group`` are names without namespace. At most ``batches_max`` requests and ``bytes_max`` bytes are
    unacknowledged (a single larger request is sent alone). ``now_ms`` returns the time of birth of messages. Without
    ``receipts`` none are kept, to save memory, and ``flush`` returns none. ``limit``: how long to wait and retry while
    nothing is acknowledged; by default as ``policy`` says.
    """

    def __init__(
        self,
        pool: SessionPool,
        routes: Routes,
        broker_name: str,
        *,
        group: str = GROUP,
        bytes_max: int = PENDING_BYTES_MAX,
        batches_max: int = BATCHES_MAX,
        in_order: bool = True,
        receipts: bool = True,
        policy: RetryPolicy | None = None,
        limit: TimeLimit | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        if bytes_max < 1:
            raise ValueError(f"bytes_max={bytes_max}: expected 1 or more")
        if not 1 <= batches_max <= OUTSTANDING_MAX:
            raise ValueError(f"batches_max={batches_max}: expected 1..{OUTSTANDING_MAX}")
        self._pool, self._routes, self._broker_name, self._now_ms = pool, routes, broker_name, now_ms
        self._group = with_namespace(group, routes.namespace)
        self._bytes_max, self._batches_max, self._in_order = bytes_max, batches_max, in_order
        self._attempts = Attempts(RetryPolicy() if policy is None else policy, pool.clock, limit)
        self._limit = limit
        self._units: dict[int, _Unit] = {}  # unacknowledged, by number, in the order of ``write``
        self._pending_bytes = 0
        self._written = 0
        self._receipts: dict[int, SendReceipt] | None = {} if receipts else None
        self._failure: MetaqError | None = None
        self._warned = self._abandoned = False
        self._lease = ExitStack()
        self._session: Session | None = None
        self._address: Address | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes written and not yet acknowledged: of bodies, so 0 is not the end, see ``is_pending``."""
        return self._pending_bytes

    @property
    def is_pending(self) -> bool:
        """Whether something written is not yet acknowledged."""
        return bool(self._units)

    def write(self, topic: str, queue_id: int, batch: Buffer, count: int) -> None:
        """Send ``count`` messages, encoded as the elements of a batch; first wait if too much is unacknowledged.

        ``batch`` is not copied: do not change it before it is acknowledged.

        Raises:
            SendFailed: This or an older batch could not be sent; the cause is the underlying error.
            ValueError: The batch is empty or above ``BODY_BYTES_MAX``; nothing was sent, and the writer stays usable.
        """
        if count < 1 or not batch:
            raise ValueError(f"batch of {count} messages: expected at least one")
        if len(batch) > BODY_BYTES_MAX:
            raise ValueError(f"{len(batch)} bytes for topic {topic}: expected at most {BODY_BYTES_MAX}")
        header = self._header(topic, queue_id, properties="", batch=True)
        self._add(topic, queue_id, header, SEND_BATCH_MESSAGE, batch, count)

    def send(
        self,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: str = "",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        recallable: bool = False,
    ) -> None:
        """Send one message that a batch may not contain: with a delay, a compressed or a large body. Raises as
        ``write``.

        ``properties`` are encoded; ``sys_flag`` has the compression of the body. ``recallable``: request a recall
        handle for a timed message.
        """
        header = self._header(topic, queue_id, properties=properties, flag=flag, sys_flag=sys_flag)
        version = VERSION_5 if recallable else VERSION  # clients of 5.x get a recall handle
        self._add(topic, queue_id, header, SendMessage.CODE, body, 1, version)

    def flush(self) -> list[SendReceipt]:
        """Wait until everything is stored; return one receipt per call of ``write`` and ``send``, in order.

        Each receipt is returned once. Raises as ``write``.
        """
        self.wait()
        return list(self.take_receipts().values())

    def wait(self) -> None:
        """Wait until everything is stored. Raises as ``write``."""
        while self._units:
            self.collect()

    def collect(self) -> None:
        """Wait for the next response, and send the batch that waited for it. Raises as ``write``."""
        if self._units:
            self._step(self._collect)

    def take_receipts(self) -> dict[int, SendReceipt]:
        """Return the new receipts by number of the call, counted from 0; each is returned once.

        Also after an error: these messages are stored.
        """
        if self._receipts is None:
            return {}
        receipts = dict(sorted(self._receipts.items()))
        self._receipts.clear()
        return receipts

    def settle(self) -> MetaqError | None:
        """After an error: wait for the responses to what was sent, for as long as one request may take.

        They are in ``take_receipts`` and ``failures``. Nothing is sent again.

        Returns:
            Why the other responses will not come, so that these messages may or may not be stored; else ``None``.
        """
        session = self._session
        if session is None or session.closed or self._abandoned:
            return None
        session.until_s = self._settled_until_s(session)
        try:
            while opaques := self._opaques():
                session.wait_any(opaques)
                self._take_answered(session)
        except MetaqError as lost:
            for unit in self._units.values():
                if unit.opaque is not None:
                    unit.failure = lost
            return lost
        return None

    def failures(self) -> dict[int, MetaqError]:
        """Return why messages are not known to be stored, by number of the call, if that is known for each.

        It is for calls that were refused, and for those whose response ``settle`` could not get.
        """
        return {unit.number: unit.failure for unit in self._units.values() if unit.failure is not None}

    def unanswered(self) -> list[int]:
        """Return the numbers of the calls whose messages may be stored: an attempt was not answered, or a refusal says
        so.
        """
        return [unit.number for unit in self._units.values() if unit.may_be_stored]

    def abandon(self) -> None:
        """Stop retrying: a call in another thread ends with the next error. Thread-safe."""
        self._abandoned = True

    def close(self) -> None:
        """Return the session. Unacknowledged requests are not waited for."""
        self._lease.close()
        self._session = None

    def _header(
        self, topic: str, queue_id: int, *, properties: str, batch: bool | None = None, flag: int = 0, sys_flag: int = 0
    ) -> SendMessage:
        header = send_header(self._group, with_namespace(topic, self._routes.namespace), queue_id, properties)
        return replace(header, batch=batch, flag=flag, sys_flag=sys_flag, born_timestamp=self._now_ms())

    def _add(
        self,
        topic: str,
        queue_id: int,
        header: SendMessage,
        code: int,
        body: Buffer,
        count: int,
        version: int = VERSION,
    ) -> None:
        queue = TopicPartition(topic, Partition(self._broker_name, queue_id))
        command = to_request(header, code=code, broker_name=self._broker_name)
        if version != VERSION:
            command = replace(command, version=version)
        unit = _Unit(self._written, queue, command, body, count)
        while self._units and (
            len(self._units) >= self._batches_max or self._pending_bytes + len(body) > self._bytes_max
        ):
            self._step(self._collect)
        self._written += 1
        self._units[unit.number] = unit
        self._pending_bytes += len(body)
        self._step(self._exchange)

    def _exchange(self) -> None:
        """Send what may be sent, and process the responses that have arrived, without waiting."""
        self._send_unsent()
        session = self._opened()
        session.poll(f"sends to broker {self._broker_name}")
        self._go_on(session)

    def _collect(self) -> None:
        """Wait for a response to any request."""
        self._send_unsent()
        session = self._opened()
        session.wait_any(self._opaques())
        self._go_on(session)

    def _opaques(self) -> list[int]:
        return [unit.opaque for unit in self._units.values() if unit.opaque is not None]

    def _go_on(self, session: Session) -> None:
        """Take the responses that have arrived, then raise the first refusal, or send what waited for them."""
        refusal = self._take_answered(session)
        if refusal is not None:
            raise refusal
        self._send_unsent()

    def _send_unsent(self) -> None:
        session = self._opened()
        busy: set[TopicPartition] = set()
        for unit in self._units.values():
            if unit.opaque is None and unit.queue not in busy:
                unit.opaque, unit.failure = session.post(unit.command, _describe(unit), body=unit.body), None
            if self._in_order:
                busy.add(unit.queue)

    def _take_answered(self, session: Session) -> MetaqError | None:
        """Take the responses that have arrived; return a refusal: the first, but one for good goes before."""
        refusals: list[MetaqError] = []
        for unit in list(self._units.values()):
            if unit.opaque is not None and session.is_answered(unit.opaque):
                response = session.wait(unit.opaque)
                if response.code in STORED_SEND_CODES:
                    self._stored(session, unit, response)
                else:
                    refusals.append(self._refused(session, unit, response))
        return min(refusals, key=lambda refusal: refusal.retryable, default=None)

    def _stored(self, session: Session, unit: _Unit, response: RemotingCommand) -> None:
        fields = session.read(response, SendMessageResponse)
        if response.code != ResponseCode.SUCCESS:
            self._warn(response)
        if self._receipts is not None:
            ids = fields.msg_id or ""
            self._receipts[unit.number] = SendReceipt(
                unit.queue, fields.queue_offset, unit.count, ids, response.code, fields.recall_handle
            )
        del self._units[unit.number]
        self._pending_bytes -= len(unit.body)
        self._attempts.progressed()

    def _refused(self, session: Session, unit: _Unit, response: RemotingCommand) -> MetaqError:
        unit.opaque = None
        if response.code == ResponseCode.GO_AWAY:
            self.settle()  # the session is closed next
        refusal = session.refusal(response, unit.command, _describe(unit))
        unit.earlier_may_be_stored = unit.earlier_may_be_stored or refusal.may_be_stored
        unit.failure = _NotHere(refusal) if refusal.code in _ROUTE_MAY_CHANGE else refusal
        return unit.failure

    def _settled_until_s(self, session: Session) -> float:
        until_s = session.clock.monotonic() + session.timeouts.request_s
        return until_s if self._limit is None else min(until_s, self._limit.until_s)

    def _opened(self) -> Session:
        until_s = None if self._limit is None else self._limit.until_s
        if self._session is None or self._session.closed:
            self.close()
            self._address = self._where()
            self._session = self._lease.enter_context(self._pool.lease(self._address, until_s))
            self._forget_opaques()
        self._session.until_s = until_s
        return self._session

    def _where(self) -> Address:
        topic = next((unit.queue.topic for unit in self._units.values()), None)
        return self._routes.write_address(self._broker_name, topic=topic)

    def _forget_opaques(self) -> None:
        for unit in self._units.values():
            unit.earlier_may_be_stored, unit.opaque = unit.may_be_stored, None

    def _step(self, step: Callable[[], None]) -> None:
        """Run ``step``, retrying as often as the policy allows."""
        if self._failure is not None:
            raise self._failure
        try:
            while True:
                try:
                    return step()
                except MetaqError as error:
                    self._pause(error)
        except MetaqError as error:
            self._failure = self._failed(error)
            raise self._failure from error

    def _pause(self, error: MetaqError) -> None:
        """Pause before a retry, and look up the broker again; raise ``error`` if no retry is left."""
        if self._abandoned:
            raise error
        self._attempts.pause_after(error)
        self._routes.invalidate()
        if isinstance(error, ConnectionFailed | DeadlineExceeded) or self._moved():
            self.settle()  # after a refusal, the connection is not lost
            self.close()

    def _moved(self) -> bool:
        try:
            return self._where() != self._address
        except MetaqError:
            return False

    def _failed(self, error: MetaqError) -> BatchNotStored:
        units = self._units.values()
        where = ", ".join(dict.fromkeys(str(unit.queue) for unit in units)) or f"broker {self._broker_name}"
        return BatchNotStored(where, sum(unit.count for unit in units), str(error))

    def _warn(self, response: RemotingCommand) -> None:
        if not self._warned:
            self._warned = True
            code = name_of(response.code, response=True)
            _LOG.warning(
                "broker %s stores messages with less durability than it is configured for: %s %s",
                self._broker_name, code, one_line(response.remark),
            )  # fmt: skip


def send_header(group: str, topic: str, queue_id: int, properties: str) -> SendMessage:
    """Return the header of a message born now. ``group`` and ``topic`` are full names."""
    return SendMessage(
        producer_group=group,
        topic=topic,
        default_topic=TEMPLATE_TOPIC,
        default_topic_queue_nums=NEW_TOPIC_QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=wall_clock_ms(),
        flag=0,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
    )


class _NotHere(RequestRefused):
    """A send was refused because the broker does not take messages of the topic, perhaps no more."""

    retryable = True

    def __init__(self, refusal: RequestRefused) -> None:
        super().__init__(refusal.address, refusal.action, refusal.code, refusal.text)
        self.refusal = refusal
        self.args = (refusal,)

    def __str__(self) -> str:
        return str(self.refusal)


def _describe(unit: _Unit) -> str:
    return f"a send of {unit.count} messages to {unit.queue}"
