"""Divides the open files of this process among connections, partitions and everything else.

A connection needs one, a partition in service up to two: its newest segment and that segment's index. Connections do
not take the partitions' files, new partitions do not take the connections', and both leave some for read handles, the
journal, locks and listening sockets.
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
"""Files for everything else; at most three quarters of all."""

CONNECTION_FILES_MIN: Final = 8
"""Connections get an eighth of all files for any number of partitions, and at least this many."""

CONNECTION_FILES_SHARE: Final = 0.75
"""Connections get at most this fraction."""


@dataclass(frozen=True, slots=True)
class OpenFiles:
    limit: int

    @classmethod
    def of_process(cls) -> OpenFiles:
        """Return the current limit (``ulimit -n``)."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(INT32_MAX if soft == resource.RLIM_INFINITY else soft)

    def connections_max(self, partitions: int) -> int:
        """Return how many connections are possible beside this many partitions in service."""
        free = self.limit - self._others - partitions * PARTITION_FILES
        return max(CONNECTION_FILES_MIN, self.limit // 8, min(free, int(self.limit * CONNECTION_FILES_SHARE)))

    @property
    def partitions_max(self) -> int:
        """Above this many partitions, no further ones are created. Existing ones are opened nevertheless."""
        return max(1, (self.limit - self._others - max(CONNECTION_FILES_MIN, self.limit // 8)) // PARTITION_FILES)

    @property
    def _others(self) -> int:
        return min(OTHER_FILES, self.limit * 3 // 4)


def raise_limit() -> None:
    """Raise the limit of this process to the system's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
