"""Frames of the bundled broker to Arrow: the rows are those of the records that the broker itself makes of them."""

from __future__ import annotations

import zlib
from binascii import b2a_base64
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pytest
from examples import examples, in_one_test
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType
from test_rocketmq_decode import Rows, rows_of, schema_of

from metaq.formats.frames import encode_frame, encode_stored
from metaq.formats.message_id import EPOCH_MS
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.tags import ALL_TAGS, TagFilter
from metaq.formats.stored_form import encode_head, tag_of
from metaq.formats.stored_records import Collected, FrameRun, QueueRecords, Wanted
from metaq.model import Partition, TopicPartition
from metaq_spark.columns.engine import ColumnEngine
from metaq_spark.columns.rocketmq.batches import RecordBatchMaker
from metaq_spark.columns.rocketmq.checks import ExpectedQueue, FrameUnusable
from metaq_spark.columns.rocketmq.decode import RecordDecoder
from metaq_spark.columns.rocketmq.layout import RECORD_COLUMNS

SOURCE = TopicPartition("orders", Partition("broker-a", 3))  # type: ignore[arg-type]
ENGINES = {"compiled": 0, "plain": 1 << 40}
START, PHYSICAL, KNOWN_MS = 1000, 7 << 40 | 5000, 1_700_000_000_777
STORE_HOSTS = host_bytes("127.0.0.1", 10911), host_bytes("fe80::1", 10911)
BORN_HOSTS = host_bytes("10.1.2.3", 54321), host_bytes("fe80::2", 54322)


def message_id(number: int) -> int:
    return (1_790_000_000_000 + number - EPOCH_MS) << 22 | 5 << 12


def stored(
    body: bytes = b"hello",
    properties: bytes = b"",
    *,
    number: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_ms: int = 1_700_000_000_123,
    born_host: bytes = BORN_HOSTS[0],
    reconsume_times: int = 0,
) -> bytes:
    """The frame of a RocketMQ message."""
    head = encode_head(flag, sys_flag, born_ms, born_host, reconsume_times, 99)
    return encode_stored(tag_of(properties), head, properties, body, message_id(number))


def attributed(flag: int, attribute: bytes, payload: bytes = b"payload", number: int = 0) -> bytes:
    """The frame of a message of some MetaQ client."""
    return encode_frame(message_id(number), flag, len(attribute).to_bytes(4) + attribute + payload)


_HEAD = encode_head(7, 0, 1, BORN_HOSTS[0])
_HEAD_V6 = encode_head(7, 0, 1, BORN_HOSTS[1])
ALL = {
    "plain": stored(),
    "empty body": stored(b""),
    "everything": stored(
        b"body", b"KEYS\x01k1 k2\x02TAGS\x01red\x02UNIQ_KEY\x017F000001\x02color\x01blue", flag=-7, reconsume_times=3
    ),
    "from IPv6": stored(b"six", b"TAGS\x01red\x02", born_host=BORN_HOSTS[1], flag=1 << 30, reconsume_times=-1),
    "text": stored("é".encode(), "名\x01值\x02TAGS\x01标签\x02KEYS\x01键".encode()),
    "no text": stored(b"x", b"TAGS\x01\xff\xfe\x02K\xfe\x01v\x02K\xfd\x01w\x02"),
    "a name twice": stored(b"x", b"TAGS\x01a\x02TAGS\x01b\x02a\x01\x02\x01b\x02odd\x02"),
    "born before": stored(b"x", born_ms=-5),
    "born in the year 10000": stored(b"x", born_ms=253402300800000),
    "zlib": stored(zlib.compress(b"long " * 1000), b"TAGS\x01z\x02", sys_flag=1),
    "zlib by number": stored(zlib.compress(b"longer " * 1000), sys_flag=0x301),
    "compressed nothing": stored(zlib.compress(b""), sys_flag=1),
    "a committed transaction": stored(b"t", b"TRAN_MSG\x01true\x02", sys_flag=8),
    "put, without attribute": encode_frame(message_id(3), 0, b"put"),
    "put, with attribute": attributed(1, b"red"),
    "put, with no text": attributed(1, b"\xff\xfe"),
    "put, with an empty attribute": attributed(1, b""),
    "put, with bytes 1 and 2": attributed(1, b"a\x01b\x02c"),
    "put, with all flags": attributed(-1, b"red"),
    "put, nothing": encode_frame(message_id(3), 0, b""),
    "put, by a Java broker": encode_frame(-5, 1, (3).to_bytes(4) + b"red" + b"payload"),
    "stored by a Java broker": encode_stored(b"", _HEAD, b"", b"body", -5),
    "put, the attribute does not fit": encode_frame(message_id(3), 1, (100).to_bytes(4) + b"red"),
    "put, a negative attribute": encode_frame(message_id(3), 3, (-1).to_bytes(4, signed=True) + b"red"),
    "put, no space for a length": encode_frame(message_id(3), 3, b"abc"),
    "a form that is not: no byte 2": attributed(3, b"red"),
    "a form that is not: kind": attributed(3, b"red\x025" + _HEAD[2:]),
    "a form that is not: cut": attributed(3, b"red" + _HEAD[:-1]),
    "a form that is not: ends at the byte 2": attributed(3, b"red\x02"),
    "a form that is not: ends at the kind": attributed(3, b"red\x024"),
    "a form that is not: digits": attributed(3, b"red" + _HEAD.replace(b"A", b"=")),
    "a form that is not: compressed, digits": attributed(
        3, b"red\x024" + b2a_base64(bytes(7) + b"\x01" + bytes(28), newline=False)[:-1] + b"-"
    ),
    "a form that is not: IPv6 bits": attributed(
        3, b"red\x024" + b2a_base64(bytes(7) + b"\x10" + bytes(28), newline=False)
    ),
    "a form that is not: no IPv6 bits": attributed(3, b"red\x026" + b2a_base64(bytes(48), newline=False)),
    "a form that is not: store host": attributed(
        3, b"red\x026" + b2a_base64(bytes(7) + b"\x30" + bytes(40), newline=False)
    ),
    "nothing behind the head": attributed(3, b"red" + _HEAD_V6),
    "many properties": stored(b"p", b"".join(b"name%d\x01value%d\x02" % (each, each) for each in range(900))),
    "a long tag": attributed(1, b"t" * 32_000),
}
LEFT_TO_RECORDS = {
    "checksum": bytes([*stored()[:-1], 0]),
    "length": (-1).to_bytes(4, signed=True) + stored()[4:],
    "longer than the run": (1 << 20).to_bytes(4) + stored()[4:],
    "batch in the body": stored(sys_flag=0x80),
    "not to be decompressed": stored(b"not zlib", sys_flag=1),
    "compressed in an unknown way": stored(b"x", sys_flag=0x501),
}
COLUMN_SETS: Sequence[Iterable[str]] = (
    RECORD_COLUMNS,
    ("value",),
    ("queue_offset",),
    ("topic",),
    ("value", "tags"),
    ("keys", "properties"),
    ("store_timestamp", "offset_message_id"),
    ("born_host", "flag", "reconsume_times", "born_timestamp"),
)


class Reading:
    """A decoder with what came out of it."""

    def __init__(
        self, kind: str, names: Iterable[str] = RECORD_COLUMNS, tags: TagFilter = ALL_TAGS, **limits: int
    ) -> None:
        self.schema = schema_of(names)
        maker = RecordBatchMaker(SOURCE, self.schema, BinaryType(), tags)
        queue = ExpectedQueue(b"orders", 3, tags.is_all)
        self.decoder = RecordDecoder(queue, maker, lambda *_: None, engine=ColumnEngine(ENGINES[kind]), **limits)
        self.batches: list[pa.RecordBatch] = []

    def frames(self, frames: Sequence[bytes], start: int = START, host: bytes = STORE_HOSTS[0]) -> Reading:
        run = FrameRun(start, start + len(frames), b"".join(frames), PHYSICAL, KNOWN_MS, host)
        self.batches += self.decoder.decode_frames(run)
        return self

    def records(self, frames: Sequence[bytes], start: int = START, host: bytes = STORE_HOSTS[0]) -> Reading:
        """What the broker makes of them."""
        collected = Collected(Wanted(len(frames), 1 << 40, len(frames)))
        data = b"".join(frames)
        done = QueueRecords("orders", 3, host).of_run(data, 0, start, PHYSICAL, KNOWN_MS, collected, "orders-3")
        assert done == len(data)
        self.batches += self.decoder.decode(b"".join(collected.records), start, start + len(frames))
        return self

    def rows(self) -> Rows:
        self.batches += self.decoder.flush()
        return rows_of(self.batches, self.schema)


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@in_one_test("host", STORE_HOSTS)
@in_one_test("name", ALL)
def test_a_frame_becomes_the_row_of_its_record(kind: str, name: str, host: bytes) -> None:
    expected = Reading(kind).records([ALL[name]], host=host).rows()
    assert len(expected) == 1
    assert Reading(kind).frames([ALL[name]], host=host).rows() == expected


@pytest.mark.parametrize("names", COLUMN_SETS, ids=",".join)
def test_columns_that_are_asked_for_are_the_same(kind: str, names: Iterable[str]) -> None:
    frames = list(ALL.values())
    expected = Reading("plain", names).records(frames).rows()
    assert len(expected) == len(frames)
    assert Reading(kind, names).frames(frames).rows() == expected


def test_messages_with_other_tags_are_left_out(kind: str) -> None:
    frames, tags = list(ALL.values()), TagFilter.parse("red || 标签")
    expected = Reading("plain", ("tags", "queue_offset"), tags).records(frames).rows()
    assert {row["tags"] for row in expected} == tags.names
    assert Reading(kind, ("tags", "queue_offset"), tags).frames(frames).rows() == expected


def test_batches_get_full_and_the_rest_follows(kind: str) -> None:
    frames = list(ALL.values()) * 3
    expected = Reading("plain").records(frames).rows()
    for limits in ({"rows_max": 1}, {"rows_max": 7}, {"bytes_max": 10}, {"bytes_max": 6000}):
        reading = Reading(kind, **limits).frames(frames)
        assert reading.rows() == expected
        assert len(reading.batches) > 1


def test_runs_of_frames_and_of_records_follow_each_other(kind: str) -> None:
    frames = list(ALL.values())
    expected = Reading("plain").records(frames).records(frames, START + len(frames)).rows()
    mixed = Reading(kind).records(frames).frames(frames, START + len(frames)).rows()
    assert mixed == expected
    assert Reading(kind).frames(frames).records(frames, START + len(frames)).rows() == expected


@pytest.mark.parametrize("name", LEFT_TO_RECORDS)
def test_what_a_frame_cannot_express_is_left_to_records(kind: str, name: str) -> None:
    reading = Reading(kind)
    with pytest.raises(FrameUnusable) as found:
        reading.frames([ALL["plain"], ALL["everything"], LEFT_TO_RECORDS[name], ALL["plain"]])
    assert found.value.offset == START + 2
    assert [row["queue_offset"] for row in reading.rows()] == [START, START + 1]


def test_frames_that_are_fewer_than_announced_are_left_to_records(kind: str) -> None:
    reading = Reading(kind)
    with pytest.raises(FrameUnusable) as found:
        list(reading.decoder.decode_frames(FrameRun(5, 8, ALL["plain"] * 2, 0, 0, STORE_HOSTS[0])))
    assert found.value.offset == 7
    assert len(reading.rows()) == 2


def test_a_tag_too_long_for_a_record_is_left_to_them_or_shortened(kind: str) -> None:
    frame = attributed(1, b"t" * 32_001)
    if kind == "plain":
        assert Reading(kind).frames([frame]).rows() == Reading(kind).records([frame]).rows()
    else:
        with pytest.raises(FrameUnusable):
            Reading(kind).frames([frame])
        assert Reading(kind, ["value"]).frames([frame]).rows() == [{"value": b"payload"}]


texts = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=20)


@st.composite
def any_frame(draw: st.DrawFn) -> bytes:
    """Of any client, also of one that sets any flags and writes any attribute."""
    if draw(st.booleans()):
        pairs = draw(st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a"]) | texts, texts), max_size=5))
        end = draw(st.sampled_from(["", "\x02"]))
        properties = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + (end if pairs else "")
        body = draw(st.binary(max_size=100))
        is_compressed = draw(st.booleans())
        return stored(
            zlib.compress(body) if is_compressed else body,
            properties.encode(),
            number=draw(st.integers(0, 1 << 30)),
            flag=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
            sys_flag=int(is_compressed),
            born_ms=draw(st.integers(-10, 1 << 48)),
            born_host=draw(st.sampled_from(BORN_HOSTS)),
            reconsume_times=draw(st.integers(0, 99)),
        )
    attribute = draw(st.binary(max_size=60) | st.sampled_from([b"red" + _HEAD, b"\x02" + _HEAD_V6 + b"K\x01v"]))
    if attribute and draw(st.booleans()):
        at = draw(st.integers(0, len(attribute) - 1))
        attribute = attribute[:at] + draw(st.binary(min_size=1, max_size=1)) + attribute[at + 1 :]
    return attributed(draw(st.integers(0, 3)), attribute, draw(st.binary(max_size=50)))


@settings(max_examples=examples(200))
@given(frames=st.lists(any_frame(), min_size=1, max_size=20), names=st.sampled_from(COLUMN_SETS))
def test_frames_of_any_kind(frames: list[bytes], names: Iterable[str]) -> None:
    """Whatever a frame holds: the row of its record, or it is left to that record."""
    reading, usable = Reading("compiled", names), frames
    try:
        reading.frames(frames)
    except FrameUnusable as found:
        usable = frames[: found.offset - START]
        with pytest.raises(FrameUnusable):
            Reading("plain", names).frames([frames[len(usable)]])
    if usable:
        assert reading.rows() == Reading("plain", names).records(usable).rows()
