"""Writes many blocks over one session: pipelined, in order, at least once.

A writer has one topic, and can be given another with each block: one connection to a broker serves any number of
topics.

Blocks are sent in the order of ``write`` and stay in a queue until they are acknowledged. After a lost connection, it
is unknown which blocks in flight are stored, so all unacknowledged blocks are sent again, oldest first: every message
is stored, the first copies of all messages are in order, and some messages may be stored twice.

The bundled broker executes the commands of one connection in order, so pipelining keeps the order. A broker without
``mput`` does not; there, blocks are split and each message waits for the previous one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from metaq.backends.metaq.puts import Receipt, block_commands, parse_receipt, takes_blocks
from metaq.backends.metaq.session import OUTSTANDING_MAX, Session
from metaq.errors import BrokerError, ConnectionFailed, DeadlineExceeded, ExtensionMissing, MetaqError
from metaq.model import Buffer, TransactionId
from metaq.net.retry import DEFAULT_POLICY, Attempts, RetryPolicy
from metaq.protocols.text.commands import Put, PutBatch, Result
from metaq.protocols.text.extensions import EXT_PUT_BATCH
from metaq.statuses import OK

PENDING_BYTES_MAX: Final = 16 << 20
PENDING_BLOCKS_MAX: Final = 16

RETRIES: Final = DEFAULT_POLICY.retries
"""Default limit on consecutive reconnections of a session."""

_NO_RETRIES: Final = RetryPolicy(0)
_T = TypeVar("_T")


@dataclass(slots=True)
class _Unit:
    """A command in flight. ``opaque`` is ``None`` while it has to be sent (again)."""

    command: Put | PutBatch
    opens_block: bool
    opaque: int | None = None

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
        self._receipts: list[Receipt] = []
        self._failure: MetaqError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes written and not yet acknowledged."""
        return self._pending_bytes

    @property
    def acknowledged(self) -> Sequence[Receipt]:
        """Receipts that ``flush`` has not returned yet: after a failure, the blocks that are certainly stored."""
        return self._receipts

    def takes_blocks(self) -> bool:
        """Return whether the broker stores blocks as such. Raises as ``write``."""
        return self._until_done(lambda: takes_blocks(self._session))

    def write(self, partition_index: int, block: Buffer, count: int, topic: str | None = None) -> None:
        """Send a block of ``count`` whole frames; first wait for older blocks if too much is unacknowledged.

        ``topic``: a topic other than the writer's, at the same broker; all topics share the connection and the limits.

        Raises:
            BrokerError: A block (this or an older one) was refused. Blocks sent after it may be stored.
            ConnectionFailed, DeadlineExceeded: Retrying did not help.
            ProtocolError: The answer is not MetaQ's protocol.
            ValueError: The block or the topic is not valid; nothing was sent, and the writer stays usable.

        After any but the last, every further call raises the same error.
        """
        commands: Sequence[Put | PutBatch] = self._commands(topic or self._topic, partition_index, block, count)
        for position, command in enumerate(commands):
            unit = _Unit(command, opens_block=position == 0)
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
        receipts, self._receipts = self._receipts, []
        return receipts

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
        assert unit.opaque is not None
        reply = self._session.wait(unit.opaque)
        receipt = parse_receipt(self._session, self._session.text_of(reply, unit.command))
        self._forget(self._pending.popleft())
        if unit.opens_block:
            self._receipts.append(receipt)
        self._attempts.progressed()

    def _would_change_the_order(self) -> bool:
        """Return whether a block after the refused one is stored, so that a repetition would come after it."""
        with suppress(ConnectionFailed, DeadlineExceeded):  # it is unknown, as after every lost connection
            for unit in islice(self._pending, 1, None):
                if unit.opaque is not None:
                    reply, unit.opaque = self._session.wait(unit.opaque), None
                    if isinstance(reply, Result) and reply.code == OK:
                        return True
        return False

    def _until_done(self, step: Callable[[], _T]) -> _T:
        """Run ``step``, reconnecting as often as the policy allows."""
        if self._failure is not None:
            raise self._failure
        try:
            while True:
                try:
                    return step()
                except (ConnectionFailed, DeadlineExceeded, BrokerError) as error:
                    if isinstance(error, BrokerError) and (not error.away or self._would_change_the_order()):
                        raise
                    self._attempts.recover(self._session, error)
                for unit in self._pending:
                    unit.opaque = None
        except MetaqError as error:
            self._failure = error
            for unit in self._pending:
                if unit.opaque is not None:
                    self._session.abandon(unit.opaque)
            raise
