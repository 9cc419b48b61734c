"""Mutated records: the compiled decoder does what the plain one does, and never looks behind the end of its input."""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import zlib

import pytest
from examples import examples
from records import record
from test_rocketmq_decode import RECORD_COLUMNS, Reading

from metaq.formats.rocketmq.tags import TagFilter
from metaq_spark.columns.rocketmq.checks import UnusableRecord

INPUT_BYTES = 1 << 20
NUMBERS = [0, 1, -1, 90, 91, 65535, 1 << 30, 2**31 - 1, -(2**31), -626843481, -626843477]
NAMES = [b"KEYS", b"TAGS", b"UNIQ_KEY", b"WAIT", b"c", b"", b"\x01", b"x" * 300]
VALUES = [b"v", b"", b"Aa", b"BB", b"\xff\xfe", b"q" * 500]
FLAGS = [0] * 9 + [1, 1, 1, 0x101, 0x201, 0x301, 0x701, 0x10, 0x20, 0x40, 0x80]


class GuardedInput:
    """Memory whose last byte is followed by a page that cannot be read: to read it ends the process."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, INPUT_BYTES + mmap.PAGESIZE)
        guard = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + INPUT_BYTES
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0):
            raise OSError("mprotect")

    def __call__(self, data: bytes) -> memoryview:
        view = memoryview(self._memory)[INPUT_BYTES - len(data) : INPUT_BYTES]
        view[:] = data
        return view


@pytest.fixture(scope="module")
def guarded() -> GuardedInput:
    return GuardedInput()


def some_properties(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return bytes(chance.choices([1, 2, 65, 255], k=chance.randrange(60)))
    if chance.random() < 0.05:
        return b"a\x01b\x02" * chance.randrange(1, 8000)
    pairs = chance.randrange(6)
    return b"".join(chance.choice(NAMES) + b"\x01" + chance.choice(VALUES) + b"\x02" for _ in range(pairs))


def some_record(chance: random.Random, offset: int) -> bytes:
    sys_flag = chance.choice(FLAGS)
    body = bytes(chance.choice([0, 1, 20, 3000]))
    return record(
        zlib.compress(body) if sys_flag == 1 and chance.random() < 0.9 else body,
        offset=offset,
        properties=some_properties(chance),
        sys_flag=sys_flag,
        version=chance.choice([1, 2]),
        born_ip=bytes(chance.choice([4, 16])),
        store_ip=bytes(chance.choice([4, 16])),
        queue_id=3 if chance.random() < 0.97 else 4,
        topic=b"orders" if chance.random() < 0.97 else chance.choice([b"", b"o" * 127]),
        born_ms=chance.choice([0, -1, 2**62]),
        reconsume_times=chance.choice(NUMBERS),
        flag=chance.choice(NUMBERS),
    )


def mutated(chance: random.Random, run: bytes) -> bytes:
    data = bytearray(run)
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1 | 2:
                data[at : at + 4] = struct.pack(">i", chance.choice(NUMBERS))
            case 3:
                del data[at : at + chance.choice([1, 5, 9, 1 << 20])]
            case _:
                data[at:at] = bytes(chance.randrange(9))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_both_decoders_take_and_refuse_the_same(seed: int, guarded: GuardedInput) -> None:
    chance, refused = random.Random(seed), set()
    for _ in range(examples(400)):
        first = chance.choice([0, 5, 2**50, 2**63 - 20])
        offsets = [first + n + chance.choice([0] * 9 + [n]) for n in range(chance.randrange(1, 6))]
        run = mutated(chance, b"".join(some_record(chance, offset) for offset in offsets))
        names = [name for name in RECORD_COLUMNS if chance.random() < 0.7] or ["value"]
        tags = TagFilter.parse(chance.choice(["*", "Aa"]))
        dense, rows_max, bytes_max = (
            chance.random() < 0.5,
            chance.randrange(1, 6),
            chance.choice([1, 50, 4000, 1 << 20]),
        )
        seen = []
        for kind in ("compiled", "plain"):
            reading = Reading(kind, names=names, tags=tags, dense=dense, rows_max=rows_max, bytes_max=bytes_max)
            error = None
            try:
                reading.decode(run if kind == "plain" else guarded(run), first, max(offsets) + 1)
            except UnusableRecord as found:
                error = (found.offset, found.reason, found.record)
                refused.add(found.reason)
            seen.append((reading.rows(), reading.gaps, error))
        assert seen[0] == seen[1]
    assert len(refused) >= 6
