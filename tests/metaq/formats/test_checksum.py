"""The checksum against an implementation of CRC-32 that shares no code with it."""

from __future__ import annotations

import random
import zlib

import crcmod.predefined
import pytest

from metaq.formats.checksum import checksum, crc32

REFERENCE = crcmod.predefined.mkCrcFun("crc-32")

KNOWN = [
    (b"", 0),
    (b"FFFF", 0x52B025A9),
    (b"\0\0\0\3AAAFFFF", 0x55179A47),
    (b"123456789", 0xCBF43926 & 0x7FFFFFFF),
    (b"hello", 907060870),
    (b"world", 980881731),
]


@pytest.mark.parametrize(("body", "expected"), KNOWN)
def test_known_values(body: bytes, expected: int) -> None:
    assert checksum(body) == expected


def test_agrees_with_the_reference_and_is_never_negative() -> None:
    source = random.Random(17)
    for length in [*range(70), 255, 256, 257, 1000, 4096, 65537]:
        body = source.randbytes(length)
        assert crc32(body) == REFERENCE(body)
        assert checksum(body) == REFERENCE(body) & 0x7FFFFFFF
        assert checksum(bytearray(body)) == checksum(memoryview(body)) == checksum(body)


def test_it_is_the_one_that_leaves_the_vector_registers_alone() -> None:
    """isal's slows down everything that its thread does from then on."""
    assert crc32 is zlib.crc32
