"""Records and batches against Java's own decoder and encoder, in both versions, and damaged ones."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import pytest
from recordings import content, lines

from metaq.errors import CorruptRecord, FieldError
from metaq.formats.rocketmq.batches import OVERHEAD_BYTES, BatchElement, decode_batch, encode_batch
from metaq.formats.rocketmq.hosts import host_bytes, host_text
from metaq.formats.rocketmq.records import (
    MAGIC_V2,
    SIZE_MIN,
    Record,
    encode_record,
    read_record,
    read_records,
    unwrapped,
)
from metaq.formats.rocketmq.sys_flags import BORN_HOST_IPV6, INNER_BATCH, NEED_UNWRAP, STORE_HOST_IPV6

ROWS = [row for row in lines("records.jsonl") if "record_hex" in row]
DAMAGED = {"one bit of the body turned", "unknown magic"}
INTACT = [row for row in ROWS if row["label"] not in DAMAGED]
BATCH = next(bytes.fromhex(row["batch_hex"]) for row in lines("records.jsonl") if "batch_hex" in row)

RECORD = Record("T1", 3, 5, b"hello", b"TAGS\x01a", born_host=host_bytes("10.0.0.1", 1), store_host=bytes(8))


def java_host(text: str) -> bytes:
    ip, _, port = text.rpartition("#")
    return host_bytes(ip, int(port))


def label(row: dict[str, Any]) -> str:
    return str(row["label"])


def is_compressed(row: dict[str, Any]) -> bool:
    """Whose CRC is that of the body before compression: the maker of the recording did so. Brokers never do."""
    return "sysFlag" in str(row["label"])


class TestJava:
    @pytest.mark.parametrize("row", INTACT, ids=label)
    def test_reads_what_java_reads(self, row: dict[str, Any]) -> None:
        data = bytes.fromhex(row["record_hex"])
        record, java = read_record(data, check_crc=not is_compressed(row)), row["decoded"]
        assert record.size == len(data)
        if java is None:  # 4.9.7 reads no version 2
            assert data[4:8] == struct.pack(">I", MAGIC_V2)
            assert (record.topic, record.queue_id, record.store_timestamp) == ("T1", 3, 1700000000123)
            return
        assert record.topic == java["topic"]
        assert (record.queue_id, record.flag, record.queue_offset) == (
            java["queueId"],
            java["flag"],
            java["queueOffset"],
        )
        assert (record.physical_offset, record.sys_flag) == (java["commitLogOffset"], java["sysFlag"])
        assert (record.born_timestamp, record.store_timestamp) == (java["bornTimestamp"], java["storeTimestamp"])
        assert (record.born_host, record.store_host) == (java_host(java["bornHost"]), java_host(java["storeHost"]))
        assert record.reconsume_times == java["reconsumeTimes"]
        assert record.prepared_transaction_offset == java["preparedTransactionOffset"]
        assert (record.body_crc, record.size) == (java["bodyCRC"], java["storeSize"])
        assert record.property_map() == (java["properties"] or {})
        assert record.offset_message_id == java["msgId"]
        if not is_compressed(row):  # those are in test_rocketmq_compression.py
            assert record.body.hex() == (java["body"] or "")

    @pytest.mark.parametrize("row", INTACT, ids=label)
    def test_writes_what_java_wrote(self, row: dict[str, Any]) -> None:
        data = bytes.fromhex(row["record_hex"])
        record = read_record(data, check_crc=not is_compressed(row))
        if is_compressed(row):
            data = data[:8] + struct.pack(">I", crc32(record.body) & 0x7FFFFFFF) + data[12:]
        if row["label"].startswith("version 2"):  # by hand: a short topic needs no version 2, and gets version 1
            assert read_record(encode_record(record))._replace(size=record.size) == record
            return
        assert encode_record(record) == data

    def test_one_behind_the_other(self) -> None:
        rows = [row for row in INTACT if not is_compressed(row)]
        data = b"".join(bytes.fromhex(row["record_hex"]) for row in rows)
        assert len(list(read_records(data))) == len(rows)
        assert list(read_records(memoryview(data))) == list(read_records(bytearray(data)))

    def test_every_record_of_a_broker(self) -> None:
        count = 0
        for row in lines("b_send_pull.jsonl"):
            for reply in row.get("replies", []):
                recorded = reply.get("records") or []
                if not recorded:
                    continue
                for record, seen in zip(read_records(content(reply["body"])), recorded, strict=True):
                    assert record.topic == seen["topic"]
                    assert (record.queue_offset, record.physical_offset) == (
                        seen["queueOffset"],
                        seen["physicalOffset"],
                    )
                    assert (record.size, record.body_crc) == (seen["totalSize"], seen["bodyCRC"])
                    assert record.properties.decode() == seen["properties"]
                    assert record.born_address == seen["bornHost"]
                    data = encode_record(record)
                    assert read_record(data) == record
                    count += 1
        assert count > 100

    def test_batches(self) -> None:
        elements = decode_batch(BATCH)
        assert [element.body for element in elements] == [b"batch 0", b"batch 1", b"batch 2"]
        assert [element.flag for element in elements] == [0, 1, 2]
        assert elements[1].properties == b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01Tag1"
        assert encode_batch(elements) == BATCH


class TestVersions:
    def test_a_long_topic_takes_version_2(self) -> None:
        record = RECORD._replace(topic="t" * 128)
        data = encode_record(record)
        assert data[4:8] == struct.pack(">I", MAGIC_V2)
        assert read_record(data)._replace(size=0, body_crc=0) == record

    @pytest.mark.parametrize("born", ["1.2.3.4", "2001:db8::1"])
    @pytest.mark.parametrize("stored", ["1.2.3.4", "2001:db8::1"])
    def test_addresses(self, born: str, stored: str) -> None:
        record = RECORD._replace(born_host=host_bytes(born, 1), store_host=host_bytes(stored, 2), sys_flag=0x30)
        back = read_record(encode_record(record))
        assert (back.born_host, back.store_host) == (record.born_host, record.store_host)
        assert back.sys_flag == BORN_HOST_IPV6 * (":" in born) + STORE_HOST_IPV6 * (":" in stored)

    def test_text_of_addresses(self) -> None:
        assert host_text(host_bytes("2001:db8::1", 80)) == "[2001:db8::1]:80"
        assert host_text(host_bytes("10.1.2.3", 80)) == "10.1.2.3:80"
        with pytest.raises(ValueError, match="an address of 3 bytes, not 8 or 20"):
            host_text(b"abc")

    def test_an_inner_batch(self) -> None:
        record = RECORD._replace(body=BATCH, sys_flag=INNER_BATCH | NEED_UNWRAP)
        found = unwrapped(record)
        assert [(each.queue_offset, each.body, each.sys_flag) for each in found] == [
            (5, b"batch 0", 0),
            (6, b"batch 1", 0),
            (7, b"batch 2", 0),
        ]
        assert unwrapped(RECORD) == [RECORD]
        with pytest.raises(CorruptRecord, match="corrupt batch at byte 0"):
            unwrapped(record._replace(body=b"x" * 30))

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"topic": "t" * 32_768}, "topic"),
            ({"properties": bytes(32_768)}, "properties"),
            ({"queue_id": 1 << 31}, "number"),
            ({"queue_offset": -(1 << 63) - 1}, "number"),
        ],
    )
    def test_what_does_not_fit(self, change: dict[str, Any], field: str) -> None:
        with pytest.raises(FieldError) as caught:
            encode_record(RECORD._replace(**change))
        assert caught.value.field == field
        with pytest.raises(FieldError, match="at most 32767 bytes"):
            encode_batch([BatchElement(b"", bytes(32_768))])


def patched(at: int, data: bytes) -> bytes:
    whole = bytearray(encode_record(RECORD))
    whole[at : at + len(data)] = data
    return bytes(whole)


class TestDamage:
    @pytest.mark.parametrize(
        ("data", "size", "reason"),
        [
            (b"", 0, "0 bytes are not a whole record"),
            (bytes(SIZE_MIN - 4), 0, "87 bytes are not a whole record"),
            (bytes(100), 0, "its size is 0, with 100 bytes there"),
            (patched(0, struct.pack(">i", -1)), 0, "its size is -1"),
            (patched(0, struct.pack(">i", 1000)), 0, "its size is 1000, with 104 bytes there"),
            (patched(4, b"\xda\xa3\x20\xa6"), 104, "its magic number is 0xdaa320a6"),
            (patched(8, b"\x00\x00\x00\x01"), 104, "its CRC is 1, not 907060870"),
            (patched(88, b"h"), 104, None),
            (patched(88, b"H"), 104, "its CRC is 907060870, not"),
            (patched(84, struct.pack(">i", -1)), 104, "its body of -1 bytes reaches beyond it"),
            (patched(84, struct.pack(">i", 16)), 104, "its body of 16 bytes reaches beyond it"),
            (patched(93, b"\xff"), 104, "its topic has the length -1"),
            (patched(93, b"\x7f"), 104, "its topic of 127 bytes reaches beyond it"),
            (patched(96, b"\xff\xff"), 104, "its properties of 65535 bytes reach beyond it"),
        ],
    )
    def test_is_named(self, data: bytes, size: int, reason: str | None) -> None:
        if reason is None:
            assert read_record(data).size == size
            return
        with pytest.raises(CorruptRecord) as caught:
            read_record(data)
        assert reason in str(caught.value)
        assert (caught.value.offset, caught.value.size) == (0, size)

    def test_reading_can_go_on_behind_it(self) -> None:
        data = patched(88, b"H") + encode_record(RECORD)
        with pytest.raises(CorruptRecord) as caught:
            list(read_records(data))
        assert read_record(data, caught.value.offset + caught.value.size).body == b"hello"

    def test_the_crc_may_be_left_alone(self) -> None:
        assert read_record(patched(8, bytes(4)), check_crc=False).body_crc == 0

    def test_javas_damaged_ones(self) -> None:
        for row in ROWS:
            if row["label"] in DAMAGED:
                with pytest.raises(CorruptRecord, match=r"CRC|magic"):
                    read_record(bytes.fromhex(row["record_hex"]))

    def test_a_batch_that_is_cut_off(self) -> None:
        for length in range(len(BATCH)):
            if length % 56 == 0:
                assert len(decode_batch(BATCH[:length])) == length // 56
                continue
            with pytest.raises(CorruptRecord) as caught:
                decode_batch(BATCH[:length])
            assert caught.value.offset == length // 56 * 56

    @pytest.mark.parametrize(
        ("at", "value", "reason"),
        [
            (0, OVERHEAD_BYTES - 1, "its size is 21"),
            (16, -1, "its body of -1 bytes"),
            (16, 35, "its body of 35 bytes"),
            (16, 33, "its properties of"),
        ],
    )
    def test_a_wrong_length_in_a_batch(self, at: int, value: int, reason: str) -> None:
        data = bytearray(BATCH[:56])
        data[at : at + 4] = struct.pack(">i", value)
        with pytest.raises(CorruptRecord, match=reason):
            decode_batch(data)
