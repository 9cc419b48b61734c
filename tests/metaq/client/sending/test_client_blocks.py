"""Where the messages of a block are, by the receipts of brokers of both kinds."""

from __future__ import annotations

import pytest
from fix_client import memory_session

from metaq.backends.metaq.puts import Receipt
from metaq.client.records import Sent
from metaq.client.sending.blocks import Block, BlockOutcomes, BlockWriter
from metaq.errors import BrokerError, SendFailed
from metaq.formats.frames import encode_message, walk
from metaq.formats.message_id import IdRange
from metaq.model import Message, Partition
from metaq.testing.memory import MemoryBroker

WHERE = Partition(0, 1)
TEXTS = [b"one", b"", b"three", b"f" * 300]


def block_of(texts: list[bytes], queue: Partition = WHERE) -> Block:
    block: Block = Block("t", queue)
    block.messages = [encode_message(text) for text in texts]
    block.begin()
    return block


@pytest.mark.parametrize("sequence", [0, 4093], ids=["within a millisecond", "over its end"])
def test_each_message_follows_the_one_before(sequence: int) -> None:
    ids = IdRange(1_700_000_000_000, sequence, 4, 7)
    stored = BlockOutcomes("t", WHERE, Receipt(ids.first, 1, 1000), [20, 30, 40, 50])
    expected = [
        Sent(topic="t", partition=WHERE, offset=offset, message_id=message_id)
        for offset, message_id in zip([1000, 1020, 1050, 1090], ids, strict=True)
    ]
    assert list(stored) == expected
    assert [stored[row] for row in range(len(stored))] == expected


def test_the_id_of_one_message_may_be_of_any_form() -> None:
    stored = BlockOutcomes("t", WHERE, Receipt(-5468928970998000897, 1, 25), [20])
    assert [one.message_id for one in stored] == [-5468928970998000897]


@pytest.mark.parametrize("extensions", [frozenset(), frozenset({"mput"})], ids=["Java", "ours"])
def test_blocks_are_settled_with_what_the_broker_stored(extensions: frozenset[str]) -> None:
    broker = MemoryBroker({"t": 2}, extensions=extensions)
    blocks = [block_of(TEXTS), block_of(TEXTS[:1], Partition(0, 0))]
    writer = BlockWriter(memory_session(broker), "t", blocks)
    writer.write()
    writer.flush()
    assert writer.settle() is None
    frames = list(walk(broker.partition("t", 1).content()))
    assert [frame.message.payload for frame in frames] == TEXTS
    assert blocks[0].outcomes is not None
    assert [(one.offset, one.message_id) for one in blocks[0].outcomes if one is not None] == [
        (frame.offset, frame.message_id) for frame in frames
    ]
    assert blocks[1].outcomes is not None
    assert len(blocks[1].outcomes) == 1


@pytest.mark.parametrize("extensions", [frozenset(), frozenset({"mput"})], ids=["Java", "ours"])
def test_what_was_acknowledged_before_a_refusal_is_sent(extensions: frozenset[str]) -> None:
    broker = MemoryBroker({"t": 2}, extensions=extensions)
    blocks = [block_of(TEXTS), block_of(TEXTS, Partition(0, 9))]
    writer = BlockWriter(memory_session(broker), "t", blocks)
    writer.write()
    writer.flush()
    assert isinstance(writer.settle(), BrokerError)
    first, second = ([] if one.outcomes is None else list(one.outcomes) for one in blocks)
    assert None not in first
    assert second == [None] * len(TEXTS)
    assert isinstance(blocks[1].failure, SendFailed)
    assert blocks[1].failure.sent == (None,)
    assert "wrong partition 9" in str(blocks[1].failure)


def test_a_frame_is_the_same_by_the_short_way() -> None:
    for message in (Message(b"tea"), Message(b""), Message(b"tea", "paid"), Message(b"", "")):
        [frame] = walk(encode_message(message.payload, message.attribute))
        assert (frame.message, frame.message_id) == (message, 0)
    [frame] = walk(encode_message(bytearray(b"tea")))  # type: ignore[arg-type]
    assert frame.body == b"tea"
    with pytest.raises(TypeError, match="payload of a message: expected bytes, got str"):
        encode_message("tea")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="attribute: the text cannot be written as UTF-8"):
        encode_message(b"tea", "\ud800")
