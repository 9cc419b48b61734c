"""The block of a batched put can be received straight into memory that the broker gives: the same commands come out."""

from __future__ import annotations

from random import Random

import pytest
from examples import in_one_test
from text_protocol import TRAILING, byte_by_byte, feed, take

from metaq.errors import ProtocolError
from metaq.formats.frames import encode_frame
from metaq.protocols.text.commands import Put, PutBatch, Version
from metaq.protocols.text.decode import BUFFER_SHARE, NEED_DATA, CommandDecoder
from metaq.protocols.text.encode import encode

BLOCK = b"".join(encode_frame(0, 0, b"\r\nput t 0 %d\r\n" % number * 9) for number in range(40))
BATCH = PutBatch("t", 1, BLOCK, 40, 7)


class BufferPool:
    """Gives a new buffer each time and remembers how long they were."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __call__(self, length: int) -> memoryview:
        self.given.append(length)
        return memoryview(bytearray(b"\xff" * (length + 10)))[:length]


def as_bytes(commands: list[object]) -> list[object]:
    return [each._replace(block=bytes(each.block)) if isinstance(each, PutBatch) else each for each in commands]


def receive(decoder: CommandDecoder, stream: bytes, sizes: Random) -> list[object]:
    """Do as a connection does: receive into the buffer when there is one, hand in the bytes when there is none."""
    taken: list[object] = []
    at = 0
    while at < len(stream):
        chunk = stream[at : at + sizes.randrange(1, 3000)]
        if (buffer := decoder.buffer) is not None:
            chunk = chunk[: len(buffer)]
            buffer[: len(chunk)] = chunk
            decoder.buffer_filled(len(chunk))
        else:
            decoder.receive_data(chunk)
        at += len(chunk)
        if sizes.random() < 0.7:  # else the commands wait while more comes in
            taken += take(decoder)
    return taken + take(decoder)


STREAM = [Version(1), BATCH, Put("t", 0, b"body", 0, 3, 9), BATCH._replace(opaque=8), BATCH, Version(2)]


@in_one_test("seed", range(60))
def test_in_whatever_chunks_the_same_commands_come_out(seed: int) -> None:
    buffers = BufferPool()
    stream = b"".join(map(encode, STREAM))
    assert as_bytes(receive(CommandDecoder(buffers=buffers), stream, Random(seed))) == STREAM
    assert set(buffers.given) <= {len(BLOCK)}


def test_byte_by_byte_as_well() -> None:
    buffers = BufferPool()
    decoder = CommandDecoder(buffers=buffers)
    assert as_bytes(feed(decoder, byte_by_byte(encode(BATCH) + TRAILING))) == [BATCH, Version(4711)]
    assert buffers.given == [len(BLOCK)]
    assert (decoder.buffer, decoder.pending_bytes) == (None, len(b"result 200 0"))


def test_a_block_that_came_whole_is_bytes_and_takes_no_buffer() -> None:
    buffers = BufferPool()
    assert feed(CommandDecoder(buffers=buffers), [encode(BATCH)]) == [BATCH]
    assert buffers.given == []


def test_a_buffer_is_taken_when_a_part_of_the_block_has_really_come() -> None:
    buffers = BufferPool()
    decoder = CommandDecoder(buffers=buffers)
    enough = -(-len(BLOCK) // BUFFER_SHARE)
    assert feed(decoder, [b"mput t 1 %d 40 7\r\n" % len(BLOCK) + BLOCK[: enough - 1]]) == []
    assert (buffers.given, decoder.buffer, decoder.pending_bytes) == ([], None, enough - 1)
    assert feed(decoder, [BLOCK[enough - 1 : enough]]) == []
    assert decoder.pending_bytes == enough
    assert decoder.buffer is not None
    assert len(decoder.buffer) == len(BLOCK) - enough


def test_a_decoder_that_is_abandoned_gives_its_buffer_back() -> None:
    decoder = CommandDecoder(buffers=BufferPool())
    assert decoder.abandon() is None
    assert feed(decoder, [encode(BATCH)[:3000]]) == []
    buffer = decoder.abandon()
    assert buffer is not None
    assert (len(buffer), decoder.buffer, decoder.pending_bytes) == (len(BLOCK), None, 0)


def test_what_comes_behind_a_full_buffer_waits_until_the_block_is_taken() -> None:
    decoder = CommandDecoder(buffers=BufferPool())
    assert feed(decoder, [encode(BATCH)[:3000]]) == []
    decoder.receive_data(encode(BATCH)[3000:])
    decoder.receive_data(b"version 1\r\n")
    assert decoder.buffer is None
    assert as_bytes(take(decoder)) == [BATCH, Version(1)]


@pytest.mark.parametrize("word", [b"put t 0 %d 0 -1 1\r\n", b"sync t 0 %d 0 5 -1 1\r\n"])
def test_only_blocks_get_buffers(word: bytes) -> None:
    buffers = BufferPool()
    (command,) = feed(CommandDecoder(buffers=buffers), byte_by_byte(word % 500 + b"x" * 500))
    assert command.body == b"x" * 500  # type: ignore[attr-defined]
    assert buffers.given == []


def test_malformed_bytes_behind_a_block_in_a_buffer_are_final() -> None:
    decoder = CommandDecoder(buffers=BufferPool())
    assert as_bytes(feed(decoder, byte_by_byte(encode(BATCH) + b"nonsense\r\n"))) == [BATCH, ProtocolError]
    assert decoder.buffer is None
    decoder.receive_data(encode(BATCH))
    with pytest.raises(ProtocolError):
        decoder.next_command()
    assert decoder.pending_bytes == 0


def test_nothing_is_said_too_early() -> None:
    decoder = CommandDecoder(buffers=BufferPool())
    for byte in byte_by_byte(encode(BATCH)[:-1]):
        decoder.receive_data(byte)
        assert decoder.next_command() is NEED_DATA
