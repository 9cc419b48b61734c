"""Ports for servers of tests that keep them over restarts.

Each process takes its ports from a block of its own, which other processes of this user leave to it: a port that is
free now stays free until its server starts, and while the server is down.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

FIRST: Final = 12_000
BLOCK: Final = 200
BLOCKS: Final = 100
GAP: Final = 2
"""Ports that are left free between two: a broker listens two below its port for RocketMQ's clients, too."""
"""The ports from ``FIRST`` on are below the range of ports for outgoing connections."""


class _OwnBlock:
    """A block that this process has locked, and the place in it that is next.

    The lock ends with the process and the children that it forked; these take blocks of their own.
    """

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._first, self._count = FIRST, BLOCK * BLOCKS  # without a lock: any of them
        chance = random.SystemRandom()  # tests of one seed run beside one another
        with suppress(OSError):  # a file system that is full or cannot be written
            self._lock_one(chance.sample(range(BLOCKS), BLOCKS))
        self._next = chance.randrange(self._count)

    def _lock_one(self, numbers: Sequence[int]) -> None:
        folder = Path(tempfile.gettempdir()) / f"metaq-test-ports-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        for number in numbers:
            lock = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            self._first, self._count = FIRST + number * BLOCK, BLOCK  # the file stays open
            return

    def runs(self, width: int) -> Iterator[range]:
        """Yield runs of ``width`` ports of the block, each once, beginning ``GAP`` after the last that was yielded."""
        for _ in range(self._count // (width + GAP)):
            if self._next + width > self._count:
                self._next = 0
            first = self._first + self._next
            self._next += width + GAP
            yield range(first, first + width)


_own: _OwnBlock | None = None


def free_port(offsets: Sequence[int] = (0,)) -> int:
    """Return a free port such that the ports at these distances are free, too.

    It is below the range of ports for outgoing connections, so it is still free when its server starts again.

    Raises:
        RuntimeError: None is free.
    """
    global _own
    if _own is None or _own.process_id != os.getpid():  # a forked child's is its parent's
        _own = _OwnBlock()
    lowest = min(offsets)
    for run in _own.runs(max(offsets) - lowest + 1):
        if all(_is_free(run[offset - lowest]) for offset in offsets):
            return run[0] - lowest
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
