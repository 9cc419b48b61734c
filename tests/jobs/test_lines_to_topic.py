"""Files to lines, byte for byte: how the input is listed, cut, dealt and read."""

import io
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import pytest
from chispa.dataframe_comparer import assert_df_equality
from examples import in_one_test, rarely
from hypothesis import given
from hypothesis import strategies as st
from lines_to_topic import BLOCK_SCHEMA, LINE_SCHEMA, Block, deal, lines_of, list_files, parse_arguments, transform
from pyspark.sql import SparkSession

NASTY = {
    "nothing": b"",
    "no line end at all": b"one",
    "no line end at the end": b"one\ntwo",
    "CR LF": b"one\r\ntwo\r\n",
    "CR alone is no line end": b"one\rtwo\n",
    "blank lines": b"\n\n\r\n\nlast\n",
    "no UTF-8": b"\xff\xfe\n\xc3\x28\n\x00\n",
    "a byte order mark stays": b"\xef\xbb\xbfone\n",
    "Unicode line separators are no line ends": "one\u2028two\x85three\n".encode(),
    "a line longer than several blocks": b"x" * 100 + b"\nshort\n",
}
COMMON = ("no line end at the end", "no UTF-8")


def lines_by_partition(content: bytes, partitions: int, block_bytes: int) -> list[list[bytes]]:
    """What each partition gets of a single file, without Spark."""
    dealt: list[list[bytes]] = [[] for _ in range(partitions)]
    for block in deal([("file", len(content))], partitions, block_bytes):
        dealt[block.partition] += lines_of(io.BytesIO(content), block.start, block.end)
    return dealt


@in_one_test("content", NASTY.values())
@in_one_test("block_bytes", [1, 2, 3, 7, 1000])
def test_one_partition_gets_the_file_byte_for_byte(content: bytes, block_bytes: int) -> None:
    [lines] = lines_by_partition(content, 1, block_bytes)
    assert b"".join(lines) == content
    assert all(line.find(b"\n") in (-1, len(line) - 1) for line in lines)


@given(content=st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\xff"])).map(b"".join), block=st.integers(1, 9))
def test_each_line_goes_to_the_partition_of_its_first_byte(content: bytes, block: int) -> None:
    expected: list[list[bytes]] = [[], [], []]
    position = 0
    for line in io.BytesIO(content):
        expected[position // block % 3].append(line)
        position += len(line)
    assert lines_by_partition(content, 3, block) == expected


def test_dealing_goes_on_from_file_to_file() -> None:
    assert deal([("a", 5), ("empty", 0), ("b", 4)], partitions=2, block_bytes=4) == [
        Block(0, 0, "a", 0, 4),
        Block(1, 1, "a", 4, 5),
        Block(0, 2, "b", 0, 4),
    ]


def test_files_of_a_folder_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name, content in {"b.log": b"22", "a/z.log": b"1", "c.log": b""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    listed = list_files(str(tmp_path))
    assert listed == [(f"{tmp_path}/a/z.log", 1), (f"{tmp_path}/b.log", 2), (f"{tmp_path}/c.log", 0)]


def test_a_single_file_is_listed_by_path_and_by_uri(tmp_path: Path) -> None:
    file = tmp_path / "one.log"
    file.write_bytes(b"abc")
    assert list_files(str(file)) == [(str(file), 3)]
    assert list_files(f"file://{file}") == [(f"file://{file}", 3)]


@pytest.mark.parametrize("make", [lambda folder: folder / "absent", lambda folder: folder])
def test_nothing_to_read_is_said(make: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file, or a folder without files"):
        list_files(str(make(tmp_path)))


@pytest.mark.spark
@pytest.mark.parametrize("name", [*COMMON, *rarely(*(name for name in NASTY if name not in COMMON))])
def test_transform_keeps_order_within_each_partition(spark: SparkSession, name: str, tmp_path: Path) -> None:
    content, file = NASTY[name], tmp_path / "input.log"
    file.write_bytes(content)
    blocks = deal(list_files(str(file)), partitions=2, block_bytes=3)
    lines = transform(spark.createDataFrame([astuple(block) for block in blocks], BLOCK_SCHEMA), partitions=2)
    expected = [
        (partition, line) for partition, lines in enumerate(lines_by_partition(content, 2, 3)) for line in lines
    ]
    assert_df_equality(lines, spark.createDataFrame(expected, LINE_SCHEMA))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "t", "in"], "one of the arguments --brokers --rocketmq is required"),
        (["--brokers", "h:1", "--topic", "t", "--block-bytes", "0", "in"], "--block-bytes"),
        (["--brokers", "h:1", "--topic", "t"], "required: input"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert said in capsys.readouterr().err
