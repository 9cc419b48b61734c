"""Transaction commands of the text protocol: each becomes one call of the ``TransactionManager`` and one reply.

A connection is identified by its session object: local transactions belong to it. Replies that wait for the journal or
for the partitions reserve their position in the connection's queue at once.

Source: docs/transactions.md; docs/adr/0005, 0007.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from metaq.formats.frame_block import FrameBlock
from metaq.protocols.text.commands import Decide, Put, PutBatch, TransactionCommand
from metaq.protocols.text.encode import encode_result
from metaq.statuses import OK
from metaq_broker.log.engine.gates import PutGate
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.serve.replies import PendingReply, ReplyQueue
from metaq_broker.statistics import Statistics
from metaq_broker.text.put_replies import Worded
from metaq_broker.text.refusals import RefusalTexts
from metaq_broker.transactions.decisions import Decision
from metaq_broker.transactions.interfaces import PrepareVote
from metaq_broker.transactions.manager import TransactionManager
from metaq_broker.transactions.outcomes import TransactionRefused

NO_OFFSET: Final = -1
"""Offset in the reply to a put inside a transaction: the real one exists only after the commit."""

_KEYS_END: Final = "\r\n"
_GATED: Final = frozenset({"BEGIN", "PREPARE", "COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE"})
"""Steps that fail while no messages are accepted; the other steps end a transaction, or only ask."""

_ABOUT_A_QUERY: Final = frozenset({"FORGET", "DECIDED_CONTENTS"})
"""Steps that need write access to all topics of the query that they name."""


Visible = Callable[[frozenset[str]], bool]
"""Whether a client may see a branch that writes to these topics."""


class TransactionCommands:
    """Carries out transaction commands for all connections; ``connection`` is any object that identifies one."""

    def __init__(self, manager: TransactionManager, statistics: Statistics, gate: PutGate, texts: RefusalTexts) -> None:
        """``gate`` may refuse BEGIN, PREPARE, COMMIT and decisions."""
        self._gate, self._texts = gate, texts
        self._manager = manager
        self._statistics = statistics
        self._steps: Final[dict[str, Callable[[object, TransactionCommand, ReplyQueue], None]]] = {
            "BEGIN": self._begin,
            "PREPARE": self._prepare,
            "COMMIT_ONE_PHASE": self._commit,
            "COMMIT_TWO_PHASE": self._commit,
            "ROLLBACK": self._rollback,
            "FORGET": self._forget,
            "END": self._end,
            "DECIDED": self._decided,
            "DECIDED_CONTENTS": self._decided,
        }

    def topics_of(self, command: TransactionCommand | Decide) -> frozenset[str]:
        """Return the topics that a client must be allowed to write to for this command."""
        if isinstance(command, Decide):
            return self._manager.topics_of(command.branches, command.query_id)
        if command.key is not None:
            return self._manager.topics_of([command.key])
        return self._manager.topics_of([], command.unique if command.type in _ABOUT_A_QUERY else None)

    def transaction(
        self, connection: object, command: TransactionCommand, replies: ReplyQueue, visible: Visible | None = None
    ) -> None:
        """Carry out a ``transaction`` command. RECOVER lists the branches whose topics are ``visible``."""
        if command.type == "RECOVER":
            self._recover(command, replies, visible)
            return
        if self._gate.shut_by is not None and command.type in _GATED:
            replies.add(encode_result(*self._texts.plain(self._gate.shut_by), command.opaque))
            return
        self._steps[command.type](connection, command, replies)

    def put(self, connection: object, command: Put, replies: ReplyQueue) -> None:
        topic, partition, body, flag, opaque, checksum, key = command
        assert key is not None  # plain puts are handled elsewhere

        def add() -> str:
            message_id = self._manager.put(connection, key, topic, partition, flag, checksum, body)
            return f"{message_id} {partition} {NO_OFFSET}"

        self._statistics.puts(topic, 1, len(body))
        self._answer_puts(topic, 1, replies, opaque, add)

    def put_batch(self, connection: object, command: PutBatch, replies: ReplyQueue) -> None:
        topic, partition, block, count, opaque, key = command
        assert key is not None

        def add() -> str:
            ids = self._manager.put_batch(connection, key, topic, partition, FrameBlock(block, count))
            return f"{ids.first} {partition} {NO_OFFSET}"

        self._statistics.block_puts(topic, count, len(block))
        self._answer_puts(topic, count, replies, opaque, add)

    def decide(self, command: Decide, replies: ReplyQueue) -> None:
        """Record which branches a batch consists of; the reply names the branches of the first decision for it."""
        if self._gate.shut_by is not None:
            replies.add(encode_result(*self._texts.plain(self._gate.shut_by), command.opaque))
            return
        slot = replies.pending()

        def answer(decision: Decision | Refusal) -> None:
            if isinstance(decision, Refusal):
                self._complete(slot, command.opaque, decision)
            else:
                contents = [] if command.contents is None else [decision.contents or ""]
                self._complete(slot, command.opaque, None, _KEYS_END.join([*contents, *map(str, decision.branches)]))

        query_id, batch_id, branches = command.query_id, command.batch_id, command.branches
        self._manager.decide(query_id, batch_id, branches, answer, command.own, command.contents)

    def connection_lost(self, connection: object) -> None:
        """Roll back the local transactions that the connection began."""
        self._manager.connection_lost(connection)

    # ---- the steps of ``transaction``

    def _begin(self, connection: object, command: TransactionCommand, replies: ReplyQueue) -> None:
        def begin() -> str:
            self._manager.begin(connection, command.key, command.timeout_s, command.unique)
            return ""

        _answer(replies, command.opaque, begin, self._texts.step)

    def _prepare(self, connection: object, command: TransactionCommand, replies: ReplyQueue) -> None:
        slot = replies.pending()

        def voted(vote: PrepareVote | Refusal) -> None:
            if isinstance(vote, Refusal):
                self._complete(slot, command.opaque, vote)
            else:
                self._complete(slot, command.opaque, None, str(int(vote)))

        self._manager.prepare(command.key, voted, connection)

    def _commit(self, connection: object, command: TransactionCommand, replies: ReplyQueue) -> None:
        slot, one_phase = replies.pending(), command.type == "COMMIT_ONE_PHASE"
        self._manager.commit(command.key, one_phase, connection, partial(self._complete, slot, command.opaque))

    def _rollback(self, connection: object, command: TransactionCommand, replies: ReplyQueue) -> None:
        slot = replies.pending()
        self._manager.rollback(command.key, connection, partial(self._complete, slot, command.opaque))

    def _recover(self, command: TransactionCommand, replies: ReplyQueue, visible: Visible | None) -> None:
        keys = self._manager.recover(command.unique)
        if visible is not None:
            keys = [key for key in keys if visible(self._manager.topics_of([key]))]
        slot, text = replies.pending(), _KEYS_END.join(map(str, keys))
        self._manager.when_certain(lambda refusal: self._complete(slot, command.opaque, refusal, text))

    def _forget(self, _connection: object, command: TransactionCommand, replies: ReplyQueue) -> None:
        done = partial(self._complete, replies.pending(), command.opaque)
        if command.key is None and command.unique is not None:
            self._manager.end_query(command.unique, done)
            return
        try:
            self._manager.forget(command.key)
        except TransactionRefused as refused:
            done(refused.refusal)
        else:
            self._manager.when_recorded(f"FORGET of transaction '{command.key}'", done)

    def _decided(self, _connection: object, command: TransactionCommand, replies: ReplyQueue) -> None:
        slot = replies.pending()

        def answer(decision: Decision | Refusal | None) -> None:
            if isinstance(decision, Refusal):
                self._complete(slot, command.opaque, decision)
                return
            text = "" if decision is None else str(decision.batch_id)
            if decision is not None and command.type == "DECIDED_CONTENTS":
                text += _KEYS_END + (decision.contents or "")
            self._complete(slot, command.opaque, None, text)

        self._manager.last_decided(command.unique or "", answer)

    def _end(self, _connection: object, _command: TransactionCommand, _replies: ReplyQueue) -> None:
        """Do nothing: END has no effect, and is the one command without a reply."""

    def _answer_puts(self, topic: str, count: int, replies: ReplyQueue, opaque: int, add: Callable[[], str]) -> None:
        if not _answer(replies, opaque, add, self._texts.put_in_transaction):
            self._statistics.puts_failed(topic, count)

    def _complete(self, slot: PendingReply, opaque: int, refusal: Refusal | None, text: str = "") -> None:
        code, body = (OK, text) if refusal is None else self._texts.step(refusal)
        slot.complete(encode_result(code, body, opaque))


def _answer(replies: ReplyQueue, opaque: int, step: Callable[[], str], worded: Worded) -> bool:
    """Queue the result of ``step``, or its refusal; return whether it succeeded."""
    try:
        code, text = OK, step()
    except TransactionRefused as refused:
        code, text = worded(refused.refusal)
    replies.add(encode_result(code, text, opaque))
    return code == OK
