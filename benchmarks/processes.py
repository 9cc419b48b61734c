"""What processes have used, as Linux counts it: CPU seconds and the most memory they had at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One line of ``/proc/PID/stat``. ``cpu_s``: user and system, its own and of children that it has waited for."""

    pid: int
    name: str
    parent: int
    cpu_s: float

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read the line; the name is in parentheses and may hold anything, also blanks and parentheses."""
        name_start, name_end = line.index("("), line.rindex(")")
        fields = line[name_end + 2 :].split()
        ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
        return cls(int(line[:name_start]), line[name_start + 1 : name_end], int(fields[1]), ticks / TICKS_PER_S)


def running() -> dict[int, ProcessStat]:
    """All processes of this machine."""
    found = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            try:
                stat = ProcessStat.parse((folder / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):  # gone meanwhile
                continue
            found[stat.pid] = stat
    return found


def below(ancestor: int, among: dict[int, ProcessStat]) -> Iterator[ProcessStat]:
    """The children of a process, and theirs."""
    for stat in among.values():
        if stat.parent == ancestor:
            yield stat
            yield from below(stat.pid, among)


def cpu_s() -> float:
    """CPU seconds so far of everything that this process has started: the JVM, Python workers, brokers."""
    return sum(stat.cpu_s for stat in below(os.getpid(), running()))


def peak_bytes(pid: int) -> int:
    """The most resident memory that a process has had at a time, since it began."""
    match = re.search(r"VmHWM:\s+(\d+) kB", (_PROC / str(pid) / "status").read_text())
    assert match is not None, f"process {pid} has ended"
    return int(match[1]) << 10
