"""Puts that are decoded together mean what they mean one by one, whatever is between them and however it is cut."""

from __future__ import annotations

from random import Random

import pytest
from examples import in_one_test
from text_protocol import take

from metaq.errors import ProtocolError
from metaq.formats.checksum import checksum
from metaq.formats.frames import walk
from metaq.protocols.text.commands import Get, Oversized, Put, PutBatch
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder
from metaq.protocols.text.encode import encode
from metaq.protocols.text.puts import NO_CHECKSUM, Puts

USUAL = [
    Put("t", 0, b"", 0, 0, 0),
    Put("t", 0, b"abc", 0, -2147483648, 5),
    Put("t", 0, b"put t 0 3 0 5 6\r\n", 0, 2147483647, 2147483647),
    Put("t", 1, b"abc", 7, -1, -1),
    Put("other", -1, b"\r\n\r\n", 0, 12, 9),
    Put("t", 0, b"abc", 0, 77, 5),
]


def as_commands(puts: Puts) -> list[Put]:
    frames = list(walk(puts.frames.data, verify=False))
    assert [frame.message_id for frame in frames] == [0] * len(puts.opaques)
    return [
        Put(topic, partition, frame.body, frame.flag, opaque, frame.checksum)
        for topic, partition, frame, opaque in zip(puts.topics, puts.partitions, frames, puts.opaques, strict=True)
    ]


def stored(command: object) -> object:
    """A plain put with the checksum that its frame gets."""
    if isinstance(command, Put) and command.transaction is None and command.checksum in NO_CHECKSUM:
        return command._replace(checksum=checksum(command.body))
    return command


def take_events(decoder: CommandDecoder, puts_max: int = 1000) -> tuple[list[object], list[int]]:
    """All that is complete now, in the order of a broker; and how many puts were together."""
    taken: list[object] = []
    lengths = []
    try:
        while (event := decoder.next_event(puts_max)) is not NEED_DATA:
            if isinstance(event, Puts):
                taken += as_commands(event)
                lengths.append(event.frames.count)
            else:
                taken.append(event)
    except ProtocolError:
        return [*taken, ProtocolError], lengths
    return taken, lengths


def both(stream: bytes) -> tuple[list[object], list[int]]:
    """Decode a stream as events; it has to be what comes out one by one."""
    one_by_one, together = CommandDecoder(), CommandDecoder()
    one_by_one.receive_data(stream)
    together.receive_data(stream)
    taken, lengths = take_events(together)
    assert taken == [stored(command) for command in take(one_by_one)]
    return taken, lengths


STORED = [stored(put) for put in USUAL]


def test_usual_puts_are_one_event() -> None:
    assert both(b"".join(map(encode, USUAL))) == (STORED, [len(USUAL)])


def test_an_event_has_at_most_so_many() -> None:
    decoder = CommandDecoder()
    decoder.receive_data(b"".join(map(encode, USUAL)))
    assert take_events(decoder, 4) == (STORED, [4, 2])


def test_unusual_puts_are_together_with_those_around_them() -> None:
    old = b"put t 0 3 0 6\r\nold"
    stream = old * 2 + b"".join(map(encode, USUAL)) + old + b"version 1\r\n" + old
    lengths = both(stream)[1]
    assert (sum(lengths), lengths[-1]) == (2 + len(USUAL) + 2, 1)
    assert len(lengths) < len(USUAL)
    decoder = CommandDecoder()
    decoder.receive_data(old * 5)
    assert take_events(decoder, 2)[1] == [2, 2, 1]


def test_what_stands_behind_puts_is_pending_until_it_is_returned() -> None:
    decoder = CommandDecoder()
    decoder.receive_data(b"put t 0 3 0 6\r\nold" + encode(PutBatch("t", 0, b"x" * 100, 1, 5)))
    assert isinstance(decoder.next_event(9), Puts)
    assert decoder.pending_bytes > 100
    assert isinstance(decoder.next_event(9), PutBatch)
    assert decoder.pending_bytes == 0


def test_bodies_are_taken_within_the_limits() -> None:
    decoder = CommandDecoder(body_bytes_max=100)
    puts = [Put("t", 0, bytes(size), 0, size, 1) for size in (5, 100, 0, 101, 3)]
    decoder.receive_data(b"".join(map(encode, puts)))
    assert take_events(decoder, 2) == ([*puts[:3], Oversized("put", "t", 0, 101, 100, 101), puts[4]], [2, 1, 1])
    line = encode(puts[0]).partition(b"\r")[0]
    for limit, taken in ((len(line), puts[0]), (len(line) - 1, ProtocolError)):
        decoder = CommandDecoder(line_bytes_max=limit)
        decoder.receive_data(encode(puts[0]))
        assert take_events(decoder)[0] == [taken]


@pytest.mark.parametrize(
    "between",
    [
        b"get t g 0 0 100 1\r\n",
        b"put t 0 3 0 6\r\nold",  # without checksum, as long as a usual head
        b"put t 0 3 0 5 TX:s:1 6\r\ntxn",
        b"put t 0 3 0 TX:s:1 6\r\ntxn",
        b"put t 0 3 0 +5 6\r\nabc",
        b"put t 0 3 0 5 +6\r\nabc",
        b"put t 0 3 0 5 6  \r\nabc",
        b"put t 0 3 0 5  6\r\nabc",  # the empty token is a transaction key
        b"put t 0 3 0 , 6\r\nabc",
        b"put t 0 3 0 5 , 6\r\nabc",
        b"put t 0 3 0 5 1_0\r\nabc",
        b"put t 0 3 0 5 --6\r\nabc",
        b"put t 0 3 0 5 6-\r\nabc",
        b"put t 0 3 0 2147483648 6\r\nabc",
        b"put t 0 3 0 5 -2147483649\r\nabc",
        b"put t 0 -3 0 5 6\r\nabc",
        b"put t 0 3 0 \xb2 6\r\nabc",
        b"nonsense\r\n",
        b"\r\n",
    ],
)
def test_whatever_stands_between_means_what_it_always_does(between: bytes) -> None:
    puts = b"".join(map(encode, USUAL))
    taken, _ = both(puts + between + puts)
    assert taken[: len(USUAL)] == STORED
    both(puts + between + between + puts + between)
    both(encode(USUAL[0]) * 3 + between + encode(USUAL[0]) * 3)


@in_one_test("seed", range(30))
def test_however_the_stream_is_cut(seed: int) -> None:
    random = Random(seed)
    commands = [random.choice([*USUAL, Get("t", "g", 0, 0, 9, 1), Put("t", 0, b"old", 0, 1, None)]) for _ in range(50)]
    stream = b"".join(map(encode, commands))
    decoder = CommandDecoder()
    taken: list[object] = []
    while stream:
        size = random.randrange(1, 90)
        decoder.receive_data(stream[:size])
        stream = stream[size:]
        taken += take_events(decoder)[0]
    assert taken == [stored(command) for command in commands]


def test_unusual_puts_are_not_tried_again_and_again() -> None:
    """A stream of puts that look usual and are not costs one look at each, not one for each of those before it."""
    decoder = CommandDecoder()
    decoder.receive_data(b"put t 0 3 0 5 +6\r\nabc" * 100)
    for _ in range(100):
        event = decoder.next_event(1)
        assert isinstance(event, Puts)
        assert as_commands(event) == [Put("t", 0, b"abc", 0, 6, 5)]
        assert decoder._singly < 100
    decoder.receive_data(encode(USUAL[1]))
    assert take_events(decoder) == ([USUAL[1]], [1])
