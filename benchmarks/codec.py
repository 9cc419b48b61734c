"""How fast the text codec and the frame functions are, in one process and without any I/O.

    python benchmarks/codec.py [--seconds 0.5]

Every row is the best of several rounds over the same prepared bytes. Small items are compared with a floor measured
in the same run: the least that pure Python does for such an item (find the line end, split the line, read two
numbers, cut out the body). Values are compared with one plain copy of them. The ratios carry over to other machines,
the times do not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial

from metaq.checksum import checksum
from metaq.wire.text.commands import Command, Put, Reply, Result, Value
from metaq.wire.text.decode import NEED_DATA, CommandDecoder, ReplyDecoder
from metaq.wire.text.encode import encode
from metaq.wire.text.frames import encode_frame, walk

ITEMS = 20_000
VALUE_BYTES = 1 << 20


def best_seconds(action: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of one call, out of as many calls as fit into ``seconds`` (three at least)."""
    rounds: list[float] = []
    while len(rounds) < 3 or sum(rounds) < seconds:
        start = time.perf_counter()
        action()
        rounds.append(time.perf_counter() - start)
    return min(rounds)


def puts(body_bytes: int, sizes: int) -> list[Put]:
    """Return puts to four partitions, with bodies of ``sizes`` different lengths from ``body_bytes`` on."""
    bodies = [b"x" * (body_bytes + size) for size in range(sizes)]
    sums = [checksum(body) for body in bodies]
    return [Put("orders", n % 4, bodies[n % sizes], 0, n - 2**31, sums[n % sizes]) for n in range(ITEMS)]


def stream_of(items: Iterable[Command | Reply], chunk_bytes: int = 64 << 10) -> list[bytes]:
    """Return the encoded items as the chunks that a socket might deliver."""
    stream = b"".join(map(encode, items))
    return [stream[at : at + chunk_bytes] for at in range(0, len(stream), chunk_bytes)]


def decode_commands(chunks: list[bytes]) -> None:
    decoder = CommandDecoder()
    for chunk in chunks:
        decoder.receive_data(chunk)
        while decoder.next_command() is not NEED_DATA:
            pass


def decode_replies(chunks: list[bytes]) -> None:
    decoder = ReplyDecoder()
    for chunk in chunks:
        decoder.receive_data(chunk)
        while decoder.next_reply() is not NEED_DATA:
            pass


def floor(stream: bytes) -> None:
    """Do what no decoder of puts can leave out."""
    position = 0
    while (end := stream.find(b"\r\n", position)) >= 0:
        tokens = stream[position:end].split(b" ")
        position = end + 2 + int(tokens[3])
        _ = stream[end + 2 : position], int(tokens[6])


def print_small_items(seconds: float) -> None:
    same = puts(100, 1)
    results = [Result(200, f"{n << 40} 3 {n * 120}", n) for n in range(ITEMS)]
    run = b"".join(encode_frame(n, 0, put.body) for n, put in enumerate(same))
    stream = b"".join(map(encode, same))
    rows: list[tuple[str, Callable[[], object]]] = [
        ("floor: split and cut a put of 100 B", partial(floor, stream)),
        ("decode put, 100 B", partial(decode_commands, stream_of(same))),
        ("decode put, 60..139 B", partial(decode_commands, stream_of(puts(60, 80)))),
        ("decode result", partial(decode_replies, stream_of(results))),
        ("encode put, 100 B", lambda: [encode(put) for put in same]),
        ("encode result", lambda: [encode(result) for result in results]),
        ("encode frame, 100 B, checksum made", lambda: [encode_frame(1, 0, put.body) for put in same]),
        ("encode frame, 100 B, checksum known", lambda: [encode_frame(1, 0, put.body, 5) for put in same]),
        ("walk frames, 100 B, checksum verified", lambda: sum(1 for _ in walk(run))),
    ]
    print(f"{'per item':<44}{'us':>8}{'items/s':>12}{'x floor':>9}")
    took_us = {name: best_seconds(action, seconds) / ITEMS * 1e6 for name, action in rows}
    for name, each in took_us.items():
        print(f"{name:<44}{each:>8.2f}{1e6 / each:>12,.0f}{each / took_us[rows[0][0]]:>9.1f}")


def print_large_values(seconds: float) -> None:
    value = Value(bytes(VALUE_BYTES), 7)
    rows: list[tuple[str, Callable[[], object]]] = [
        ("one copy", partial(bytearray, value.data)),
        ("decode value, chunks of 256 KiB", partial(decode_replies, stream_of([value], 256 << 10))),
        ("decode value, chunks of 16 KiB", partial(decode_replies, stream_of([value], 16 << 10))),
        ("encode value", partial(encode, value)),
    ]
    print(f"{'per value of 1 MiB':<44}{'us':>8}{'GB/s':>12}{'x copy':>9}")
    took_s = {name: best_seconds(action, seconds) for name, action in rows}
    for name, each in took_s.items():
        print(f"{name:<44}{each * 1e6:>8.0f}{VALUE_BYTES / each / 1e9:>12.2f}{each / took_s[rows[0][0]]:>9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="time per row")
    seconds = parser.parse_args().seconds
    print_small_items(seconds)
    print()
    print_large_values(seconds)


if __name__ == "__main__":
    main()
