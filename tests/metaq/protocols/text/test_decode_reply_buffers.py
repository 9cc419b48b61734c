"""Bodies that go straight to where they are wanted, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.protocols.text.commands import Filled, Result, Value
from metaq.protocols.text.decode import NEED_DATA, ReplyDecoder

STREAM = b"value 5 1\r\nfirstvalue 6 2\r\nsecondresult 404 4 3\r\ngonevalue 0 1\r\nvalue 3 9\r\nend"
EXPECTED = [Filled(5, 1), Value(b"second", 2), Result(404, "gone", 3), Value(b"", 1), Value(b"end", 9)]


class Roomy:
    """A decoder with a buffer of six bytes for opaque 1, and what came out of it."""

    def __init__(self) -> None:
        self.bytes = bytearray(6)
        self.decoder = ReplyDecoder(buffers=self.buffer_for)
        self.taken: list[object] = []

    def buffer_for(self, opaque: int, length: int) -> memoryview | None:
        return memoryview(self.bytes)[:length] if opaque == 1 and length else None

    def take(self) -> None:
        while (reply := self.decoder.next_reply()) is not NEED_DATA:
            self.taken.append(reply)

    def receive(self, stream: bytes, size: int) -> bytes:
        """As a session does: into the buffer while there is one, at most ``size`` bytes at a time; what is left."""
        buffer = self.decoder.buffer
        if buffer is None:
            self.decoder.receive_data(stream[:size])
            return stream[size:]
        count = min(size, len(buffer), len(stream))
        buffer[:count] = stream[:count]
        self.decoder.buffer_filled(count)
        return stream[count:]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60))
def test_a_value_with_a_buffer_fills_it(sizes: list[int]) -> None:
    roomy, rest = Roomy(), STREAM
    for size in [*sizes, *[len(STREAM)] * 9]:
        rest = roomy.receive(rest, size)
        roomy.take()
    assert roomy.taken == EXPECTED
    assert roomy.bytes[:5] == b"first"
    assert roomy.decoder.pending_bytes == 0


@pytest.mark.parametrize("size", [1, 3, 7, len(STREAM)])
def test_who_never_asks_for_the_buffer_gets_the_same(size: int) -> None:
    roomy = Roomy()
    for at in range(0, len(STREAM), size):
        roomy.decoder.receive_data(STREAM[at : at + size])
        roomy.take()
    assert roomy.taken == EXPECTED
    assert roomy.bytes[:5] == b"first"


def test_what_has_come_for_a_buffer_is_pending() -> None:
    roomy = Roomy()
    roomy.decoder.receive_data(b"value 5 1\r\nfi")
    roomy.take()
    assert (roomy.taken, roomy.decoder.pending_bytes) == ([], 2)
    buffer = roomy.decoder.buffer
    assert buffer is not None
    assert len(buffer) == 3


def test_how_many_bytes_a_body_lacks_is_known_from_its_line_on() -> None:
    for decoder in (ReplyDecoder(), Roomy().decoder):
        lacks = []
        for part in (b"", b"value 5", b" 1\r\n", b"fi", b"rst", b"result 200 0 2\r\n"):
            decoder.receive_data(part)
            while decoder.next_reply() is not NEED_DATA:
                pass
            lacks.append(decoder.missing_bytes)
        assert lacks == [0, 0, 5, 3, 0, 0]
