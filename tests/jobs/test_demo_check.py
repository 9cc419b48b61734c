"""The demo's judge must not be fooled: each case changes what came out and says what must be noticed."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_check import Comparison, Count, compare, count
from lines_to_topic import deal, lines_of

CONTENT = {"a.log": b"one\r\ntwo\n\nthree\n", "b.log": b"", "c.log": b"\xff\xfe\nlast, without an end"}
BLOCK_BYTES, PARTITIONS = 8, 2

Dealt = list[list[bytes]]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name, content in CONTENT.items():
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in CONTENT]


@pytest.fixture
def dealt(files: list[Path]) -> Dealt:
    """The lines as the job deals them."""
    lines: Dealt = [[] for _ in range(PARTITIONS)]
    for block in deal([(str(file), file.stat().st_size) for file in files], PARTITIONS, BLOCK_BYTES):
        content = io.BytesIO(Path(block.path).read_bytes())
        lines[block.partition] += lines_of(content, block.start, block.end)
    return lines


def judge(files: list[Path], came_out: Dealt) -> Comparison:
    return compare(files, [iter(lines) for lines in came_out], BLOCK_BYTES)


def test_lines_and_bytes_are_counted(files: list[Path]) -> None:
    assert count(files) == Count(6, sum(map(len, CONTENT.values())))


def test_what_came_out_as_it_went_in_is_equal(files: list[Path], dealt: Dealt) -> None:
    result = judge(files, dealt)
    assert result.equal
    assert result.sent == result.received == count(files)


def swapped(lines: list[bytes]) -> list[bytes]:
    return [lines[1], lines[0], *lines[2:]]


@pytest.mark.parametrize(
    ("change", "noticed"),
    [
        (lambda lines: lines[:-1], "the line is missing from partition 0"),
        (lambda lines: [*lines, lines[-1]], "partition 0: one message too many"),
        (swapped, "received"),
        (lambda lines: [lines[0].replace(b"\r\n", b"\n"), *lines[1:]], "sent b'one\\r\\n', received b'one\\n'"),
        (lambda lines: [line.decode(errors="replace").encode() for line in lines], "received"),
        (lambda lines: [lines[0] + lines[1], *lines[2:]], "received"),
        (lambda lines: [], "the line is missing"),
    ],
    ids=["lost", "doubled", "swapped", "line end changed", "made UTF-8", "joined", "all lost"],
)
def test_every_change_is_noticed(
    files: list[Path], dealt: Dealt, change: Callable[[list[bytes]], list[bytes]], noticed: str
) -> None:
    changed = change(dealt[0])
    assert changed != dealt[0]
    result = judge(files, [changed, dealt[1]])
    assert not result.equal
    assert result.difference is not None
    assert noticed in result.difference
