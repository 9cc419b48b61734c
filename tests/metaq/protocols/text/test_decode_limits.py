"""Limits on lines and bodies, and what memory and time the bytes cost that are waiting for them."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from text_protocol import byte_by_byte, feed, take

from metaq.errors import ProtocolError
from metaq.protocols.text.commands import Decide, Oversized, Put, Result, Stats, Value, Version
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder, ReplyDecoder


class TestLines:
    def test_the_longest_line_passes(self) -> None:
        line = b"stats " + b"x" * 58
        for chunks in ([line + b"\r\n"], [line, b"\r\n"], [line + b"\r", b"\n"], list(byte_by_byte(line + b"\r\n"))):
            (stats,) = feed(CommandDecoder(line_bytes_max=64), chunks)
            assert stats == ("x" * 58, 2147483647)

    def test_one_byte_more_does_not(self) -> None:
        line = b"stats " + b"x" * 59
        for chunks in ([line + b"\r\n"], [line, b"\r\n"], [line + b"\r", b"\n"], list(byte_by_byte(line + b"\r\n"))):
            assert feed(CommandDecoder(line_bytes_max=64), chunks) == [ProtocolError]

    def test_a_line_that_never_ends_is_refused_when_it_is_too_long(self) -> None:
        decoder = CommandDecoder(line_bytes_max=64)
        decoder.receive_data(b"x" * 64)
        assert decoder.next_command() is NEED_DATA
        decoder.receive_data(b"xx")
        with pytest.raises(ProtocolError, match="longer than 64 bytes"):
            decoder.next_command()

    def test_puts_obey_the_limit_too(self) -> None:
        put = b"put orders 0 5 0 980881731 2\r\nworld"
        for chunks in ([put], byte_by_byte(put)):
            assert feed(CommandDecoder(line_bytes_max=28), chunks) == [Put("orders", 0, b"world", 0, 2, 980881731)]
        for chunks in ([put], byte_by_byte(put)):
            assert feed(CommandDecoder(line_bytes_max=27), chunks) == [ProtocolError]

    def test_replies_obey_the_limit_too(self) -> None:
        assert feed(ReplyDecoder(line_bytes_max=14), [b"result 200 0 1\r\n"]) == [Result(200, "", 1)]
        assert feed(ReplyDecoder(line_bytes_max=13), [b"result 200 0 1\r\n"]) == [ProtocolError]
        assert feed(ReplyDecoder(line_bytes_max=13), [b"r" * 15]) == [ProtocolError]


class TestBodies:
    def test_the_longest_body_passes(self) -> None:
        for line in (b"put t 0 8 0 5 6", b"put t 0 8 0 6", b"sync t 0 8 0 1 6", b"mput t 0 8 1 6"):
            (command,) = feed(CommandDecoder(body_bytes_max=8), [line + b"\r\n12345678"])
            assert command[2] == b"12345678"

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            (b"put t 3 9 0 5 6", Oversized("put", "t", 3, 9, 8, 6)),
            (b"put t 3 9 0 6", Oversized("put", "t", 3, 9, 8, 6)),
            (b"put t -1 9 0 -1 TX:s:1 6", Oversized("put", "t", -1, 9, 8, 6)),
            (b"sync t 3 9 0 1 6", Oversized("sync", "t", 3, 9, 8, 6)),
            (b"mput t 3 9 1 6", Oversized("mput", "t", 3, 9, 8, 6)),
            (b"decide q 3 9 6", Oversized("decide", "", -1, 9, 8, 6)),
        ],
        ids=repr,
    )
    def test_a_longer_one_is_reported_at_once_and_skipped(self, line: bytes, expected: Oversized) -> None:
        decoder = CommandDecoder(body_bytes_max=8)
        decoder.receive_data(line + b"\r\n")
        assert take(decoder) == [expected]
        decoder.receive_data(b"\r\nquit\r")
        assert take(decoder) == []
        decoder.receive_data(b"\n\nversion 7\r\nput t 0 8 0 1 2\r\n12345678")
        assert take(decoder) == [Version(7), Put("t", 0, b"12345678", 0, 2, 1)]

    def test_skipping_with_everything_already_here(self) -> None:
        stream = b"put t 0 9 0 5 6\r\n123456789version 1\r\n" * 3
        expected = [Oversized("put", "t", 0, 9, 8, 6), Version(1)] * 3
        assert feed(CommandDecoder(body_bytes_max=8), [stream]) == expected
        assert feed(CommandDecoder(body_bytes_max=8), byte_by_byte(stream)) == expected

    def test_a_skipped_body_takes_no_memory(self) -> None:
        decoder = CommandDecoder()
        decoder.receive_data(b"put t 0 2147483647 0 5 6\r\n")
        assert isinstance(decoder.next_command(), Oversized)
        chunk, rest = bytes(1 << 20), 2147483647
        tracemalloc.start()
        while rest:
            decoder.receive_data(chunk[:rest])
            assert decoder.pending_bytes == 0
            rest -= min(rest, len(chunk))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * len(chunk)
        assert feed(decoder, [b"version 1\r\n"]) == [Version(1)]

    def test_a_promised_body_takes_no_memory_before_it_comes(self) -> None:
        tracemalloc.start()
        decoder = CommandDecoder(body_bytes_max=1 << 30)
        assert feed(decoder, [b"put t 0 1073741824 0 5 6\r\nabc"]) == []
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20
        assert decoder.pending_bytes == 3

    def test_a_reply_that_is_too_long_ends_the_stream(self) -> None:
        for line in (b"value 9 5", b"result 200 9 5"):
            decoder = ReplyDecoder(body_bytes_max=8)
            decoder.receive_data(line + b"\r\n123456789")
            with pytest.raises(ProtocolError, match="limit of 8 bytes"):
                decoder.next_reply()

    def test_a_decision_without_branches(self) -> None:
        assert feed(CommandDecoder(), [b"decide q 1 0 5\r\nversion 1\r\n"]) == [Decide("q", 1, (), 5), Version(1)]


class TestCost:
    def test_tiny_chunks_weigh_about_what_their_bytes_weigh(self) -> None:
        decoder = CommandDecoder()
        decoder.receive_data(b"put t 0 1000000 0 5 6\r\n")
        assert decoder.next_command() is NEED_DATA
        pieces = 60_000
        tracemalloc.start()
        for number in range(pieces):
            decoder.receive_data(number.to_bytes(3, "big"))
            assert decoder.next_command() is NEED_DATA
        available = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert decoder.pending_bytes == 3 * pieces
        assert available < 2 * decoder.pending_bytes

    def test_an_idle_connection_holds_nothing(self) -> None:
        decoder = CommandDecoder()
        tracemalloc.start()
        decoder.receive_data(bytearray(b"version 1\r\n" * 20_000))
        while decoder.next_command() is not NEED_DATA:
            pass
        available = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert decoder.pending_bytes == 0
        assert available < 10_000

    # Where every byte costs a copy or a search of what came before, these ratios are 20 and more.
    COST_RATIO_MAX = 6

    @pytest.mark.parametrize(
        ("decoder_type", "line"), [(CommandDecoder, b"put t 0 %d 0 5 6\r\n"), (ReplyDecoder, b"value %d 6\r\n")]
    )
    def test_a_long_body_byte_by_byte_costs_as_much_per_byte_as_a_short_one(
        self, decoder_type: type[CommandDecoder] | type[ReplyDecoder], line: bytes
    ) -> None:
        short = min(cpu_seconds_per_byte(decoder_type(), line % 16384 + bytes(16384)) for _ in range(3))
        long = cpu_seconds_per_byte(decoder_type(), line % (1 << 20) + bytes(1 << 20))
        assert long < self.COST_RATIO_MAX * short

    @pytest.mark.parametrize("filling", [b"x", b"\r", b"\n"])
    def test_a_long_line_byte_by_byte_costs_no_more_per_byte_than_a_body(self, filling: bytes) -> None:
        body = b"put t 0 16384 0 5 6\r\n" + bytes(16384)
        short = min(cpu_seconds_per_byte(CommandDecoder(), body) for _ in range(3))
        line = b"stats " + filling * (256 << 10) + b"\r\n"
        assert cpu_seconds_per_byte(CommandDecoder(line_bytes_max=1 << 20), line) < self.COST_RATIO_MAX * short

    def test_a_value_is_copied_once(self) -> None:
        decoder, chunk = ReplyDecoder(), bytes(256 << 10)
        decoder.receive_data(b"value %d 6\r\n" % (8 << 20))
        for _ in range(32):
            assert decoder.next_reply() is NEED_DATA
            decoder.receive_data(chunk)
        tracemalloc.start()
        value = decoder.next_reply()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert value == Value(bytes(8 << 20), 6)
        assert peak < (8 << 20) + (1 << 20)


def cpu_seconds_per_byte(decoder: CommandDecoder | ReplyDecoder, stream: bytes) -> float:
    """Feed one item byte by byte. Only this process's time counts: other work on the machine does not matter."""
    start = time.process_time()
    (item,) = feed(decoder, byte_by_byte(stream))
    assert isinstance(item, Put | Value | Stats)
    return (time.process_time() - start) / len(stream)
