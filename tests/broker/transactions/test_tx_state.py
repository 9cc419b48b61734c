"""The transition table, cell by cell: what every event does in every state."""

from __future__ import annotations

import pytest
from examples import in_one_test
from metaq_broker.transactions.outcomes import TransactionRefused
from metaq_broker.transactions.state import TRANSITIONS, Event, Kind, State, next_state

SILENT = (Event.EXPIRE, Event.CONNECTION_LOST)

# Columns in the order of EVENTS; "-" = refused, "!" = cannot happen, else the first letters of the next state.
EVENTS = (
    Event.PUT,
    Event.PREPARE,
    Event.PREPARE_EMPTY,
    Event.COMMIT_ONE_PHASE,
    Event.COMMIT_TWO_PHASE,
    Event.ROLLBACK,
    Event.EXPIRE,
    Event.CONNECTION_LOST,
    Event.DECIDE,
    Event.OPERATOR,
    Event.PREPARE_DURABLE,
    Event.APPLIED,
    Event.ROLLBACK_DURABLE,
)
LETTERS = {
    "O": State.OPEN,
    "pg": State.PREPARING,
    "pd": State.PREPARED,
    "C": State.COMMITTING,
    "R": State.ROLLING_BACK,
    "E": State.ENDED,
}
#                                    put prep empty one two roll exp lost dec op | p-d app r-d
TABLE = {
    (Kind.LOCAL, State.OPEN):         "O   -    -    C   C   E    E   E    -   -    !   !   !",
    (Kind.LOCAL, State.COMMITTING):   "-   -    -    C   C   -    C   C    -   -    !   E   !",
    (Kind.XA, State.OPEN):            "O   pg   E    C   -   E    E   O    -   -    !   !   !",
    (Kind.XA, State.PREPARING):       "-   -    -    -   -   R    pg  pg   -   -    pd  !   !",
    (Kind.XA, State.PREPARED):        "-   -    -    C   C   R    pd  pd   C   pd   !   !   !",
    (Kind.XA, State.COMMITTING):      "-   -    -    C   C   -    C   C    C   -    !   E   !",
    (Kind.XA, State.ROLLING_BACK):    "-   -    -    -   -   R    R   R    -   -    R   !   E",
}  # fmt: skip
CELLS = [
    (kind, state, event, cell)
    for (kind, state), row in TABLE.items()
    for event, cell in zip(EVENTS, row.split(), strict=True)
]


@in_one_test("kind, state, event, cell", CELLS)
def test_cell(kind: Kind, state: State, event: Event, cell: str) -> None:
    if cell == "-":
        with pytest.raises(TransactionRefused):
            next_state(kind, state, event)
    elif cell == "!":
        with pytest.raises(AssertionError):
            next_state(kind, state, event)
    else:
        assert next_state(kind, state, event) is LETTERS[cell]


def test_the_table_here_has_every_living_state() -> None:
    assert {(kind, state) for kind, rows in TRANSITIONS.items() for state in rows} == set(TABLE)
    assert set(EVENTS) == set(Event)


def test_what_happens_by_itself_is_never_refused_to_anybody() -> None:
    # A timer and a lost connection have no reply that could carry a refusal.
    for kind, rows in TRANSITIONS.items():
        for state in rows:
            for event in SILENT:
                assert isinstance(next_state(kind, state, event), State)
