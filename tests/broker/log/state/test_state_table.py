"""The state table: what it remembers, when it says that it is on the disk, and what it does with a broken file."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from random import Random

import pytest
from manual_loop import Steps
from metaq_broker.log.files.errors import StateDamaged, StateFull, StateNotWritten
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_records import FILE_HEADER_BYTES, encode_changes
from metaq_broker.log.state.state_table import COMPACT_BYTES_MIN, LoopDriver, StateTable
from metaq_broker.testing import Fault, FaultyFiles
from stored import QuickFiles, cut_at_every_call, each_call
from waiting import in_loop


def contents(table: StateTable) -> dict[str, bytes]:
    return dict(table.items())


def opened(root: Path, files: Files | None = None, steps: Steps | None = None, **limits: int) -> StateTable:
    return StateTable.open(files or QuickFiles(), root / "state", steps or Steps(), **limits)


def test_what_was_put_is_there_after_it_was_closed(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.put("offset/a", b"1")
    table.put("offset/b", b"")
    table.put("topic/a", b"\0" * 3)
    table.put("offset/a", b"2")
    table.delete("topic/a")
    table.delete("never")
    table.close()
    again = opened(tmp_path)
    assert contents(again) == {"offset/a": b"2", "offset/b": b""}
    assert again.get("offset/a") == b"2"
    assert again.get("topic/a") is None
    assert dict(again.items("offset/b")) == {"offset/b": b""}
    again.close()


def test_a_callback_means_that_it_is_on_the_disk(tmp_path: Path) -> None:
    files, steps, reported = FaultyFiles(tmp_path), Steps(), []
    table = opened(tmp_path, files, steps)
    table.put("a", b"1", reported.append)
    table.delete("b", reported.append)
    assert reported == []
    steps.run_all()
    assert reported == [None, None]
    after = files.crash(Random(1))
    assert contents(opened(tmp_path, after)) == {"a": b"1"}


def test_one_append_for_all_that_was_changed_until_it_began(tmp_path: Path) -> None:
    files, steps, reported = FaultyFiles(tmp_path), Steps(), []
    table = opened(tmp_path, files, steps)
    before = len(files.calls)
    for number in range(100):
        table.put(f"key {number % 10}", b"%d" % number, lambda failure, n=number: reported.append((n, failure)))
    steps.run_all()
    assert files.calls[before:] == ["pwrite", "fdatasync"]
    assert reported == [(number, None) for number in range(100)]


def test_without_a_callback_it_is_written_within_a_second(tmp_path: Path) -> None:
    files, steps = FaultyFiles(tmp_path), Steps()
    table = opened(tmp_path, files, steps)
    table.put("a", b"1")
    steps.run_all(0.4)
    table.put("a", b"2")
    table.put("b", b"2")
    assert files.calls[-1] == "fsync_dir"  # of the fresh file
    steps.run_all(0.5)
    assert files.calls[-1] == "fdatasync"
    assert contents(opened(tmp_path, files.crash(Random(1)))) == {"a": b"2", "b": b"2"}


def test_when_durable_waits_for_changes_that_nobody_waited_for(tmp_path: Path) -> None:
    files, steps, reported = FaultyFiles(tmp_path), Steps(), []
    table = opened(tmp_path, files, steps)
    table.put("a", b"1")
    table.when_durable(reported.append)
    steps.run_all()
    assert reported == [None]
    table.when_durable(reported.append)  # nothing to write
    before = len(files.calls)
    steps.run_all()
    assert (reported, len(files.calls)) == ([None, None], before)
    assert contents(opened(tmp_path, files.crash(Random(1)))) == {"a": b"1"}


def test_a_large_file_is_replaced_by_a_fresh_one(tmp_path: Path) -> None:
    steps = Steps()
    table = opened(tmp_path, None, steps)
    for number in range(40):
        table.put("key", bytes([number]) * (COMPACT_BYTES_MIN // 16))
        steps.run_all(1.0)
        assert (tmp_path / "state").stat().st_size < COMPACT_BYTES_MIN * 1.2
    table.close()
    assert (tmp_path / "state").stat().st_size < COMPACT_BYTES_MIN // 8
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    again = opened(tmp_path)
    assert contents(again) == {"key": bytes([39]) * (COMPACT_BYTES_MIN // 16)}
    again.close()


def test_limits(tmp_path: Path) -> None:
    table = opened(tmp_path, bytes_max=1000)
    table.put("a", bytes(500))
    with pytest.raises(StateFull, match=r"no space for 'b' in the broker's state, which may take 1000 bytes"):
        table.put("b", bytes(500))
    table.put("a", bytes(400))
    with pytest.raises(StateFull):
        table.put("a", bytes(1000))
    table.delete("a")
    assert table.size_bytes == 0
    table.put("b", bytes(500))
    with pytest.raises(ValueError, match="keys up to 65535 bytes"):
        table.put("x" * 70_000, b"")
    with pytest.raises(ValueError, match="surrogates"):
        table.put("\udc80", b"")
    assert set(contents(table)) == {"b"}
    table.close()
    table.close()
    with pytest.raises(ValueError, match="is closed"):
        table.put("c", b"")


def test_a_failing_callback_does_not_keep_others_from_being_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps, reported = Steps(), []
    table = opened(tmp_path, None, steps)
    table.put("a", b"1", lambda failure: 1 // 0)
    table.put("a", b"2", reported.append)
    steps.run_all()
    assert reported == [None]
    assert "a callback failed" in caplog.text
    table.close()


# ---- a disk that refuses


def test_a_full_disk_is_reported_and_tried_again(tmp_path: Path) -> None:
    files, steps, reported = FaultyFiles(tmp_path), Steps(), []
    table = opened(tmp_path, files, steps)
    table.put("a", b"1", reported.append)
    steps.run_all()
    files.fault = Fault(1, errno.ENOSPC, 0.5, lasting=True, calls=frozenset({"pwrite"}))
    table.put("a", b"2", reported.append)
    steps.run_all()
    (done, failure), failed_calls = reported, len(files.calls)
    assert done is None
    assert isinstance(failure, StateNotWritten)
    assert failure.retryable
    assert "No space left on device" in str(failure)
    assert str(failure).endswith("; changes apply, and are written as soon as the disk takes them")
    table.put("b", b"1", reported.append)
    steps.run_all(0.9)
    assert (len(reported), len(files.calls)) == (2, failed_calls)  # no attempt for each change
    steps.run_all(0.2)
    assert isinstance(reported[2], StateNotWritten)
    files.fault = None
    steps.run_all(1.0)  # without another change
    assert table.failure is None
    assert contents(opened(tmp_path, files.crash(Random(3)))) == {"a": b"2", "b": b"1"}


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_after_a_failed_write_everything_is_written_anew(call: str, tmp_path: Path) -> None:
    for seed in range(20):
        root = tmp_path / str(seed)
        root.mkdir()
        files, steps, reported = FaultyFiles(root), Steps(), []
        table = opened(root, files, steps)
        table.put("a", b"1", reported.append)
        steps.run_all()
        files.fault = Fault(1, errno.EIO, 0.5, calls=frozenset({call}))
        table.put("b", b"1", reported.append)
        steps.run_all()
        files.fault = None
        steps.run_all(1.0)
        table.put("c", b"1", reported.append)
        steps.run_all()
        assert [failure is None for failure in reported] == [True, False, True]
        assert contents(opened(root, files.crash(Random(seed)))) == {"a": b"1", "b": b"1", "c": b"1"}


def test_at_the_end_nothing_is_written_later(tmp_path: Path) -> None:
    files, steps, reported = FaultyFiles(tmp_path), Steps(), []
    table = opened(tmp_path, files, steps)
    files.fault = Fault(1, errno.ENOSPC, lasting=True, calls=frozenset({"pwrite"}))
    table.put("a", b"1", reported.append)
    table.close()
    (failure,) = reported
    assert isinstance(failure, StateNotWritten)
    assert "changes apply" not in str(failure)


def test_opened_on_a_full_disk_it_reads_what_is_there(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.put("a", b"1")
    table.close()
    files, steps, reported = FaultyFiles(tmp_path), Steps(), []
    files.fault = Fault(1, errno.ENOSPC, 0.0, lasting=True)
    again = opened(tmp_path, files, steps)
    assert contents(again) == {"a": b"1"}
    again.put("b", b"1", reported.append)
    steps.run_all(1.0)
    assert isinstance(reported[0], StateNotWritten)
    files.fault = None
    steps.run_all(1.0)
    assert contents(opened(tmp_path, files.crash(Random(3)))) == {"a": b"1", "b": b"1"}


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_somebody_takes_away_is_made_anew(replaced: bool, tmp_path: Path) -> None:
    steps, reported = Steps(), []
    table = opened(tmp_path, None, steps)
    table.put("a", b"1", reported.append)
    steps.run_all()
    content = (tmp_path / "state").read_bytes()
    (tmp_path / "state").unlink()
    if replaced:
        (tmp_path / "state").write_bytes(content)
    table.put("b", b"1", reported.append)
    steps.run_all()
    table.put("c", b"1", reported.append)
    steps.run_all(1.0)
    assert [failure is None for failure in reported] == [True, False, True]
    assert contents(opened(tmp_path)) == {"a": b"1", "b": b"1", "c": b"1"}


# ---- crashes


class Life:
    """Changes keys again and again, and remembers what it was promised."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.promised: dict[str, int] = {}
        self.asked: dict[str, int] = {}

    def run(self, files: FaultyFiles) -> None:
        number = 0
        for _ in range(3):
            steps = Steps()
            table = opened(self.root, files, steps)
            for _ in range(4):
                for key in ("a", "b", "c"):
                    number += 1
                    self.put(table, key, number)
                table.put("a", b"%d" % number)
                self.asked["a"] = number
                steps.run_all()
            steps.run_all(2.0)
            table.close()
            self.promised = dict(self.asked)

    def put(self, table: StateTable, key: str, number: int) -> None:
        def reported(failure: Exception | None) -> None:
            if failure is None:
                self.promised[key] = max(number, self.promised.get(key, 0))

        self.asked[key] = number
        table.put(key, b"%d" % number, reported)

    def check(self, files: FaultyFiles) -> None:
        table = opened(self.root, files)
        found = {key: int(value) for key, value in contents(table).items()}
        assert found.keys() <= self.asked.keys()
        for key, promised in self.promised.items():
            assert promised <= found[key] <= self.asked[key]


@pytest.mark.parametrize("kept", [0.0, 0.6, 1.0])
def test_power_cut_at_every_call(kept: float, tmp_path: Path) -> None:
    assert cut_at_every_call(tmp_path, Life, kept) > 40


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kept", [0.0, 0.6])
def test_one_failure_at_every_call_then_a_power_cut(error: int, kept: float, tmp_path: Path) -> None:
    for at, root in each_call(tmp_path, Life):
        files, life = FaultyFiles(root, Fault(at, error, kept)), Life(root)
        life.run(files)
        last = opened(root, files)  # a failed rewrite at the last close is made good here
        life.check(files.crash(Random(at)))
        del last


# ---- damage


def stored(root: Path, steps: Steps | None = None) -> Path:
    """A file with a fresh part (a to c) and a record behind it for each of d to f, closed by a kill."""
    table = opened(root)
    for key in "abc":
        table.put(key, key.encode() * 10)
    table.close()
    steps = Steps()
    table = opened(root, None, steps)
    for key in "def":
        table.put(key, key.encode() * 10)
        steps.run_all(1.0)
    return root / "state"


def test_a_torn_end_is_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = stored(tmp_path)
    whole = path.read_bytes()
    for size in range(whole.index(b"ffff") - 20, len(whole)):
        path.write_bytes(whole[:size])
        assert set(contents(opened(tmp_path))) == set("abcde")
    path.write_bytes(whole + b"\0" * 600)
    assert set(contents(opened(tmp_path))) == set("abcdef")
    assert "was cut off" in caplog.text


def test_a_changed_byte_that_was_safe_is_damage(tmp_path: Path) -> None:
    path = stored(tmp_path)
    whole = path.read_bytes()
    last = whole.rindex(b"StRe")
    for at in range(last):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(StateDamaged, match="bring it back from a copy, let `metaq-broker fsck --repair` save"):
            opened(tmp_path)
        assert path.stat().st_size == len(whole)  # nothing was changed


def test_what_a_clean_end_wrote_cannot_be_missing(tmp_path: Path) -> None:
    stored(tmp_path)
    table = opened(tmp_path)
    table.close()
    whole = (tmp_path / "state").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "state").write_bytes(whole[:size])
        with pytest.raises(StateDamaged):
            opened(tmp_path)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path)
    path.write_bytes(path.read_bytes()[:7] + b"\3" + path.read_bytes()[8:])
    with pytest.raises(StateDamaged, match="its version is 3, this program knows versions 1 and 2 only"):
        opened(tmp_path)


def test_a_value_that_is_part_of_a_state_file_does_not_pass_for_one(tmp_path: Path) -> None:
    piece = encode_changes(0, FILE_HEADER_BYTES, 1 << 40, [("x", b"no")])
    steps = Steps()
    table = opened(tmp_path, None, steps)
    table.put("a", piece * 3)
    steps.run_all(1.0)
    whole = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(whole[: FILE_HEADER_BYTES + 10] + b"?" + whole[FILE_HEADER_BYTES + 11 :])
    assert contents(opened(tmp_path)) == {}


# ---- the real loop and thread


@in_loop
async def test_in_an_event_loop(tmp_path: Path) -> None:
    table = StateTable.open(Files(), tmp_path / "state", LoopDriver())
    futures = []
    for number in range(200):
        future = asyncio.get_running_loop().create_future()
        table.put(f"key {number}", b"%d" % number, future.set_result)
        futures.append(future)
        if number % 20 == 0:
            await asyncio.sleep(0)
    assert await asyncio.gather(*futures) == [None] * 200
    left: list[object] = []
    table.put("last", b"1", left.append)
    await asyncio.sleep(0)
    table.close()
    assert left == [None]
    await asyncio.sleep(0)
    again = opened(tmp_path)
    assert len(contents(again)) == 201
    again.close()
