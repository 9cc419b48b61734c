"""Ids and properties, against those of Java."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
from recordings import lines

from metaq.errors import FieldError
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.message_ids import OffsetMessageId, UniqueKeys, month_start_ms
from metaq.formats.rocketmq.properties import BYTES_MAX, parse_properties, write_properties

ROWS = lines("records.jsonl")
CHINA = timezone(timedelta(hours=8))


def created_ms(key: str, now_ms: int, zone: tzinfo) -> int:
    """Return when a UNIQ_KEY was made, in milliseconds, in the month of ``now_ms``."""
    return month_start_ms(now_ms, zone) + int.from_bytes(bytes.fromhex(key)[-6:-2], "big")


class TestOffsetMessageIds:
    def test_javas(self) -> None:
        rows = [row for row in ROWS if row["label"] == "offset message id"]
        assert len(rows) == 2
        for row in rows:
            message_id = OffsetMessageId(host_bytes(row["host"], row["port"]), row["offset"])
            assert str(message_id) == row["msgId"]
            assert OffsetMessageId.parse(row["msgId"]) == OffsetMessageId.parse(row["msgId"].lower()) == message_id
            assert message_id.address == f"{row['host']}:{row['port']}"

    def test_ipv6(self) -> None:
        message_id = OffsetMessageId(host_bytes("fe80::1", 10911), 1 << 40)
        assert len(str(message_id)) == 56
        assert OffsetMessageId.parse(str(message_id)) == message_id

    @pytest.mark.parametrize("text", ["", "7F", "x" * 32, "7F" * 17, "0x" + "7F" * 15, "7F 00" + "7" * 27])
    def test_wrong_ones(self, text: str) -> None:
        with pytest.raises(ValueError, match="it must have 32 or 56 hexadecimal digits"):
            OffsetMessageId.parse(text)


class TestUniqueKeys:
    NOW = int(datetime(2026, 3, 10, 1, 2, 3, tzinfo=CHINA).timestamp() * 1000)
    MONTH = int(datetime(2026, 3, 1, tzinfo=CHINA).timestamp() * 1000)

    @pytest.mark.parametrize(("ip", "digits"), [(bytes((10, 1, 2, 3)), 32), (bytes(16), 56)])
    def test_form_and_time(self, ip: bytes, digits: int) -> None:
        keys = UniqueKeys(ip, 1 << 20 | 7, -1)
        assert month_start_ms(self.NOW, CHINA) == self.MONTH
        made = [keys.next(self.NOW, self.MONTH) for _ in range(70_000)]
        assert {len(key) for key in made} == {digits}
        assert len(set(made[:65_536])) == 65_536
        assert made[0].startswith(ip.hex().upper() + "0007FFFFFFFF")
        assert created_ms(made[0], self.NOW, CHINA) == self.NOW
        assert created_ms(made[0], self.NOW + 5000, CHINA) == self.NOW

    def test_one_of_a_java_client(self) -> None:
        row = next(row for row in lines("clients_java497.jsonl") if row.get("header", {}).get("code") == 310)
        key = parse_properties(row["header"]["extFields"]["i"])["UNIQ_KEY"]
        born = int(row["header"]["extFields"]["g"])
        assert 0 <= born - created_ms(key, born + 1000, UTC) < 5000


class TestProperties:
    def test_javas(self) -> None:
        rows = [row for row in ROWS if "string" in row]
        assert len(rows) == 11
        for row in rows:
            assert parse_properties(row["string"]) == parse_properties(row["string"].encode()) == row["properties"]
        assert write_properties(rows[0]["properties"]) == rows[0]["string"]

    def test_both_endings(self) -> None:
        text = write_properties({"KEYS": "k1 k2", "标签": "值"})
        assert parse_properties(text) == parse_properties(text + "\x02") == {"KEYS": "k1 k2", "标签": "值"}

    @pytest.mark.parametrize(
        "properties", [{"": "x"}, {"a\x01": "x"}, {"a\x02": "x"}, {"a": ""}, {"a": "x\x02y"}, {"a": "x" * BYTES_MAX}]
    )
    def test_what_would_not_come_back(self, properties: dict[str, str]) -> None:
        with pytest.raises(FieldError, match="of a message is"):
            write_properties(properties)

    def test_the_longest(self) -> None:
        assert len(write_properties({"a": "x" * (BYTES_MAX - 2)})) == BYTES_MAX
        with pytest.raises(FieldError, match="at most 32767 bytes"):
            write_properties({"a": "值" * 11_000})
