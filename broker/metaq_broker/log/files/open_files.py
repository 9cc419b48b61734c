"""How the files that this process may open are shared out among connections, partitions and everything else.

A connection takes one, a partition in service up to two: its newest segment and the index of that. Connections leave
alone what partitions have, new partitions what connections need, and both leave some for the rest: read handles, the
journal, locks, sockets that listen.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from typing import Final

from metaq.model import INT32_MAX
from metaq_broker.log.files.files import OPEN_HANDLES_MAX

PARTITION_FILES: Final = 2
"""Files of a partition in service."""

OTHER_FILES: Final = OPEN_HANDLES_MAX + 96
"""Files that are neither of connections nor of partitions in service; three quarters of all where few are allowed."""

CONNECTION_FILES_MIN: Final = 8
"""Connections get an eighth of all files however many partitions there are, and never fewer than this."""

CONNECTION_FILES_SHARE: Final = 0.75
"""They never get more than this share."""


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """``limit`` is how many files the process may open."""

    limit: int

    @classmethod
    def of_process(cls) -> OpenFiles:
        """The limit as it is now (``ulimit -n``)."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(INT32_MAX if soft == resource.RLIM_INFINITY else soft)

    def connections_max(self, partitions: int) -> int:
        """Return how many connections there may be beside so many partitions in service."""
        free = self.limit - self._others - partitions * PARTITION_FILES
        return max(CONNECTION_FILES_MIN, self.limit // 8, min(free, int(self.limit * CONNECTION_FILES_SHARE)))

    @property
    def partitions_max(self) -> int:
        """How many partitions there may be before no more are made. Those that exist are opened nevertheless."""
        return max(1, (self.limit - self._others - max(CONNECTION_FILES_MIN, self.limit // 8)) // PARTITION_FILES)

    @property
    def _others(self) -> int:
        return min(OTHER_FILES, self.limit * 3 // 4)


def raise_limit() -> None:
    """Let this process open as many files as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
