"""Which half messages are open, and from where a restart has to read."""

from __future__ import annotations

import pytest
from metaq_broker.rocketmq.half_messages import ledger as ledger_module
from metaq_broker.rocketmq.half_messages.ledger import BLOCK, Half, Ledger, RestartOrdinals


@pytest.fixture(autouse=True)
def _blocks_of_one(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "blocks" not in request.node.name:
        monkeypatch.setattr(ledger_module, "BLOCK", 1)


def half(ordinal: int, stored_ms: int = 0, patience_ms: int | None = None) -> Half:
    return Half(ordinal, ordinal + 100, "producers", stored_ms, patience_ms)


def ledger(*ordinals: int, first: int = 0) -> Ledger:
    made = Ledger(RestartOrdinals(first, 0))
    for ordinal in ordinals:
        made.add(half(ordinal))
    return made


def test_open_until_a_note_says_that_it_is_ended() -> None:
    open_ones = ledger(0, 1, 2)
    open_ones.noted(1, 0, ended=True)
    assert [each.ordinal for each in open_ones] == [0, 2]
    assert open_ones.is_ended(1)
    assert not open_ones.is_ended(0)
    assert open_ones.get(1) is None


def test_positions_are_below_everything_that_is_open() -> None:
    open_ones = ledger(0, 1, 2)
    assert open_ones.positions() == (0, 0)
    open_ones.noted(1, 0, ended=True)  # must be read again: message 0 is open
    open_ones.noted(2, 1, ended=True)
    assert open_ones.positions() == (0, 0)
    open_ones.noted(0, 2, ended=True)
    assert open_ones.positions() == (3, 3)
    assert open_ones.is_ended(0)


def test_the_first_note_about_an_open_one_is_read_again() -> None:
    open_ones = ledger(0, 1)
    open_ones.noted(0, 0, ended=True)
    open_ones.noted(1, 1, ended=False)
    open_ones.noted(1, 2, ended=False)
    assert open_ones.positions() == (1, 1)


def test_the_first_notes_are_forgotten_with_their_messages() -> None:
    open_ones = ledger(0, 1, 2, 3)
    for ordinal, note in ((1, 0), (3, 1), (0, 2)):
        open_ones.noted(ordinal, note, ended=True)
        assert open_ones.positions().notes == (0 if note < 2 else 1)
    assert open_ones.positions() == (2, 1)
    open_ones.noted(2, 3, ended=True)
    assert open_ones.positions() == (4, 4)
    open_ones.add(half(4))
    open_ones.add(half(5))
    open_ones.noted(5, 4, ended=True)
    assert open_ones.positions() == (4, 4)


def test_ended_ones_are_remembered_in_blocks() -> None:
    """One that stays open for days would else keep millions of others in memory."""
    open_ones = ledger(*range(3 * BLOCK))
    for ordinal in range(3 * BLOCK):
        if ordinal not in (5, BLOCK + 5):
            open_ones.noted(ordinal, ordinal, ended=True)
    assert open_ones.positions() == (5, 0)
    assert open_ones.is_ended(BLOCK)
    assert not open_ones.is_ended(BLOCK + 5)
    assert not open_ones.is_ended(3 * BLOCK)
    open_ones.noted(5, 3 * BLOCK, ended=True)
    assert open_ones.positions() == (BLOCK + 5, BLOCK), "the first notes about those of the block"
    open_ones.noted(BLOCK + 5, 3 * BLOCK + 1, ended=True)
    assert open_ones.positions() == (3 * BLOCK, 3 * BLOCK + 2)


def test_notes_that_are_read_before_their_messages() -> None:
    open_ones = Ledger(RestartOrdinals(5, 7))
    open_ones.noted(6, 7, ended=False)
    open_ones.noted(6, 8, ended=False)
    open_ones.noted(5, 9, ended=True)
    open_ones.noted(3, 10, ended=True)  # below the position: ended long ago
    for ordinal in (5, 6, 7):
        open_ones.add(half(ordinal))
    assert [(each.ordinal, each.asked) for each in open_ones] == [(6, 2), (7, 0)]
    assert open_ones.positions() == (6, 7)


def test_who_is_to_be_asked() -> None:
    open_ones = Ledger(RestartOrdinals(0, 0))
    for each in (half(0, 1000), half(1, 2000), half(2, 1000, 60_000), half(3, 1000)):
        open_ones.add(each)
    deciding = open_ones.get(3)
    assert deciding is not None
    deciding.deciding = True
    assert [each.ordinal for each in open_ones.to_ask(7500, 6000)] == [0]
    assert [each.ordinal for each in open_ones.to_ask(61_000, 6000)] == [0, 1, 2]


def test_patience_with_messages_that_are_ahead_of_the_clock_begins_now() -> None:
    open_ones = ledger()
    open_ones.add(half(0, 3_600_000))
    assert open_ones.to_ask(1000, 6000) == []
    assert open_ones.to_ask(6999, 6000) == []
    assert [each.ordinal for each in open_ones.to_ask(7000, 6000)] == [0]


def test_a_message_is_added_once() -> None:
    open_ones = ledger(0, 1)
    open_ones.add(half(0))
    open_ones.noted(0, 0, ended=True)
    open_ones.add(half(0))
    assert [each.ordinal for each in open_ones] == [1]
