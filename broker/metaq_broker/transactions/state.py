"""The states of a transaction as a table: what may happen in which state, and where it leads.

::

    local          OPEN ──commit──▶ COMMITTING ──applied──▶ ENDED
                    └──rollback, expired, connection lost──▶ ENDED

    XA             OPEN ──prepare──▶ PREPARING ──journal durable──▶ PREPARED
                    │                    └────────rollback────┐        │
                    ├──commit in one phase──▶ COMMITTING ◀────┼─commit, decide, operator
                    │                          └──applied──▶ ENDED ◀───┼──────────┐
                    └──rollback, expired──▶ ENDED                      │          │
                                                      ROLLING_BACK ◀───┴─rollback, operator
                                                           └──journal durable─────┘

Rules behind the table:

* OPEN is in memory only (and in spilled journal records that have no effect alone). A crash forgets it: that is a
  rollback, and needs no record.
* PREPARING and ROLLING_BACK wait for one journal record to be durable. Callers get no answer before that.
* COMMITTING begins when the commit record is written and ends when every message is readable. Once the record is
  durable the outcome is final: after a crash, recovery appends what is missing. So a rollback is refused from the
  beginning of COMMITTING, and two callers never get different outcomes.
* A second COMMIT during the first waits for it and gets the same answer, and so does a second ROLLBACK: a driver that
  lost its connection asks again.
* A rollback may follow a PREPARE that is not durable yet: journal records become durable in the order they were
  written.
* A prepared transaction has no timeout and no owner: only its coordinator, a decision or an operator ends it.

Everything that is not in the table is refused. This file has no I/O and no clock.

Source: docs/transactions.md; the XA specification for the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.transactions.outcomes import LocalPrepare, NotPossibleNow, NotPrepared, TransactionRefused


class State(Enum):
    OPEN = auto()
    PREPARING = auto()
    PREPARED = auto()
    COMMITTING = auto()
    ROLLING_BACK = auto()
    ENDED = auto()


class Event(Enum):
    PUT = auto()
    PREPARE = auto()
    PREPARE_EMPTY = auto()
    """PREPARE of a transaction without messages: read-only, it ends here."""
    COMMIT_ONE_PHASE = auto()
    COMMIT_TWO_PHASE = auto()
    ROLLBACK = auto()
    EXPIRE = auto()
    CONNECTION_LOST = auto()
    DECIDE = auto()
    OPERATOR = auto()
    """An operator completes it manually, with either outcome."""
    PREPARE_DURABLE = auto()
    APPLIED = auto()
    ROLLBACK_DURABLE = auto()


class Kind(Enum):
    """Local transactions belong to a connection, XA transactions to the broker."""

    LOCAL = auto()
    XA = auto()


REFUSABLE: Final = frozenset(
    {
        *(Event.PUT, Event.PREPARE, Event.PREPARE_EMPTY, Event.COMMIT_ONE_PHASE, Event.COMMIT_TWO_PHASE),
        *(Event.ROLLBACK, Event.DECIDE, Event.OPERATOR),
    }
)
"""Events that clients request. They are refused in every state that is missing in the table."""

TRANSITIONS: Final[Mapping[Kind, Mapping[State, Mapping[Event, State | Refusal]]]] = {
    Kind.LOCAL: {
        State.OPEN: {
            Event.PUT: State.OPEN,
            Event.PREPARE: LocalPrepare(),
            Event.PREPARE_EMPTY: LocalPrepare(),
            Event.COMMIT_ONE_PHASE: State.COMMITTING,
            Event.COMMIT_TWO_PHASE: State.COMMITTING,
            Event.ROLLBACK: State.ENDED,
            Event.EXPIRE: State.ENDED,
            Event.CONNECTION_LOST: State.ENDED,
        },
        State.COMMITTING: {
            Event.PREPARE: LocalPrepare(),
            Event.PREPARE_EMPTY: LocalPrepare(),
            Event.COMMIT_ONE_PHASE: State.COMMITTING,
            Event.COMMIT_TWO_PHASE: State.COMMITTING,
            Event.EXPIRE: State.COMMITTING,
            Event.CONNECTION_LOST: State.COMMITTING,
            Event.APPLIED: State.ENDED,
        },
    },
    Kind.XA: {
        State.OPEN: {
            Event.PUT: State.OPEN,
            Event.PREPARE: State.PREPARING,
            Event.PREPARE_EMPTY: State.ENDED,
            Event.COMMIT_ONE_PHASE: State.COMMITTING,
            Event.COMMIT_TWO_PHASE: NotPrepared(),
            Event.ROLLBACK: State.ENDED,
            Event.EXPIRE: State.ENDED,
            Event.CONNECTION_LOST: State.OPEN,
        },
        State.PREPARING: {
            Event.COMMIT_TWO_PHASE: NotPrepared(),
            Event.ROLLBACK: State.ROLLING_BACK,
            Event.EXPIRE: State.PREPARING,
            Event.CONNECTION_LOST: State.PREPARING,
            Event.PREPARE_DURABLE: State.PREPARED,
        },
        State.PREPARED: {
            Event.COMMIT_ONE_PHASE: State.COMMITTING,
            Event.COMMIT_TWO_PHASE: State.COMMITTING,
            Event.ROLLBACK: State.ROLLING_BACK,
            Event.EXPIRE: State.PREPARED,
            Event.CONNECTION_LOST: State.PREPARED,
            Event.DECIDE: State.COMMITTING,
            Event.OPERATOR: State.PREPARED,
        },
        State.COMMITTING: {
            Event.COMMIT_ONE_PHASE: State.COMMITTING,
            Event.COMMIT_TWO_PHASE: State.COMMITTING,
            Event.EXPIRE: State.COMMITTING,
            Event.CONNECTION_LOST: State.COMMITTING,
            Event.DECIDE: State.COMMITTING,
            Event.APPLIED: State.ENDED,
        },
        State.ROLLING_BACK: {
            Event.ROLLBACK: State.ROLLING_BACK,
            Event.EXPIRE: State.ROLLING_BACK,
            Event.CONNECTION_LOST: State.ROLLING_BACK,
            Event.PREPARE_DURABLE: State.ROLLING_BACK,
            Event.ROLLBACK_DURABLE: State.ENDED,
        },
    },
}


def next_state(kind: Kind, state: State, event: Event) -> State:
    """Return the state that ``event`` leads to. The caller assigns it once its record is written.

    Raises:
        TransactionRefused: The event is not possible now.
        AssertionError: A bug: an internal event in a state in which it cannot happen.
    """
    target = TRANSITIONS[kind].get(state, {}).get(event)
    if isinstance(target, State):
        return target
    if target is None and event not in REFUSABLE:
        raise AssertionError(f"{event.name} cannot happen to a {kind.name} transaction that is {state.name}")
    raise TransactionRefused(target or NotPossibleNow(event.name))
