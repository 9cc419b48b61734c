"""Entries in memory, and those that compiled code makes of a block: the very ones that the plain code makes."""

from __future__ import annotations

import random

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from metaq_broker.log.engine.block_kernel import compiled
from metaq_broker.log.engine.blocks import number_plainly
from metaq_broker.log.segments.index import RECORD_BYTES, Entries, IndexBuilder, IndexEntry, decode_entry
from metaq_broker.log.segments.marks import Marks

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import EPOCH_MS, IdRange

SOME = [IndexEntry(100 * number, 3 * number, EPOCH_MS + number, number) for number in range(5)]


def test_entries_are_a_sequence_of_what_went_in() -> None:
    entries = Entries(SOME[:4])
    entries.append(SOME[4])
    assert list(entries) == SOME
    assert [entries[number] for number in range(-5, 5)] == SOME + SOME
    assert [decode_entry(entries.records[at : at + RECORD_BYTES]) for at in range(0, 160, RECORD_BYTES)] == SOME
    for number in (5, -6):
        with pytest.raises(IndexError, match="of 5"):
            entries[number]


def test_entries_can_be_compared_dropped_and_counted_anew() -> None:
    entries = Entries(SOME)
    assert entries == Entries(SOME) != Entries(SOME[:4])
    assert entries.begin_with(Entries(SOME[:2]))
    assert not entries.begin_with(Entries(SOME[1:2]))
    entries.drop(2)
    entries.shift(7)
    assert list(entries) == [entry._replace(ordinal=entry.ordinal + 7) for entry in SOME[2:]]


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    blocks=st.integers(1, 4),
    frames=st.integers(1, 40),
    interval_bytes=st.integers(1, 3000),
    mark_bytes=st.integers(1, 2000),
    time_known=st.booleans(),
)
def test_compiled_code_makes_the_entries_that_the_plain_code_makes(
    seed: int, blocks: int, frames: int, interval_bytes: int, mark_bytes: int, time_known: bool
) -> None:
    chance, number = random.Random(seed), compiled()
    plain, quick = (IndexBuilder.at_start(1000, 50, EPOCH_MS + 20, interval_bytes) for _ in range(2))
    for _ in range(blocks):
        block = bytearray().join(encode_frame(-1, 0, chance.randbytes(chance.randint(0, 120))) for _ in range(frames))
        ids = IdRange(EPOCH_MS + chance.randint(0, 60), chance.randint(0, 4095), frames, 7)
        marks = number(block, frames, ids, 1000, mark_bytes)
        assert marks is not None
        assert marks.loop is not None
        assert marks == number_plainly(block, frames, ids, 1000, mark_bytes)[1]
        if not time_known:
            block[8] |= 0x80  # the first id holds no time
        now_ms = EPOCH_MS + chance.randint(0, 60)
        plain.add_block(block, frames, Marks(marks.pairs), lambda now_ms=now_ms: now_ms)
        quick.add_block(bytes(block), frames, marks, lambda now_ms=now_ms: now_ms)
        assert list(quick.entries) == list(plain.entries)
        names = ("offset", "ordinal", "time_ms", "_marked", "_span")
        assert [getattr(quick, name) for name in names] == [getattr(plain, name) for name in names]
    assert quick.entries == plain.entries


def test_marks_are_thinned_if_there_are_too_many() -> None:
    marks = Marks.of([(0, 0), (100, 1), (250, 2), (300, 3), (470, 4)])
    assert list(marks.thinned(200)) == [(0, 0), (250, 2), (470, 4)]
    assert list(marks.thinned(118)) == [(0, 0), (250, 2), (470, 4)]
    assert marks.thinned(117) is marks
    other = marks.copy()
    assert other.drop_last() == (470, 4)
    assert (len(marks), len(other)) == (5, 4)
