"""The checksum against an implementation of CRC-32 that shares no code with it."""

from __future__ import annotations

import random
import zlib

import crcmod.predefined
import pytest

import metaq.formats.checksum
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


def test_a_fast_library_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    monkeypatch.setattr(isal_zlib, "crc32", lambda body: zlib.crc32(body) ^ 1)
    assert metaq.formats.checksum._fastest_crc32() is zlib.crc32
    monkeypatch.undo()
    assert metaq.formats.checksum._fastest_crc32() is isal_zlib.crc32


def test_without_the_fast_library_zlib_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "isal", None)
    assert metaq.formats.checksum._fastest_crc32() is zlib.crc32
