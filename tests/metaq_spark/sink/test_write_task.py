"""Blocks that fill up over record batches: what is in them, how large they get, and when they leave unfilled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.formats.frames import HEADER_BYTES, encode_frame, walk
from metaq.model import Partition, TopicPartition
from metaq.testing.manual_clock import ManualClock
from metaq_spark.columns.blocks import EncodedBlock, OpenBlock, of_block
from metaq_spark.columns.encode import FrameEncoder
from metaq_spark.columns.engine import ColumnEngine
from metaq_spark.sink.task import OPEN_BYTES_MAX, OPEN_S_MAX, OpenBlocks

TARGETS = [TopicPartition("orders", Partition(0, index)) for index in range(4)]
ENGINES = {"compiled": 0, "plain": 1 << 60, "one after the other": 200}
"""Bytes that an engine handles in plain Python."""


def append(blocks: OpenBlocks, target: TopicPartition, values: list[bytes], engine: ColumnEngine) -> list[EncodedBlock]:
    rows = np.arange(len(values), dtype=np.int64)
    return list(FrameEncoder(pa.array(values, pa.binary()), None, engine).append(rows, blocks.of(target)))


def bodies(blocks: Iterator[EncodedBlock] | list[EncodedBlock]) -> list[bytes]:
    return [frame.body for block in blocks for frame in walk(block.data)]


@pytest.mark.parametrize("plain_bytes", ENGINES.values(), ids=ENGINES)
@given(
    batches=st.lists(st.tuples(st.integers(0, 3), st.lists(st.binary(max_size=90), max_size=30)), max_size=12),
    block_bytes=st.integers(1, 900),
    block_messages=st.integers(1, 40),
)
@settings(max_examples=examples(40))
def test_every_partition_gets_its_rows_in_order_in_bounded_blocks(
    plain_bytes: int, batches: list[tuple[int, list[bytes]]], block_bytes: int, block_messages: int
) -> None:
    engine, blocks = (
        ColumnEngine(plain_bytes),
        OpenBlocks(lambda: OpenBlock(block_bytes, block_messages), ManualClock()),
    )
    sent: dict[TopicPartition, list[EncodedBlock]] = {target: [] for target in TARGETS}
    for place, values in batches:
        sent[TARGETS[place]] += append(blocks, TARGETS[place], values, engine)
    for target, block in blocks.rest():
        sent[target].append(block)
    for target in TARGETS:
        assert bodies(sent[target]) == [
            value for place, values in batches if TARGETS[place] == target for value in values
        ]
        for block, following in zip(sent[target], [*sent[target], None][1:], strict=True):
            assert len(list(walk(block.data))) == block.count <= block_messages
            assert len(block.data) <= block_bytes or block.count == 1
            if following is not None:  # it was full: the next frame did not fit
                first = HEADER_BYTES + len(bodies([following])[0])
                assert block.count == block_messages or len(block.data) + first > block_bytes


def test_rows_of_several_record_batches_share_a_block() -> None:
    blocks, engine = OpenBlocks(lambda: OpenBlock(1 << 20, 1000), ManualClock()), ColumnEngine(0)
    for number in range(5):
        assert append(blocks, TARGETS[0], [b"%d" % number], engine) == []
        assert list(blocks.surplus()) == []
    ((target, block),) = blocks.rest()
    assert (target, block.count, bodies([block])) == (TARGETS[0], 5, [b"0", b"1", b"2", b"3", b"4"])
    assert list(blocks.rest()) == []


def test_the_largest_leave_first_when_all_together_take_too_much() -> None:
    blocks, engine = OpenBlocks(lambda: OpenBlock(OPEN_BYTES_MAX, 1000), ManualClock()), ColumnEngine(0)
    sizes = [OPEN_BYTES_MAX // 16, OPEN_BYTES_MAX // 2, OPEN_BYTES_MAX // 4, OPEN_BYTES_MAX // 4]
    for target, size in zip(TARGETS, sizes, strict=True):
        append(blocks, target, [b"x" * size], engine)
    ((target, _), *others) = blocks.surplus()
    assert target == TARGETS[1]
    assert [target for target, _ in [*others, *blocks.rest()]] in (
        [TARGETS[2], TARGETS[0], TARGETS[3]],
        [TARGETS[2], TARGETS[3], TARGETS[0]],
    )


def test_all_leave_when_the_oldest_has_waited_long() -> None:
    clock = ManualClock()
    blocks, engine = OpenBlocks(lambda: OpenBlock(1 << 20, 1000), clock), ColumnEngine(0)
    append(blocks, TARGETS[1], [b"a"], engine)
    clock.advance(OPEN_S_MAX * 0.9)
    append(blocks, TARGETS[0], [b"b"], engine)
    assert list(blocks.surplus()) == []
    clock.advance(OPEN_S_MAX * 0.1)
    assert [(target, bodies([block])) for target, block in blocks.surplus()] == [
        (TARGETS[1], [b"a"]),
        (TARGETS[0], [b"b"]),
    ]
    assert list(blocks.rest()) == []


def test_a_block_that_was_taken_is_not_written_to_any_more() -> None:
    block, engine = OpenBlock(100, 10), ColumnEngine(0)
    encoder = FrameEncoder(pa.array([b"first", b"second"]), None, engine)
    assert list(encoder.append(np.array([0]), block)) == []
    taken = block.take()
    assert list(encoder.append(np.array([1]), block)) == []
    frames = [encode_frame(0, 0, payload) for payload in (b"first", b"second")]
    assert [taken, block.take()] == [EncodedBlock(each, 1, of_block(each)) for each in frames]


def test_a_small_block_does_not_take_the_memory_of_a_large_one() -> None:
    block = OpenBlock(1 << 20, 10)
    assert list(FrameEncoder(pa.array([b"x" * 100]), None, ColumnEngine(0)).append(np.array([0]), block)) == []
    assert len(block.buffer) < 1000


@pytest.mark.parametrize(("messages_max", "room_bytes"), [(1000, 10_000), (90, 1000)])
def test_only_after_a_full_block_the_next_takes_all_memory_at_once(messages_max: int, room_bytes: int) -> None:
    block = OpenBlock(10_000, messages_max)
    encoder = FrameEncoder(pa.array([b"x" * 80] * 101), None, ColumnEngine(0))
    full = list(encoder.append(np.arange(101), block))
    assert [each.count for each in full] == [min(100, messages_max)]
    last = block.take()
    assert list(encoder.append(np.array([0]), block)) == []
    assert last.count == 101 - full[0].count
    assert len(block.buffer) <= room_bytes
    assert (len(block.buffer) == 10_000) == (messages_max == 1000)
