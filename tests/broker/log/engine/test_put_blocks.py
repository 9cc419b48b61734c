"""A batched put is checked frame by frame, and every frame gets its own id."""

from __future__ import annotations

import subprocess
import sys

import pytest
from metaq_broker.log.engine import machine_code
from metaq_broker.log.engine.blocks import BlockNumberer, BlockRefused, number_made, number_plainly
from uncached import refuse_to_cache

from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame, walk
from metaq.formats.message_id import EPOCH_MS, IdRange

BODIES = [b"", b"a", b"bb" * 50, b"c" * 1000, b"last"]
BLOCK = b"".join(encode_frame(-1, flag, body) for flag, body in enumerate(BODIES))
IDS = IdRange(EPOCH_MS + 5, 4094, len(BODIES), 3)


def test_ids_are_written_and_everything_else_is_kept() -> None:
    numbered, _ = number_plainly(BLOCK, len(BODIES), IDS, 1000, 4096)
    frames = list(walk(bytes(numbered)))
    assert [frame.message_id for frame in frames] == list(IDS)
    assert [(frame.flag, frame.body) for frame in frames] == list(enumerate(BODIES))


@pytest.mark.parametrize(
    ("mark_bytes", "ordinals"), [(1, [0, 1, 2, 3, 4]), (30, [0, 2, 3, 4]), (200, [0, 4]), (5000, [0])]
)
def test_marks_are_frame_starts_at_least_so_far_apart(mark_bytes: int, ordinals: list[int]) -> None:
    _, marks = number_plainly(BLOCK, len(BODIES), IDS, 1000, mark_bytes)
    starts = [frame.offset for frame in walk(BLOCK)]
    assert list(marks) == [(starts[ordinal], ordinal) for ordinal in ordinals]


@pytest.mark.parametrize("mark_bytes", [1, 30, 200, 5000])
@pytest.mark.parametrize("message_ids", [IDS, IdRange(EPOCH_MS + 5, 7, len(BODIES), 3)])
def test_frames_that_were_just_made_become_the_block_that_a_check_would_give(
    mark_bytes: int, message_ids: IdRange
) -> None:
    frames = [encode_frame(-1, flag, body) for flag, body in enumerate(BODIES)]
    assert number_made(frames, message_ids, 1000, mark_bytes) == number_plainly(
        BLOCK, len(BODIES), message_ids, 1000, mark_bytes
    )
    with pytest.raises(BlockRefused, match="frame 3 at byte 161 has a body of 1000 bytes, maxMessageSize is 999"):
        number_made(frames, message_ids, 999, mark_bytes)


def _with(block: bytes, at: int, value: bytes) -> bytes:
    return block[:at] + value + block[at + len(value) :]


FRAME = encode_frame(0, 0, b"body")


@pytest.mark.parametrize(
    ("block", "count", "message"),
    [
        (b"", 1, "frame 0 of 1 begins at byte 0, but the block has 0 bytes"),
        (FRAME, 2, "frame 1 of 2 begins at byte 24, but the block has 24 bytes"),
        (FRAME * 2, 1, "1 frames take 24 bytes, but the block has 48 bytes"),
        (FRAME + FRAME[:19], 2, "frame 1 of 2 begins at byte 24"),
        (FRAME + FRAME[:-1], 2, "frame 1 at byte 24 says 4 body bytes, which the block of 47 bytes does not hold"),
        (_with(FRAME, 0, b"\xff\xff\xff\xff"), 1, "frame 0 at byte 0 says -1 body bytes"),
        (_with(FRAME, 0, b"\x7f\xff\xff\xff"), 1, "frame 0 at byte 0 has a body of 2147483647 bytes, maxMessageSize"),
        (FRAME + _with(FRAME, 20, b"B"), 2, "frame 1 at byte 24 fails its checksum"),
        (FRAME + _with(FRAME, 4, checksum(b"x").to_bytes(4, "big")), 2, "frame 1 at byte 24 fails its checksum"),
        (encode_frame(0, 0, b"x" * 1001), 1, "frame 0 at byte 0 has a body of 1001 bytes, maxMessageSize is 1000"),
    ],
)  # fmt: skip
def test_one_wrong_frame_refuses_the_block_and_is_named(block: bytes, count: int, message: str) -> None:
    with pytest.raises(BlockRefused) as refused:
        number_plainly(block, count, IdRange(EPOCH_MS, 0, count, 0), 1000, 4096)
    assert message in str(refused.value)


def test_the_compiled_loop_does_what_the_plain_one_does() -> None:
    numbering = BlockNumberer(plain_bytes_max=0)
    numbering.load()
    assert numbering.compiled
    arguments = len(BODIES), IDS, 1000, 30
    assert numbering.number(BLOCK, *arguments) == number_plainly(BLOCK, *arguments)
    with pytest.raises(BlockRefused, match="frame 4 at byte"):
        numbering.number(BLOCK[:-1] + b"!", *arguments)


def test_the_compiled_loop_is_loaded_after_so_many_bytes_and_not_before() -> None:
    numbering = BlockNumberer(plain_bytes_max=len(BLOCK))
    for expected in (False, True):
        numbering.number(BLOCK, len(BODIES), IDS, 1000, 4096)
        assert numbering.loading is expected
    numbering.join()
    assert numbering.compiled


@pytest.mark.parametrize("compiled", [False, True])
def test_a_block_that_can_be_written_is_numbered_where_it_is(compiled: bool) -> None:
    numbering = BlockNumberer()
    if compiled:
        numbering.load()
    memory = bytearray(BLOCK + b"behind")
    numbered, marks = numbering.number(memoryview(memory)[: len(BLOCK)], len(BODIES), IDS, 1000, 30)
    assert (numbered, marks) == number_plainly(BLOCK, len(BODIES), IDS, 1000, 30)
    assert memory == bytes(numbered) + b"behind"


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("block", [BLOCK, memoryview(BLOCK)])
def test_one_that_cannot_is_copied(block: bytes | memoryview, compiled: bool) -> None:
    numbering = BlockNumberer()
    if compiled:
        numbering.load()
    numbered, _ = numbering.number(block, len(BODIES), IDS, 1000, 30)
    assert [frame.message_id for frame in walk(bytes(numbered))] == list(IDS)
    assert block == BLOCK


def test_without_any_folder_to_write_the_loop_still_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = refuse_to_cache(monkeypatch, machine_code.numba)
    monkeypatch.setattr(machine_code, "private_folder", lambda: "")
    assert machine_code.compiled(lambda: None, "int64()") == "compiled"
    assert asked == [True, False]


@pytest.mark.process
def test_a_later_process_finds_the_machine_code_on_disk() -> None:
    """The stamp of numba's cache: compiling again would count as a miss."""
    BlockNumberer().load()
    script = (
        "from metaq_broker.log.engine.block_loop import number; "
        "print(number.stats.cache_hits, number.stats.cache_misses)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("Counter()") == 1
    assert done.stdout.rstrip().endswith("Counter()")
