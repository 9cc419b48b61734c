"""The record of a pair in ZooKeeper: what is stored, and what is refused."""

from __future__ import annotations

import json

import pytest
from metaq_broker.replication.pair.record import PairMemberEntry, PairRecord, PairRecordInvalid

A, B = PairMemberEntry("10.0.0.1:8123", "1-00000001"), PairMemberEntry("10.0.0.2:8123", "4-0000000b")
RECORD = PairRecord(7, "a", frozenset({"a", "b"}), {"a": A, "b": B})


def test_a_record_comes_back_from_its_text() -> None:
    assert PairRecord.from_json(RECORD.to_json()) == RECORD


def test_equal_records_have_equal_texts() -> None:
    other = PairRecord(7, "a", frozenset({"b", "a"}), {"b": B, "a": A})
    assert other.to_json() == RECORD.to_json()


def test_after_an_election_nobody_else_is_in_sync() -> None:
    elected = RECORD.elected("b", B, 8)
    assert (elected.epoch, elected.master, elected.in_sync) == (8, "b", {"b"})
    assert elected.members == RECORD.members


def test_a_member_replaces_another_one() -> None:
    record = RECORD.registering("c", B, instead_of={"b"})
    assert record.members == {"a": A, "c": B}
    assert record.in_sync == {"a"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "its version is 2; this broker reads version 1"),
        ({"epoch": 0}, "its epoch is 0; expected 1 and up"),
        ({"epoch": True}, "its epoch is True"),
        ({"epoch": "7"}, "its epoch is '7'"),
        ({"inSync": []}, r"its set in sync is \[\]"),
        ({"inSync": ["x"]}, r"its set in sync is \['x'\]; expected members"),
        ({"members": None}, "it is not the record of a pair"),
        ({"members": {"a": {}}}, "it is not the record of a pair: KeyError"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, object], reason: str) -> None:
    text = json.dumps(json.loads(RECORD.to_json()) | changes).encode()
    with pytest.raises(PairRecordInvalid, match=reason):
        PairRecord.from_json(text)


@pytest.mark.parametrize("text", [b"", b"\xff", b"7", b"[]", b"127.0.0.1", b"{}"])
def test_a_foreign_node_is_no_record(text: bytes) -> None:
    with pytest.raises(PairRecordInvalid, match="it is not the record of a pair"):
        PairRecord.from_json(text)
