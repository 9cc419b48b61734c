"""The transactions of one broker: the operations of clients and operators.

Everything runs on the event-loop thread. A method that takes ``done`` never raises for a refusal: it calls ``done``
exactly once, at once or later. The others raise ``TransactionRefused``.

::

    put ─────▶ puts ──────────┐                      ┌── journal ◀── group_sync (worker thread)
                              ├──▶ journal_writer ───┤
    prepare ─▶ completion ────┘                      └── ledger ◀─── checkpoint
    commit        │
    decide        └──▶ applier ──▶ TransactionStore (the partitions)

``recover_from_journal`` is called first, after the partitions were loaded and before any put.

Source: docs/transactions.md; docs/adr/0007 for decisions.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from metaq.formats.frame_block import FrameBlock
from metaq.formats.message_id import IdRange
from metaq.model import TransactionId, Xid
from metaq_broker.clock import Clock
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.files.files import Files
from metaq_broker.log.sync.sync_queue import OnDurable
from metaq_broker.transactions import recovery, resumption
from metaq_broker.transactions.applier import fail
from metaq_broker.transactions.checkpoint import CheckpointSettings, JournalCheckpoint, RecordLedger
from metaq_broker.transactions.completion import Answered, Completion, Proposal, Voted
from metaq_broker.transactions.decisions import Decision, Decisions, EndedQueries
from metaq_broker.transactions.folder import claim_folder
from metaq_broker.transactions.group_sync import GroupSync
from metaq_broker.transactions.heuristics import Heuristics
from metaq_broker.transactions.interfaces import (
    CallLater,
    Done,
    Durability,
    RunInWorker,
    SpaceCheck,
    TransactionCounters,
    TransactionLimits,
    TransactionStore,
    no_space_check,
    run_in_loop_worker,
)
from metaq_broker.transactions.journal import Journal, JournalFailed
from metaq_broker.transactions.journal_stream import JournalStream
from metaq_broker.transactions.journal_writer import JournalWriter
from metaq_broker.transactions.outcomes import (
    ChangeUnknown,
    JournalUnavailable,
    LocalPrepare,
    NotAnXid,
    NotMissing,
    NotStarted,
    Outcome,
    OutcomeUnknown,
    OwnBranchesUnknown,
    TransactionRefused,
)
from metaq_broker.transactions.puts import TransactionPuts
from metaq_broker.transactions.records import NO_SERIAL
from metaq_broker.transactions.state import Event, State
from metaq_broker.transactions.taking_over import take_over
from metaq_broker.transactions.transaction import OpenTransactions, PartitionKey, Transaction, TransactionMemory

_log = logging.getLogger(__name__)

_NO_END: Final = " (over, but the journal cannot be written)"


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction, as operators see it. ``byte_count`` is bytes of frames."""

    key: TransactionId
    age_ms: int
    messages: int
    byte_count: int
    partition_keys: tuple[PartitionKey, ...]


class TransactionManager:
    def __init__(
        self,
        files: Files,
        clock: Clock,
        directory: Path,
        store: TransactionStore,
        *,
        timeout_s_max: int,
        durability: Durability,
        call_later: CallLater,
        run_in_worker: RunInWorker = run_in_loop_worker,
        limits: TransactionLimits = TransactionLimits(),  # noqa: B008  a frozen value
        checkpoint: CheckpointSettings = CheckpointSettings(),  # noqa: B008  a frozen value
        check_space: SpaceCheck = no_space_check,
        stream: JournalStream | None = None,
    ) -> None:
        """Create a manager that has not opened the journal in ``directory``; ``recover_from_journal`` does that.

        ``stream``: a pair's; it has the journal until then, and what the other members lack is not acknowledged.
        ``timeout_s_max`` limits the timeouts of BEGIN (``maxTxTimeoutInSeconds``).
        """
        self.counters = TransactionCounters()
        self._files = files
        self._clock = clock
        self._directory = directory
        self._store = store
        self._timeout_s_max = timeout_s_max
        self._call_later = call_later
        self._open = OpenTransactions(limits.open_max)
        self._pool = TransactionMemory()
        self._heuristics = Heuristics()
        self._decisions = Decisions(limits.decision_bytes_max)
        self._ended_queries = EndedQueries()
        self._ledger = RecordLedger()
        self._journal = Journal(files, directory, checkpoint.file_bytes)
        self._sync = GroupSync(self._journal, durability, run_in_worker, call_later)
        self._checkpoint = JournalCheckpoint(self._journal, self._sync, self._ledger, call_later, checkpoint)
        self._writer = JournalWriter(self._journal, self._ledger, self._decisions, self._appended)
        self._puts = TransactionPuts(self._writer, store, limits, self._pool)
        self._completion = Completion(
            self._writer,
            self._sync,
            store,
            call_later,
            run_in_worker,
            self._open,
            self._decisions,
            self._heuristics,
            self.counters,
            check_space,
        )
        self._last_serial = NO_SERIAL
        self.last_message_id = -1
        """The largest id of a message that was in the journal when it was opened; -1 without one."""
        self._lock_fd: int | None = None
        self._stream = stream

    def _appended(self) -> None:
        self._checkpoint.after_append()
        self._sync.start_early()

    @property
    def journal_bytes(self) -> int:
        return self._journal.byte_count

    @property
    def buffered_bytes(self) -> int:
        """Bytes of frames that all transactions have in memory."""
        return self._pool.byte_count

    # ---- the client's commands

    def begin(
        self, connection: object, key: TransactionId | None, timeout_s: int | None = None, unique: str | None = None
    ) -> None:
        """Begin a transaction, unless it exists already. ``unique`` is the key's unique qualifier, if it has one.

        After ``timeout_s`` seconds it is rolled back, unless it is prepared or ended by then. ``None`` or 0 means the
        maximum.

        Raises:
            TransactionRefused: Too many are open, the key is null, an operator or a decision has ended it, its query
                has ended, or the journal has failed.
        """
        if key is None:
            raise TransactionRefused(NotAnXid(None))
        self._heuristics.refuse_ended(key)
        if self._open.find(key, connection) is not None:
            return
        if isinstance(key, Xid):
            self._decisions.refuse_decided(key)
            self._ended_queries.refuse(key)
        if self._journal.failure is not None:
            raise TransactionRefused(JournalUnavailable(self._journal.failure))
        self._open.check_capacity()
        self._add(key, connection, timeout_s or 0)

    def _add(self, key: TransactionId, connection: object, timeout_s: int) -> None:
        transaction = self._new(key, None if isinstance(key, Xid) else connection)
        self._open.add(transaction)
        if isinstance(key, Xid):
            self.counters.tx_xa_begin += 1
        else:
            self.counters.tx_begin += 1
        delay_s = min(timeout_s or self._timeout_s_max, self._timeout_s_max)
        transaction.timer = self._call_later(delay_s, partial(self._expired, transaction))

    def _new(self, key: TransactionId, owner: object = None) -> Transaction:
        self._last_serial += 1
        return Transaction(key, self._last_serial, self._clock.now_ms(), owner, self._pool)

    def _expired(self, transaction: Transaction) -> None:
        if self._completion.lose(transaction, Event.EXPIRE):
            _log.info("transaction %s is rolled back: its timeout has expired", transaction.key)

    def put(
        self,
        connection: object,
        key: TransactionId,
        topic: str,
        partition: int,
        flag: int,
        checksum: int | None,
        body: bytes,
    ) -> int:
        """Add one message and return its id. It has no offset before the commit.

        ``checksum`` is the client's, ``None`` or -1 if it gave none.

        Raises:
            TransactionRefused: Nothing was added.
        """
        return self._puts.put(self._find(key, connection), topic, partition, flag, checksum, body)

    def put_batch(
        self, connection: object, key: TransactionId, topic: str, partition: int, block: FrameBlock
    ) -> IdRange:
        """Give the frames of a block ids and add them; return the ids. If one frame is wrong, none is added.

        Raises:
            TransactionRefused: Nothing was added.
        """
        return self._puts.put_batch(self._find(key, connection), topic, partition, block)

    def prepare(self, key: TransactionId | None, done: Voted, connection: object = None) -> None:
        """Make an XA transaction durable; ``done`` gets the vote. A transaction without messages is read-only and ends.
        """
        try:
            if connection is None and key is not None and not isinstance(key, Xid):
                raise TransactionRefused(LocalPrepare())
            transaction = self._find(key, connection)
            self._ended_queries.refuse(transaction.key)
            self._completion.prepare(transaction, self._clock.now_ms(), done)
        except TransactionRefused as refused:
            self._refuse(refused.refusal, done)

    def commit(self, key: TransactionId | None, one_phase: bool, connection: object, done: Done) -> None:
        """Commit; ``done`` is called when every message is durable and readable.

        The commit of a branch that a remembered decision committed here succeeds every time.
        """
        event = Event.COMMIT_ONE_PHASE if one_phase else Event.COMMIT_TWO_PHASE
        try:
            transaction = self._find(key, connection)
            self._completion.commit(transaction, event, done)
        except TransactionRefused as refused:
            if self._decided_and_over(key, connection):
                done(None)
            else:
                self._refuse(refused.refusal, done)

    def _decided_and_over(self, key: TransactionId | None, connection: object) -> bool:
        if not isinstance(key, Xid) or self._open.find(key, connection) is not None:
            return False
        return self._heuristics.outcome(key) is None and self._decisions.committed_here(key)

    def rollback(self, key: TransactionId | None, connection: object, done: Done) -> None:
        try:
            if isinstance(key, Xid) and self._open.find(key, connection) is None:
                self._heuristics.refuse_ended(key)
                self._decisions.refuse_decided(key)
            self._completion.roll_back(self._find(key, connection), done)
        except TransactionRefused as refused:
            self._refuse(refused.refusal, done)

    def recover(self, unique: str | None) -> list[Xid]:
        """Return the keys of the prepared and heuristically ended transactions of ``unique``; of all if it is ``None``.

        A PREPARE may not be durable yet: pass the keys on when they are certain (``when_certain``).
        """
        prepared = [each.key for each in self._open.xa() if each.state in (State.PREPARING, State.PREPARED)]
        keys = [key for key in prepared if isinstance(key, Xid)] + self._heuristics.keys()
        return [key for key in keys if unique is None or key.unique == unique]

    def forget(self, key: TransactionId | None) -> None:
        """Stop remembering a heuristic outcome; nothing happens if there is none. Answer it with ``when_recorded``.

        Raises:
            TransactionRefused: Not an XA key, or the journal does not take it.
        """
        if not isinstance(key, Xid):
            raise TransactionRefused(NotAnXid(key))
        if self._heuristics.outcome(key) is not None:
            self._writer.forget(key)
            self._heuristics.forget(key)

    def connection_lost(self, connection: object) -> None:
        """Roll back the local transactions of a connection, except while their commit is in progress."""
        for transaction in self._open.of(connection):
            if not self._completion.lose(transaction, Event.CONNECTION_LOST):
                self._open.remove(transaction)  # it continues, but no client can refer to the transaction

    # ---- decisions

    def decide(
        self,
        query_id: str,
        batch_id: int,
        branches: Sequence[TransactionId],
        done: Answered,
        own: Sequence[int] = (),
        contents: str | None = None,
    ) -> None:
        """Record that a batch consists of ``branches`` and commit the branches that are prepared here, all or none.

        ``done`` gets the durable decision: the first one for this batch, which may differ from this one. It does not
        wait for the messages; COMMIT_TWO_PHASE of a branch does. Keys that are unknown here are treated as branches of
        other brokers, except those at the positions ``own``. ``contents`` is kept with the decision. Refused, with
        nothing recorded: a batch before the last one, branches that are known here but not prepared, and own ones that
        are not known.
        """
        try:
            self._completion.decide(Proposal(query_id, batch_id, branches, own, contents), done)
        except TransactionRefused as refused:
            self._refuse(refused.refusal, done)

    def decision(self, query_id: str) -> Decision | None:
        return self._decisions.last(query_id)

    def topics_of(self, keys: Iterable[TransactionId], query_id: str | None = None) -> frozenset[str]:
        """Return the topics of XA transactions, and of a query's branches and decisions here."""
        found = [self._open.find(key, None) for key in keys if isinstance(key, Xid)]
        if query_id is not None:
            found += [each for each in self._open.xa() if isinstance(each.key, Xid) and each.key.unique == query_id]
        of_query = frozenset() if query_id is None else self._decisions.topics(query_id)
        return of_query.union(topic for each in found if each is not None for topic, _ in each.contents)

    def last_decided(self, query_id: str, done: Callable[[Decision | Refusal | None], None]) -> None:
        """Pass the newest decision of a query to ``done`` once it is durable, and certainly the newest."""
        decision = self.decision(query_id)
        self.when_certain(lambda unsure: done(decision if unsure is None else unsure))

    def when_certain(self, done: Done) -> None:
        """Call ``done`` as ``when_current`` does, with a refusal if that failed."""
        self.when_current(lambda failure: done(None if failure is None else JournalUnavailable(str(failure))))

    def when_recorded(self, change: str, done: Done) -> None:
        """Call ``done`` as ``when_current`` does; if that failed, the outcome of ``change`` is unknown."""
        self.when_current(lambda failure: done(None if failure is None else ChangeUnknown(change, str(failure))))

    def when_current(self, callback: OnDurable) -> None:
        """Call back when what is known here is durable, and was certainly current at this call.

        In a pair, the other member may have been elected while this one was frozen, and know more. So a record without
        effect must first become durable on every member in sync, which a master that was replaced cannot achieve.
        """
        if self._stream is not None:
            try:
                self._writer.mark()
            except JournalFailed as failure:
                callback(failure)
                return
        self._sync.when_durable(callback)

    def _refuse(self, refusal: Refusal, done: Callable[[Refusal], None]) -> None:
        """Pass a refusal on. In a pair, that a branch is unknown here is passed on once it is certainly current."""
        if self._stream is None or not isinstance(refusal, NotStarted | OwnBranchesUnknown):
            done(refusal)
            return
        self.when_certain(lambda unsure: done(refusal if unsure is None else unsure))

    def end_query(self, query_id: str, done: Done) -> None:
        """Forget the decisions of a query that has ended; from now on its branches can be neither begun nor prepared.

        ``done`` is called when that, and every earlier PREPARE, is durable.
        """
        try:
            self.forget_decisions(query_id)
        except TransactionRefused as refused:
            done(refused.refusal)
            return
        self._ended_queries.note(query_id)
        self.when_recorded(f"the end of query {query_id}", done)

    # ---- operators

    def prepared(self) -> list[PreparedTransaction]:
        now_ms = self._clock.now_ms()
        return [
            PreparedTransaction(
                each.key,
                now_ms - (each.prepared_ms or now_ms),
                each.messages,
                each.byte_count,
                tuple(sorted(each.contents)),
            )
            for each in self._open.xa()
            if each.state is State.PREPARED
        ]

    @property
    def open_count(self) -> int:
        """Transactions that have begun and not ended, prepared ones included."""
        return len(self._open)

    def stuck_commits(self) -> list[str]:
        """Return the keys of the committed transactions whose messages are not readable now."""
        committing = (each for each in self._not_ended() if each.state is State.COMMITTING)
        return [str(each.key) for each in committing if each.failure is not None]

    def _not_ended(self) -> list[Transaction]:
        """Return the transactions that have begun and not ended, including local ones whose connections are gone."""
        known = list(self._open)
        return [*known, *(each for each in self._completion.stalled() if each not in known)]

    def users_of(self, topic: str, partition: int) -> list[str]:
        """Return the keys of the transactions with messages for a partition that have not ended, or whose end cannot
        be written to the journal: a restart looks for their messages there.
        """
        self._writer.note_applied()
        known = self._not_ended()
        known += [each for each in self._writer.unapplied() if each not in known]
        found = (each for each in known if (topic, partition) in each.contents)
        return [f"{each.key}{_NO_END if each.state is State.ENDED else ''}" for each in found]

    def outcomes(self) -> list[tuple[Xid, Outcome]]:
        """Return the outcomes that no coordinator has acknowledged yet, oldest first."""
        return self._heuristics.items()

    def end_heuristically(self, key: TransactionId, outcome: Outcome, done: Done) -> None:
        """Complete a prepared transaction manually: commit it, roll it back, or declare it completed elsewhere.

        Its coordinator gets the outcome with every COMMIT and ROLLBACK until it sends FORGET. ``done`` is called as for
        a commit or a rollback.
        """
        try:
            self._completion.by_operator(self._find(key, None), outcome, done)
        except TransactionRefused as refused:
            done(refused.refusal)

    def accept_missing(self, key: TransactionId) -> None:
        """Let a branch that is not here, or was rolled back by an operator, count as committed from now on.

        For a decided branch whose messages are lost: its coordinator gets the same answers as for a branch that an
        operator committed. Answer it with ``when_recorded``.

        Raises:
            TransactionRefused: Not an XA key, the branch is here or was committed, or the journal does not accept the
                record.
        """
        if not isinstance(key, Xid):
            raise TransactionRefused(NotAnXid(key))
        if self._open.find(key, None) is not None or self._decisions.committed_here(key):
            raise TransactionRefused(NotMissing(key))
        self._writer.accept_missing(key)
        self._heuristics.remember(key, Outcome.COMMITTED)

    def forget_decisions(self, query_id: str) -> None:
        """Forget the decisions of a query that will never run again. If it does run, its last batch may be written
        twice.

        Raises:
            TransactionRefused: The journal does not accept the record.
        """
        if self._decisions.last(query_id) is not None:
            self._writer.undecide(query_id)

    # ---- retention

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Return the offset from which a restart would look for committed messages there; ``None`` = it would not.

        Messages at or after it must not be deleted, or a restart would append them a second time. The offset only
        grows. It is valid once everything that is in the journal now is durable (``when_on_disk``).
        """
        return self._writer.needed_from((topic, partition))

    def when_on_disk(self, callback: OnDurable) -> None:
        """Call back when everything that is in the journal now is on disk, or the journal has failed."""
        self._sync.when_on_disk(callback)

    # ---- start and stop

    def recover_from_journal(self) -> recovery.JournalReport:
        """Read the journal and continue where the broker stopped; see ``recovery`` and ``taking_over``.

        Commits that were interrupted are appended now; they are readable as soon as their partitions are synced.

        Raises:
            JournalDamaged, JournalIncomplete, JournalFailed: The broker must not start.
            JavaJournalDamaged, BranchesNotTakenOver: The broker must not start, because of a Java broker's journal.
            StoreLocked: Another broker uses the folder.
            OSError: A file cannot be read or written.
        """
        try:
            return self._recover()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> recovery.JournalReport:
        if self._stream is not None:
            self._stream.hand_over()
        self._lock_fd = claim_folder(self._files, self._directory)
        replay = recovery.Replay()
        self._journal.load(replay.visit)
        if self._stream is not None:
            self._stream.attach(self._journal, self._sync, self.fence)
        self._last_serial, self.last_message_id = replay.last_serial, replay.last_message_id
        resumption.adopt_memories(replay, self._heuristics, self._writer)
        recovered = replay.recovered()
        committed = resumption.adopt_transactions(recovered, self._open, self._writer)
        resumption.finish_commits(committed, self._store, self._writer, self._journal, self._completion)
        take_over(self._files, self._directory, self._store, self._open, self._writer, self._journal, self._new)
        self._checkpoint.start()
        found = recovery.report(replay, recovered, committed)
        _log.info("transactions recovered", extra={"fields": dataclasses.asdict(found)})
        return found

    def fence(self, reason: str) -> None:
        """Refuse everything that waits, now and from now on: another broker is the leader. ``close`` follows.

        Nothing is acknowledged any more. What became of these transactions is known to the other broker.
        """
        self._completion.stop()
        self._checkpoint.close()
        self._sync.fence(reason)
        for transaction in self._not_ended():
            if transaction.waiting:
                fail(transaction, OutcomeUnknown(transaction.key, reason))

    def close(self) -> None:
        """Stop: prepared transactions stay prepared, open ones are forgotten. Waiting callbacks are not called."""
        for transaction in self._open:
            transaction.disarm()
        self._completion.stop()
        self._checkpoint.close()
        self._sync.close()
        if self._journal.failure is None:
            try:
                self._journal.sync_now()
                self._journal.note_end()
            except (JournalFailed, OSError) as failure:
                _log.error("transaction journal: the last records may be lost: %s", failure)
        self._journal.close()
        if self._lock_fd is not None:
            self._files.close(self._lock_fd)
            self._lock_fd = None

    # ---- finding

    def _find(self, key: TransactionId | None, connection: object) -> Transaction:
        if key is None:
            raise TransactionRefused(NotAnXid(None))
        self._heuristics.refuse_ended(key)
        transaction = self._open.find(key, connection)
        if transaction is None:
            raise TransactionRefused(NotStarted(key))
        return transaction
