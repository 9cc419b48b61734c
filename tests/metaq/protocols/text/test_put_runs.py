"""Puts as columns mean what they mean one by one, whatever stands between them and however the stream is cut."""

from __future__ import annotations

from random import Random

import pytest
from metaq_broker.text.text_puts import TextPuts
from text_protocol import take

from metaq.errors import ProtocolError
from metaq.protocols.text import framed_puts
from metaq.protocols.text.commands import Get, Oversized, Put
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder
from metaq.protocols.text.encode import encode
from metaq.protocols.text.framed_puts import FramedPuts, Framer
from metaq.protocols.text.put_runs import PutRun

USUAL = [
    Put("t", 0, b"", 0, 0, 0),
    Put("t", 0, b"abc", 0, -2147483648, 5),
    Put("t", 0, b"put t 0 3 0 5 6\r\n", 0, 2147483647, 2147483647),
    Put("t", 1, b"abc", 7, -1, -1),
    Put("other", -1, b"\r\n\r\n", 0, 12, 9),
    Put("t", 0, b"abc", 0, 77, 5),
]


def as_commands(run: PutRun) -> list[Put]:
    topics, partitions, flags, checksums, bodies, opaques = run
    return [*map(Put, topics, partitions, bodies, flags, opaques, checksums)]


def take_in_runs(decoder: CommandDecoder, count_max: int = 1000) -> tuple[list[object], list[int]]:
    """All that is complete now, in the order of a broker: runs as long as there are any; and how long runs were."""
    taken: list[object] = []
    lengths = []
    try:
        while True:
            run = decoder.next_puts(count_max)
            if run is not None:
                run = run.run() if isinstance(run, FramedPuts) else run
                taken += as_commands(run)
                lengths.append(len(run.bodies))
            elif (command := decoder.next_command()) is NEED_DATA:
                return taken, lengths
            else:
                taken.append(command)
    except ProtocolError:
        return [*taken, ProtocolError], lengths


@pytest.fixture(scope="module")
def framer() -> Framer:
    """The compiled loops of a broker."""
    text_puts = TextPuts()
    text_puts.load()
    assert text_puts.compiled
    return text_puts.frame


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is too short for a framer."""
    monkeypatch.setattr(framed_puts, "RUN_BYTES_MIN", 0)
    monkeypatch.setattr(framed_puts, "RUN_PUTS_MIN", 0)


def both(stream: bytes, framer: Framer | None = None) -> tuple[list[object], list[int]]:
    """Decode a stream in runs; it has to be what comes out one by one."""
    one_by_one, in_runs = CommandDecoder(), CommandDecoder(framer=framer)
    one_by_one.receive_data(stream)
    in_runs.receive_data(stream)
    taken, lengths = take_in_runs(in_runs)
    assert taken == take(one_by_one)
    return taken, lengths


def test_usual_puts_are_one_run() -> None:
    assert both(b"".join(map(encode, USUAL))) == (USUAL, [len(USUAL)])


def test_as_frames_they_are_one_run_for_each_partition_and_the_usual_one_behind(framer: Framer) -> None:
    """A checksum below 0, and the partition that the broker is to pick, are for others."""
    assert both(b"".join(map(encode, USUAL)), framer) == (USUAL, [3, 3])
    assert both(b"".join(map(encode, USUAL[2:3] + USUAL[:1])) * 9, framer)[1] == [18]
    in_range = [Put("t", 0, b"x" * 12, flag, flag, 2147483647) for flag in (-2147483648, -1, 0, 9, 10, 2147483647)]
    assert both(b"".join(map(encode, in_range)), framer) == (in_range, [6])


def test_frames_are_taken_up_to_a_count_and_within_the_limits(framer: Framer) -> None:
    decoder = CommandDecoder(body_bytes_max=100, framer=framer)
    puts = [Put("t", 0, bytes(size), 0, size, 1) for size in (5, 100, 0, 101, 3)]
    decoder.receive_data(b"".join(map(encode, puts)))
    assert take_in_runs(decoder, 2) == ([*puts[:3], Oversized("put", "t", 0, 101, 100, 101), puts[4]], [2, 1, 1])
    line = encode(puts[0]).partition(b"\r")[0]
    for limit, taken in ((len(line), puts[0]), (len(line) - 1, ProtocolError)):
        decoder = CommandDecoder(line_bytes_max=limit, framer=framer)
        decoder.receive_data(encode(puts[0]))
        assert take_in_runs(decoder)[0] == [taken]


def test_without_enough_of_them_no_frames_are_made(monkeypatch: pytest.MonkeyPatch, framer: Framer) -> None:
    monkeypatch.setattr(framed_puts, "RUN_PUTS_MIN", 4)
    for count, kind in ((3, PutRun), (5, FramedPuts)):
        decoder = CommandDecoder(framer=framer)
        decoder.receive_data(encode(Put("t", 0, bytes(1000), 0, 1, 1)) * count)
        assert type(decoder.next_puts(100)) is kind


def test_a_run_has_at_most_so_many() -> None:
    decoder = CommandDecoder()
    decoder.receive_data(b"".join(map(encode, USUAL)))
    assert take_in_runs(decoder, 4) == (USUAL, [4, 2])


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
@pytest.mark.parametrize("framed", [False, True])
def test_whatever_stands_between_means_what_it_always_does(between: bytes, framed: bool, framer: Framer) -> None:
    run = b"".join(map(encode, USUAL))
    used = framer if framed else None
    taken, _ = both(run + between + run, used)
    assert taken[: len(USUAL)] == USUAL
    both(run + between + between + run + between, used)
    both(encode(USUAL[0]) * 3 + between + encode(USUAL[0]) * 3, used)


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_however_the_stream_is_cut(seed: int, framed: bool, framer: Framer) -> None:
    random = Random(seed)
    commands = [random.choice([*USUAL, Get("t", "g", 0, 0, 9, 1), Put("t", 0, b"old", 0, 1, None)]) for _ in range(50)]
    stream = b"".join(map(encode, commands))
    decoder = CommandDecoder(framer=framer if framed else None)
    taken: list[object] = []
    while stream:
        size = random.randrange(1, 90)
        decoder.receive_data(stream[:size])
        stream = stream[size:]
        taken += take_in_runs(decoder)[0]
    assert taken == commands


def test_unusual_puts_are_not_tried_again_and_again() -> None:
    """A stream of puts that look usual and are not costs one look at each, not one for each of those before it."""
    decoder = CommandDecoder()
    decoder.receive_data(b"put t 0 3 0 5 +6\r\nabc" * 100)
    for _ in range(100):
        assert decoder.next_puts(1000) is None
        assert decoder.next_command() == Put("t", 0, b"abc", 0, 6, 5)
        assert decoder._singly < 100
    decoder.receive_data(encode(USUAL[1]))
    run = decoder.next_puts(1000)
    assert isinstance(run, PutRun)
    assert as_commands(run) == [USUAL[1]]


def test_single_puts_go_before_a_run() -> None:
    run = PutRun.of(USUAL[2:])
    assert as_commands(run.behind(USUAL[:2])) == USUAL
    assert run.behind([]) is run
    assert as_commands(PutRun.of(USUAL).picked([5, 0])) == [USUAL[5], USUAL[0]]
