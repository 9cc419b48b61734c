"""How long syncs of one disk take, and whether they are so quick that they are better run on the event loop.

To hand a sync to a thread and back takes two changes of threads in the interpreter, each of which also stops the loop
while that is at work. On a disk that syncs in little more time than this takes, a sync on the loop is better for all:
for those who wait for it, and for all others. What it costs is that nothing else is done meanwhile. So it is tried only
where syncs in threads have not been slow, and is given up for a while as soon as syncs on the loop are not quick on
average. One that takes long, after many that were quick, does that alone.
"""

from __future__ import annotations

from typing import Final

QUICK_S: Final = 0.000_4
"""Seconds that a sync on the loop may take, on average, where several are to be run: in threads they overlap."""

QUICK_ALONE_S: Final = 0.000_8
"""The same where one is to be run. A change of threads takes about as long, in which nothing else is done either."""

ROUND_S: Final = 0.002
"""Seconds that the syncs of one round may take together on the loop: less than the quantum of a connection."""

LIKELY_S: Final = 0.003
"""A sync in a thread that takes no longer may be quick: it waits for the interpreter, too, and for syncs beside it."""

LIKELY_SHARE: Final = 0.9
"""So many of the recent syncs in threads must have been quick before it is tried."""

RECENT: Final = 64
"""So many syncs are recent, about."""

PAUSE_S: Final = 2.0
"""Between the end of one attempt and the beginning of the next."""

FAILED_S: Final = 1.0
"""What a sync counts for that fails."""


class SyncTimes:
    """For one disk; ``now`` is a time of the loop, in seconds."""

    __slots__ = ("_likely_share", "_on_loop_s", "_pause_end")

    def __init__(self) -> None:
        self._likely_share = 0.0
        self._on_loop_s = QUICK_S / 2
        self._pause_end = 0.0

    def are_quick(self, count: int, now: float) -> bool:
        """Say whether ``count`` syncs are to be run on the loop."""
        is_likely = self._likely_share >= LIKELY_SHARE and now >= self._pause_end
        is_quick = count == 1 or (self._on_loop_s <= QUICK_S and count * self._on_loop_s <= ROUND_S)
        return is_likely and is_quick

    def took(self, seconds: float, *, failed: bool = False) -> None:
        """Take note of a sync in a thread."""
        is_likely = seconds <= LIKELY_S and not failed
        self._likely_share += (is_likely - self._likely_share) / RECENT

    def took_on_loop(self, seconds: float, now: float, *, failed: bool = False) -> None:
        """Take note of a sync on the loop."""
        self._on_loop_s += ((FAILED_S if failed else seconds) - self._on_loop_s) / RECENT
        if self._on_loop_s > QUICK_ALONE_S:
            self._on_loop_s = QUICK_S / 2
            self._pause_end = now + PAUSE_S
