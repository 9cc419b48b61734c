"""The driver's part of an exactly-once write, when all tasks have prepared their branches.

::

    look back   do the brokers know what was written before (``history``)? A gap is refused
    decide      one durable record on one broker: this batch of this query is these branches and contains these rows.
                The answer is what counts: the first decision, if the batch was decided before
    share       the same record on every other broker that takes part. One that has branches of the batch commits them,
                and from then on it answers for them: committed, however often it is asked
    commit      every branch that the answer lists, on its broker, in the order of the list; answered when its messages
                can be read. A branch that its broker does not know is missing, and the write fails
    clean up    roll back what lies prepared on any broker, belongs to this batch or an earlier one, and is not listed

Sharing, the commits and the question what lies prepared are one round trip: a broker carries them out in this order.

A repeated batch with other rows than in the decision fails after these steps: a checkpoint was restored or copied, and
these rows are not the ones in the topics.

Any client may repeat any step after any failure, so ``finish`` restarts from the first step until all steps succeed.
Branches of an undecided batch are rolled back only by their own driver, if the batch is refused to it: for others, that
driver may only be slow.

The deciding broker is the one that has decided last for this query, so that a broker added to the option ``brokers``
cannot decide old batches again; without an earlier decision, it is the one with the lowest broker id.

Source: docs/transactions.md, "Exactly once"; docs/adr/0007.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, TypeVar

from metaq.backends.metaq.session import OUTSTANDING_MAX
from metaq.backends.metaq.transactions import DecidedBatch, LastDecision, Posted, TransactionSteps
from metaq.errors import MetaqError, TransactionError
from metaq.model import Xid
from metaq.net.retry import persist
from metaq.protocols.text.commands import TransactionCommand, TransactionType
from metaq.statuses import CONFLICT
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.contents import Contents
from metaq_spark.backends.metaq.exactly_once.history import NO_GAPS, GapRule, Known, newest_batch
from metaq_spark.backends.metaq.exactly_once.identity import BatchName, by_broker, own_positions, superseded
from metaq_spark.backends.metaq.exactly_once.participants import Participants
from metaq_spark.errors import (
    BatchConflict,
    BatchesMissing,
    BatchSuperseded,
    ExactlyOnceError,
    ParticipantMissing,
)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

UNKNOWN: Final = -4
COMMITTED_BY_HAND: Final = 7
ENDED_BY_HAND: Final = (6, 8)
HEURISTIC_CODES: Final = (COMMITTED_BY_HAND, *ENDED_BY_HAND)
EMPTY_CONTENTS: Final = "{}"
"""Contents without a description; the empty text means a decision of an older version."""

KEYS_SHOWN_MAX: Final = 5
WINDOW: Final = OUTSTANDING_MAX // 2
"""Steps in flight on a broker."""


class Coordinator:
    """Finishes batches with the brokers that take part."""

    def __init__(
        self,
        participants: Participants,
        sessions: RetryingSessions,
        *,
        accept_repeated: bool = False,
        gaps: GapRule = NO_GAPS,
    ) -> None:
        """``accept_repeated``: a repeated batch may contain other rows; the rows of the first decision are kept.

        ``gaps``: which batches may be unknown to the brokers.
        """
        self._participants, self._sessions, self._accept_repeated = participants, sessions, accept_repeated
        self._gaps = gaps

    def finish(self, batch: BatchName, branches: Sequence[Xid], contents: Contents | None = None) -> DecidedBatch:
        """Make ``batch`` readable, as ``branches`` or as decided before; return its decision.

        ``contents``: the contents of ``branches``; ``None`` to omit a description.

        Raises:
            BatchSuperseded: A later batch of the query was decided; ``branches`` were rolled back, if possible.
            BatchesMissing: A broker does not know batches that were written before. Nothing was decided; ``branches``
                were rolled back, unless the batch was decided before, possibly as these.
            ParticipantMissing: A broker that may have decided the batch, or has branches of it, is not found.
            BatchConflict: It was decided before, with other rows, which are readable; ``branches`` were rolled back.
            ExactlyOnceError: A decided branch is on a broker that is not named, was completed manually, or is missing.
            MetaqError: A broker refused or could not be reached, even after retries. Call again.
        """

        def steps(conversation: Conversation) -> DecidedBatch:
            known = conversation.known(batch, branches)
            if missing := self._gaps.missing_brokers(batch, known, "" if contents is None else contents.run):
                raise ParticipantMissing(missing[0], self._sessions.found_by, decided=False)
            try:
                self._gaps.require_known(batch, known, self._participants)
            except BatchesMissing:
                if newest_batch(known) != batch.batch_id:  # otherwise they may be the decided ones
                    conversation.roll_back(by_broker(branches))
                raise
            decided = conversation.decide(batch, branches, contents, known)
            prepared = conversation.commit(batch, decided)
            conversation.clean_up(batch, decided.branches, prepared)
            return decided

        try:
            decided = self._persist(steps)
        except BatchSuperseded:
            self._roll_back(branches)
            raise
        is_own = bool(branches) and decided.branches == tuple(branches)  # no other attempt has their keys
        if contents is not None and not is_own:
            _check_repetition(batch, contents, decided.contents, accepted=self._accept_repeated)
        return decided

    def _roll_back(self, branches: Sequence[Xid]) -> None:
        """Roll back branches of a superseded batch, whose decision was committed long ago."""
        try:
            self._persist(lambda conversation: conversation.roll_back(by_broker(branches)))
        except MetaqError as error:
            _log.warning("branches of a batch that was refused stay: %s", error)

    def end(self, batch: BatchName) -> None:
        """Have the brokers forget a query whose only batch is finished, and all remains of its tasks.

        A failure is only logged: the write has succeeded, and the remains take little space.
        """

        def steps(conversation: Conversation) -> None:
            conversation.end_query(batch.query)
            conversation.clean_up(batch, (), conversation.post_all("RECOVER", batch.query))

        try:
            self._persist(steps)
        except MetaqError as error:
            _log.warning("%s is finished, but its brokers did not delete the decision: %s", batch, error)

    def last_decided(self, query: str) -> int | None:
        """Return the newest batch of a query that any of the brokers has decided.

        Raises:
            MetaqError: A broker could not be asked, even after retries.
        """

        return self._persist(lambda conversation: newest_batch(conversation.last_decided(query)))

    def _persist(self, steps: Callable[[Conversation], _T]) -> _T:
        def converse() -> _T:
            with ExitStack() as leases:
                return steps(Conversation(self._participants, self._sessions, leases))

        return persist(converse, self._sessions.policy, self._sessions.clock)


class Conversation:
    """The steps, over one connection to each broker, until ``leases`` ends; unusable after an error.

    Raises:
        ConnectionFailed, DeadlineExceeded: A broker is away. Connecting is not retried: all steps are.
    """

    def __init__(self, participants: Participants, sessions: RetryingSessions, leases: ExitStack) -> None:
        self._sessions = sessions
        self._brokers: dict[int, TransactionSteps] = {}
        self._decider: int | None = None
        for broker_id, address in sorted(participants.items()):
            session = leases.enter_context(sessions.lease(address, broker_id, to_write=True, retried=False))
            self._brokers[broker_id] = TransactionSteps(session)

    def known(self, batch: BatchName, branches: Sequence[Xid]) -> Known:
        """Return the newest decision of the query that each broker knows.

        With several brokers, every branch must be prepared before the first decision about ``batch``.

        Raises:
            ExactlyOnceError: A branch is not prepared, or its broker does not take part. Nothing was decided.
        """
        query, places = batch.query, self._places(branches)
        several = len(self._brokers) > 1
        asked = {
            number: (
                broker.post("DECIDED_CONTENTS", None, unique=query),
                broker.post("RECOVER", None, unique=query) if several else None,
            )
            for number, broker in self._brokers.items()
        }
        known: dict[int, LastDecision | None] = {}
        prepared: dict[int, frozenset[Xid]] = {}
        for number, (newest, keys) in asked.items():
            broker = self._brokers[number]
            known[number] = broker.read_last(broker.settle(newest))
            prepared[number] = frozenset(broker.read_keys(broker.settle(keys))) if keys is not None else frozenset()
        if several and all(newest is None or newest.batch_id < batch.batch_id for newest in known.values()):
            _require_prepared(batch, places, prepared)
        return known

    def decide(
        self, batch: BatchName, branches: Sequence[Xid], contents: Contents | None, known: Known
    ) -> DecidedBatch:
        """Request the decision on ``batch``; return the first one made. ``known`` is the result of ``known``."""
        lasts = {number: None if one is None else one.batch_id for number, one in known.items()}
        number = self._decider = decider(lasts)
        said = EMPTY_CONTENTS if contents is None else replace(contents, brokers=lasts).to_json()
        own = own_positions(branches, number)
        try:
            return self._brokers[number].decide_contents(batch.query, batch.batch_id, branches, own, said)
        except TransactionError as error:
            if error.code == CONFLICT:
                raise BatchSuperseded(str(batch), error.text) from error
            if error.xa_code == UNKNOWN:
                raise _nothing_decided(batch, number, error.text) from error
            raise

    def last_decided(self, query: str) -> Known:
        """Return the newest decision of a query that each broker knows."""
        asked = self._settle_all(self.post_all("DECIDED_CONTENTS", query))
        return {number: self._brokers[number].read_last(text) for number, text in asked.items()}

    def commit(self, batch: BatchName, decided: DecidedBatch) -> dict[int, Posted]:
        """Commit decided branches on all brokers; returns when their messages can be read.

        RECOVER is sent in the same round trip, after the decision, and returned for ``clean_up``.
        """
        places = self._places(decided.branches)
        shared = self._share(batch, decided)
        prepared = self.post_all("RECOVER", batch.query)
        missing: dict[int, list[Xid]] = {}
        for broker_id, posted, error in self._all("COMMIT_TWO_PHASE", places):
            if error is None or error.xa_code == COMMITTED_BY_HAND:
                continue
            if error.xa_code != UNKNOWN:
                raise _unfinished(broker_id, posted, error)
            missing.setdefault(broker_id, []).append(_key(posted))
        refused = [error for number, step in shared.items() if (error := _refusal(self._brokers[number], step))]
        if missing and not decided.contents:
            _log.warning("%s was decided by an older version, so whether all of it was stored is unknown", batch)
        elif missing:
            raise _missing(batch, missing, decided.contents)
        elif refused:
            raise refused[0]
        return prepared

    def _share(self, batch: BatchName, decided: DecidedBatch) -> dict[int, Posted]:
        """Send the decision to all other brokers. One that has lost branches of it refuses it.

        The branches of an older version's decision may have been committed and forgotten.
        """
        if not decided.contents:
            return {}
        name, listed, said = (batch.query, batch.batch_id), decided.branches, decided.contents
        return {
            number: broker.post_decision(*name, listed, own_positions(listed, number), said)
            for number, broker in self._brokers.items()
            if number != self._decider
        }

    def clean_up(self, decided: BatchName, listed: Sequence[Xid], prepared: Mapping[int, Posted]) -> None:
        """Roll back the branches that RECOVER lists and the decision has superseded, on every broker."""
        counting = frozenset(listed)
        left = {
            number: superseded(self._brokers[number].read_keys(text), decided, counting)
            for number, text in self._settle_all(prepared).items()
        }
        if any(left.values()):
            self.roll_back(left)

    def roll_back(self, places: dict[int, list[Xid]]) -> None:
        """Roll back branches that no decision lists, by broker id."""
        ended: dict[int, list[Xid]] = {}
        for broker_id, posted, error in self._all("ROLLBACK", places):
            if error is not None and error.xa_code in HEURISTIC_CODES:
                _log.warning("a branch that is not needed was ended by an operator: %s", error)
                ended.setdefault(broker_id, []).append(_key(posted))
            elif error is not None and error.xa_code != UNKNOWN:  # another driver was faster
                _log.warning("a branch that is not needed stays: %s", error)
        deque(self._all("FORGET", ended), maxlen=0)

    def end_query(self, query: str) -> None:
        """Have every broker forget the query; see ``TransactionSteps.end_query``."""
        self._settle_all(self.post_all("FORGET", query))

    def post_all(self, type_: TransactionType, query: str) -> dict[int, Posted]:
        """Send a step about a query to every broker, without waiting."""
        return {number: broker.post(type_, None, unique=query) for number, broker in self._brokers.items()}

    def _settle_all(self, posted: Mapping[int, Posted]) -> dict[int, str]:
        return {number: self._brokers[number].settle(step) for number, step in posted.items()}

    def _places(self, listed: Iterable[Xid]) -> dict[int, list[Xid]]:
        try:
            places = by_broker(listed)
        except ValueError as error:
            raise ExactlyOnceError(f"the decision on this batch was not made by this sink: {error}") from None
        away = sorted(set(places) - set(self._brokers))
        if away:
            raise ParticipantMissing(away[0], self._sessions.found_by)
        return places

    def _all(
        self, type_: TransactionType, places: dict[int, list[Xid]]
    ) -> Iterator[tuple[int, Posted, TransactionError | None]]:
        """Run a step with every key on its broker, pipelined and in order; yield the outcome of each."""
        longest = max(map(len, places.values()), default=0)
        for start in range(0, longest, WINDOW):
            posted = [
                (broker_id, self._brokers[broker_id].post(type_, key))
                for broker_id, keys in places.items()
                for key in keys[start : start + WINDOW]
            ]
            for broker_id, step in posted:
                yield broker_id, step, _refusal(self._brokers[broker_id], step)


def decider(decided: Mapping[int, int | None]) -> int:
    """Return the broker id that decides, given the newest batch of the query that each broker has decided."""
    newest = max((batch_id for batch_id in decided.values() if batch_id is not None), default=None)
    return min(number for number, batch_id in decided.items() if batch_id == newest)


def _check_repetition(batch: BatchName, now: Contents, decided: str, accepted: bool) -> None:
    try:
        before = Contents.from_json(decided)
    except ValueError as error:
        _log.warning("%s was written before; whether with the same rows cannot be compared: %s", batch, error)
        return
    if now.same_messages(before):
        return
    same_topics = not before.topics or set(now.topics) <= set(before.topics)
    conflict = BatchConflict(str(batch), str(before), before.run, str(now), same_topics)
    if not accepted:
        raise conflict
    _log.warning("%s", conflict)


def _refusal(broker: TransactionSteps, posted: Posted) -> TransactionError | None:
    try:
        broker.settle(posted)
    except TransactionError as refused:
        return refused
    return None


def _unfinished(broker_id: int, posted: Posted, error: TransactionError) -> MetaqError:
    if error.xa_code not in ENDED_BY_HAND:
        return _CommitUnderWay(*error.args) if error.away else error
    return ExactlyOnceError(
        f"branch {_key(posted)} belongs to the batch, but was completed manually on broker {broker_id}, so its "
        f"messages are missing ({error.text}). To continue without them, run there: metaq-broker ctl transaction "
        "accept KEY"
    )


class _CommitUnderWay(TransactionError):
    """A broker whose disk is full refused a COMMIT, or cannot store the messages yet. COMMIT may be repeated."""

    retryable = True


def _key(posted: Posted) -> Xid:
    assert isinstance(posted.command, TransactionCommand)
    assert isinstance(posted.command.key, Xid)
    return posted.command.key


def _require_prepared(batch: BatchName, places: dict[int, list[Xid]], prepared: Mapping[int, Collection[Xid]]) -> None:
    for number, keys in places.items():
        gone = [str(key) for key in keys if key not in prepared[number]]
        if gone:
            raise _nothing_decided(batch, number, _listed(gone))


def _nothing_decided(batch: BatchName, broker_id: int, what: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"broker {broker_id} does not have all branches of {batch} that its tasks have prepared ({what}): another "
        "client has rolled them back, or the broker has lost its transaction journal. Nothing of the batch was "
        "written. Write it again; a query does so when it is started"
    )


def _missing(batch: BatchName, missing: Mapping[int, list[Xid]], contents: str) -> ExactlyOnceError:
    broker_id, keys = min(missing.items())
    try:
        rows = Contents.from_json(contents).on_broker(broker_id)
    except ValueError:
        rows = ""
    return ExactlyOnceError(
        f"{batch} was decided, but broker {broker_id} does not know {len(keys)} of its branches "
        f"({_listed(list(map(str, keys)))}): another client has rolled them back, or the broker has lost its "
        f"transaction journal. Rows are missing, or may be, among {rows or 'the rows of its partitions'}. Compare the "
        "partitions with the input and add what is missing. Then run on that broker, for each branch: metaq-broker ctl "
        "transaction accept KEY; after that the batch counts as written"
    )


def _listed(keys: Sequence[str]) -> str:
    more = len(keys) - KEYS_SHOWN_MAX
    return ", ".join(keys[:KEYS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
