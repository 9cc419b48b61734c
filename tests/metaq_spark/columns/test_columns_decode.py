"""Frames <-> Arrow: the compiled and the plain path against each other and against the codec's own frames."""

from __future__ import annotations

import datetime as dt
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from examples import examples, in_one_test
from hypothesis import given, settings
from hypothesis import strategies as st
from uncached import refuse_to_cache

from metaq.compiled import addresses
from metaq.errors import CorruptFrame
from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_body, encode_frame, walk, whole_bytes
from metaq.formats.message_id import EPOCH_MS
from metaq.formats.native_crc import crc32_address
from metaq.model import Message, Partition, TopicPartition
from metaq_spark.columns import kernels
from metaq_spark.columns.batches import BatchMaker
from metaq_spark.columns.blocks import EncodedBlock, OpenBlock, of_block
from metaq_spark.columns.decode import CompiledDecoder, RunDecoder
from metaq_spark.columns.encode import FrameEncoder, VariableColumn, hash_keys
from metaq_spark.columns.engine import FIRST_BYTES, NO_NUMBA, TASK_BYTES_MIN, ColumnEngine, numba_kernels
from metaq_spark.columns.plain import PlainDecoder
from metaq_spark.columns.row_layout import message_layout
from metaq_spark.columns.schema import ARROW_SCHEMA

SOURCE = TopicPartition("orders", Partition(3, 7))

Decoder = Callable[[int, int], RunDecoder | CompiledDecoder | PlainDecoder]
DECODERS: dict[str, Decoder] = {
    "compiled": lambda rows, size: CompiledDecoder(BatchMaker(SOURCE, message_layout()), rows, size, kernels),
    "plain": lambda rows, size: PlainDecoder(BatchMaker(SOURCE, message_layout()), rows, size),
}

attributes = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages = st.lists(st.tuples(st.binary(max_size=300), attributes), max_size=40)
ids = st.integers(-(2**63), 2**63 - 1)


ENGINES = {"compiled": lambda: ColumnEngine(0), "plain": lambda: ColumnEngine(1 << 60)}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> ColumnEngine:
    """An engine that uses the compiled loops from the start, and one that never does."""
    return ENGINES[request.param]()


def run_of(items: Iterable[tuple[bytes, str | None]], first_id: int = 5 << 22) -> bytes:
    return b"".join(
        encode_frame(first_id + index, *encode_body(Message(payload, attribute)))
        for index, (payload, attribute) in enumerate(items)
    )


def frame(flag: int, body: bytes, *, length: int | None = None, crc: int | None = None, message_id: int = 1) -> bytes:
    """A frame whose header may lie."""
    size, stored = (len(body) if length is None else length), (checksum(body) if crc is None else crc)
    return struct.pack(">iiqi", size, stored, message_id, flag) + body


def rows(
    decoder: RunDecoder | CompiledDecoder | PlainDecoder, runs: Sequence[tuple[bytes, int]]
) -> list[dict[str, object]]:
    batches = [batch for data, base in runs for batch in decoder.decode(data, base)] + list(decoder.flush())
    for batch in batches:
        assert batch.schema.equals(ARROW_SCHEMA)
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def expected(run: bytes, base: int = 0) -> list[dict[str, object]]:
    """The rows of a run by the codec's own walk."""
    table = []
    for one in walk(run, base):
        message = one.message
        at = None
        if one.message_id >= 0:
            at = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=(one.message_id >> 22) + EPOCH_MS)
        place = {"topic": "orders", "broker_id": 3, "partition": 7, "offset": one.offset}
        content = {"attribute": message.attribute, "value": message.payload}
        table.append(place | {"message_id": one.message_id, "timestamp": at} | content)
    return table


@given(messages, st.integers(0, 2**40), st.integers(1, 9), st.integers(1, 900))
@settings(max_examples=examples(60))
def test_any_messages_come_out_as_they_went_in(
    items: list[tuple[bytes, str | None]], base: int, rows_max: int, bytes_max: int
) -> None:
    first, second = run_of(items[: len(items) // 2]), run_of(items[len(items) // 2 :])
    want = expected(first + second, base) if first else expected(second, base)
    runs = [(first, base), (second, base + len(first))]
    for name, make in DECODERS.items():
        got = rows(make(rows_max, bytes_max), runs)
        assert [row["value"] for row in got] == [payload for payload, _ in items], name
        assert [row | {"message_id": 0, "timestamp": 0} for row in got] == [
            row | {"message_id": 0, "timestamp": 0} for row in want
        ]


@pytest.mark.parametrize("message_id", [0, 1, -1, 2**63 - 1, -(2**63), 1 << 22, 12345678901234567])
@pytest.mark.parametrize("name", DECODERS)
def test_ids_and_times(name: str, message_id: int) -> None:
    run = encode_frame(message_id, 0, b"x")
    assert rows(DECODERS[name](10, 100), [(run, 0)]) == expected(run)


@in_one_test("rows_max", [1, 2, 3, 100])
@in_one_test("bytes_max", [1, 5, 10, 1000])
@in_one_test("name", DECODERS)
def test_batches_respect_their_limits(name: str, rows_max: int, bytes_max: int) -> None:
    payloads = [b"", b"a" * 5, b"b" * 10, b"", b"c" * 20, b"d"]
    decoder = DECODERS[name](rows_max, bytes_max)
    batches = list(decoder.decode(run_of((p, None) for p in payloads), 0)) + list(decoder.flush())
    assert [v for batch in batches for v in batch["value"].to_pylist()] == payloads
    for batch in batches:
        size = sum(len(v) for v in batch["value"].to_pylist())
        assert 1 <= batch.num_rows <= rows_max
        assert size <= bytes_max or batch.num_rows == 1 or size <= 20


@pytest.mark.parametrize("raw", [b"\xff", b"ok\xe4", b"\xc3", b"\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98"])
@pytest.mark.parametrize("name", DECODERS)
def test_an_attribute_that_is_not_utf8_is_repaired(name: str, raw: bytes) -> None:
    # The neighbours matter: broken halves of one character in two rows must not heal each other.
    bodies = [struct.pack(">i", len(task_range)) + task_range + b"p" for task_range in (b"\xc3", raw, "é".encode())]
    got = rows(DECODERS[name](10, 100), [(b"".join(frame(1, body) for body in bodies), 0)])
    assert [row["attribute"] for row in got] == ["\ufffd", raw.decode("utf-8", "replace"), "é"]


@pytest.mark.parametrize("flag", [0, 2, 6, -2, 1 << 30])
@pytest.mark.parametrize("name", DECODERS)
def test_only_flag_bit_0_means_an_attribute(name: str, flag: int) -> None:
    got = rows(DECODERS[name](10, 100), [(frame(flag, b"\x00\x00\x00\x01xy"), 0)])
    assert [(row["attribute"], row["value"]) for row in got] == [(None, b"\x00\x00\x00\x01xy")]


@pytest.mark.parametrize("flag", [1, 3, -1])
@pytest.mark.parametrize("name", DECODERS)
def test_other_flag_bits_do_not_hide_the_attribute(name: str, flag: int) -> None:
    got = rows(DECODERS[name](10, 100), [(frame(flag, b"\x00\x00\x00\x01xy"), 0)])
    assert [(row["attribute"], row["value"]) for row in got] == [("x", b"y")]


GOOD = frame(0, b"good")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (frame(0, b"abc", crc=1), "checksum"),
        (frame(0, b"abc", length=-1), "body length"),
        (frame(0, b"abc", length=4), "body length"),
        (frame(0, b"")[:19], "body length"),
        (frame(1, b""), "attribute"),
        (frame(1, b"\x00\x00\x00"), "attribute"),
        (frame(1, b"\x00\x00\x00\x02x"), "attribute"),
        (frame(1, b"\xff\xff\xff\xffxyz"), "attribute"),
        (frame(1, b"\x7f\xff\xff\xffxyz"), "attribute"),
    ],
)
@pytest.mark.parametrize("name", DECODERS)
def test_an_impossible_frame_is_named(name: str, bad: bytes, reason: str) -> None:
    decoder = DECODERS[name](10, 100)
    with pytest.raises(CorruptFrame) as caught:
        list(decoder.decode(GOOD + bad, 1000))
    assert (caught.value.where, caught.value.offset) == ("orders/3-7", 1000 + len(GOOD))
    assert reason in str(caught.value)


def encode(
    engine: ColumnEngine,
    value: pa.Array,
    attribute: pa.Array | None,
    selection: Sequence[int],
    block_bytes: int = 1000,
    block_messages: int = 1000,
) -> list[EncodedBlock]:
    encoder, block = FrameEncoder(value, attribute, engine), OpenBlock(block_bytes, block_messages)
    blocks = list(encoder.append(np.array(selection, dtype=np.int64), block))
    return [*blocks, block.take()] if block.count else blocks


@given(messages, st.integers(1, 2000), st.integers(1, 50), st.randoms())
@settings(max_examples=examples(60))
def test_any_rows_become_the_frames_of_the_codec(
    items: list[tuple[bytes, str | None]], block_bytes: int, block_messages: int, rng
) -> None:
    value = pa.array([payload for payload, _ in items], type=pa.binary())
    attribute = pa.array([text for _, text in items], type=pa.string())
    selection = [index for index in range(len(items)) if rng.random() < 0.7]
    want = b"".join(encode_frame(0, *encode_body(Message(*items[index]))) for index in selection)
    for make in ENGINES.values():
        blocks = encode(make(), value, attribute, selection, block_bytes, block_messages)
        assert b"".join(block.data for block in blocks) == want
        for block in blocks:
            assert len(list(walk(block.data))) == block.count
            assert len(block.data) <= block_bytes or block.count == 1
            assert block.count <= block_messages


@pytest.mark.parametrize(
    ("block_bytes", "block_messages", "counts"),
    [
        (1000, 1, [1, 1, 1, 1, 1]),
        (1000, 2, [2, 2, 1]),
        (1000, 5, [5]),
        (1000, 2**63 - 1, [5]),
        (63, 4, [3, 1, 1]),  # the fourth is larger than a block and goes alone
        (63, 2, [2, 1, 1, 1]),
        (1, 100, [1, 1, 1, 1, 1]),
    ],
)
def test_a_block_is_bounded_in_bytes_and_in_messages(
    engine: ColumnEngine, block_bytes: int, block_messages: int, counts: list[int]
) -> None:
    value = pa.array([b"a", b"b", b"c", b"L" * 100, b"d"])
    blocks = encode(engine, value, None, range(5), block_bytes, block_messages)
    assert [block.count for block in blocks] == counts
    assert [len(list(walk(block.data))) for block in blocks] == counts


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_every_type_of_value_column_and_slices_of_it(engine: ColumnEngine, kind: pa.DataType) -> None:
    column = pa.array(["left out", "a", "", "ccc", "left out"]).cast(kind).slice(1, 3)
    (block,) = encode(engine, column, None, [0, 1, 2])
    assert [one.body for one in walk(block.data)] == [b"a", b"", b"ccc"]
    assert {one.flag for one in walk(block.data)} == {0}


def test_an_empty_attribute_is_not_a_missing_one(engine: ColumnEngine) -> None:
    (block,) = encode(engine, pa.array([b"v", b"v"]), pa.array(["", None]), [0, 1])
    assert [one.message for one in walk(block.data)] == [Message(b"v", ""), Message(b"v", None)]


def test_a_column_of_empty_values(engine: ColumnEngine) -> None:
    (block,) = encode(engine, pa.array([b"", b""]), None, [0, 1])
    assert block == EncodedBlock(encode_frame(0, 0, b"") * 2, 2, of_block(encode_frame(0, 0, b"") * 2))


@pytest.mark.parametrize(
    ("keys", "digest"),
    [
        (pa.array([b"123456789"]), 0xCBF43926),
        (pa.array(["123456789"]), 0xCBF43926),
        (pa.array([123456789], pa.int32()), 0xCBF43926),
        (pa.array([123456789], pa.int64()), 0xCBF43926),
        (pa.array([b""]), 0),
        (pa.array(["é"]), 0x0E048D3E),
        (pa.array([-1], pa.int64()), 0x302D482A),
    ],
)
def test_keys_hash_alike_everywhere_and_for_ever(engine: ColumnEngine, keys: pa.Array, digest: int) -> None:
    # The digests are crcmod's. A key that moved to another partition would lose its order.
    assert hash_keys(keys, engine).tolist() == [digest]


@given(st.lists(st.none() | st.binary(max_size=70)))
@settings(max_examples=examples(30))
def test_both_paths_hash_alike(keys: list[bytes | None]) -> None:
    column = pa.array(keys, pa.binary())
    digests = [hash_keys(column, make())[np.asarray(column.is_valid())].tolist() for make in ENGINES.values()]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32, 33, 300, 5000])
def test_the_table_and_the_c_function_agree_with_zlib(length: int) -> None:
    import zlib

    data = bytes(index * 7 & 0xFF for index in range(length))
    column = VariableColumn.of(pa.array([data]))
    for address in {0, crc32_address()}:
        digest = np.zeros(1, dtype=np.int64)
        kernels.hash_keys(column.ends, column.data, address, kernels.CRC_TABLES, digest)
        assert digest.tolist() == [zlib.crc32(data)]


def test_a_process_starts_plain_and_goes_on_compiled() -> None:
    items = [(b"%03d" % n, None) for n in range(100)]
    runs = [(run_of([item]), n * 23) for n, item in enumerate(items)]
    decoder = RunDecoder(SOURCE, 10, 1000, ColumnEngine(plain_bytes_max=1000))
    assert [row["value"] for row in rows(decoder, runs)] == [payload for payload, _ in items]
    assert isinstance(decoder._decoder, CompiledDecoder)


def test_a_task_with_much_before_it_goes_on_compiled_behind_its_first_rows() -> None:
    engine = ColumnEngine()
    assert engine.kernels_for(FIRST_BYTES, 1 << 30) is None
    assert engine.kernels_for(1, TASK_BYTES_MIN - 1) is None
    assert engine.kernels_for(1, TASK_BYTES_MIN) is not None
    assert engine.kernels_for(1) is not None
    assert ColumnEngine().kernels_for(1, 1 << 30) is None


@pytest.fixture
def fresh_process() -> Iterator[None]:
    """Forget whether numba could be loaded, before and after."""
    numba_kernels.cache_clear()
    yield
    numba_kernels.cache_clear()


@pytest.mark.usefixtures("fresh_process")
def test_a_process_that_may_not_use_numba_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_NUMBA, "1")
    decoder = RunDecoder(SOURCE, 10, 1000, ColumnEngine(0))
    assert rows(decoder, [(run_of([(b"x", "y")]), 0)])[0]["attribute"] == "y"
    assert isinstance(decoder._decoder, PlainDecoder)


@pytest.mark.usefixtures("fresh_process")
def test_a_process_where_numba_is_missing_says_so_once_and_stays_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("metaq_spark.columns.kernels")
    monkeypatch.setitem(sys.modules, "metaq_spark.columns.kernels", None)
    for _ in range(2):
        assert rows(RunDecoder(SOURCE, 10, 1000, ColumnEngine(0)), [(run_of([(b"x", "y")]), 0)])[0]["value"] == b"x"
    (warning,) = caplog.records
    assert "numba cannot be used" in warning.getMessage()


def decoded_bytes(decoder: RunDecoder | PlainDecoder | CompiledDecoder, run: bytes) -> int:
    """How much of a run whose last frame may be cut the decoder took in."""
    decoding = decoder.decode(run, 0, may_be_cut=True)
    while True:
        try:
            next(decoding)
        except StopIteration as done:
            return int(done.value)


@pytest.mark.parametrize("name", DECODERS)
@given(messages, st.integers(0, 60))
@settings(max_examples=examples(40))
def test_a_decoder_says_how_many_bytes_whole_frames_were(
    name: str, items: list[tuple[bytes, str | None]], cut: int
) -> None:
    run = run_of(items)
    run = run[: max(0, len(run) - cut)]
    decoder = DECODERS[name](10, 100)
    taken = decoded_bytes(decoder, run)
    assert taken == whole_bytes(run)
    assert decoded_bytes(decoder, run[taken:]) == 0
    with pytest.raises(CorruptFrame) if taken < len(run) else nullcontext():
        list(DECODERS[name](10, 100).decode(run, 0))


def test_a_length_that_is_impossible_is_where_the_compiled_decoder_stops() -> None:
    assert decoded_bytes(DECODERS["compiled"](10, 100), GOOD + frame(0, b"x", length=-5)) == len(GOOD)


def test_compiled_code_is_kept_only_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = Path(addresses.private_folder())
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    folder.chmod(0o770)
    assert addresses.private_folder() == ""
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert addresses.private_folder() == ""


def test_without_any_folder_to_write_the_kernels_still_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = refuse_to_cache(monkeypatch, addresses.numba)
    monkeypatch.setattr(addresses, "private_folder", lambda: "")
    assert addresses.compiled(lambda: None) == "compiled"
    assert asked == [True, False]
