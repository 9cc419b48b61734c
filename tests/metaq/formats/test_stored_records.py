"""Records of frames: of both kinds of messages, within limits, and never of damaged bytes."""

from __future__ import annotations

import pytest

from metaq.errors import CorruptFrame
from metaq.formats.frames import FLAG_ATTRIBUTE, encode_body, encode_frame, encode_stored
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.records import Record, read_records
from metaq.formats.stored_form import STORED_FORM, encode_head, tag_of
from metaq.formats.stored_records import TAG_BYTES_MAX, Collected, QueueRecords, Wanted
from metaq.model import Message

BROKER_4, BROKER_6 = host_bytes("127.0.0.1", 10911), host_bytes("::1", 10911)
BORN_4, BORN_6 = host_bytes("10.1.2.3", 4), host_bytes("2001:db8::1", 6)
ID = 5000 << TIME_SHIFT | 7
ALL = Wanted(100, 1 << 20, 100)


def made(
    run: bytes, wanted: Wanted = ALL, *, broker: bytes = BROKER_4, topic: str = "orders"
) -> tuple[list[Record], Collected, int]:
    """The records of a run that begins at offset 1000 with message 50."""
    collected = Collected(wanted)
    passed = QueueRecords(topic, 3, broker).of_run(run, 1000, 50, 7 << 40, 99, collected, "orders-3")
    return list(read_records(b"".join(collected.records))), collected, passed


def stored(body: bytes, properties: bytes = b"", *, born: bytes = BORN_4, message_id: int = ID) -> bytes:
    """A frame of a RocketMQ client."""
    return encode_stored(tag_of(properties), encode_head(5, 1, 6, born, 7, 8), properties, body, message_id)


def plain(body: bytes, attribute: str | None, message_id: int = ID) -> bytes:
    """A frame of a MetaQ client."""
    return encode_frame(message_id, *encode_body(Message(body, attribute)))


@pytest.mark.parametrize("broker", [BROKER_4, BROKER_6])
@pytest.mark.parametrize("born", [BORN_4, BORN_6])
@pytest.mark.parametrize("topic", ["orders", "t" * 127, "t" * 128])
def test_a_message_of_a_rocketmq_client_comes_back_exactly(broker: bytes, born: bytes, topic: str) -> None:
    properties = "TAGS\x01标签\x02K\x01v\x02".encode()
    (record,), collected, _ = made(stored(b"body", properties, born=born), broker=broker, topic=topic)
    expected = Record(
        topic=topic,
        queue_id=3,
        queue_offset=50,
        body=b"body",
        properties=properties,
        flag=5,
        sys_flag=1 | 0x10 * (born == BORN_6) | 0x20 * (broker == BROKER_6),
        physical_offset=(7 << 40) + 1000,
        born_timestamp=6,
        born_host=born,
        store_timestamp=EPOCH_MS + 5000,
        store_host=broker,
        reconsume_times=7,
        prepared_transaction_offset=8,
    )
    assert record._replace(body_crc=0, size=0) == expected
    assert collected.record_bytes == record.size


@pytest.mark.parametrize(
    ("attribute", "properties"),
    [
        (None, b""),
        ("", b""),
        ("tea", b"TAGS\x01tea"),
        ("标签", "TAGS\x01标签".encode()),
        ("tea\x02no form", b"TAGS\x01tea"),
        ("x" * (TAG_BYTES_MAX - 1) + "签", b"TAGS\x01" + b"x" * (TAG_BYTES_MAX - 1)),
    ],
)
def test_a_message_of_a_metaq_client_has_its_attribute_as_tag(attribute: str | None, properties: bytes) -> None:
    (record,), _, _ = made(plain(b"body", attribute))
    assert (record.body, record.properties, record.flag, record.sys_flag) == (b"body", properties, 0, 0)
    assert record.born_timestamp == record.store_timestamp == EPOCH_MS + 5000


def test_ids_without_time_get_the_time_that_is_known() -> None:
    (record,), _, _ = made(plain(b"body", None, -5))
    assert record.store_timestamp == 99


@pytest.mark.parametrize("body", [b"", b"\0\0\0", b"\0\0\0\xff-", b"\xff\xff\xff\xff-"])
def test_an_attribute_that_is_not_there_leaves_the_body(body: bytes) -> None:
    (record,), _, _ = made(encode_frame(ID, FLAG_ATTRIBUTE, body))
    assert (record.body, record.properties) == (body, b"")


@pytest.mark.parametrize("spoilt", [b"4" + b"!" * 48, b"6" + b"A" * 64, b"4" + b"A" * 47 + b"=", b"4AA"])
def test_an_attribute_that_only_looks_like_the_form_is_plain(spoilt: bytes) -> None:
    attribute = b"tea\x02" + spoilt
    body = len(attribute).to_bytes(4) + attribute + b"body"
    (record,), _, _ = made(encode_frame(ID, STORED_FORM, body))
    assert (record.body, record.properties) == (b"body", b"TAGS\x01tea")


def test_limits_of_messages_bytes_and_looks() -> None:
    run = b"".join(stored(b"%d" % number, b"TAGS\x01a" if number % 2 else b"") for number in range(10))
    one = len(stored(b"0", b"TAGS\x01a"))
    records, collected, passed = made(run, Wanted(3, 1 << 20, 100))
    assert [record.queue_offset for record in records] == [50, 51, 52]
    assert collected.is_full
    records, collected, _ = made(run[passed:], Wanted(100, 1, 100))
    assert (len(records), collected.looked_at, collected.is_full) == (1, 1, True), "one in any case"
    records, collected, passed = made(run, Wanted(100, 1 << 20, 4, {b"a"}))
    assert [record.queue_offset for record in records] == [51, 53]
    assert (collected.looked_at, passed) == (
        4,
        2 * one + 2 * len(stored(b"0")),
    )
    records, collected, passed = made(run[:-1], Wanted(100, 1 << 20, 100, {b"none"}))
    assert not records
    assert collected.looked_at == 9
    assert not collected.is_full


def test_tags_of_both_kinds_of_messages() -> None:
    run = plain(b"1", "a") + stored(b"2", b"TAGS\x01a") + plain(b"3", None) + stored(b"4") + plain(b"5", "ab")
    records, collected, _ = made(run, ALL._replace(tags={b"a"}))
    assert [record.body for record in records] == [b"1", b"2"]
    assert collected.looked_at == 5


def test_damage_is_never_made_into_records() -> None:
    good, damaged = stored(b"good"), bytearray(stored(b"bad"))
    damaged[-1] ^= 1
    records, collected, passed = made(good + damaged + good)
    assert len(records) == 1
    assert passed == len(good)
    assert not collected.is_full
    with pytest.raises(CorruptFrame, match="checksum"):
        made(bytes(damaged))
    with pytest.raises(CorruptFrame):
        made(b"\xff" * 20)
