"""Decides whether the syncs of a disk are fast enough to run on the event loop.

Passing a sync to a thread and back takes two changes of threads in the interpreter, each of which also stops a busy
loop. On a disk whose syncs take little longer than that, a sync on the loop is better for all clients. But the loop
does nothing else meanwhile. So syncs run on the loop only if syncs in threads have been fast, and run in threads again
for a while as soon as syncs on the loop are slow on average. One slow sync after many fast ones is enough for that.
"""

from __future__ import annotations

from typing import Final

QUICK_S: Final = 0.000_4
"""Limit on the average seconds of a sync on the loop if several syncs are due: in threads, these would overlap."""

QUICK_ALONE_S: Final = 0.000_8
"""The same limit if one sync is due. A change of threads takes about as long, and stops the loop, too."""

ROUND_S: Final = 0.002
"""Limit on the seconds of one round on the loop: less than the quantum of a connection."""

LIKELY_S: Final = 0.003
"""Syncs in a thread up to this duration may be fast: they include waits for the interpreter and for other syncs."""

LIKELY_SHARE: Final = 0.9
"""The share of the recent syncs in threads that must have been fast before one runs on the loop."""

RECENT: Final = 64
"""Approximate number of recent syncs."""

PAUSE_S: Final = 2.0
"""Seconds for which all syncs run in threads after syncs on the loop were slow."""

FAILED_S: Final = 1.0
"""The duration that a failed sync counts for."""


class SyncTimes:
    """For one disk; ``now`` is loop time in seconds."""

    __slots__ = ("_likely_share", "_on_loop_s", "_pause_end")

    def __init__(self) -> None:
        self._likely_share = 0.0
        self._on_loop_s = QUICK_S / 2
        self._pause_end = 0.0

    def are_quick(self, count: int, now: float) -> bool:
        """Return whether ``count`` syncs should run on the loop."""
        is_likely = self._likely_share >= LIKELY_SHARE and now >= self._pause_end
        is_quick = count == 1 or (self._on_loop_s <= QUICK_S and count * self._on_loop_s <= ROUND_S)
        return is_likely and is_quick

    def took(self, seconds: float, *, failed: bool = False) -> None:
        """Record a sync in a thread."""
        is_likely = seconds <= LIKELY_S and not failed
        self._likely_share += (is_likely - self._likely_share) / RECENT

    def took_on_loop(self, seconds: float, now: float, *, failed: bool = False) -> None:
        self._on_loop_s += ((FAILED_S if failed else seconds) - self._on_loop_s) / RECENT
        if self._on_loop_s > QUICK_ALONE_S:
            self._on_loop_s = QUICK_S / 2
            self._pause_end = now + PAUSE_S
