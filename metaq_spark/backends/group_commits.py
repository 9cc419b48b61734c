"""Writes a consumer group's offsets beside a query, which does not wait for them: its own are in its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from metaq.discovery.refreshed import AWAY_PAUSE_S, REFRESH_WAIT_S
from metaq.errors import MetaqError
from metaq.model import TopicPartition
from metaq.net.background import Background
from metaq.net.clock import Clock
from metaq_spark.offsets import Offsets

_log = logging.getLogger(__name__)


class GroupCommits:
    """Writes to one server, or to one ensemble, named ``place`` in the log; ``write`` may take long.

    A failed write is logged once; a later one replaces it. A write that takes longer than ``REFRESH_WAIT_S`` is not
    waited for; while the server is away, a thread tries again every ``AWAY_PAUSE_S`` with the newest offsets.
    """

    def __init__(self, place: str, write: Callable[[str, Offsets], object], clock: Clock) -> None:
        self._place, self._write, self._clock = place, write, clock
        self._written: dict[TopicPartition, int] = {}
        self._failed_at_s: float | None = None
        self._writing: tuple[Background[object], str, Offsets] | None = None

    def start(self, group: str, offsets: Offsets) -> None:
        """Begin to write what has changed, unless a write is under way, or has just failed."""
        self._take_in()
        changed = {where: offset for where, offset in offsets.items() if self._written.get(where) != offset}
        is_away = self._failed_at_s is not None and self._clock.monotonic() - self._failed_at_s < AWAY_PAUSE_S
        if changed and not is_away and self._writing is None:
            self._writing = Background("metaq-group", partial(self._write, group, changed)), group, changed

    def wait(self) -> None:
        """Wait for the write, if there is one, for a moment; not at all if the one before failed."""
        if self._writing is not None and self._failed_at_s is None:
            writing, group, _ = self._writing
            if not writing.wait(REFRESH_WAIT_S):
                self._note_failure(group, f"{self._place} does not answer")
        self._take_in()

    def _take_in(self) -> None:
        """Process the result of a finished write."""
        if self._writing is None or not self._writing[0].done:
            return
        (writing, group, changed), self._writing = self._writing, None
        try:
            writing.result()
        except MetaqError as error:
            self._note_failure(group, str(error))
        else:
            self._written |= changed
            self._failed_at_s = None

    def _note_failure(self, group: str, why: str) -> None:
        if self._failed_at_s is None:
            _log.warning("the offsets of group %s are not written for now: %s", group, why)
        self._failed_at_s = self._clock.monotonic()
