"""Transactions: half messages are sent (TRAN_MSG), ended by their producers (37), or asked about (39).

A half message waits in ``RMQ_SYS_TRANS_HALF_TOPIC``; notes about it are in ``RMQ_SYS_TRANS_OP_HALF_TOPIC``. A message
that is ended twice, or by another group, is not delivered again, unlike in RocketMQ. A producer is asked about the same
half message each time; RocketMQ stores a new copy for each question. Source: docs/rocketmq-broker.md, "Transactions".
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metaq.errors import MetaqError
from metaq.formats.rocketmq.properties import DELAY, UNIQ_KEY, WAIT, parse_properties
from metaq.formats.rocketmq.records import Record, encode_record
from metaq.formats.rocketmq.sys_flags import COMMITTED, PREPARED, TRANSACTION
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.transactions import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckTransactionState,
    EndTransaction,
)
from metaq_broker.clock import Clock
from metaq_broker.log.engine.outcomes import BlockInvalid, NothingAt, Refusal
from metaq_broker.rocketmq.delays.delays import DUE_MS, DelayedDelivery, Moment
from metaq_broker.rocketmq.delays.waiting_messages import (
    REAL_QUEUE,
    REAL_TOPIC,
    SentMessage,
    number_of,
    own_topic,
    read_waiting,
    real_queue,
    to_move,
    with_properties,
)
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.half_messages.half_log import (
    GroupWrong,
    HalfEnded,
    HalfKept,
    HalfMessageDecided,
    HalfUnknown,
    Note,
    OriginWrong,
    StoredHalf,
)
from metaq_broker.rocketmq.half_messages.half_messages import AskPolicy, HalfMessages
from metaq_broker.rocketmq.half_messages.ledger import Half
from metaq_broker.rocketmq.messages.message_store import (
    MessageStore,
    OnStored,
    OutgoingMessage,
    StoredBatch,
    as_numbered,
)
from metaq_broker.rocketmq.moves.log import MoveTable, Queue
from metaq_broker.rocketmq.moves.mover import Mover
from metaq_broker.rocketmq.moves.rounds import Rounds
from metaq_broker.rocketmq.session import Call, RemotingSession
from metaq_broker.rocketmq.system_topics import GIVEN_UP_TOPIC, HALF_TOPIC, NOTE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from metaq_broker.serve.accounts.account_list import Permission

_LOG: Final = logging.getLogger(__name__)

TRANSACTION_MESSAGE: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
PATIENCE_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PATIENCE_MS_MAX: Final = 3 * 86_400_000
"""Longest time until a producer is asked: an open half message keeps all after it on the disk."""
TIMES_ASKED: Final = "TRANSACTION_CHECK_TIMES"

Producers = Callable[[str, str], Sequence["RemotingSession"]]
"""Producer group and topic -> sessions of its members that may end transactions on the topic."""


@dataclass(frozen=True, slots=True)
class TooManyHalfMessages(Refusal):
    """The limit of open half messages is reached."""

    reason: str


class Transactions:
    """An ``Interceptor`` of sends."""

    def __init__(
        self,
        store: MessageStore,
        mover: Mover[OutgoingMessage],
        state: MoveTable,
        rounds: Rounds,
        clock: Clock,
        producers: Producers,
        delays: DelayedDelivery,
        policy: AskPolicy | None = None,
    ) -> None:
        self._store, self._clock, self._delays = store, clock, delays
        log = HalfTopics(store, producers, rounds.wake, delays)
        self.half_messages = HalfMessages(log, mover, state, rounds.wake, policy)
        rounds.add(self.half_messages.run)

    def mount(self, dispatcher: Dispatcher) -> None:
        dispatcher.add([EndTransaction.CODE], self._end)

    def needed_from(self, topic: str, queue: int) -> int | None:
        """Return the first queue offset of a topic of transactions that is needed still."""
        positions = self.half_messages.positions()
        return {HALF_TOPIC: positions.half, NOTE_TOPIC: positions.notes}.get(topic)

    # ---- half messages

    @property
    def markers(self) -> tuple[str, ...]:
        """The property of a half message."""
        return (TRANSACTION_MESSAGE,)

    def accept(self, send: SentMessage, message: OutgoingMessage, done: OnStored) -> bool:
        """Take over a half message; return whether it is one."""
        properties = parse_properties(message.properties)
        is_prepared = message.sys_flag & TRANSACTION == PREPARED
        if properties.get(TRANSACTION_MESSAGE, "").lower() != "true" and not is_prepared:
            return False
        if message.reconsume_times > 0 and DELAY in properties:
            return False  # a consumer sends a message of a transaction back
        group = properties.get(PRODUCER_GROUP) or send.header.producer_group
        self.store(send.header.topic, send.queue, group, message, done)
        return True

    def fault_of_batch(self, topic: str, sys_flag: int, properties: Mapping[str, str]) -> Refusal | None:
        """Half messages are sent one by one."""
        if sys_flag & TRANSACTION:
            return BlockInvalid("the messages of a batch cannot be part of a transaction; send them one by one")
        return None

    def store(self, topic: str, queue: int, group: str, message: OutgoingMessage, done: OnStored) -> None:
        """Store a half message that is for ``topic``; ``done`` gets where it waits."""
        open_max = self.half_messages.policy.open_max
        if self.half_messages.is_full:
            done(TooManyHalfMessages(f"{open_max} transactions are open, and no more are allowed"))
            return
        properties = parse_properties(message.properties)
        added = {REAL_TOPIC: topic, REAL_QUEUE: str(queue), PRODUCER_GROUP: group}
        moment = self._delays.moment_of(properties)
        if isinstance(moment, Moment):
            added[DUE_MS] = str(moment.due_ms)  # so that there is space for the one of the commit
        fault = self._delays.full if isinstance(moment, Moment) else moment
        half = fault or with_properties(message, added)
        if isinstance(half, Refusal):
            done(half)
            return
        patience_ms = _patience_ms(properties.get(PATIENCE_S))

        def stored(outcome: StoredBatch | Refusal) -> None:
            outcome = as_numbered(outcome)  # it cannot be ended without its physical offset
            if isinstance(outcome, StoredBatch):
                origin = outcome.physical_offsets[0]
                stored_ms = self._store.steady_time_of(outcome.store_time)
                self.half_messages.stored(Half(outcome.queue_offset, origin, group, stored_ms, patience_ms))
            done(outcome)

        self._store.append(HALF_TOPIC, 0, [half._replace(sys_flag=half.sys_flag & ~TRANSACTION)], stored)

    # ---- their end

    def _end(self, call: Call) -> RemotingCommand | None:
        asked = EndTransaction.from_ext({"msgId": "", **call.request.ext})
        if asked.commit_or_rollback == UNKNOWN:
            call.leave_unanswered()  # unknown to the producer, which is asked again
            return None
        if asked.commit_or_rollback not in (COMMIT, ROLLBACK):
            allowed = f"{UNKNOWN} (not known), {COMMIT} (commit) and {ROLLBACK} (rollback)"
            remark = f"commitOrRollback field wrong: {asked.commit_or_rollback}; expected {allowed}"
            return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        if (refused := self._refusal(call, asked)) is not None:
            fields = {"peer": call.session.client.peer, "group": asked.producer_group, "reason": refused.remark}
            _LOG.warning("a transaction was not ended", extra={"fields": fields})
            return refused

        def done(outcome: HalfMessageDecided | Refusal) -> None:
            if isinstance(outcome, HalfMessageDecided):
                call.answer(call.request.reply())
                return
            fields = {"peer": call.session.client.peer, "group": asked.producer_group, "reason": outcome}
            is_kept = isinstance(outcome, HalfKept)
            _LOG.info("a transaction %s ended", "is not yet" if is_kept else "was not", extra={"fields": fields})
            code = ResponseCode.SERVICE_NOT_AVAILABLE if is_kept else ResponseCode.SYSTEM_ERROR
            call.answer(call.request.reply(code, remark=_sentence(outcome)))

        self.half_messages.decide(
            asked.tran_state_table_offset,
            asked.commit_log_offset,
            asked.producer_group,
            asked.commit_or_rollback == COMMIT,
            done,
        )
        return None

    def _refusal(self, call: Call, asked: EndTransaction) -> RemotingCommand | None:
        """Return the refusal of a request to end the transaction of a half message; ``None`` without one."""
        found = self._store.find(asked.commit_log_offset)
        if not isinstance(found, Refusal):
            return call.refusal_for(own_topic(found), Permission.PUB)
        if not call.depends_on_topic:
            return None
        if isinstance(found, NothingAt):
            ordinal = asked.tran_state_table_offset
            known = self.half_messages.refusal(ordinal, asked.commit_log_offset, asked.producer_group)
            found = known or HalfUnknown(ordinal)
        return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=_sentence(found))


class HalfTopics:
    """``HalfLog`` on the system topics of transactions."""

    def __init__(
        self, store: MessageStore, producers: Producers, wake: Callable[[], None], delays: DelayedDelivery
    ) -> None:
        self._store, self._producers, self._wake, self._delays = store, producers, wake, delays

    def fault(self) -> Refusal | None:
        return self._store.fault(HALF_TOPIC, 0) or self._store.fault(NOTE_TOPIC, 0)

    def halves(self, first: int, count: int) -> tuple[Sequence[StoredHalf[OutgoingMessage]], int] | Refusal:
        read = read_waiting(self._store, Queue(HALF_TOPIC, 0), first, count, self._wake)
        return read if isinstance(read, Refusal) else ([self._half(record) for record in read[0]], read[1])

    def _half(self, record: Record) -> StoredHalf[OutgoingMessage]:
        properties, message = record.property_map(), to_move(record)
        committed = message._replace(sys_flag=message.sys_flag & ~TRANSACTION | COMMITTED)
        target, committed = self._placed(properties, committed)
        return StoredHalf(
            record.queue_offset,
            record.physical_offset,
            properties.get(PRODUCER_GROUP, ""),
            self._store.steady_time_of(record.store_timestamp),
            _patience_ms(properties.get(PATIENCE_S)),
            target,
            committed,
            Queue(GIVEN_UP_TOPIC, 0),
            message,
        )

    def _placed(
        self, properties: dict[str, str], committed: OutgoingMessage
    ) -> tuple[Queue | None, OutgoingMessage]:
        """Return where a message goes that is committed now, and in which form: its delay begins now."""
        level = number_of(properties.get(DELAY))
        if level is not None and (nearest := self._delays.levels.nearest(level)):
            return Queue(SCHEDULE_TOPIC, nearest - 1), committed
        moment = self._delays.moment_of(properties)
        if isinstance(moment, Moment):
            timed = with_properties(committed, {DUE_MS: str(moment.due_ms)})
            if not isinstance(timed, Refusal):
                return Queue(TIMER_TOPIC, 0), timed
        return real_queue(properties), committed

    def notes(self, first: int) -> tuple[Sequence[Note], int] | Refusal:
        read = read_waiting(self._store, Queue(NOTE_TOPIC, 0), first, 256, self._wake)
        if isinstance(read, Refusal):
            return read
        notes = [Note(each.queue_offset, each.property_map().get("TAGS", ""), each.body) for each in read[0]]
        return notes, read[1]

    def ends(self) -> tuple[int, int]:
        return self._store.max_offset(HALF_TOPIC, 0), self._store.max_offset(NOTE_TOPIC, 0)

    def renumbered(self) -> tuple[int | None, int | None]:
        return self._store.renumbered(HALF_TOPIC, 0), self._store.renumbered(NOTE_TOPIC, 0)

    def append_note(self, kind: str, body: bytes, stored: Callable[[int | Refusal], None]) -> None:
        def done(outcome: StoredBatch | Refusal) -> None:
            stored(outcome if isinstance(outcome, Refusal) else outcome.queue_offset)

        host = self._store.store_host
        note = OutgoingMessage(body, f"TAGS\x01{kind}".encode(), 0, host)
        self._store.append(NOTE_TOPIC, 0, [note], done, is_own=True)

    def ask(self, half: StoredHalf[OutgoingMessage], times: int) -> bool:
        found = self._store.find(half.origin)
        if isinstance(found, Refusal) or half.target is None:
            return False
        sessions = [each for each in self._producers(half.group, own_topic(found)) if not each.finished]
        random.shuffle(sessions)
        command = self._question(half, half.target, found, times) if sessions else None
        if command is None:
            return False
        for session in sessions:
            try:
                session.oneway(command)
                return True
            except MetaqError as error:  # it does not read, or is disconnected
                _LOG.debug("a producer was not asked", extra={"fields": {"peer": session.client.peer, "reason": error}})
        return False

    def _question(
        self, half: StoredHalf[OutgoingMessage], target: Queue, found: Record, times: int
    ) -> RemotingCommand | None:
        asked = with_properties(to_move(found), {TIMES_ASKED: str(times), WAIT: "false"})
        if isinstance(asked, Refusal):
            return None
        properties = found.property_map()
        target = real_queue(properties) or target
        record = found._replace(topic=target.topic, queue_id=target.number, properties=asked.properties)
        header = CheckTransactionState(
            tran_state_table_offset=half.ordinal,
            commit_log_offset=half.origin,
            msg_id=properties.get(UNIQ_KEY),
            transaction_id=properties.get("__transactionId__") or properties.get(UNIQ_KEY),
            offset_msg_id=found.offset_message_id,
        )
        return to_request(header, encode_record(record), oneway=True)


def _patience_ms(seconds: str | None) -> int | None:
    number = number_of(seconds)
    return None if number is None else min(number * 1000, PATIENCE_MS_MAX)


def _sentence(refusal: Refusal) -> str:
    match refusal:
        case HalfEnded():
            return "the transaction was ended before; nothing was done"
        case GroupWrong():
            return "the half message is of another producer group"
        case OriginWrong():
            return "the half message with this tranStateTableOffset is not at this commitLogOffset"
        case HalfUnknown():
            return "there is no half message with this tranStateTableOffset"
        case HalfKept(commit, reason):
            what = "commit" if commit else "rollback"
            return f"the {what} is kept, and carried out once the broker can store it: {_reason(reason)}"
        case _:
            return f"the transaction was not ended: {_reason(refusal)}"


def _reason(refusal: Refusal) -> str:
    return str(getattr(refusal, "reason", refusal))
