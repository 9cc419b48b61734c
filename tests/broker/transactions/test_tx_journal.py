"""The journal on disk: what is read back, what is cut, what is refused."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from examples import spread
from hypothesis import given
from hypothesis import strategies as st
from metaq_broker.log.files.files import Files
from metaq_broker.testing import Fault, FaultyFiles
from metaq_broker.transactions.interfaces import Unit
from metaq_broker.transactions.journal import Journal, JournalDamaged, JournalFailed, Location
from metaq_broker.transactions.journal_bytes import FILE_HEADER_BYTES, file_name
from metaq_broker.transactions.records import (
    Applied,
    Branch,
    Committed,
    Decided,
    Forgotten,
    Heuristic,
    Messages,
    PreparedRecord,
    Record,
    RecordDamaged,
    RolledBack,
    Undecided,
    decode,
    encode,
)
from stored import QuickFiles
from tx_harness import local, xid

from metaq.formats.frame_block import FrameBlock
from metaq.model import LocalTransactionId, Xid

ONE_FILE = 1 << 20


def message(serial: int, body: bytes = b"frame bytes") -> Messages:
    return Messages(serial, 0, (Unit("orders", 0, FrameBlock(body, 1)), Unit("payments", 3, FrameBlock(body, 1))))


RECORDS: list[Record] = [
    message(1),
    PreparedRecord(1, 1, xid("b1"), 1_700_000_000_000),
    message(2, b""),
    Committed(2, 1, local(7), {("orders", 0): 177, ("payments", 3): 0}),
    Committed(2, 1, local(7), {("orders", 0): 177}, 1 << 40),
    Applied(2),
    RolledBack(1),
    Heuristic(7, xid("b2"), 3, 1, {("orders", 0): 1}),
    Forgotten(xid("b2")),
    Decided("q1", 5, (xid("b4"), xid("b5")), (1,), (Branch(5, 1, xid("b5")),), {("orders", 0): 200}),
    Undecided("q1"),
]


def open_journal(
    directory: Path, files: Files | None = None, file_bytes: int = ONE_FILE
) -> tuple[Journal, list[Record]]:
    seen: list[Record] = []
    journal = Journal(files or QuickFiles(), directory, file_bytes)
    journal.load(lambda location, record: seen.append(record))
    return journal, seen


def written(directory: Path, groups: Sequence[Sequence[Record]], file_bytes: int = ONE_FILE) -> list[Location]:
    """Write groups of records, each durable before the next, and close; return where the records stand."""
    journal, _ = open_journal(directory, file_bytes=file_bytes)
    locations = []
    for number, group in enumerate(groups):
        if number:
            journal.sync_now()
        locations += journal.append(group)
    journal.close()
    return locations


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_record_is_read_as_it_was_written(record: Record) -> None:
    kind, parts = encode(record)
    assert decode(kind, b"".join(parts)) == record


texts = st.text(st.characters(exclude_characters=" \t\r\n:", exclude_categories=["Cs"]), min_size=1, max_size=20)
xids = st.builds(Xid, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=20), st.binary(max_size=20), texts)
locals_ = st.builds(LocalTransactionId, texts, st.integers(-(2**31), 2**31 - 1))
serials, counts = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
partition_keys = st.tuples(texts, st.integers(-(2**31), 2**31 - 1))
ends = st.dictionaries(partition_keys, st.integers(-(2**63), 2**63 - 1), max_size=4)
units = st.builds(
    lambda partition_key, data, n: Unit(*partition_key, FrameBlock(data, n)),
    partition_keys,
    st.binary(max_size=50),
    counts,
)
branches = st.builds(Branch, serials, counts, xids)


@given(
    st.one_of(
        st.builds(Messages, serials, counts, st.lists(units, max_size=4).map(tuple)),
        st.builds(PreparedRecord, serials, counts, xids, st.integers(-(2**63), 2**63 - 1)),
        st.builds(Committed, serials, counts, st.one_of(xids, locals_), ends, st.none() | serials),
        st.builds(Heuristic, st.integers(0, 255), xids, serials, counts, ends),
        st.builds(
            Decided,
            texts,
            st.integers(-(2**63), 2**63 - 1),
            st.lists(xids, max_size=4).map(tuple),
            st.lists(counts, max_size=4).map(tuple),
            st.lists(branches, max_size=3).map(tuple),
            ends,
        ),
    ),
    st.data(),
)
def test_any_record_is_read_back_and_a_cut_one_is_refused(record: Record, data: st.DataObject) -> None:
    kind, parts = encode(record)
    payload = b"".join(parts)
    assert decode(kind, payload) == record
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(RecordDamaged):
        decode(kind, payload[:cut])


@pytest.mark.parametrize(("kind", "payload"), [(0, b""), (99, b""), (4, bytes(9)), (7, b"\0\0\0\3bad"), (2, bytes(40))])
def test_what_is_no_record(kind: int, payload: bytes) -> None:
    with pytest.raises(RecordDamaged):
        decode(kind, payload)


@pytest.mark.parametrize("file_bytes", [1, 300, ONE_FILE])
def test_everything_is_there_again(tmp_path: Path, file_bytes: int) -> None:
    locations = written(tmp_path, [[record] for record in RECORDS], file_bytes)
    journal, seen = open_journal(tmp_path, file_bytes=file_bytes)
    assert seen == RECORDS
    assert [journal.read(location) for location in locations] == RECORDS
    assert journal.file_count == {1: len(RECORDS), 300: 3, ONE_FILE: 1}[file_bytes]
    journal.close()


def test_torn_at_every_byte(tmp_path: Path) -> None:
    """However much of one unsynced write arrived: the whole records in front of it stay, and the journal goes on."""
    (tmp_path / "whole").mkdir()
    locations = written(tmp_path / "whole", [RECORDS])
    data = (tmp_path / "whole" / file_name(0)).read_bytes()
    for size in spread(range(len(data))):
        directory = tmp_path / f"torn{size}"
        directory.mkdir()
        (directory / file_name(0)).write_bytes(data[:size])
        journal, seen = open_journal(directory)
        expected = [record for record, location in zip(RECORDS, locations, strict=True) if location.end <= size]
        assert seen == expected
        (added,) = journal.append([Applied(99)])
        assert journal.read(added) == Applied(99)
        journal.close()
        again, seen = open_journal(directory)
        assert seen == [*expected, Applied(99)]
        again.close()


@pytest.mark.parametrize("tail", [bytes(4096), b"\xff" * 100, b"TxRe" * 50], ids=["zeros", "ones", "marks"])
def test_garbage_behind_the_end_is_cut(tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, [RECORDS])
    with (tmp_path / file_name(0)).open("ab") as file:
        file.write(tail)
    with caplog.at_level(logging.WARNING):
        journal, seen = open_journal(tmp_path)
    journal.close()
    assert seen == RECORDS
    assert f"cut {len(tail)} torn bytes" in caplog.text


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    """In front of what is known to be durable it stops the start and changes nothing; behind it, it is a torn end."""
    groups = [RECORDS[:4], RECORDS[4:7], RECORDS[7:]]
    (tmp_path / "whole").mkdir()
    locations = written(tmp_path / "whole", groups)
    path = tmp_path / "whole" / file_name(0)
    data = path.read_bytes()
    known_durable = locations[7].lsn  # the last group names it, and nobody says anything about that group
    for at in spread(range(len(data))):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        if at < known_durable:
            with pytest.raises(JournalDamaged) as caught:
                open_journal(path.parent)
            hit = next((location.lsn for location in reversed(locations) if location.lsn <= at), 0)
            assert (caught.value.path, caught.value.offset) == (path, hit)
            assert path.read_bytes() == bytes(damaged)
        else:
            journal, seen = open_journal(path.parent)
            journal.close()
            assert seen == RECORDS[: len(seen)]
            assert len(seen) == next(i for i, location in enumerate(locations) if at < location.end)


def test_damage_names_file_offset_and_what_to_do(tmp_path: Path) -> None:
    locations = written(tmp_path, [[record] for record in RECORDS], file_bytes=150)
    files = sorted(tmp_path.iterdir())
    assert len(files) > 3
    data = bytearray(files[1].read_bytes())
    data[-1] ^= 1
    files[1].write_bytes(data)
    words = r"\.journal is damaged at offset \d+: the \d+ payload bytes fail"
    with pytest.raises(JournalDamaged, match=words) as caught:
        open_journal(tmp_path, file_bytes=150)
    assert caught.value.path == files[1]
    assert caught.value.offset in [location.lsn - int(files[1].stem) for location in locations]
    assert "move the folder away" in str(caught.value)


def test_a_missing_file_in_the_middle_stops_the_start(tmp_path: Path) -> None:
    written(tmp_path, [[record] for record in RECORDS], file_bytes=1)
    sorted(tmp_path.iterdir())[4].unlink()
    with pytest.raises(JournalDamaged, match="bytes are missing"):
        open_journal(tmp_path)


def test_unsynced_files_behind_a_torn_one_go_with_it(tmp_path: Path) -> None:
    written(tmp_path, [RECORDS[:1]])
    journal, _ = open_journal(tmp_path, file_bytes=1)
    for record in RECORDS[1:5]:
        journal.append([record])
    journal.close()
    files = sorted(tmp_path.glob("*.journal"))
    assert len(files) == 5
    files[2].write_bytes(files[2].read_bytes()[:-3])
    journal, seen = open_journal(tmp_path, file_bytes=1)
    assert seen == RECORDS[:2]
    assert len(list(tmp_path.glob("*.journal"))) == 3
    journal.append([RolledBack(9)])
    journal.close()
    _, seen = open_journal(tmp_path)
    assert seen == [*RECORDS[:2], RolledBack(9)]


def test_a_record_inside_a_message_is_not_taken_for_one(tmp_path: Path) -> None:
    """A user may store a journal in a message; behind a torn record its bytes must not count as intact ones."""
    (tmp_path / "other").mkdir()
    (tmp_path / "mine").mkdir()
    written(tmp_path / "other", [RECORDS, RECORDS])
    body = (tmp_path / "other" / file_name(0)).read_bytes()
    written(tmp_path / "mine", [[message(1, body)]])
    path = tmp_path / "mine" / file_name(0)
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_BYTES + 5] ^= 1
    path.write_bytes(data)
    journal, seen = open_journal(tmp_path / "mine")
    journal.close()
    assert seen == []


def test_another_version_is_refused(tmp_path: Path) -> None:
    import zlib

    written(tmp_path, [RECORDS])
    path = tmp_path / file_name(0)
    data = bytearray(path.read_bytes())
    data[7] = 9
    data[16:20] = zlib.crc32(data[:16]).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="version 9"):
        open_journal(tmp_path)


def test_a_failed_write_refuses_that_step_only(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    journal, _ = open_journal(tmp_path, files)
    journal.append([RECORDS[0]])
    files.fault = Fault(at=1, error=errno.ENOSPC, kept=0.5)
    with pytest.raises(JournalFailed, match="No space left"):
        journal.append([RECORDS[1]])
    assert journal.failure is None
    journal.append([RECORDS[2]])
    journal.close()
    _, seen = open_journal(tmp_path)
    assert seen == [RECORDS[0], RECORDS[2]]


def test_a_failed_write_that_cannot_be_undone_ends_the_journal(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    journal, _ = open_journal(tmp_path, files)
    files.fault = Fault(at=1, error=errno.EIO, kept=0.5, lasting=True)
    with pytest.raises(JournalFailed):
        journal.append([RECORDS[0]])
    files.fault = None
    with pytest.raises(JournalFailed, match="until the broker is restarted"):
        journal.append([RECORDS[0]])
    journal.close()
    _, seen = open_journal(tmp_path)
    assert seen == []


def test_a_failed_fsync_ends_the_journal_and_restarts_are_durable(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    journal, _ = open_journal(tmp_path, files)
    journal.append([RECORDS[0]])
    files.fault = Fault(at=1, error=errno.EIO)
    with pytest.raises(JournalFailed):
        journal.sync_now()
    files.fault = None
    with pytest.raises(JournalFailed, match="fsync"):
        journal.append([RECORDS[1]])
    assert journal.pending_sync() is None
    files = files.restart()
    _, seen = open_journal(tmp_path, files)
    for seed in range(5):
        survived = FaultyFiles(tmp_path) if seed else files.crash(Random(seed))
        journal, after = open_journal(tmp_path, survived)
        journal.close()
        assert after == seen == [RECORDS[0]]


def test_files_are_dropped_from_the_old_end_and_never_the_last(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, file_bytes=1)
    locations = [journal.append([record])[0] for record in RECORDS[:5]]
    journal.sync_now()
    journal.drop_before(locations[2].end)
    assert journal.file_count == 2
    assert journal.read(locations[3]) == RECORDS[3]
    journal.drop_before(journal.end_lsn)
    assert journal.file_count == 1
    journal.close()
    _, seen = open_journal(tmp_path)
    assert seen == [RECORDS[4]]


def test_a_file_that_is_not_durable_is_never_dropped(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, file_bytes=1)
    for record in RECORDS[:3]:
        journal.append([record])
    with pytest.raises(AssertionError):
        journal.drop_before(journal.end_lsn)
    journal.close()


def test_before_it_is_read_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(JournalFailed, match="starting"):
        Journal(Files(), tmp_path, ONE_FILE).append([Applied(1)])


# ---- a journal that is not whole


MANY = [[record] for record in RECORDS]


def start_and_stop(directory: Path) -> None:
    journal, _ = open_journal(directory, file_bytes=150)
    journal.close()


@pytest.mark.parametrize("stopped", ["cleanly", "by a kill"])
@pytest.mark.parametrize("missing", ["the oldest", "one in the middle", "the newest", "all"])
def test_a_journal_file_that_is_missing(tmp_path: Path, missing: str, stopped: str) -> None:
    journal, _ = open_journal(tmp_path, file_bytes=150)
    for group in MANY:
        journal.append(group)
        journal.sync_now()
    if stopped == "cleanly":
        journal.note_end()
    journal.close()
    paths = sorted(tmp_path.glob("*.journal"))
    chosen = {"the oldest": paths[:1], "one in the middle": paths[2:3], "the newest": paths[-1:], "all": paths}[missing]
    for path in chosen:
        path.unlink()
    left = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=r"is missing|bytes are missing|the journal went on to LSN"):
            start_and_stop(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == left


def test_a_journal_that_was_shortened_behind_a_clean_stop(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    locations = journal.append(RECORDS)
    journal.sync_now()
    journal.note_end()
    journal.close()
    path = tmp_path / file_name(0)
    path.write_bytes(path.read_bytes()[: locations[-1].lsn])
    with pytest.raises(JournalDamaged, match="the journal went on to LSN"):
        start_and_stop(tmp_path)


def test_a_damaged_extent_is_named(tmp_path: Path) -> None:
    start_and_stop(tmp_path)
    (tmp_path / "extent").write_bytes(b"metaq-journal-extent 1\n0 0\ncrc32 00000000\n")
    with pytest.raises(JournalDamaged, match=r"extent is damaged at offset 0: its checksum does not match; restore"):
        start_and_stop(tmp_path)


def test_a_journal_without_an_extent_is_of_an_older_version(tmp_path: Path) -> None:
    written(tmp_path, MANY, file_bytes=150)
    (tmp_path / "extent").unlink()
    start_and_stop(tmp_path)
    max(tmp_path.glob("*.journal")).unlink()
    with pytest.raises(JournalDamaged):
        start_and_stop(tmp_path)


def test_files_may_be_removed_from_the_old_end(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, file_bytes=150)
    for group in MANY:
        journal.append(group)
        journal.sync_now()
    journal.drop_before(journal.newest_start)
    journal.close()
    assert len(list(tmp_path.glob("*.journal"))) == 1
    start_and_stop(tmp_path)


def test_a_crash_between_the_extent_and_the_removal(tmp_path: Path) -> None:
    """The files that were to go are still there: that is no damage, and they go later."""
    (tmp_path / "whole").mkdir()
    journal, _ = open_journal(tmp_path / "whole", file_bytes=150)
    for group in MANY:
        journal.append(group)
        journal.sync_now()
    before = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*.journal")}
    journal.drop_before(journal.newest_start)
    journal.close()
    for name, content in before.items():
        (tmp_path / "whole" / name).write_bytes(content)
    start_and_stop(tmp_path / "whole")
