"""Entries in memory, and where those of a block stand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from metaq_broker.log.segments.index import RECORD_BYTES, Entries, IndexBuilder, IndexEntry, decode_entry

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT

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


@pytest.mark.parametrize("ids_ascend", [True, False])
def test_entries_of_a_block_stand_where_they_are_due(ids_ascend: bool) -> None:
    builder = IndexBuilder.at_start(0, 0, EPOCH_MS, 100)
    frames = [encode_frame(EPOCH_MS + number << TIME_SHIFT, 0, bytes(30)) for number in range(4000)]
    builder.add_block(FrameBlock.of(frames[:1]), lambda: 0)
    builder.add_block(FrameBlock.of(frames[1:]), lambda: 0, ids_ascend=ids_ascend)
    offsets = [entry.offset for entry in builder.entries]
    assert offsets[:2] == [0, 100]
    assert all(32768 <= end - start < 32768 + 50 for start, end in pairwise(offsets[1:-1]))
    assert offsets[-1] == 200_000
    assert [entry.ordinal for entry in builder.entries] == [offset // 50 for offset in offsets]
    assert builder.ordinal == 4000
