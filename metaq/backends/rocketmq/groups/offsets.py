"""Offsets of queues: stored ranges, a group's positions, offsets of a time.

Requests for all queues of a broker are pipelined over one connection. Only masters have positions of groups; slaves may
answer the other requests.

Offsets of a time need care. Servers before 5.1.1 return the nearest message, even for a time after the last one;
messages of one batch share their store time, and the answer may be in the middle of them. So the answer is only a first
guess: ``times`` corrects it by reading store times around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.names import with_namespace, without_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pulls import GROUP, PulledQueue
from metaq.backends.rocketmq.reads.times import TimeBoundary, TimeSearch
from metaq.backends.rocketmq.routes import SLAVE_ID, Routes
from metaq.backends.rocketmq.session import Session
from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError
from metaq.model import Address, OffsetRange, Partition, TopicPartition
from metaq.net.retry import RetryPolicy, TimeLimit, persist
from metaq.protocols.remoting.bodies.offsets import ConsumerOffsets
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.offsets import (
    GetAllConsumerOffset,
    GetMaxOffset,
    GetMaxOffsetResponse,
    GetMinOffset,
    GetMinOffsetResponse,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffset,
)

_T = TypeVar("_T")
_Ask = Callable[[Session, Sequence[TopicPartition]], dict[TopicPartition, _T]]


class Offsets:
    """Asks the brokers in ``routes``, over connections of ``pool``; retries by ``policy``.

    All methods raise ``RequestRefused`` or ``AccessDenied``, and ``ConnectionFailed``, ``DeadlineExceeded`` or
    ``BrokerAway`` naming the broker when retries did not help.
    """

    def __init__(
        self,
        pool: SessionPool,
        routes: Routes,
        policy: RetryPolicy | None = None,
        group: str = GROUP,
        within_s: float | None = None,
    ) -> None:
        """``group`` is the group in whose name store times are read. ``within_s``: how long a call waits for one
        broker, including retries; by default as the policy says.
        """
        self._pool, self._routes, self._group, self._within_s = pool, routes, group, within_s
        self._policy = RetryPolicy() if policy is None else policy

    def ranges(self, queues: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Return the readable range of each queue, ``[first, end)``; ``[0, 0)`` for a queue that does not exist."""
        return self._asked(queues, self._ask_ranges)

    def ranges_now(
        self, queues: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, OffsetRange], dict[str, MetaqError]]:
        """Return ``ranges`` from brokers that answer without retries, and the errors of the others by broker name."""
        found: dict[TopicPartition, OffsetRange] = {}
        away: dict[str, MetaqError] = {}
        for broker_name, of_broker in _by_broker(queues).items():
            try:
                found |= self._ask_broker(of_broker, self._ask_ranges, self._limit(), to_write=False)
            except MetaqError as error:
                if not error.retryable:
                    raise
                away[broker_name] = error
        return found, away

    def at(
        self, times_ms: Mapping[TopicPartition, int], boundary: TimeBoundary = TimeBoundary.LOWER
    ) -> dict[TopicPartition, int]:
        """Return where a time (milliseconds since 1970, brokers' clocks) begins or ends in each queue; see
        ``TimeBoundary``.
        """

        def ask(session: Session, queues: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            ranges = self._ask_ranges(session, queues)
            return {
                queue: TimeSearch(session, self._pulled(queue), ranges[queue]).find(times_ms[queue], boundary)
                for queue in queues
            }

        return self._asked(times_ms, ask)

    def committed(
        self, group: str, queues: Iterable[TopicPartition], *, at_slaves: bool = False
    ) -> dict[TopicPartition, int | None]:
        """Return the offset that ``group`` reads next in each queue; ``None`` without a committed one.

        Masters store it. ``at_slaves``: also accept a slave's copy, which is some seconds old.
        """
        name = with_namespace(group, self._routes.namespace)

        def ask(session: Session, queues: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
            commands = [
                self._command(
                    queue,
                    QueryConsumerOffset(
                        consumer_group=name, topic=self._name(queue.topic), queue_id=queue.partition.index,
                        set_zero_if_not_found=False,
                    ),
                )
                for queue in queues
            ]  # fmt: skip
            responses = session.exchange(commands, f"the offsets of group {name}")
            return dict(
                zip(queues, (_committed(session, *pair) for pair in zip(responses, commands, strict=True)), strict=True)
            )

        return self._asked(queues, ask, to_write=not at_slaves)

    def all_committed(
        self, group: str, queue: TopicPartition, *, at_slaves: bool = False
    ) -> dict[TopicPartition, int] | None:
        """Return all offsets that ``group`` has committed at the broker of ``queue``; ``None`` if it does not report
        them.

        The broker sends the offsets of all groups, so use this only if ``committed`` is not sufficient.
        """
        name, namespace = with_namespace(group, self._routes.namespace), self._routes.namespace
        broker_name = queue.partition.broker_name

        def ask(session: Session, queues: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            response = session.ask(to_request(GetAllConsumerOffset(), broker_name=broker_name), "all offsets of groups")
            found: dict[TopicPartition, int] = {}
            for key, offsets in ConsumerOffsets.from_json(response.body).offset_table.items():
                topic, _, of_group = key.rpartition("@")
                own = without_namespace(topic, namespace)
                if of_group == name and own is not None:
                    found |= {TopicPartition(own, Partition(broker_name, id_)): at for id_, at in offsets.items()}
            return found

        try:
            return self._asked([queue], ask, to_write=not at_slaves)
        except RequestRefused:
            return None

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the offsets that ``group`` reads next, at the masters. All are stored when this returns."""
        name = with_namespace(group, self._routes.namespace)

        def ask(session: Session, queues: Sequence[TopicPartition]) -> dict[TopicPartition, None]:
            commands = [
                self._command(
                    queue,
                    UpdateConsumerOffset(
                        consumer_group=name, topic=self._name(queue.topic), queue_id=queue.partition.index,
                        commit_offset=offsets[queue],
                    ),
                )
                for queue in queues
            ]  # fmt: skip
            action = f"the commit of offsets of group {name}"
            for response, command in zip(session.exchange(commands, action), commands, strict=True):
                session.accepted(response, command, action)
            return dict.fromkeys(queues)

        self._asked(offsets, ask, to_write=True)

    def _ask_ranges(self, session: Session, queues: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        # Ask for the end first: with an older beginning, retention could have deleted everything in between.
        commands = [self._command(queue, header) for queue in queues for header in self._range_headers(queue)]
        responses = iter(zip(session.exchange(commands, "the offsets of queues"), commands, strict=True))
        found = {}
        for queue in queues:
            action = f"the offsets of {queue}"
            end = session.read(session.accepted(*next(responses), action), GetMaxOffsetResponse).offset
            first = session.read(session.accepted(*next(responses), action), GetMinOffsetResponse).offset
            # An empty queue may report -1 or, once its log was deleted, a beginning beyond its end.
            found[queue] = OffsetRange(max(0, first), max(0, first, end))
        return found

    def _range_headers(self, queue: TopicPartition) -> tuple[Request, Request]:
        topic, queue_id = self._name(queue.topic), queue.partition.index
        return GetMaxOffset(topic=topic, queue_id=queue_id), GetMinOffset(topic=topic, queue_id=queue_id)

    def _command(self, queue: TopicPartition, header: Request) -> RemotingCommand:
        return to_request(header, broker_name=queue.partition.broker_name)

    def _pulled(self, queue: TopicPartition) -> PulledQueue:
        broker_name, queue_id = queue.partition.broker_name, queue.partition.index
        return PulledQueue(
            self._name(queue.topic), broker_name, queue_id, with_namespace(self._group, self._routes.namespace)
        )

    def _name(self, topic: str) -> str:
        return with_namespace(topic, self._routes.namespace)

    def _asked(
        self, queues: Iterable[TopicPartition], ask: _Ask[_T], *, to_write: bool = False
    ) -> dict[TopicPartition, _T]:
        found: dict[TopicPartition, _T] = {}
        for of_broker in _by_broker(queues).values():
            limit = self._limit()
            found |= persist(
                partial(self._ask_broker, of_broker, ask, limit, to_write=to_write),
                self._policy,
                self._pool.clock,
                limit,
            )
        return found

    def _limit(self) -> TimeLimit | None:
        return TimeLimit.of(self._within_s, self._pool.clock)

    def _ask_broker(
        self, queues: Sequence[TopicPartition], ask: _Ask[_T], limit: TimeLimit | None, *, to_write: bool
    ) -> dict[TopicPartition, _T]:
        """Ask the broker, or after a failure one of its slaves if that is sufficient."""
        address = self._address(queues[0], to_write)
        first = limit
        if limit is not None and not to_write and self._has_slave(queues[0], address):
            first = limit.half()
        try:
            return self._ask_at(address, queues, ask, first)
        except (ConnectionFailed, DeadlineExceeded):
            self._routes.avoid(address)
            if to_write or (other := self._address(queues[0], to_write)) == address:
                raise
        return self._ask_at(other, queues, ask, limit)

    def _has_slave(self, queue: TopicPartition, address: Address) -> bool:
        """Whether the broker of a queue has another address."""
        return self._routes.read_address(queue.partition.broker_name, SLAVE_ID, topic=queue.topic) != address

    def _address(self, queue: TopicPartition, to_write: bool) -> Address:
        ask = self._routes.write_address if to_write else self._routes.read_address
        return ask(queue.partition.broker_name, topic=queue.topic)

    def _ask_at(
        self, address: Address, queues: Sequence[TopicPartition], ask: _Ask[_T], limit: TimeLimit | None
    ) -> dict[TopicPartition, _T]:
        with self._pool.lease(address, None if limit is None else limit.until_s) as session:
            return ask(session, queues)


def _by_broker(queues: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for queue in queues:
        found.setdefault(queue.partition.broker_name, []).append(queue)
    return found


def _committed(session: Session, response: RemotingCommand, command: RemotingCommand) -> int | None:
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    try:
        session.accepted(response, command, f"the offset of group {command.ext['consumerGroup']}")
    except RequestRefused as error:
        if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return None
        raise
    offset = session.read(response, QueryConsumerOffsetResponse).offset
    return offset if offset >= 0 else None
