"""Files of the index of keys: every hash is found, damage is noticed, a crash leaves a whole file or none."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.rocketmq.key_index.run_file import (
    BLOCK_BYTES,
    BLOCK_ENTRIES,
    Covered,
    Entry,
    IndexRun,
    RunDamaged,
    encode_entry,
    find_in_run,
    open_run,
    write_run,
)
from metaq_broker.testing import Fault, FaultyFiles, PowerCut

COVERED = [Covered("orders", 0, 5, 105), Covered("%RETRY%group", 3, 0, 7)]


def write(files: Files, path: Path, written: list[Entry], coverage: list[Covered]) -> IndexRun:
    return write_run(files, path, [encode_entry(*each) for each in written], coverage)


def entries(count: int, seed: int = 1, limit: int = 1 << 32) -> list[Entry]:
    random = Random(seed)
    return sorted(Entry(random.randrange(limit), number, 1000 + number) for number in range(count))


@pytest.mark.parametrize("count", [0, 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, 3000])
def test_every_hash_is_found(tmp_path: Path, count: int) -> None:
    files, written = Files(), entries(count)
    write(files, tmp_path / "1.keys", written, COVERED)
    run = open_run(files, tmp_path / "1.keys")
    assert (run.count, list(run.coverage)) == (count, COVERED)
    if count:
        assert (run.first_ms, run.last_ms) == (1000, 999 + count)
    for each in written[:: max(1, count // 300)]:
        assert find_in_run(files, run, each.hash) == [other for other in written if other.hash == each.hash]
    known = {each.hash for each in written}
    for absent in (0, 1, (1 << 32) - 1, 12345):
        if absent not in known:
            assert find_in_run(files, run, absent) == []


@pytest.mark.parametrize("limit", [3, 1000, 1 << 16])
def test_hashes_that_are_spread_badly_or_over_many_blocks(tmp_path: Path, limit: int) -> None:
    files, written = Files(), entries(2000, limit=limit)
    run = write(files, tmp_path / "1.keys", written, COVERED)
    for wanted in [*range(min(limit, 50)), limit - 1, limit]:
        assert find_in_run(files, run, wanted) == [each for each in written if each.hash == wanted]


def test_few_blocks_are_read(tmp_path: Path) -> None:
    class Counting(Files):
        reads = 0

        def pread(self, fd: int, count: int, position: int) -> bytes:
            self.reads += 1
            return super().pread(fd, count, position)

    files, written = Counting(), entries(20_000)
    run = write(files, tmp_path / "1.keys", written, COVERED)
    for each in written[::500]:
        find_in_run(files, run, each.hash)
    assert files.reads / 40 < 3.5


@pytest.mark.parametrize("at", [0, 5, 10, 30, 40, 60])
def test_a_damaged_front_is_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "1.keys"
    write(Files(), path, entries(300), COVERED)
    content = bytearray(path.read_bytes())
    content[at] ^= 0x41
    path.write_bytes(content)
    with pytest.raises(RunDamaged):
        open_run(Files(), path)


@pytest.mark.parametrize("size", [0, 10, 39, 100, -1, -BLOCK_BYTES])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "1.keys"
    write(Files(), path, entries(300), COVERED)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RunDamaged):
        open_run(Files(), path)


def test_a_damaged_block_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    path, written = tmp_path / "1.keys", entries(1000)
    run = write(Files(), path, written, COVERED)
    content = bytearray(path.read_bytes())
    content[run.blocks_at + 2 * BLOCK_BYTES + 7] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunDamaged, match="block 2"):
        find_in_run(Files(), run, written[2 * BLOCK_ENTRIES + 50].hash)
    assert find_in_run(Files(), run, written[0].hash) == [written[0]]


@pytest.mark.parametrize("seed", range(3))
def test_power_cuts_leave_a_whole_file_or_none(tmp_path: Path, seed: int) -> None:
    for at in range(1, 30):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        files = FaultyFiles(folder, Fault(at, None, kept=0.5))
        try:
            write(files, folder / "1.keys", entries(300), COVERED)
        except PowerCut:
            files = files.crash(Random(seed))
            if files.exists(folder / "1.keys"):
                assert open_run(files, folder / "1.keys").count == 300
        else:
            return
    raise AssertionError("the fault was always met")
