"""How fast the text codec and the frame functions are, in one process and without any I/O.

    python benchmarks/codec.py [--runs 7] [--scale 1] [--json FILE]

Every figure is a median over the same prepared bytes; all take turns. Small items are compared with a floor: the least
that pure Python does for such an item (find the line end, split the line, read two numbers, cut out the body). Values
are compared with one plain copy of them. Less is better; the ratio is how many times the floor something costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from figures import Figure, Report, arguments, medians

from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame, walk
from metaq.protocols.text.commands import Command, Put, Reply, Result, Value
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder, ReplyDecoder
from metaq.protocols.text.encode import encode

ITEMS = 20_000
VALUE_BYTES = 1 << 20
RUNS = 7


def puts(body_bytes: int, sizes: int, items: int) -> list[Put]:
    """Return puts to four partitions, with bodies of ``sizes`` different lengths from ``body_bytes`` on."""
    bodies = [b"x" * (body_bytes + size) for size in range(sizes)]
    sums = [checksum(body) for body in bodies]
    return [Put("orders", n % 4, bodies[n % sizes], 0, n - 2**31, sums[n % sizes]) for n in range(items)]


def stream_of(items: Iterable[Command | Reply], chunk_bytes: int = 64 << 10) -> list[bytes]:
    """Return the encoded items as the chunks that a socket might deliver."""
    stream = b"".join(map(encode, items))
    return [stream[at : at + chunk_bytes] for at in range(0, len(stream), chunk_bytes)]


def decode_commands(chunks: list[bytes]) -> None:
    """Decode as a broker does: runs of puts, and what is none."""
    decoder = CommandDecoder()
    for chunk in chunks:
        decoder.receive_data(chunk)
        while decoder.next_puts(1 << 20) is not None or decoder.next_command() is not NEED_DATA:
            pass


def decode_replies(chunks: list[bytes], times: int = 1) -> None:
    for _ in range(times):
        decoder = ReplyDecoder()
        for chunk in chunks:
            decoder.receive_data(chunk)
            while decoder.next_reply() is not NEED_DATA:
                pass


def again(action: Callable[[], object], times: int) -> None:
    """Do it so often, keeping nothing."""
    for _ in range(times):
        action()


def floor(stream: bytes) -> None:
    """Do what no decoder of puts can leave out."""
    position = 0
    while (end := stream.find(b"\r\n", position)) >= 0:
        tokens = stream[position:end].split(b" ")
        position = end + 2 + int(tokens[3])
        _ = stream[end + 2 : position], int(tokens[6])


def small_items(report: Report, items: int, runs: int) -> None:
    """Microseconds of one item each."""
    same = puts(100, 1, items)
    results = [Result(200, f"{n << 40} 3 {n * 120}", n) for n in range(items)]
    run = b"".join(encode_frame(n, 0, put.body) for n, put in enumerate(same))
    ways: dict[str, Callable[[], object]] = {
        "decode put, 100 B": partial(decode_commands, stream_of(same)),
        "decode put, 60..139 B": partial(decode_commands, stream_of(puts(60, 80, items))),
        "decode result": partial(decode_replies, stream_of(results)),
        "encode put, 100 B": lambda: [encode(put) for put in same],
        "encode result": lambda: [encode(result) for result in results],
        "encode frame, 100 B, checksum made": lambda: [encode_frame(1, 0, put.body) for put in same],
        "encode frame, 100 B, checksum known": lambda: [encode_frame(1, 0, put.body, 5) for put in same],
        "walk frames, 100 B, checksum verified": lambda: sum(1 for _ in walk(run)),
    }
    bare = partial(floor, b"".join(map(encode, same)))
    least, *took = (seconds / items * 1e6 for seconds in medians([bare, *ways.values()], runs))
    for name, each in zip(ways, took, strict=True):
        report.add(Figure(f"codec: {name}", "µs", each, least, "split and cut a put of 100 B", "less"))


def large_values(report: Report, times: int, runs: int) -> None:
    """Microseconds of one value of 1 MiB each; ``times`` of them are one run."""
    value = Value(bytes(VALUE_BYTES), 7)
    ways: dict[str, Callable[[], object]] = {
        "decode value of 1 MiB, chunks of 256 KiB": partial(decode_replies, stream_of([value], 256 << 10), times),
        "decode value of 1 MiB, chunks of 16 KiB": partial(decode_replies, stream_of([value], 16 << 10), times),
        "encode value of 1 MiB": partial(again, partial(encode, value), times),
    }
    copy = partial(again, partial(bytearray, value.data), times)
    least, *took = (seconds / times * 1e6 for seconds in medians([copy, *ways.values()], runs))
    for name, each in zip(ways, took, strict=True):
        report.add(Figure(f"codec: {name}", "µs", each, least, "one copy", "less"))


def main() -> None:
    given = arguments(__doc__, RUNS).parse_args()
    with Report("The codec alone", given.json) as report:
        small_items(report, max(100, int(ITEMS * given.scale)), given.runs)
        large_values(report, max(2, int(100 * given.scale)), given.runs)


if __name__ == "__main__":
    main()
