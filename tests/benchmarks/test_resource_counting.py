"""What benchmarks know of processes and of room on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from log_size import GIB, bytes_needed, check_space
from machine import TICKS_PER_S, ProcessStat, below, peak_bytes, running


def line(pid: int, name: str, parent: int, ticks: tuple[int, int, int, int] = (0, 0, 0, 0)) -> str:
    """As in ``/proc/PID/stat``; the fields between parent and times do not matter."""
    return f"{pid} ({name}) S {parent} 1 1 0 -1 4194560 11 12 13 14 {' '.join(map(str, ticks))} 20 0 1 0 99"


class TestProcesses:
    @pytest.mark.parametrize("name", ["java", "a b", "x) S 7 (y", "((", "python3.11"])
    def test_a_name_may_hold_anything(self, name: str) -> None:
        stat = ProcessStat.parse(line(17, name, 3))
        assert (stat.pid, stat.name, stat.parent) == (17, name, 3)

    def test_time_is_user_and_system_with_that_of_children_that_ended(self) -> None:
        assert ProcessStat.parse(line(17, "java", 3, (1, 20, 300, 4000))).cpu_s == 4321 / TICKS_PER_S

    def test_below_are_children_and_theirs(self) -> None:
        family = {1: 0, 2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
        among = {pid: ProcessStat.parse(line(pid, "p", parent)) for pid, parent in family.items()}
        assert {stat.pid for stat in below(2, among)} == {3, 4}
        assert {stat.pid for stat in below(1, among)} == {2, 3, 4, 5, 6}
        assert list(below(6, among)) == []

    @pytest.mark.process
    def test_a_child_of_this_process_is_found_with_its_memory(self) -> None:
        command = [sys.executable, "-c", "block = bytearray(b'x') * (64 << 20); print(1, flush=True); input()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert child.pid in {stat.pid for stat in below(os.getpid(), running())}
            assert peak_bytes(child.pid) > 64 << 20
            child.communicate(b"\n")


class TestSpace:
    def test_there_is_more_than_the_logs_take(self) -> None:
        assert 22 * GIB > bytes_needed(20 * GIB, 0.2 * GIB, 0.8 * GIB) > 21 * GIB

    def test_enough_is_enough(self, tmp_path: Path) -> None:
        check_space(tmp_path, 10, 10)

    def test_too_little_is_reported_before_anything_is_written(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match=r"has 1\.0 GiB free, 2\.0 GiB are needed.*--gib.*--folder"):
            check_space(tmp_path, 2 * GIB, GIB)
        assert list(tmp_path.iterdir()) == []
