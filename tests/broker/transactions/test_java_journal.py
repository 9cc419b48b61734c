"""A folder in which a Java broker has left its journal: what is prepared in it goes on here, and it is set aside.

``tests/golden/metaq/java_redo.1`` was written by a Java broker 1.4.6.2 that was killed: see ``test_what_a_real_...``.
"""

from __future__ import annotations

import logging
import re
import struct
from pathlib import Path

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.transactions.java_journal import JavaJournalDamaged, StoredUnit, read_java_journal
from metaq_broker.transactions.taking_over import BranchesNotTakenOver
from tx_harness import Harness, xid

from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame, walk
from metaq.model import Xid

RECORDED = Path(__file__).parents[2] / "golden" / "metaq" / "java_redo.1"
ONE, TWO = (Xid(7, b"\xaa\x01", name, "app") for name in (b"one", b"two"))
PREPARE, COMMIT, ROLL_BACK, COMMIT_LOCAL, ROLL_BACK_LOCAL = range(1, 6)


# ---- as a Java broker writes it


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    data = b""
    while value > 0x7F:
        data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
    return data + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def record(kind: int, content: bytes, behind: bytes = b"") -> bytes:
    data = number(1, kind) + text(2, content)
    return struct.pack(">i", len(data)) + data + behind


def put(key: object, body: bytes, *, message_id: int = -5, topic: str = "orders", partition: int = 0) -> bytes:
    line = f"put {topic} {partition} {len(body)} 0 {checksum(body)} {key} 7\r\n".encode()
    return record(1, number(1, message_id) + text(2, line + body))


def step(kind: int, key: object, *units: tuple[str, int, int], was_prepared: bool = False) -> bytes:
    behind = b"".join(struct.pack(">qiii", at, size, 0, len(name)) + name.encode() for name, at, size in units)
    content = number(1, kind) + number(2, was_prepared) + text(3, str(key).encode())
    return record(2, content + (number(4, len(behind)) if behind else b""), behind)


def left(root: Path, *records: bytes, name: str = "redo.1") -> Path:
    """Leave a Java broker's file in the folder of transactions; return the folder."""
    folder = root / "transactions"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"".join(records))
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ---- reading it


def test_what_a_real_broker_wrote_is_read(tmp_path: Path) -> None:
    """Local and XA: committed, rolled back before and after PREPARE; two are prepared, one of each kind is open."""
    journal = read_java_journal(Files(), left(tmp_path, RECORDED.read_bytes()))
    assert journal is not None
    assert (journal.unfinished, journal.torn_bytes, journal.has_outcomes) == (2, 0, False)
    assert list(journal.prepared) == [ONE, TWO]
    for key, messages in journal.prepared.items():
        frames = [(*each.partition_key, next(walk(each.frame))) for each in messages]
        assert [(topic, index, frame.flag, frame.body) for topic, index, frame in frames] == [
            ("t", 2, 0, b"prepared %s a" % key.branch),
            ("t", 3, 1, b"\0\0\0\4attrbody"),
            ("t", 2, 0, b"prepared %s b" % key.branch),
        ]
        assert all(frame.message_id < 0 for _, _, frame in frames)
    assert journal.stored_units == [StoredUnit(("t", 0), 81, 116), StoredUnit(("t", 1), 81, 110)]


@pytest.mark.parametrize(
    ("records", "prepared"),
    [
        ([step(PREPARE, ONE)], [ONE]),
        ([step(PREPARE, ONE), step(COMMIT, ONE, ("orders-0", 0, 21), was_prepared=True)], []),
        ([step(PREPARE, ONE), step(ROLL_BACK, ONE)], []),
        ([step(COMMIT, ONE, ("orders-0", 0, 21))], []),
        ([step(PREPARE, ONE), put(ONE, b"lost, as in Java")], [ONE]),
        ([step(PREPARE, ONE), put(ONE, b"x"), step(ROLL_BACK, ONE)], [ONE]),
        ([step(ROLL_BACK, ONE), put(ONE, b"anew"), step(PREPARE, ONE)], [ONE]),
        ([step(PREPARE, TWO)], []),
    ],
)
def test_what_is_prepared(tmp_path: Path, records: list[bytes], prepared: list[Xid]) -> None:
    journal = read_java_journal(Files(), left(tmp_path, put(ONE, b"x"), *records))
    assert journal is not None
    assert list(journal.prepared) == prepared


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    left(tmp_path, put(ONE, b"x"), step(PREPARE, ONE), step(COMMIT, ONE, was_prepared=True), name="redo.9")
    left(tmp_path, put(ONE, b"anew"), step(PREPARE, ONE), name="redo.10")
    left(tmp_path, b"{}", name="checkpoint.1")
    folder = left(tmp_path, b"... com.taobao.metamorphosis.transaction.XATransactionId ...", name="heuristic.log")
    journal = read_java_journal(Files(), folder)
    assert journal is not None
    assert list(journal.prepared) == [ONE]
    assert journal.has_outcomes
    assert len(journal.names) == 4


WHOLE = put(ONE, b"x") + step(PREPARE, ONE)


@pytest.mark.parametrize("torn", [put(TWO, b"cut")[:-1], step(PREPARE, TWO)[:3], bytes(1000), b"java"])
def test_a_torn_end_is_no_damage(tmp_path: Path, torn: bytes) -> None:
    journal = read_java_journal(Files(), left(tmp_path, WHOLE, torn))
    assert journal is not None
    assert (list(journal.prepared), journal.torn_bytes) == ([ONE], len(torn))


@pytest.mark.parametrize(
    "damaged",
    [
        record(2, number(1, 9) + number(2, 0) + text(3, b"TX:s:1")),
        record(2, number(1, PREPARE) + number(2, 0)),
        record(1, number(1, 1) + text(2, b"get t 0")),
        put(ONE, b"body").replace(b"put", b"pot"),
        put("no key", b"x"),
        put("TX:s:1", b"x") + step(PREPARE, "TX:s:1"),
        step(COMMIT, ONE, ("orders-0", 0, 21))[:-2],
        record(1, text(1, b"x") + number(2, 5)),
        struct.pack(">i", 4) + b"\xff\xff\xff\xff",
        struct.pack(">i", -4) + b"data",
    ],
)
def test_a_whole_record_that_makes_no_sense_stops_the_start(tmp_path: Path, damaged: bytes) -> None:
    folder = left(tmp_path, WHOLE, damaged, WHOLE)
    with pytest.raises(JavaJournalDamaged, match=r"redo\.1, of a Java broker, cannot be read at offset \d+ \("):
        Harness(tmp_path)
    assert "redo.1" in names(folder)


# ---- going on with it


def test_prepared_branches_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = put(TWO, b"c", message_id=8, partition=1) + step(PREPARE, TWO)
    begun = put(ONE, b"a"), put(ONE, b"b", partition=2), put(xid("open"), b"o")
    folder = left(tmp_path, *begun, step(PREPARE, ONE), more)
    with caplog.at_level(logging.INFO):
        harness = Harness(tmp_path)
    assert harness.recover() == [str(ONE), str(TWO)]
    assert [record.fields["key"] for record in caplog.records if "waits for" in record.message] == [ONE, TWO]
    [said] = [record.fields for record in caplog.records if "were taken over" in record.message]
    assert (said["prepared"], said["unfinished"], said["files"]) == (2, 1, "redo.1")
    assert names(folder) >= {"java-journal"}
    assert "redo.1" not in names(folder)
    for _ in range(2):
        harness.restart()
        assert harness.recover() == [str(ONE), str(TWO)]
    assert harness.commit(ONE, one_phase=False) == "200"
    assert harness.rollback(TWO) == "200"
    assert [harness.bodies(partition=index) for index in range(3)] == [[b"a"], [], [b"b"]]
    assert harness.store.ids("orders", 0) == [-5]
    harness.restart()
    assert harness.recover() == []
    assert harness.commit(ONE, one_phase=False).startswith("500")


def test_a_large_branch(tmp_path: Path) -> None:
    bodies = [b"%d" % each + bytes(400_000) for each in range(12)]
    left(tmp_path, *(put(ONE, body) for body in bodies), step(PREPARE, ONE))
    harness = Harness(tmp_path)
    harness.restart()
    assert harness.commit(ONE, one_phase=False) == "200"
    assert harness.bodies() == bodies


def test_a_start_that_was_killed_before_the_files_were_set_aside(tmp_path: Path) -> None:
    folder = left(tmp_path, WHOLE)
    Harness(tmp_path).tx.close()
    (folder / "java-journal" / "redo.1").rename(folder / "redo.1")
    harness = Harness(tmp_path)
    assert harness.recover() == [str(ONE)]
    assert harness.commit(ONE, one_phase=False) == "200"
    assert harness.bodies() == [b"x"]


def test_a_java_broker_was_here_again(tmp_path: Path) -> None:
    for round_ in range(3):
        folder = left(tmp_path, put(xid(f"{round_}"), b"x"), step(PREPARE, xid(f"{round_}")))
        harness = Harness(tmp_path)
        assert len(harness.recover()) == round_ + 1
        harness.tx.close()
    assert names(folder) >= {"java-journal", "java-journal-2", "java-journal-3"}


def test_an_unconfigured_topic_stops_the_start_and_changes_nothing(tmp_path: Path) -> None:
    folder = left(tmp_path, WHOLE, put(TWO, b"x", topic="unknown", partition=3), step(PREPARE, TWO))
    says = (
        "1 of 2 branches that a Java broker has prepared have messages for partitions that server.ini does not have; "
        f"add them: {TWO} (partition 3 of topic unknown)"
    )
    with pytest.raises(BranchesNotTakenOver, match=f"^{re.escape(says)}$"):
        Harness(tmp_path)
    assert "redo.1" in names(folder)
    left(tmp_path, WHOLE)
    assert Harness(tmp_path).recover() == [str(ONE)]


def test_all_branches_that_lack_a_partition_are_named_up_to_ten(tmp_path: Path) -> None:
    keys = [xid(f"{number:02}") for number in range(12)]
    left(tmp_path, *(part for key in keys for part in (put(key, b"x", topic="unknown"), step(PREPARE, key))))
    with pytest.raises(BranchesNotTakenOver) as caught:
        Harness(tmp_path)
    named = str(caught.value).partition("add them: ")[2].split(", ")
    assert named == [*(f"{key} (partition 0 of topic unknown)" for key in keys[:10]), "2 more"]


def test_what_was_cut_decided_by_hand_or_lost_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(tmp_path)
    harness.store.put(("orders", 0), encode_frame(1, 0, b"x"))
    harness.tx.close()
    left(tmp_path, b"XATransactionId", name="heuristic.log")
    units = ("orders-0", 0, 21), ("orders-0", 21, 30), ("gone-7", 0, 30)
    left(tmp_path, step(COMMIT_LOCAL, "TX:s:1", *units), b"torn")
    Harness(tmp_path).tx.close()
    said = {record.message: getattr(record, "fields", {}) for record in caplog.records}
    assert said["the end of a Java broker's journal was cut"] == {"bytes": 4}
    lost = {"units": 1, "partition": "orders-0", "offset": 21}
    assert said["messages that a Java broker has committed are not in their partitions"] == lost
    assert "branches that were completed manually at the Java broker are not remembered here: heuristic.log" in said


def test_without_a_java_broker_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Harness(tmp_path).tx.close()
    assert "Java" not in caplog.text
