"""Finds the processes of a driver, and the one at the other end of a connection, in /proc.

All processes that a driver starts stay in its session, even if Spark's daemon has a process group of its own or their
parents are dead. So the session contains exactly what the harness has started.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_LOOPBACK: Final = "0100007F"
_DAEMON: Final = b"pyspark.daemon"


def members(session: int) -> list[int]:
    """Return the processes of a session, without zombies."""
    return [pid for pid, (state, _, its_session) in _stats() if its_session == session and state != "Z"]


def task_workers(session: int) -> list[int]:
    """Return the processes in which Spark runs Python for its tasks and for its sinks: children of its daemon."""
    stats = dict(_stats())
    daemons = {pid for pid, (_, _, its_session) in stats.items() if its_session == session and _is_daemon(pid)}
    return sorted(pid for pid in daemons if stats[pid][1] in daemons and stats[pid][0] != "Z")


def port_owner(port: int, candidates: Iterable[int]) -> int | None:
    """Return the candidate with a TCP connection over loopback whose local port is ``port``; ``None`` if none has.

    A forked process may have the same socket; the last one that was started is returned.
    """
    inodes = set(_inodes(port))
    owners = [pid for pid in candidates if not inodes.isdisjoint(_sockets(pid))]
    return max(owners, default=None)


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _stats() -> Iterator[tuple[int, tuple[str, int, int]]]:
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                yield int(folder.name), (state, int(parent), int(session))


def _is_daemon(pid: int) -> bool:
    try:
        return _DAEMON in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def _inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            address, _, number = fields[1].rpartition(":")
            if address.endswith(_LOOPBACK) and int(number, 16) == port:
                yield fields[9]


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry))
                if match:
                    found.add(match[1])
    return found
