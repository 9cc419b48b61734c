"""The compiled loop makes the frames of a batch that plain code makes, and leaves it what is unusual."""

from __future__ import annotations

import random
import struct

import pytest
from metaq_broker.rocketmq.sends import batch_frames
from metaq_broker.rocketmq.sends.batch_frames import BatchFramer, Shared, frames_plainly

from metaq.errors import CorruptRecord, FieldError
from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import walk
from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.properties import BYTES_MAX

BORN_4, BORN_6 = host_bytes("10.1.2.3", 4), host_bytes("2001:db8::1", 6)
COMMON = Shared(b"CLUSTER\x01c", 1, 1_764_068_000_000, BORN_4, 2)

Outcome = FrameBlock | str | None


@pytest.fixture(scope="module")
def framing() -> BatchFramer:
    made = BatchFramer(0)
    made.load()
    assert made.compiled
    return made


@pytest.fixture(autouse=True)
def of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short batches are made by the compiled loop, too."""
    monkeypatch.setattr(batch_frames, "COMPILED_BYTES_MIN", 0)


def both(framing: BatchFramer, data: bytes, shared: Shared = COMMON) -> list[Outcome]:
    """What the compiled loop and the plain one make of a batch."""
    outcomes: list[Outcome] = []
    for make in (framing.frames, frames_plainly):
        try:
            outcomes.append(make(data, shared))
        except (CorruptRecord, FieldError) as error:
            outcomes.append(str(error))
    return outcomes


@pytest.mark.parametrize("seed", range(10))
def test_it_makes_what_plain_code_makes(framing: BatchFramer, seed: int) -> None:
    dice = random.Random(seed)
    names = [
        b"KEYS\x01k 1\x02",
        b"TAGS\x01red\x02",
        b"TAGS\x01",
        b"XTAGS\x01no\x02",
        b"UNIQ_KEY\x01AB\x02",
        b"TAGS\x01b",
    ]

    def element() -> BatchElement:
        properties = b"".join(dice.choice(names) for _ in range(dice.randrange(5)))
        return BatchElement(dice.randbytes(dice.randrange(200)), properties, dice.choice([0] * 30 + [1]))

    for _ in range(100):
        data = encode_batch(element() for _ in range(dice.randrange(1, 12)))
        if dice.randrange(3) == 0:
            at = dice.randrange(len(data))
            data = data[:at] + dice.randbytes(1) + data[at + 1 :]
        shared = COMMON._replace(born_host=dice.choice([BORN_4, BORN_6]), sys_flag=dice.choice([0, 1, -1]))
        compiled, plainly = both(framing, data[: dice.choice([len(data)] * 4 + [len(data) - 1])], shared)
        assert compiled == plainly


def test_usual_batches_need_no_plain_code(framing: BatchFramer) -> None:
    data = encode_batch(BatchElement(bytes(100), b"UNIQ_KEY\x01%d\x02TAGS\x01t" % n, 7) for n in range(1000))
    assert framing.loop is not None
    made = framing.loop(data, COMMON)
    assert made is not None
    assert made == frames_plainly(data, COMMON)
    assert len(list(walk(made.data))) == 1000


def test_more_than_one_call_makes_are_made(framing: BatchFramer, monkeypatch: pytest.MonkeyPatch) -> None:
    many = encode_batch(BatchElement(b"x") for _ in range(batch_frames.FRAMES_MAX + 5))
    large = encode_batch(BatchElement(bytes(200_000), b"TAGS\x01t") for _ in range(12))
    for data in (many, large):
        assert framing.loop is not None
        assert framing.loop(data, COMMON) == frames_plainly(data, COMMON)
    larger = encode_batch([BatchElement(bytes(batch_frames.OUT_BYTES))])
    assert framing.loop is not None
    assert framing.loop(larger, COMMON) is None
    compiled, plainly = both(framing, larger)
    assert compiled == plainly
    assert isinstance(plainly, FrameBlock)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(21),
        encode_batch([BatchElement(b"a")]) + b"\0",
        encode_batch([BatchElement(b"a"), BatchElement(b"b")])[:-1],
        struct.pack(">iiiii", 22, 0, 0, 0, -1) + bytes(2),
        struct.pack(">iiiii", -5, 0, 0, 0, 0) + bytes(2),
        struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\0\1",
        encode_batch([BatchElement(b"a", b"p" * BYTES_MAX)]),
    ],
)
def test_what_is_no_batch_is_refused_as_by_plain_code(framing: BatchFramer, data: bytes) -> None:
    compiled, plainly = both(framing, data)
    assert compiled == plainly
    assert plainly is None or isinstance(plainly, str)


def test_numbers_that_do_not_fit_are_refused_by_both(framing: BatchFramer) -> None:
    compiled, plainly = both(framing, encode_batch([BatchElement(b"a")]), COMMON._replace(reconsume_times=1 << 40))
    assert compiled == plainly
    assert isinstance(plainly, str)


def test_a_loop_that_makes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(data: bytes, shared: Shared) -> FrameBlock | None:
        made = frames_plainly(data, shared) if data else None
        return made.part(0, made.count - 1) if made else None

    monkeypatch.setattr(batch_frames, "compiled", lambda: wrong)
    framing = BatchFramer(0)
    framing.load()
    assert not framing.compiled
    assert framing.frames(encode_batch([BatchElement(b"a")]), COMMON) is not None
