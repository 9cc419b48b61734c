"""The member's file: who it is, how often it started, what it has promised."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from metaq_broker.log.streams import epochs
from metaq_broker.log.streams.facts import EpochStart
from metaq_broker.log.streams.member import (
    BOOTS_MAX,
    FILE_NAME,
    LEFT_NAME,
    MemberFile,
    MemberRefused,
    leave_pair,
    read_member,
)
from metaq_broker.testing import Fault, FaultyFiles
from stored import QuickFiles, cut_at_every_call


def started(root: Path, broker_id: int = 3) -> MemberFile:
    return MemberFile.start(QuickFiles(), root, broker_id)


def test_every_start_is_another_boot_of_the_same_member(tmp_path: Path) -> None:
    first, second = started(tmp_path).record, started(tmp_path).record
    assert first.uuid == second.uuid
    assert second.boots[:-1] == first.boots
    assert [boot.partition("-")[0] for boot in second.boots] == ["1", "2"]
    assert read_member(QuickFiles(), tmp_path) == second
    assert epochs.read_epochs(QuickFiles(), tmp_path) == {}


def test_two_starts_from_one_copy_are_different_boots(tmp_path: Path) -> None:
    started(tmp_path)
    copy = (tmp_path / FILE_NAME).read_bytes()
    one = started(tmp_path).record
    (tmp_path / FILE_NAME).write_bytes(copy)
    other = started(tmp_path).record
    assert one.boots[:-1] == other.boots[:-1]
    assert one.boots[-1] != other.boots[-1]


def test_a_folder_that_was_used_without_a_pair_is_no_members_any_more(tmp_path: Path) -> None:
    """Also without any epoch, which would give it away."""
    assert not leave_pair(QuickFiles(), tmp_path)
    started(tmp_path)
    assert leave_pair(QuickFiles(), tmp_path)
    assert not leave_pair(QuickFiles(), tmp_path)
    with pytest.raises(MemberRefused, match=r"a broker without \[pair\] has used it since"):
        started(tmp_path)
    (tmp_path / LEFT_NAME).unlink()
    assert started(tmp_path).record.boots[-1].startswith("1-")


def test_promises_never_go_back(tmp_path: Path) -> None:
    file = started(tmp_path)
    file.promise(7, 6)
    file.promise(5, 8)
    assert file.record[3:] == (7, 8)
    assert started(tmp_path).record[3:] == (7, 8)


def test_boots_before_the_recorded_one_are_forgotten(tmp_path: Path) -> None:
    for _ in range(4):
        file = started(tmp_path)
    boots = file.record.boots
    file.registered(boots[2])
    file.registered("9-00000000")
    assert started(tmp_path).record.boots[:-1] == boots[2:]


def test_the_recorded_boot_is_kept_however_many_follow(tmp_path: Path) -> None:
    first = started(tmp_path).record.boots[0]
    for _ in range(BOOTS_MAX + 3):
        file = started(tmp_path)
    assert len(file.record.boots) == BOOTS_MAX + 1
    assert file.record.boots[0] == first


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "its checksum does not match; it says who this broker is in its pair"),
        (b"metaq-pair-member 1\nuuid x\ncrc32 ", "checksum"),
    ],
)
def test_a_damaged_file_refuses_the_start(content: bytes, reason: str, tmp_path: Path) -> None:
    started(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(MemberRefused, match=reason):
        started(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_a_missing_file_refuses_the_start_of_a_member(tmp_path: Path) -> None:
    started(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    started(tmp_path)  # it has not promised anything about any stream
    entry = epochs.StreamEpochs("a" * 32, (EpochStart(1, 0),))
    epochs.write_epochs(QuickFiles(), tmp_path, {"orders-0": entry})
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(MemberRefused, match="pair-member is missing, and stream-epochs says"):
        started(tmp_path)


def test_another_brokers_folder_refuses_the_start(tmp_path: Path) -> None:
    started(tmp_path)
    with pytest.raises(MemberRefused, match=r"is of the broker with brokerId=3, and server.ini says brokerId=4"):
        started(tmp_path, 4)


def test_a_full_disk_keeps_the_old_promise(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    file = MemberFile.start(files, tmp_path, 3)
    files.fault = Fault(1, errno.ENOSPC, calls=frozenset({"pwrite"}))
    with pytest.raises(OSError, match="No space"):
        file.promise(4, 4)
    assert file.record.promised == 0


class Life:
    """A member that starts and promises; what it has promised is there after a power cut."""

    def __init__(self, root: Path) -> None:
        self.root, self.promised, self.boots = root, 0, 0

    def run(self, files: FaultyFiles) -> None:
        for epoch in range(1, 4):
            file = MemberFile.start(files, self.root, 3)
            self.boots = len(file.record.boots)
            file.promise(epoch, epoch)
            self.promised = epoch

    def check(self, files: FaultyFiles) -> None:
        found = read_member(files, self.root)
        assert (found.promised if found else 0) >= self.promised
        assert (len(found.boots) if found else 0) >= self.boots
        MemberFile.start(files, self.root, 3)


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_power_cut_at_every_call(kept: float, tmp_path: Path) -> None:
    assert cut_at_every_call(tmp_path, Life, kept) > 20
