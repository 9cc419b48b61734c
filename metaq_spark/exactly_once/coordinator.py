"""What the driver of an exactly-once write does when all tasks have prepared their branches.

::

    decide      one durable record on one broker: this batch of this query is these branches. The answer is what
                counts: those of the first decision, if the batch was decided before
    commit      every branch that the answer lists, on its broker, in the order of the list. One that its broker does
                not know any more has been committed before: nothing else ends a decided branch
    clean up    roll back what lies prepared on any broker, belongs to this batch or an earlier one, and is not listed

Each step may be repeated, after any failure, by anybody. A branch of a batch that has not been decided is never rolled
back: its driver may only be slow. So ``finish`` starts again from the first step until all of them got through.

The broker that decides is the one that has decided last about this query, so that a broker that is added to the option
``brokers`` does not open the past again; where none has, it is the one with the lowest broker id.

Source: docs/transactions.md, "Exactly once"; docs/adr/0007.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

from metaq.client.retry import persist
from metaq.client.session import OUTSTANDING_MAX
from metaq.client.transactions import Posted, Transactions
from metaq.errors import MetaqError, TransactionError
from metaq.model import Xid
from metaq.wire.text.commands import TransactionType
from metaq_spark.errors import BatchSuperseded, ExactlyOnceError
from metaq_spark.exactly_once.identity import BatchName, by_broker, worthless
from metaq_spark.exactly_once.participants import Participants
from metaq_spark.sessions import PatientSessions

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

UNKNOWN: Final = -4
COMMITTED_BY_HAND: Final = 7
ENDED_BY_HAND: Final = (6, 8)
TOO_LATE: Final = 409
WINDOW: Final = OUTSTANDING_MAX // 2
"""Steps under way at once on a broker."""


class Coordinator:
    """Finishes batches with the brokers that take part."""

    def __init__(self, participants: Participants, sessions: PatientSessions) -> None:
        self._participants, self._sessions = participants, sessions

    def finish(self, batch: BatchName, branches: Sequence[Xid]) -> tuple[Xid, ...]:
        """Make ``batch`` readable, as ``branches`` or as what was decided for it before; what it consists of.

        Raises:
            BatchSuperseded: A later batch of the query has been decided; nothing was done.
            ExactlyOnceError: A decided branch is on a broker that is not named, or was ended by hand.
            MetaqError: A broker refused or could not be reached, even after retries. Do it again.
        """

        def steps(conversation: Conversation) -> tuple[Xid, ...]:
            listed = conversation.decide(batch, branches)
            conversation.commit(listed)
            conversation.clean_up(batch, listed)
            return listed

        try:
            return self._persist(steps)
        except BatchSuperseded:
            self._roll_back(branches)
            raise

    def _roll_back(self, branches: Sequence[Xid]) -> None:
        """Roll back branches of a batch that came too late: what was decided about it has been committed long since."""
        try:
            self._persist(lambda conversation: conversation.roll_back(by_broker(branches)))
        except MetaqError as error:
            _log.warning("branches of a batch that was refused stay: %s", error)

    def end(self, batch: BatchName) -> None:
        """Let the brokers forget a query whose only batch is finished, and everything that its tasks leave behind.

        A failure is no reason to call the write failed: it is logged, and what stays at a broker takes little room.
        """

        def steps(conversation: Conversation) -> None:
            conversation.end_query(batch.query)
            conversation.clean_up(batch, ())

        try:
            self._persist(steps)
        except MetaqError as error:
            _log.warning("%s is finished, but its brokers could not be told to forget it: %s", batch, error)

    def last_decided(self, query: str) -> int | None:
        """The newest batch of a query that any of the brokers has decided.

        Raises:
            MetaqError: A broker could not be asked, even after retries.
        """

        def ask(conversation: Conversation) -> int | None:
            decided = conversation.last_decided(query).values()
            return max((batch_id for batch_id in decided if batch_id is not None), default=None)

        return self._persist(ask)

    def _persist(self, steps: Callable[[Conversation], _T]) -> _T:
        def converse() -> _T:
            with Conversation(self._participants, self._sessions) as conversation:
                return steps(conversation)

        return persist(converse, self._sessions.policy, self._sessions.clock)


class Conversation:
    """The steps, over one connection to each broker. A context manager; unusable after an error."""

    def __init__(self, participants: Participants, sessions: PatientSessions) -> None:
        self._participants, self._sessions = participants, sessions
        self._leases = ExitStack()
        self._brokers: dict[int, Transactions] = {}

    def __enter__(self) -> Conversation:
        with ExitStack() as leases:
            for broker_id, address in sorted(self._participants.items()):
                session = leases.enter_context(self._sessions.lease(address))
                self._brokers[broker_id] = Transactions(session)
            self._leases = leases.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._leases.__exit__(*error)  # type: ignore[arg-type]

    def decide(self, batch: BatchName, branches: Sequence[Xid]) -> tuple[Xid, ...]:
        """Ask for the decision on ``batch``; the branches that it lists."""
        try:
            return self._decider(batch.query).decide(batch.query, batch.batch_id, branches)
        except TransactionError as error:
            if error.code == TOO_LATE:
                raise BatchSuperseded(str(batch), error.text) from error
            raise

    def _decider(self, query: str) -> Transactions:
        if len(self._brokers) == 1:
            return next(iter(self._brokers.values()))
        return self._brokers[decider(self.last_decided(query))]

    def last_decided(self, query: str) -> dict[int, int | None]:
        """The newest batch of a query that each broker has decided."""
        asked = self._ask_all("DECIDED", query)
        return {number: self._brokers[number].read_batch(text) for number, text in asked.items()}

    def commit(self, listed: Sequence[Xid]) -> None:
        """Commit decided branches; returns when their messages can be read."""
        places = self._places(listed)
        for broker_id, posted, error in self._all("COMMIT_TWO_PHASE", places):
            if error is not None and error.xa_code not in (UNKNOWN, COMMITTED_BY_HAND):
                raise _unfinished(broker_id, posted, error)

    def clean_up(self, decided: BatchName, listed: Sequence[Xid]) -> None:
        """Roll back what the decision has made worthless, on every broker."""
        counting = frozenset(listed)
        left = {
            number: worthless(self._brokers[number].read_keys(text), decided, counting)
            for number, text in self._ask_all("RECOVER", decided.query).items()
        }
        self.roll_back(left)

    def roll_back(self, places: dict[int, list[Xid]]) -> None:
        """Roll back branches that no decision lists, by broker id."""
        for _, _, error in self._all("ROLLBACK", places):
            if error is not None and error.xa_code != UNKNOWN:  # somebody else was quicker
                _log.warning("a branch that is not needed stays: %s", error)

    def end_query(self, query: str) -> None:
        """Let every broker forget the query; see ``Transactions.end_query``."""
        self._ask_all("FORGET", query)

    def _ask_all(self, type_: TransactionType, query: str) -> dict[int, str]:
        asked = {number: broker.post(type_, None, unique=query) for number, broker in self._brokers.items()}
        return {number: self._brokers[number].settle(posted) for number, posted in asked.items()}

    def _places(self, listed: Iterable[Xid]) -> dict[int, list[Xid]]:
        try:
            places = by_broker(listed)
        except ValueError as error:
            raise ExactlyOnceError(f"the decision on this batch was not made by this sink: {error}") from None
        away = sorted(set(places) - set(self._brokers))
        if away:
            raise ExactlyOnceError(
                f"the batch has messages on broker {away[0]}, which the option brokers does not name; add its address "
                "until the batch is finished"
            )
        return places

    def _all(
        self, type_: TransactionType, places: dict[int, list[Xid]]
    ) -> Iterator[tuple[int, Posted, TransactionError | None]]:
        """Do a step with every key on its broker, many at once and in order; yield what became of each."""
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
    """The broker id that decides, given the newest batch that each broker has decided about the query."""
    newest = max((batch_id for batch_id in decided.values() if batch_id is not None), default=None)
    return min(number for number, batch_id in decided.items() if batch_id == newest)


def _refusal(broker: Transactions, posted: Posted) -> TransactionError | None:
    try:
        broker.settle(posted)
    except TransactionError as refused:
        return refused
    return None


def _unfinished(broker_id: int, posted: Posted, error: TransactionError) -> MetaqError:
    if error.xa_code not in ENDED_BY_HAND:
        return error
    return ExactlyOnceError(
        f"branch {posted.command.key} belongs to the batch, but was ended by hand on broker {broker_id}, so its "
        f"messages are missing ({error.text}). To go on without them: metaq-broker ctl transaction forget KEY"
    )
