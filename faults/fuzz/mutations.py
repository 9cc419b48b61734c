"""Small alterations of the bytes of a command, and cutting a stream into pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

Mutation = Callable[[Random, bytes], bytes]


def _flip_bit(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def _drop_slice(random: Random, data: bytes) -> bytes:
    start, end = _slice(random, data)
    return data[:start] + data[end:]


def _double_slice(random: Random, data: bytes) -> bytes:
    start, end = _slice(random, data)
    return data[:end] + data[start:]


def _insert_noise(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice((b"\r\n", b"\n", b" ", b"\x00", b"\xff", random.randbytes(7))) + data[at:]


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data))]


def _swap_tokens(random: Random, data: bytes) -> bytes:
    tokens = data.split(b" ")
    one, other = random.randrange(len(tokens)), random.randrange(len(tokens))
    tokens[one], tokens[other] = tokens[other], tokens[one]
    return b" ".join(tokens)


def _double_space(random: Random, data: bytes) -> bytes:
    return data.replace(b" ", b"  ", random.randint(1, 3))


def _shout(_random: Random, data: bytes) -> bytes:
    return data[:8].upper() + data[8:]


def _lone_line_feed(_random: Random, data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n", 1)


MUTATIONS: Final[Sequence[Mutation]] = (
    _flip_bit,
    _flip_bit,
    _drop_slice,
    _double_slice,
    _insert_noise,
    _cut,
    _swap_tokens,
    _double_space,
    _shout,
    _lone_line_feed,
)


def mutate(random: Random, data: bytes) -> bytes:
    """Return ``data`` (not empty) with one small alteration; the result may be empty."""
    return random.choice(MUTATIONS)(random, data)


def random_cuts(random: Random, data: bytes) -> Iterator[bytes]:
    """Yield ``data`` in pieces, as a network might deliver it: whole, in a few parts, or the front byte by byte."""
    style = random.random()
    if style < 0.6:
        yield data
        return
    start = 0
    if style > 0.97:
        start = min(len(data), 60)
        yield from (data[at : at + 1] for at in range(start))
    while start < len(data):
        end = start + random.choice((1, 7, 100, 1000, 10_000))
        yield data[start:end]
        start = end


def _slice(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data))
    return start, min(len(data), start + random.randint(1, 12))
