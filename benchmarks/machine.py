"""Reads the machine's description, CPU and memory of processes, and controls the page cache.

A results file says what a figure was measured on: processor, memory, system, file system, versions, commit, load. CPU
seconds and peak memory of processes come from ``/proc`` (Linux).
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Self

PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "numba", "isal")
_NOWHERE: Final = "unknown"


def machine() -> dict[str, str]:
    """Return names and values in the order in which to print them."""
    return {
        "processor": processor(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{_memory_bytes() / 2**30:.1f} GiB",
        "system": f"{_distribution()}, Linux {platform.release()}",
        "file system": file_system(Path(tempfile.gettempdir())),
        "Python": platform.python_version(),
        "Java": java_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the kernel's name of the model; the architecture without one."""
    found = re.search(r"^model name\s*:\s*(.+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return found[1] if found else platform.machine()


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of the file system with ``folder``, from the longest mount point above it."""
    if not mounts.exists():
        return _NOWHERE
    above = {str(parent) for parent in (folder.resolve(), *folder.resolve().parents)}
    points = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    available = [(len(point), number, kind) for number, (point, kind) in enumerate(points) if point in above]
    return max(available)[2] if available else _NOWHERE


def java_version() -> str:
    """Return the version of the Java that Spark uses: ``JAVA_HOME``'s, or the one on the path."""
    home = os.environ.get("JAVA_HOME")
    said = _output([f"{home}/bin/java" if home else "java", "-version"])
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else _NOWHERE


def commit(folder: Path) -> str:
    """Return the commit that is checked out, with ``+`` if files differ from it."""
    name = _output(["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]).strip()
    if not re.fullmatch(r"[0-9a-f]{12,}", name):
        return _NOWHERE
    return name + ("+" if _output(["git", "-C", str(folder), "status", "--porcelain"]).strip() else "")


def load() -> list[float]:
    """Return the load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def command_line() -> str:
    """Return this program's command line without the folders of this machine."""
    program, *given = (Path(word) if word.startswith("/") else word for word in sys.argv)
    named = [word.name if isinstance(word, Path) else word for word in given]
    return " ".join(["python", "/".join(Path(program).parts[-2:]), *named])


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _output(command: list[str]) -> str:
    """Return the output of a command; empty without such a command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout + done.stderr


TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One line of ``/proc/PID/stat``. ``cpu_s``: user and system time of the process and of children that it has waited
    for.
    """

    pid: int
    name: str
    parent: int
    cpu_s: float

    @classmethod
    def parse(cls, line: str) -> Self:
        """Parse the line; the name is in parentheses and may contain blanks and parentheses."""
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
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
            found[stat.pid] = stat
    return found


def below(ancestor: int, among: dict[int, ProcessStat]) -> Iterator[ProcessStat]:
    for stat in among.values():
        if stat.parent == ancestor:
            yield stat
            yield from below(stat.pid, among)


def cpu_s() -> float:
    """Return the CPU seconds so far of all processes that this one has started."""
    return sum(stat.cpu_s for stat in below(os.getpid(), running()))


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process."""
    match = re.search(r"VmHWM:\s+(\d+) kB", (_PROC / str(pid) / "status").read_text())
    assert match is not None, f"process {pid} has ended"
    return int(match[1]) << 10


EVERY_S: Final = 0.05
BYTES_MIN: Final = 1 << 22
"""Only pages of files larger than this are released."""


@contextmanager
def pages_given_back(folder: Path, files: str = "**/*") -> Iterator[None]:
    """During the block, let the system drop the clean pages of all large files of ``folder`` that match ``files``."""
    stop = threading.Event()

    def give_back() -> None:
        while not stop.wait(EVERY_S):
            for file in folder.glob(files):
                _forget(file)

    thread = threading.Thread(target=give_back)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _forget(file: Path) -> None:
    try:
        if not file.is_file() or file.stat().st_size <= BYTES_MIN:
            return
        fd = os.open(file, os.O_RDONLY)
    except FileNotFoundError:  # renamed or removed meanwhile
        return
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
