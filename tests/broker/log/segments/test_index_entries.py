"""Entries in memory, and those that compiled code makes of a block: the very ones that the plain code makes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from metaq_broker.log.segments import index
from metaq_broker.log.segments.block_entries import compiled
from metaq_broker.log.segments.index import ENTRIES, RECORD_BYTES, Entries, IndexBuilder, IndexEntry, decode_entry

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT, IdRange

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
    frames=st.integers(2, 40),
    interval_bytes=st.integers(1, 3000),
    block_interval_bytes=st.integers(1, 2000),
    time_known=st.booleans(),
)
def test_compiled_code_makes_the_entries_that_the_plain_code_makes(
    seed: int, blocks: int, frames: int, interval_bytes: int, block_interval_bytes: int, time_known: bool
) -> None:
    chance, loop = random.Random(seed), compiled()
    plain, quick = (IndexBuilder.at_start(1000, 50, EPOCH_MS + 20, interval_bytes) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "BLOCK_INTERVAL_BYTES", block_interval_bytes)
        for _ in range(blocks):
            items = [encode_frame(-1, 0, chance.randbytes(chance.randint(0, 120))) for _ in range(frames)]
            ids = IdRange(EPOCH_MS + chance.randint(0, 60), chance.randint(0, 4095), frames, 7)
            block = FrameBlock.of(items).numbered(ids, 1000)
            if not time_known:
                block.data[8] |= 0x80  # the first id holds no time
            now_ms = EPOCH_MS + chance.randint(0, 60)
            patch.setattr(ENTRIES, "loop", None)
            plain.add_block(block, lambda now_ms=now_ms: now_ms)
            patch.setattr(ENTRIES, "loop", loop)
            quick.add_block(block, lambda now_ms=now_ms: now_ms)
            assert list(quick.entries) == list(plain.entries)
            names = ("offset", "ordinal", "time_ms", "_marked", "_span")
            assert [getattr(quick, name) for name in names] == [getattr(plain, name) for name in names]
    assert quick.entries == plain.entries


def test_the_loop_of_a_process_agrees_with_the_plain_code() -> None:
    ENTRIES.load()
    assert ENTRIES.compiled


@pytest.mark.parametrize("ids_ascend", [True, False])
def test_entries_of_a_block_stand_where_they_are_due(ids_ascend: bool) -> None:
    builder = IndexBuilder.at_start(0, 0, EPOCH_MS, 100)
    frames = [encode_frame(EPOCH_MS + number << TIME_SHIFT, 0, bytes(30)) for number in range(2000)]
    builder.add_block(FrameBlock.of(frames[:1]), lambda: 0)
    builder.add_block(FrameBlock.of(frames[1:]), lambda: 0, ids_ascend=ids_ascend)
    offsets = [entry.offset for entry in builder.entries]
    assert offsets[:2] == [0, 100]
    assert all(16384 <= end - start < 16384 + 50 for start, end in pairwise(offsets[1:-1]))
    assert offsets[-1] == 100_000
    assert [entry.ordinal for entry in builder.entries] == [offset // 50 for offset in offsets]
    assert builder.ordinal == 2000
