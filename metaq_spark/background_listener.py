"""The base of listeners that handle the events of a session's queries in a thread of their own.

Spark calls a listener for one event after the other, and a slow listener delays the events of every query. So a call
only stores the event and wakes the thread. Errors never reach Spark: each kind of them is logged once.
"""

from __future__ import annotations

import atexit
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sized
from typing import Final

from pyspark.sql.streaming.listener import StreamingQueryListener

EXIT_S: Final = 2.0
"""Seconds that the end of a program waits for its queries' ends to be reported, and then for what waits."""


class BackgroundListener(StreamingQueryListener, ABC):
    """A subclass has ``_waiting``, its stored events, guarded by ``_changed``, and handles them in ``_serve``.

    ``failure`` begins the log line of an error.
    """

    _waiting: Sized

    def __init__(self, thread_name: str, logger: logging.Logger, failure: str) -> None:
        self._thread_name, self._logger, self._failure = thread_name, logger, failure
        self._changed = threading.Condition()
        self._running: dict[str, str] = {}  # ids of runs, with the ids of their queries
        self._busy = self._started = False
        self._finishes = False
        self._logged_kinds: set[str] = set()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything that was reported is handled; return whether it was in time. For programs about to
        end.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    @abstractmethod
    def _serve(self) -> None:
        """Handle stored events, for ever. Set ``_busy`` while events are handled that are not in ``_waiting``."""

    def _begin_run(self, run_id: str, query_id: str) -> None:
        with self._changed:
            self._running[run_id] = query_id
            if not self._finishes:
                self._finishes = True
                atexit.register(self._finish)

    def _end_run(self, run_id: str) -> None:
        with self._changed:
            self._running.pop(run_id, None)
            self._changed.notify_all()

    def _wake(self) -> None:
        """Wake the thread; the caller has stored an event and holds the lock."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name=self._thread_name, daemon=True).start()
        self._changed.notify_all()

    def _finish(self) -> None:
        """The program ends. Spark reports the last progress and the end of a query after ``awaitTermination``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, EXIT_S)
        self.drain(EXIT_S)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:
            self._log_once(error)

    def _log_once(self, error: Exception) -> None:
        """Log each kind of failure once: a broker that is away for an hour is one line, not thousands."""
        kind = type(error).__name__
        if kind not in self._logged_kinds:
            self._logged_kinds.add(kind)
            self._logger.warning("%s: %s (%s is not logged again)", self._failure, error, kind)
