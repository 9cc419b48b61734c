"""Writes many blocks over one session: pipelined, in order, at least once.

A writer has one topic, and can be given another with each block: one connection to a broker serves any number of
topics.

Blocks are sent in the order of ``write`` and stay in a queue until they are acknowledged. After a lost connection, it
is unknown which blocks in flight are stored, so all unacknowledged blocks are sent again, oldest first: every message
is stored, the first copies of all messages are in order, and some messages may be stored twice. A refused block is sent
again only while a disk is full; if the refusal says that it may be stored, it may be stored twice, too.

The bundled broker executes the commands of one connection in order, so pipelining keeps the order. A broker without
``mput`` does not; there, blocks are split and each message waits for the previous one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from metaq.backends.metaq.puts import Receipt, block_commands, parse_receipt, takes_blocks
from metaq.backends.metaq.session import OUTSTANDING_MAX, Session
from metaq.errors import (
    BrokerError,
    ConnectionFailed,
    DeadlineExceeded,
    ExtensionMissing,
    MetaqError,
    RepetitionRefused,
)
from metaq.model import Buffer, TransactionId
from metaq.net.retry import DEFAULT_POLICY, Attempts, RetryPolicy
from metaq.protocols.text.commands import Put, PutBatch
from metaq.protocols.text.extensions import EXT_PUT_BATCH

PENDING_BYTES_MAX: Final = 16 << 20
PENDING_BLOCKS_MAX: Final = 16

RETRIES: Final = DEFAULT_POLICY.retries
"""Default limit on consecutive reconnections of a session."""

_NO_RETRIES: Final = RetryPolicy(0)
_T = TypeVar("_T")


@dataclass(slots=True)
class _Unit:
    """A command of the block numbered ``block``. ``opaque`` is ``None`` while it has to be sent (again)."""

    command: Put | PutBatch
    block: int
    opaque: int | None = None
    answer: Receipt | MetaqError | None = None
    """Its answer, or why there is none; ``None`` while it is in flight."""
    is_repeated: bool = False
    """Whether an earlier attempt may have stored it."""

    @property
    def may_be_stored(self) -> bool:
        """Whether it may be stored without a receipt: an attempt was not answered, or a refusal says so."""
        if isinstance(self.answer, BrokerError):
            return self.is_repeated or self.answer.may_be_stored
        return self.is_repeated or (self.opaque is not None and not isinstance(self.answer, Receipt))

    @property
    def byte_count(self) -> int:
        return len(self.command.block if isinstance(self.command, PutBatch) else self.command.body)


class BatchWriter:
    """Pipelines blocks over ``session``, which it owns until ``flush`` has returned.

    At most ``blocks_max`` commands and ``bytes_max`` bytes are unacknowledged (a single larger block is sent alone).
    After a lost connection or a missed deadline the session is reconnected, as often as ``policy`` says. Inside a
    transaction nothing is sent again, because it is unknown whether a put was stored: the failure is raised, and the
    transaction must be rolled back.
    """

    def __init__(
        self,
        session: Session,
        topic: str,
        *,
        bytes_max: int = PENDING_BYTES_MAX,
        blocks_max: int = PENDING_BLOCKS_MAX,
        policy: RetryPolicy = DEFAULT_POLICY,
        transaction: TransactionId | None = None,
    ) -> None:
        if bytes_max < 1:
            raise ValueError(f"bytes_max={bytes_max}: expected 1 or more")
        if not 1 <= blocks_max <= OUTSTANDING_MAX:
            raise ValueError(f"blocks_max={blocks_max}: expected 1..{OUTSTANDING_MAX}")
        self._session, self._topic, self._transaction = session, topic, transaction
        self._bytes_max, self._blocks_max = bytes_max, blocks_max
        self._attempts = Attempts(policy if transaction is None else _NO_RETRIES, session.clock)
        self._pending: deque[_Unit] = deque()
        self._pending_bytes = 0
        self._outcomes: list[Receipt | MetaqError | None] = []
        self._failure: MetaqError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes written and not yet acknowledged."""
        return self._pending_bytes

    @property
    def outcomes(self) -> Sequence[Receipt | MetaqError | None]:
        """After a failure: for each block since the last ``flush``, its receipt or own error; ``None``: not sent."""
        return self._outcomes

    def takes_blocks(self) -> bool:
        """Return whether the broker stores blocks as such. Raises as ``write``."""
        return self._until_done(lambda: takes_blocks(self._session))

    def write(self, partition_index: int, block: Buffer, count: int, topic: str | None = None) -> None:
        """Send a block of ``count`` whole frames; first wait for older blocks if too much is unacknowledged.

        ``topic``: a topic other than the writer's, at the same broker; all topics share the connection and the limits.

        Raises:
            BrokerError: A block (this or an older one) was refused. Blocks sent after it may be stored: ``outcomes``.
            ConnectionFailed, DeadlineExceeded: Retrying did not help.
            ProtocolError: The answer is not MetaQ's protocol.
            ValueError: The block or the topic is not valid; nothing was sent, and the writer stays usable.

        After any but the last, every further call raises the same error.
        """
        block_number = len(self._outcomes)
        self._outcomes.append(None)
        try:
            for command in self._commands(topic or self._topic, partition_index, block, count):
                self._write(_Unit(command, block_number))
        except ValueError:
            del self._outcomes[block_number:]
            raise

    def _write(self, unit: _Unit) -> None:
        self._wait_for_capacity(unit)
        self._pending.append(unit)
        self._pending_bytes += unit.byte_count
        try:
            self._until_done(self._send_unsent)
        except ValueError:
            self._forget(self._pending.pop())
            raise

    def flush(self) -> list[Receipt]:
        """Wait until everything is acknowledged; return one receipt per block (its first message), in order of
        ``write``.

        Each receipt is returned once. Raises as ``write``.
        """
        while self._pending:
            self._until_done(self._collect_oldest)
        outcomes, self._outcomes = self._outcomes, []
        return [outcome for outcome in outcomes if isinstance(outcome, Receipt)]

    def _commands(self, topic: str, partition_index: int, block: Buffer, count: int) -> list[Put] | list[PutBatch]:
        return self._until_done(
            lambda: block_commands(self._session, topic, partition_index, block, count, self._transaction)
        )

    def _wait_for_capacity(self, unit: _Unit) -> None:
        units_max = self._blocks_max if isinstance(unit.command, PutBatch) else 1
        while self._pending and (
            len(self._pending) >= units_max or self._pending_bytes + unit.byte_count > self._bytes_max
        ):
            self._until_done(self._collect_oldest)

    def _send_unsent(self) -> None:
        for unit in self._pending:
            if unit.opaque is None:
                if isinstance(unit.command, PutBatch) and EXT_PUT_BATCH not in self._session.extensions:
                    raise ExtensionMissing(self._session.address, EXT_PUT_BATCH, "sending unacknowledged blocks again")
                unit.opaque = self._session.post(unit.command)

    def _forget(self, unit: _Unit) -> None:
        self._pending_bytes -= unit.byte_count

    def _collect_oldest(self) -> None:
        self._send_unsent()  # after a lost connection
        unit = self._pending[0]
        receipt = self._wait_for(unit)
        self._forget(self._pending.popleft())
        self._note(unit, receipt)
        self._attempts.progressed()

    def _wait_for(self, unit: _Unit) -> Receipt:
        assert unit.opaque is not None
        try:
            reply = self._session.wait(unit.opaque)
            unit.answer = receipt = parse_receipt(self._session, self._session.text_of(reply, unit.command))
        except BrokerError as error:
            unit.answer = refusal = _refused_again(error) if unit.is_repeated else error
            raise refusal from None
        except MetaqError as error:
            unit.answer = error
            raise
        return receipt

    def _note(self, unit: _Unit, outcome: Receipt | MetaqError | None) -> None:
        """Note what became of a block: the receipt of its first message, unless one of its commands failed."""
        if isinstance(outcome, MetaqError) or self._outcomes[unit.block] is None:
            self._outcomes[unit.block] = outcome

    def _is_stored_behind(self) -> bool:
        """Wait for the answers to all blocks in flight after one was refused. Return whether one of them is stored: a
        repetition of the refused one would come after it.
        """
        if self._transaction is not None:
            return False  # nothing is sent again, and nothing is stored yet
        for unit in self._pending:
            if unit.opaque is not None and unit.answer is None:
                with suppress(MetaqError):  # after a lost connection it is unknown
                    self._wait_for(unit)
        return any(isinstance(unit.answer, Receipt) for unit in self._pending)

    def _until_done(self, step: Callable[[], _T]) -> _T:
        """Run ``step``, reconnecting as often as the policy allows."""
        if self._failure is not None:
            raise self._failure
        try:
            while True:
                try:
                    return step()
                except (ConnectionFailed, DeadlineExceeded, BrokerError) as error:
                    if isinstance(error, BrokerError) and (self._is_stored_behind() or not error.away):
                        raise
                    for unit in self._pending:
                        unit.is_repeated = unit.may_be_stored
                    self._attempts.recover(self._session, error)
                for unit in self._pending:
                    unit.opaque = unit.answer = None
        except MetaqError as error:
            self._give_up(error)
            raise

    def _give_up(self, failure: MetaqError) -> None:
        self._failure = failure
        for unit in self._pending:
            if unit.opaque is not None:
                self._session.abandon(unit.opaque)
            if unit.opaque is not None or unit.is_repeated:
                self._note(unit, _own_answer(unit, failure))


def _own_answer(unit: _Unit, failure: MetaqError) -> Receipt | MetaqError:
    """Return what became of a command that was sent, where the writer gives up because of ``failure``."""
    if isinstance(unit.answer, Receipt | BrokerError):
        return unit.answer
    if not isinstance(failure, BrokerError):
        return failure
    if unit.answer is not None:
        return unit.answer  # the connection was lost after the refusal of another command
    return _refused_again(failure) if unit.is_repeated else failure


def _refused_again(refusal: BrokerError) -> RepetitionRefused:
    return RepetitionRefused(refusal.address, refusal.action, refusal.code, refusal.text)
