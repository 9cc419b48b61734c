"""The fingerprint of messages: the same whatever the order and the engine, another one for other messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.backends.metaq.puts import encode_block
from metaq.model import Message
from metaq_spark.columns.blocks import MASK, OpenBlock, of_block
from metaq_spark.columns.encode import FrameEncoder
from metaq_spark.columns.engine import ColumnEngine

ROWS = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.text(max_size=5)), min_size=1, max_size=30)


def written(rows: list[tuple[bytes, str | None]], engine: ColumnEngine, bytes_max: int = 200) -> int:
    """The sum of the fingerprints of the blocks that the rows become."""
    values = pa.array([row[0] for row in rows], pa.binary())
    attributes = pa.array([row[1] for row in rows], pa.string())
    block = OpenBlock(bytes_max, 7)
    blocks = list(FrameEncoder(values, attributes, engine).append(np.arange(len(rows)), block))
    blocks += [block.take()] if block.count else []
    assert all(of_block(each.data) == each.fingerprint for each in blocks)
    assert sum(each.count for each in blocks) == len(rows)
    return sum(each.fingerprint for each in blocks) & MASK


@given(ROWS, st.randoms(use_true_random=False))
def test_any_order_and_both_engines_give_the_same(rows: list[tuple[bytes, str | None]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert (
        written(rows, ColumnEngine(0))
        == written(shuffled, ColumnEngine())
        == written(shuffled, ColumnEngine(0), 100_000)
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([Message(b"a")], [Message(b"b")]),
        ([Message(b"a")], [Message(b"a"), Message(b"a")]),
        ([Message(b"ab"), Message(b"c")], [Message(b"a"), Message(b"bc")]),
        ([Message(b"")], [Message(b"", "")]),
        ([Message(b"\0\0\0\1ab")], [Message(b"b", "a")]),
        ([Message(b"a"), Message(b"b")], [Message(b"a"), Message(b"a")]),
    ],
)
def test_other_messages_give_another(one: list[Message], other: list[Message]) -> None:
    assert of_block(encode_block(one)[0]) != of_block(encode_block(other)[0])
