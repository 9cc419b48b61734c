"""Frame blocks: one contract over the plain and the compiled passes, and what a block tells about its frames."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from metaq.compiled.lazy_loop import LazyLoop
from metaq.errors import CorruptFrame
from metaq.formats import frame_block
from metaq.formats.checksum import checksum
from metaq.formats.frame_block import (
    BlockLoops,
    BlockRefused,
    FrameBlock,
    block_passes,
    check_count,
    ends_plainly,
    number_plainly,
)
from metaq.formats.frames import encode_frame, walk
from metaq.formats.message_id import EPOCH_MS, IdRange
from metaq.model import Buffer

BODIES = [b"", b"a", b"bb" * 50, b"c" * 1000, b"last", *(b"%d" % number for number in range(200))]
FRAMES = [encode_frame(-1, flag, body) for flag, body in enumerate(BODIES)]
DATA = b"".join(FRAMES)
IDS = IdRange(EPOCH_MS + 5, 4000, len(BODIES), 3)
ENDS = [frame.end for frame in walk(DATA)]


Passes = LazyLoop[BlockLoops]


@pytest.fixture(scope="module")
def compiled_passes() -> Passes:
    passes = block_passes()
    passes.load()
    assert passes.compiled
    return passes


@pytest.fixture(params=["plain", "compiled"])
def passes(request: pytest.FixtureRequest, compiled_passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of a process, with either body; no block is too short for them."""
    monkeypatch.setattr(frame_block, "COMPILED_BYTES_MIN", 0)
    chosen = compiled_passes if request.param == "compiled" else block_passes(1 << 40)
    monkeypatch.setattr(frame_block, "BLOCKS", chosen)


def number(block: Buffer, count: int, ids: IdRange) -> FrameBlock:
    return FrameBlock(block, count).numbered(ids, 1000)


# ---- the contract of both bodies


@pytest.mark.usefixtures("passes")
def test_ids_are_written_and_everything_else_is_kept() -> None:
    numbered = number(DATA, len(BODIES), IDS)
    frames = list(walk(bytes(numbered.data)))
    assert [frame.message_id for frame in frames] == list(IDS)
    assert [(frame.flag, frame.body) for frame in frames] == list(enumerate(BODIES))
    assert (numbered.count, list(numbered.ends)) == (len(BODIES), ENDS)


@pytest.mark.usefixtures("passes")
def test_ends_are_those_of_the_frames() -> None:
    assert list(FrameBlock(DATA, 205).ends) == list(FrameBlock(memoryview(DATA), 205).ends) == ENDS
    assert list(FrameBlock(b"", 0).ends) == []


def _with(block: bytes, at: int, value: bytes) -> bytes:
    return block[:at] + value + block[at + len(value) :]


FRAME = encode_frame(0, 0, b"body")


@pytest.mark.usefixtures("passes")
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
        number(block, count, IdRange(EPOCH_MS, 0, count, 0))
    assert message in str(refused.value)


@pytest.mark.usefixtures("passes")
def test_a_block_that_can_be_written_is_numbered_where_it_is() -> None:
    memory = bytearray(DATA + b"behind")
    numbered = number(memoryview(memory)[: len(DATA)], len(BODIES), IDS)
    assert numbered == number_plainly(DATA, len(BODIES), IDS, 1000)
    assert memory == bytes(numbered.data) + b"behind"


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("block", [DATA, memoryview(DATA)])
def test_one_that_cannot_is_copied(block: bytes | memoryview) -> None:
    numbered = number(block, len(BODIES), IDS)
    assert [frame.message_id for frame in walk(bytes(numbered.data))] == list(IDS)
    assert block == DATA


NUMBERED = b"".join(encode_frame(number, 0, body) for number, body in enumerate(BODIES, 1))


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_run_is_checked_up_to_its_last_whole_frame(kind: type) -> None:
    for cut, whole in ((0, 0), (19, 0), (20, 1), (40, 1), (41, 2), (len(NUMBERED) - 1, 204), (len(NUMBERED), 205)):
        block = FrameBlock.checked(kind(NUMBERED[:cut]), 0, "t-0")
        end = ENDS[whole - 1] if whole else 0
        assert (block.count, list(block.ends), bytes(block.data)) == (whole, ENDS[:whole], NUMBERED[:end])


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (_with(FRAME, 20, b"B"), r"t-0 at offset 4320: checksum \w+ in the header"),
        (_with(FRAME, 0, b"\xff\xff\xff\xff"), "t-0 at offset 4320: body length -1"),
        (bytes(20), "t-0 at offset 4320: an empty message with the id 0"),
    ],
)
def test_a_damaged_frame_of_a_run_is_named(frame: bytes, reason: str) -> None:
    whole = encode_frame(1, 0, b"x" * 300)
    with pytest.raises(CorruptFrame, match=reason):
        FrameBlock.checked(whole + frame + whole, 4000, "t-0")


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize(
    ("ids", "ascend"), [((), True), ((0, 5, 5, 6), True), ((5, 4), False), ((-2, -1), False), ((1 << 62, 3), False)]
)
def test_a_checked_run_says_whether_its_ids_ascend(ids: tuple[int, ...], ascend: bool) -> None:
    assert FrameBlock.checked(b"".join(encode_frame(each, 0, b"b") for each in ids), 0, "").ids_ascend is ascend


# ---- how a process comes by the compiled body


def test_the_compiled_body_is_loaded_after_so_many_bytes_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = block_passes(len(DATA))
    monkeypatch.setattr(frame_block, "BLOCKS", passes)
    for expected in (False, True):
        number(DATA, len(BODIES), IDS)
        assert passes.loading is expected
    passes.join()
    assert passes.compiled


def test_blocks_are_numbered_plainly_without_a_file_to_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(frame_block, "compiled_loops", compiled)
    passes = block_passes(0)
    monkeypatch.setattr(frame_block, "BLOCKS", passes)
    for ms in range(2):
        ids = IdRange(EPOCH_MS + ms, 0, 1, 0)
        numbered = number(FRAME, 1, ids)
        passes.join()
        assert bytes(numbered.data) == encode_frame(ids.first, 0, b"body")
    assert (passes.loading, passes.compiled) == (True, False)


def test_a_body_that_gives_wrong_results_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = frame_block.compiled_loops()
    wrong = loops._replace(ends_of=lambda data: ends_plainly(data)[:-1])
    monkeypatch.setattr(frame_block, "compiled_loops", lambda: wrong)
    passes = block_passes()
    passes.load()
    assert not passes.compiled


@pytest.mark.process
def test_a_later_process_finds_the_machine_code_on_disk() -> None:
    """The stamp of numba's cache: compiling again would count as a miss."""
    block_passes().load()
    script = "from metaq.formats.frame_loops import number; print(number.stats.cache_hits, number.stats.cache_misses)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("Counter()") == 1
    assert done.stdout.rstrip().endswith("Counter()")


# ---- blocks


@pytest.mark.parametrize("ids", [IDS, IdRange(EPOCH_MS + 5, 7, len(BODIES), 3)])
def test_new_frames_become_the_block_that_a_check_would_give(ids: IdRange) -> None:
    made = FrameBlock.of(FRAMES)
    assert list(made.ends) == ENDS
    assert made.renumbered(ids, 1000) == number_plainly(DATA, len(BODIES), ids, 1000)
    with pytest.raises(BlockRefused, match="frame 3 at byte 161 has a body of 1000 bytes, maxMessageSize is 999"):
        FrameBlock.of(FRAMES).renumbered(ids, 999)


def test_bodies_with_their_checksums_and_flags_are_frames() -> None:
    block = FrameBlock.of_bodies([b"a", b"", b"bcd"], [5, 0, checksum(b"bcd")], [0, 1, -2])
    expected = [encode_frame(0, 0, b"a", 5), encode_frame(0, 1, b"", 0), encode_frame(0, -2, b"bcd")]
    assert block.split() == expected


def test_ends_that_nobody_knew_are_found_when_they_are_asked_for() -> None:
    block = FrameBlock(DATA, len(FRAMES))
    assert list(block.ends) == ENDS
    assert block.split() == FRAMES
    assert [block.start(number) for number in (0, 1, 4)] == [0, ENDS[0], ENDS[3]]
    assert block.message_id(2) == -1


def test_parts_picks_and_joined_blocks_have_the_frames_that_they_name() -> None:
    block = FrameBlock(DATA, len(FRAMES))
    assert block.part(2, 3).split() == FRAMES[2:5]
    assert block.part(0, 0).split() == []
    assert block.part(len(FRAMES), 0).split() == []
    assert block.picked([4, 0]).split() == [FRAMES[4], FRAMES[0]]
    joined = FrameBlock.joined([block.part(0, 2), block.part(2, 1), block.part(3, len(FRAMES) - 3)])
    assert joined == block
    assert list(joined.ends) == ENDS
    assert FrameBlock.joined([block]) is block


def test_a_copy_can_be_extended_and_cut() -> None:
    block = FrameBlock(DATA, len(FRAMES))
    copy = block.part(0, 2).copy()
    copy.extend(block.part(2, 1))
    assert copy.split() == FRAMES[:3]
    copy.cut(1)
    assert (copy.split(), copy.count) == (FRAMES[:1], 1)
    assert block.split() == FRAMES


def test_a_count_that_no_block_of_that_size_has_is_refused() -> None:
    check_count(FrameBlock(bytes(40), 2))
    with pytest.raises(BlockRefused, match="3 frames take 60 bytes at least, the block has 59"):
        check_count(FrameBlock(bytes(59), 3))
