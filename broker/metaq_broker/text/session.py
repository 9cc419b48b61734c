"""MetaQ's text protocol: one ``TextSession`` per connection turns commands into replies.

It decodes, calls the engine and queues replies; it owns no socket. Consecutive puts of one input chunk are passed to
the engine together, one call per partition, and their replies are one slot of the queue: this makes each cheaper.

Source: docs/protocol.md; docs/adr/0001, 0005.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from metaq.errors import ProtocolError
from metaq.formats.frame_block import FrameBlock
from metaq.formats.message_types import encode_single_head
from metaq.protocols.text.commands import (
    BLOCK_COMMANDS,
    Copy,
    Decide,
    Fetch,
    Get,
    GetFiltered,
    GetOffset,
    GroupRequest,
    MemberMessage,
    Oversized,
    Put,
    PutBatch,
    Quit,
    ReportTypes,
    Stats,
    Sync,
    TransactionCommand,
    Value,
    Version,
)
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder
from metaq.protocols.text.encode import encode, encode_result, encode_value_line
from metaq.protocols.text.puts import Puts
from metaq.statuses import BAD_REQUEST, CONTINUE, FAILED, FORBIDDEN, MOVED, OK, UNAVAILABLE
from metaq_broker.log.engine.appends import Append, Terms
from metaq_broker.log.engine.engine import ANY_PARTITION, Engine
from metaq_broker.log.engine.outcomes import AllRejected, Refusal, StorageFailed, TooLarge
from metaq_broker.log.engine.type_filter import LargeFrame
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.replication.driver.links import LinkEnd, MemberPort
from metaq_broker.replication.gregor import SyncSlave
from metaq_broker.replication.peer import CopiedMessage, CopiedRun
from metaq_broker.serve.accounts.account_list import AccountList
from metaq_broker.serve.block_buffers import BlockBuffers
from metaq_broker.serve.foreign import METAQ
from metaq_broker.serve.replies import FileReply, ReplyQueue, SlowReply, never
from metaq_broker.serve.session import Client
from metaq_broker.text.access import Access
from metaq_broker.text.groups.group_commands import EVERYTHING, GroupCommands, GroupRights
from metaq_broker.text.put_replies import (
    GroupedReplies,
    Worded,
    refusal_replies,
    stored_replies,
)
from metaq_broker.text.refusals import RefusalTexts, Refused
from metaq_broker.text.reported_types import Report, ReportedTypes, checked_types
from metaq_broker.text.stats_report import StatsReport
from metaq_broker.text.transactions import TransactionCommands

_LOG: Final = logging.getLogger(__name__)


NO_TYPES: Final = "messageType not found."
"""Text of the reply to a ``fetch`` that makes a client report its message types."""

Send = Callable[[Sequence[bytes]], None]
"""Receives the replies of some puts, in order."""

PUTS_MAX: Final = 64
"""Limit on puts that are carried out together: a millisecond or two. Larger runs would hardly be cheaper per put."""

NO_FILES: Final = "this broker does not tell where its files are; send a get"
"""Text of the 503 that makes clients of earlier versions, which read the broker's files, use the connection."""


@dataclass(frozen=True, slots=True)
class TextServices:
    """What all text sessions of a broker share. ``version`` is the text of the version reply.

    ``receiver`` stores what the master of a synchronous pair sends; only the slave of the pair has one. ``accounts``: a
    client must use one of them; ``None``: it needs no account. ``member``: this broker is in a pair that elects its
    master.
    """

    engine: Engine
    report: StatsReport
    transactions: TransactionCommands
    groups: GroupCommands
    version: str
    texts: RefusalTexts
    receiver: SyncSlave | None = None
    accounts: Callable[[], AccountList | None] = lambda: None
    member: MemberPort | None = None
    buffers: BlockBuffers = field(default_factory=BlockBuffers)
    reported_types: ReportedTypes = field(default_factory=ReportedTypes)

    def session(self, replies: ReplyQueue, client: Client) -> TextSession:
        """Return the session of a connection, with an ``Access`` if clients show certificates or need accounts."""
        engine, access = self.engine, None
        if client.names is not None or self.accounts() is not None:
            access = Access(client.names or frozenset(), lambda: engine.config, client.peer, self.accounts)
        return TextSession(self, replies, client.peer, access)


class TextSession:
    """One connection: give received bytes to ``decoder``, carry out commands with ``handle``."""

    protocol = METAQ

    def __init__(
        self,
        services: TextServices,
        replies: ReplyQueue,
        peer: str,
        access: Access | None = None,
    ) -> None:
        """``access`` is what the client may do; ``None``: everything."""
        system = services.engine.config.system
        self._services = services
        self._engine = services.engine
        self._texts = services.texts
        self._replies = replies
        self._peer = peer
        self._access = access
        self._link: _MemberLink | None = None
        self.decoder = CommandDecoder(system.line_bytes_max, system.batch_bytes_max, services.buffers.take)
        self.finished = False
        """Whether no further command will be carried out: the client quit, or sent bytes that are not a command."""
        self.expects_block = False
        """Whether the last put or message of a member was a block: the next one most likely is, too."""

    def handle(self, requests_max: int, quantum_over: Callable[[], bool] = never) -> bool:
        """Carry out up to ``requests_max`` received commands, until ``quantum_over``; return whether more may be left.

        Also stops when the queue of replies is full. Bytes that are not a command end the session: replies to earlier
        commands are sent, then the connection is closed.
        """
        decoder, member, left = self.decoder, self._services.member, requests_max
        may_go_on = is_pending = True
        try:
            while may_go_on:
                event = decoder.next_event(min(left, PUTS_MAX))
                refusal = None if member is None else member.refusal
                if isinstance(event, Puts):
                    if refusal is None:
                        self._put(event)
                    else:
                        self._refuse_puts(event, refusal)
                    left -= event.frames.count
                elif event is NEED_DATA or not self._dispatch(event, refusal):
                    return False
                else:
                    left -= 1
                is_pending = decoder.pending_bytes > 0
                may_go_on = is_pending and left > 0 and not self._replies.full and not quantum_over()
        except ProtocolError as error:
            self._end(error)
        if self.finished:
            self._replies.end()
        return is_pending and not self.finished

    def connection_lost(self) -> None:
        """Roll back the local transactions of the lost connection."""
        self.finished = True
        if self._link is not None:
            self._link.end.lost()
        self._services.transactions.connection_lost(self)
        buffer = self.decoder.abandon()  # at once: connection and session refer to each other
        if buffer is not None:
            self._services.buffers.give_back(buffer)

    def _end(self, error: ProtocolError) -> None:
        _LOG.info("connection closed", extra={"fields": {"peer": self._peer, "reason": str(error)}})
        self.finished = True

    def _dispatch(self, command: object, refusal: str | None) -> bool:
        """Carry out a command other than a plain put; return whether to continue.

        ``refusal``: why this member of a pair serves no clients; ``None`` if it does, or is not in a pair.
        """
        if isinstance(command, Quit):
            self.finished = True
            self._replies.end()
            return False
        handler = _HANDLERS[type(command)]
        if refusal is not None and not isinstance(command, _OF_EVERY_MEMBER):
            self._refuse_command(command, Refused(FORBIDDEN, refusal))
        elif self._access is None or not self._forbidden(self._access, command):
            handler(self, command)
        if isinstance(command, BLOCK_COMMANDS):
            self.expects_block = True
            if isinstance(command.block, memoryview):  # written or copied, or not needed
                self._services.buffers.give_back(command.block)
        return True

    def _refuse_puts(self, puts: Puts, reason: str) -> None:
        for opaque in puts.opaques:
            self._refuse(Refused(FORBIDDEN, reason), opaque)

    def _refuse_command(self, command: Any, refused: Refused) -> None:
        if not (isinstance(command, TransactionCommand) and command.type == "END"):  # the one command without a reply
            self._refuse(refused, command.opaque)

    def _forbidden(self, access: Access, command: Any) -> bool:
        """Refuse a command if the client may not use it; return whether it was refused."""
        refused = access.refusal(command)
        if refused is None and isinstance(command, TransactionCommand | Decide):
            refused = access.publish_all(self._services.transactions.topics_of(command))
        if refused is None:
            return False
        self._refuse_command(command, refused)
        return True

    # ---- puts

    def _put(self, puts: Puts) -> None:
        """Carry out puts without transaction, one engine call per partition."""
        self.expects_block = False
        topics, partitions, count = puts.topics, puts.partitions, puts.frames.count
        topic, partition = topics[0], partitions[0]
        if partition != ANY_PARTITION and partitions.count(partition) == count == topics.count(topic):
            unit = Append(topic, partition, puts.frames, Terms.PUTS)
            self._append(unit, puts.opaques, self._replies.pending(count).complete_all)
            return
        groups: dict[tuple[str, int], list[int]] = {}
        for position, (topic, partition) in enumerate(zip(topics, partitions, strict=True)):
            index = partition if partition != ANY_PARTITION else self._engine.pick_partition(topic)
            groups.setdefault((topic, index), []).append(position)
        replies = GroupedReplies(self._replies, count, len(groups))
        for (topic, partition), positions in groups.items():
            unit = Append(topic, partition, puts.frames.picked(positions), Terms.PUTS)
            opaques = [puts.opaques[position] for position in positions]
            self._append(unit, opaques, partial(replies.report, positions))

    def _append(self, unit: Append, opaques: Sequence[int], send: Send) -> None:
        """Append a unit, and ``send`` the replies to its puts when it is durable, or its refusal.

        The callbacks that wait must not keep the messages in memory.
        """
        forbidden = None if self._access is None else self._access.publish(unit.topic)
        if forbidden is not None:
            send([encode_result(*forbidden, opaque) for opaque in opaques])
            return
        worded: Worded = partial(self._texts.put, unit.topic, unit.partition)
        replies: Sequence[bytes] = ()
        rejected: Mapping[int, Refusal] = {}

        def durable(refusal: Refusal | None) -> None:
            send(replies if refusal is None else refusal_replies(opaques, refusal, rejected, worded))

        outcome = self._engine.append(unit, durable)
        if isinstance(outcome, Refusal):
            rejected = outcome.rejected if isinstance(outcome, AllRejected) else rejected
            durable(outcome)
        else:
            rejected, replies = outcome.rejected, stored_replies(unit, opaques, outcome, worded)

    def _put_in_transaction(self, put: Put) -> None:
        self._services.transactions.put(self, put, self._replies)

    def _put_batch(self, batch: PutBatch) -> None:
        if batch.transaction is not None:
            self._services.transactions.put_batch(self, batch, self._replies)
            return
        partition = batch.partition
        if partition == ANY_PARTITION:
            partition = self._engine.pick_partition(batch.topic)

        unit = Append(batch.topic, partition, FrameBlock(batch.block, batch.count), Terms.BLOCK)
        self._append(unit, (batch.opaque,), self._replies.pending().complete_all)

    def _oversized(self, command: Oversized) -> None:
        limit = self._engine.config.system.message_bytes_max if command.word == "put" else command.limit
        if command.word == "put":
            self._engine.statistics.puts(command.topic, 1, command.length)
            self._engine.statistics.puts_failed(command.topic, 1)
            refusal = TooLarge(command.length, limit)
            self._refuse(self._texts.put(command.topic, command.partition, refusal), command.opaque)
        else:
            text = f"{command.word} of {command.length} bytes is longer than {limit} bytes (maxBatchSize)"
            self._refuse(Refused(FAILED, text), command.opaque)

    # ---- reads, answered in order

    def _get(self, command: Get) -> None:
        self._replies.ask(partial(self._answer_get, command))

    def _answer_get(self, command: Get) -> bytes | FileReply:
        topic, _group, partition, offset, bytes_max, opaque = command
        outcome = self._engine.get(topic, partition, offset, bytes_max)
        if isinstance(outcome, StorageFailed):  # MetaQ says "Put" here as well
            return encode_result(*self._texts.put(topic, partition, outcome), opaque)
        if isinstance(outcome, Refusal):
            return encode_result(*self._texts.get(topic, partition, outcome), opaque)
        return FileReply(encode_value_line(outcome.length, opaque), outcome)

    def _get_filtered(self, command: GetFiltered) -> None:
        self._replies.ask(partial(self._answer_get_filtered, command))

    def _answer_get_filtered(self, command: GetFiltered) -> bytes | FileReply | SlowReply:
        topic, _group, partition, offset, bytes_max, types, opaque = command
        outcome = self._engine.get_types(topic, partition, offset, bytes_max, types)
        if isinstance(outcome, Refusal):
            return encode_result(*self._texts.get(topic, partition, outcome), opaque)
        if isinstance(outcome, LargeFrame):
            head = encode_single_head(outcome.next_offset, outcome.frame.offset)
            line = encode_value_line(len(head) + outcome.frame_bytes, opaque)
            return FileReply(line + head, outcome.frame)
        return SlowReply(encode(Value(outcome.encode(), opaque)))

    def _report_types(self, command: ReportTypes) -> None:
        try:
            report = Report(command.start_time, checked_types(command.types))
        except ValueError as fault:
            self._refuse(Refused(BAD_REQUEST, str(fault)), command.opaque)
            return
        self._replies.ask(partial(self._answer_report, command.group, command.topic, report, command.opaque))

    def _answer_report(self, group: str, topic: str, report: Report, opaque: int) -> bytes:
        applies = self._services.reported_types.add(group, topic, report)
        return encode_result(OK, applies.text, opaque)

    def _fetch(self, command: Fetch) -> None:
        self._replies.ask(partial(self._answer_fetch, command))

    def _answer_fetch(self, command: Fetch) -> bytes | FileReply | SlowReply:
        _version, topic, group, partition, offset, bytes_max, opaque, start_time = command
        reported = self._services.reported_types
        report = reported.find(group, topic, start_time)
        if report is None:
            # Clients written after MetaQ's guide report their types on 301, the published Java client on 100.
            again = reported.is_refused_again(group, topic, partition, start_time)
            return encode_result(CONTINUE if again else MOVED, NO_TYPES, opaque)
        if report.types is None:
            return self._answer_get(Get(topic, group, partition, offset, bytes_max, opaque))
        outcome = self._engine.get_run(topic, partition, offset, bytes_max, report.types)
        if isinstance(outcome, Refusal):
            return encode_result(*self._texts.get(topic, partition, outcome), opaque)
        if isinstance(outcome, Slice):
            return FileReply(encode_value_line(outcome.length, opaque), outcome)
        return SlowReply(encode(Value(outcome, opaque)))

    def _offset(self, command: GetOffset) -> None:
        self._replies.ask(partial(self._answer_offset, command))

    def _answer_offset(self, command: GetOffset) -> bytes:
        topic, _group, partition, offset, opaque, mode = command
        if mode == "file":
            return encode_result(UNAVAILABLE, NO_FILES, opaque)
        outcome = self._engine.offset(topic, partition, offset, mode)
        refused = self._texts.get(topic, partition, outcome) if isinstance(outcome, Refusal) else None
        return encode_result(*(refused or (OK, str(outcome))), opaque)

    def _stats(self, command: Stats) -> None:
        parts = self._services.report.parts(command.item)
        self._replies.ask(partial(self._answer_stats, parts, command.opaque))

    def _answer_stats(self, parts: Iterator[bytes | None], opaque: int) -> bytes | None:
        body = next(parts)
        return None if body is None else b"result %d %d %d\r\n%b" % (OK, len(body), opaque, body)

    # ---- the rest

    def _version(self, command: Version) -> None:
        self._replies.add(encode_result(OK, self._services.version, command.opaque))

    def _from_master(self, command: Sync | Copy) -> None:
        receiver = self._services.receiver
        if receiver is None:
            text = "sync and copy are for synchronous slaves; this broker is none"
            self._refuse(Refused(UNAVAILABLE, text), command.opaque)
            return
        slot, opaque = self._replies.pending(), command.opaque
        before = f"{command.message_id} {command.partition} " if isinstance(command, Sync) else ""

        def answer(outcome: int | Refusal) -> None:
            refused = self._texts.plain(outcome) if isinstance(outcome, Refusal) else None
            slot.complete(encode_result(*(refused or (OK, f"{before}{outcome}")), opaque))

        if isinstance(command, Sync):
            topic, partition, body, flag, message_id, _, crc = command
            receiver.sync(CopiedMessage((topic, partition), message_id, flag, body, crc), answer)
        else:
            topic, partition, block, offset, segment_start, first, ordinal, incarnation, _ = command
            copied = CopiedRun((topic, partition), block, offset, segment_start, first, ordinal, incarnation)
            receiver.copy_soon(copied, answer)

    def _from_member(self, command: MemberMessage) -> None:
        member = self._services.member
        if member is None:
            self._refuse(Refused(UNAVAILABLE, "this broker is not a member of a pair ([pair])"), command.opaque)
            return
        if self._link is None:
            self._link = _MemberLink(self, self._replies, command.opaque)
            self._link.end = member.opened(self._link)
        self._link.opaque = command.opaque
        self._link.end.received(command.block)

    def end(self) -> None:
        """Carry out nothing more; the connection is closed when the replies are sent."""
        self.finished = True
        self._replies.end()

    def _transaction(self, command: TransactionCommand) -> None:
        visible = None if self._access is None else self._access.may_publish_all
        self._services.transactions.transaction(self, command, self._replies, visible)

    def _decide(self, command: Decide) -> None:
        self._services.transactions.decide(command, self._replies)

    def _group(self, request: GroupRequest) -> None:
        slot, access = self._replies.pending(), self._access

        def answer(code: int, text: str) -> None:
            slot.complete(encode_result(code, text, request.opaque))

        rights = EVERYTHING if access is None else GroupRights(access.subscribe, access.use_group)
        self._services.groups.carry_out(request, rights, answer)

    def _refuse(self, refused: Refused, opaque: int) -> None:
        self._replies.add(encode_result(refused.code, refused.text, opaque))


class _MemberLink:
    """A connection of the other member of a pair. ``end`` is set before its first message."""

    end: LinkEnd

    def __init__(self, session: TextSession, replies: ReplyQueue, opaque: int) -> None:
        self._session, self._replies = session, replies
        self.opaque = opaque

    def send(self, content: bytes) -> None:
        if not self._session.finished:
            self._replies.push(encode(Value(content, self.opaque)))

    def close(self) -> None:
        self._session.end()
        self._replies.wake()


_OF_EVERY_MEMBER: Final = (Stats, Version, MemberMessage, Oversized)
"""What a member of a pair answers although it is not the master."""

_HANDLERS: Final[dict[type, Callable[[TextSession, Any], None]]] = {
    Put: TextSession._put_in_transaction,  # plain puts are handled before
    PutBatch: TextSession._put_batch,
    Oversized: TextSession._oversized,
    Get: TextSession._get,
    GetFiltered: TextSession._get_filtered,
    Fetch: TextSession._fetch,
    ReportTypes: TextSession._report_types,
    GetOffset: TextSession._offset,
    Stats: TextSession._stats,
    Version: TextSession._version,
    Sync: TextSession._from_master,
    Copy: TextSession._from_master,
    TransactionCommand: TextSession._transaction,
    Decide: TextSession._decide,
    GroupRequest: TextSession._group,
    MemberMessage: TextSession._from_member,
}
