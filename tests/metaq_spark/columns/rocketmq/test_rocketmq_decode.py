"""RocketMQ's records to Arrow: the compiled and the plain decoder against each other, and against what Java read."""

from __future__ import annotations

import datetime as dt
import json
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, DataType, StringType
from records import properties_text, record

from metaq.formats.rocketmq.tags import ALL_TAGS, TagFilter
from metaq.model import Buffer, Partition, TopicPartition
from metaq_spark.columns.rocketmq.batches import RecordBatchMaker
from metaq_spark.columns.rocketmq.checks import ExpectedQueue, UnusableRecord
from metaq_spark.columns.rocketmq.decode import CompiledRecordDecoder, RecordDecoder
from metaq_spark.columns.rocketmq.layout import RECORD_COLUMNS
from metaq_spark.columns.rocketmq.plain import PlainRecordDecoder
from metaq_spark.spark_version import arrow_type

SOURCE = TopicPartition("orders", Partition("broker-a", 3))  # type: ignore[arg-type]
GOLDEN = Path(__file__).parents[3] / "golden/rocketmq/records.jsonl"
DECODERS = {"compiled": CompiledRecordDecoder, "plain": PlainRecordDecoder}
Rows = list[dict[str, Any]]


def schema_of(names: Iterable[str] = RECORD_COLUMNS, value_type: DataType | None = None) -> pa.Schema:
    types = {**RECORD_COLUMNS, "value": value_type or BinaryType()}
    return pa.schema([pa.field(name, arrow_type(types[name])) for name in names])


class Reading:
    """A decoder with what came out of it."""

    def __init__(
        self,
        kind: str,
        *,
        names: Iterable[str] = RECORD_COLUMNS,
        value_type: DataType | None = None,
        tags: TagFilter = ALL_TAGS,
        topic: bytes = b"orders",
        queue_id: int = 3,
        dense: bool = True,
        rows_max: int = 1000,
        bytes_max: int = 1 << 20,
    ) -> None:
        self.schema = schema_of(names, value_type)
        maker = RecordBatchMaker(SOURCE, self.schema, value_type or BinaryType(), tags)
        self.decoder = DECODERS[kind](ExpectedQueue(topic, queue_id, dense), maker, rows_max, bytes_max)
        self.batches: list[pa.RecordBatch] = []
        self.gaps: list[tuple[int, int]] = []

    def decode(self, data: Buffer, start: int, end: int) -> Reading:
        self.batches += self.decoder.decode(data, start, end, lambda first, last: self.gaps.append((first, last)))
        return self

    def rows(self) -> Rows:
        self.batches += self.decoder.flush()
        return rows_of(self.batches, self.schema)


def rows_of(batches: list[pa.RecordBatch], schema: pa.Schema) -> Rows:
    """The rows of batches that are as they have to be."""
    for batch in batches:
        assert batch.schema.equals(schema)
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


@pytest.fixture(params=DECODERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def golden_records() -> list[tuple[str, bytes, dict[str, Any] | None]]:
    lines = map(json.loads, GOLDEN.read_text().splitlines())
    return [(one["label"], bytes.fromhex(one["record_hex"]), one["decoded"]) for one in lines if "record_hex" in one]


def time_of(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


@pytest.mark.parametrize(("label", "raw", "decoded"), golden_records(), ids=lambda each: str(each)[:40])
def test_records_are_read_as_java_read_them(kind: str, label: str, raw: bytes, decoded: dict[str, Any] | None) -> None:
    topic = b"T1" if decoded is None else decoded["topic"].encode()
    if decoded is None:  # version 2 and a wrong magic number: Java 4.9.7 reads nothing, or does not look
        version_2 = raw[4:8] == struct.pack(">i", -626843477)
        at = raw.find(b"hello") + 5
        topic = raw[at + 2 : at + 2 + struct.unpack_from(">h", raw, at)[0]] if version_2 else b"T1"
    offset = min(struct.unpack_from(">q", raw, 20)[0], 2**63 - 2)  # no range ends behind the largest offset
    raw = raw[:20] + struct.pack(">q", offset) + raw[28:]
    reading = Reading(kind, topic=topic)
    if raw[4:8] not in (struct.pack(">i", -626843477), struct.pack(">i", -626843481)):
        with pytest.raises(UnusableRecord, match="magic"):
            reading.decode(raw, offset, offset + 1)
        return
    if decoded is not None and zlib.crc32(body_of(raw)) & 0x7FFFFFFF != decoded["bodyCRC"]:
        with pytest.raises(UnusableRecord, match="checksum"):
            reading.decode(raw, offset, offset + 1)
        return
    (row,) = reading.decode(raw, offset, offset + 1).rows()
    if decoded is None:
        assert (row["queue_offset"], row["value"]) == (offset, b"hello")
        return
    properties = decoded["properties"] or {}
    assert row["queue_offset"] == min(decoded["queueOffset"], 2**63 - 2)
    assert (row["flag"], row["reconsume_times"]) == (decoded["flag"], decoded["reconsumeTimes"])
    assert row["offset_message_id"] == decoded["msgId"]
    assert (row["born_timestamp"], row["store_timestamp"]) == (
        time_of(decoded["bornTimestamp"]), time_of(decoded["storeTimestamp"])
    )  # fmt: skip
    assert row["properties"] == properties
    assert (row["tags"], row["keys"], row["message_id"]) == tuple(map(properties.get, ("TAGS", "KEYS", "UNIQ_KEY")))
    shown, _, size = (decoded["body"] or "").partition("...")
    assert row["value"].hex().startswith(shown)
    assert len(row["value"]) == (int(size.strip("() bytes")) if size else len(shown) // 2)


def body_of(raw: bytes) -> bytes:
    sys_flag = struct.unpack_from(">i", raw, 36)[0]
    at = 48 + (20 if sys_flag & 16 else 8) + 8 + (20 if sys_flag & 32 else 8) + 12
    return raw[at + 4 : at + 4 + struct.unpack_from(">i", raw, at)[0]]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=12)
names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "color", "", "名"]) | texts
pairs = st.lists(st.tuples(names, texts), max_size=7)
ips = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
bodies = st.binary(max_size=200)
fields = st.fixed_dictionaries(
    {
        "flag": st.integers(-(2**31), 2**31 - 1),
        "physical": st.integers(0, 2**62),
        "born_ms": st.integers(-5, 2**62),
        "stored_ms": st.integers(0, 2**42),
        "reconsume_times": st.integers(0, 99),
        "version": st.sampled_from([1, 2]),
        "born_ip": ips,
        "store_ip": ips,
    }
)


def made(items: Iterable[tuple[bytes, list[tuple[str, str]], dict[str, Any], bool]], first: int) -> bytes:
    run = b""
    for index, (body, named, one, squeezed) in enumerate(items):
        text = b"\x02".join(f"{name}\x01{value}".encode() for name, value in named)
        stored = zlib.compress(body) if squeezed else body
        run += record(stored, offset=first + index, properties=text, sys_flag=int(squeezed), **one)
    return run


@given(
    st.lists(st.tuples(bodies, pairs, fields, st.booleans()), max_size=20),
    st.integers(0, 2**50),
    st.integers(1, 9),
    st.integers(1, 500),
    st.sets(st.sampled_from(list(RECORD_COLUMNS)), min_size=1),
)
@settings(max_examples=examples(120))
def test_both_decoders_give_the_same_rows(
    items: list[Any], first: int, rows_max: int, bytes_max: int, chosen: set[str]
) -> None:
    columns = [name for name in RECORD_COLUMNS if name in chosen]
    half = len(items) // 2
    runs = [(made(items[:half], first), first, first + half)]
    runs.append((made(items[half:], first + half), first + half, first + len(items)))
    found: dict[str, Rows] = {}
    for kind in DECODERS:
        reading = Reading(kind, names=columns, rows_max=rows_max, bytes_max=bytes_max)
        for run in runs:
            reading.decode(*run)
        found[kind] = reading.rows()
        assert reading.gaps == []
        assert all(batch.num_rows <= rows_max for batch in reading.batches)
    assert found["compiled"] == found["plain"]
    if "value" in chosen:
        assert [row["value"] for row in found["plain"]] == [item[0] for item in items]
    if "properties" in chosen:
        want = [{name: value for name, value in item[1] if name and value} for item in items]
        assert [row["properties"] for row in found["plain"]] == want


@given(st.integers(0, 400), st.binary(min_size=1, max_size=8), st.booleans(), st.integers(0, 3), st.booleans())
@settings(max_examples=examples(400))
def test_damage_is_found_at_the_same_place_by_both(at: int, junk: bytes, cut: bool, start: int, dense: bool) -> None:
    run = b"".join(record(b"b" * 20, offset=n, properties=b"TAGS\x01a\x02UNIQ_KEY\x01%d" % n) for n in range(3))
    damaged = run[: at % (len(run) + 1)] if cut else run[:at] + junk + run[at + len(junk) :]
    seen = []
    for kind in DECODERS:
        reading = Reading(kind, dense=dense)
        error: object = None
        try:
            reading.decode(damaged, start, 3)
        except UnusableRecord as found:
            error = (found.offset, found.reason, found.record)
        seen.append((reading.rows(), reading.gaps, error))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"topic": b"orderz"}, "another topic"),
        ({"topic": b"orders2"}, "another topic"),
        ({"queue_id": 4}, "another queue"),
        ({"offset": 4}, "before the one"),
        ({"crc": 1}, "checksum"),
        ({"magic": 1}, "magic"),
        ({"size": 90}, "cut"),
        ({"size": 5000}, "cut"),
        ({"size": -1}, "cut"),
        ({"sys_flag": 0x80}, "batch of messages"),
        ({"sys_flag": 1}, "zlib"),
        ({"sys_flag": 0x101}, "lz4"),
        ({"sys_flag": 0x201}, "zstd"),
        ({"sys_flag": 0x701}, "not known"),
    ],
)
def test_a_bad_record_is_reported_with_its_offset(kind: str, changed: dict[str, Any], word: str) -> None:
    reading = Reading(kind)
    with pytest.raises(UnusableRecord, match=word) as caught:
        reading.decode(record(b"good", offset=5) + record(b"bad", **{"offset": 6} | changed), 5, 9)
    assert (caught.value.offset, caught.value.where) == (6, str(SOURCE))
    assert caught.value.record
    reading.decode(record(b"behind", offset=7) + record(b"last", offset=8), 7, 9)
    assert [row["value"] for row in reading.rows()] == [b"good", b"behind", b"last"]


def test_records_beyond_the_end_are_left_out(kind: str) -> None:
    run = b"".join(record(b"%d" % n, offset=n) for n in range(5, 9))
    assert [row["value"] for row in Reading(kind).decode(run, 5, 7).rows()] == [b"5", b"6"]


def test_missing_messages_are_reported_where_all_were_asked_for(kind: str) -> None:
    run = record(offset=6) + record(offset=9)
    reading = Reading(kind).decode(run, 5, 12)
    assert (len(reading.rows()), reading.gaps) == (2, [(5, 6), (7, 9), (10, 12)])
    filtered = Reading(kind, dense=False).decode(run, 5, 12)
    assert (len(filtered.rows()), filtered.gaps) == (2, [])


def test_tags_are_compared_again(kind: str) -> None:
    run = b"".join(
        record(b"%d" % n, offset=n, properties=properties_text({"TAGS": tag}) if tag else b"")
        for n, tag in enumerate(["Aa", "BB", "", "Aa"])  # the first two have the same hash in Java
    )
    reading = Reading(kind, names=["value"], tags=TagFilter.parse("Aa"), dense=False)
    assert [row["value"] for row in reading.decode(run, 0, 4).rows()] == [b"0", b"3"]


@pytest.mark.parametrize("sys_flag", [0x001, 0x301, 0x101, 0x201])
@pytest.mark.parametrize("body", [b"", b"x" * 10_000])
def test_compressed_bodies(kind: str, sys_flag: int, body: bytes) -> None:
    codec = {0x101: "lz4", 0x201: "zstd"}.get(sys_flag)
    stored = pa.compress(body, codec, asbytes=True) if codec else zlib.compress(body)
    reading = Reading(kind).decode(record(stored, sys_flag=sys_flag) + record(b"plain", offset=1), 0, 2)
    assert [row["value"] for row in reading.rows()] == [body, b"plain"]


def test_text_that_is_no_utf_8_and_times_that_are_none(kind: str) -> None:
    (row,) = Reading(kind).decode(record(properties=b"TAGS\x01\xff!\x02\xfe\x01v", born_ms=-1), 0, 1).rows()
    assert row["tags"] == "\N{REPLACEMENT CHARACTER}!"
    assert set(row["properties"].values()) == {"v", "\N{REPLACEMENT CHARACTER}!"}
    assert row["born_timestamp"] is None


def test_names_that_are_one_when_they_are_text_are_in_a_map_once(kind: str) -> None:
    raw = [b"\xff\x01first\x02\xfe\x01last\x02", "名\x01v\x02".encode(), b""]
    run = b"".join(record(offset=n, properties=properties) for n, properties in enumerate(raw))
    rows = Reading(kind, names=["properties"]).decode(run, 0, 3).rows()
    assert [row["properties"] for row in rows] == [{"\N{REPLACEMENT CHARACTER}": "last"}, {"名": "v"}, {}]


def test_values_as_text(kind: str) -> None:
    reading = Reading(kind, names=["value"], value_type=StringType()).decode(record(b"caf\xc3\xa9"), 0, 1)
    assert reading.rows() == [{"value": "café"}]


def test_a_decoder_moves_on_to_the_compiled_loops_within_a_queue() -> None:
    from metaq_spark.columns.engine import ColumnEngine

    maker = RecordBatchMaker(SOURCE, schema_of(["queue_offset"]), BinaryType())
    decoder = RecordDecoder(ExpectedQueue(b"orders", 3), maker, lambda *_: None, engine=ColumnEngine(150))
    batches = [b for n in range(4) for b in decoder.decode(record(offset=n), n, n + 1)] + list(decoder.flush())
    assert [row["queue_offset"] for batch in batches for row in batch.to_pylist()] == [0, 1, 2, 3]
    assert len(batches) == 2
