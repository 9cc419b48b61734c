"""A cache of a registry's answers, which remains usable while the registry is unavailable.

An answer older than ``CACHE_AGE_S_MAX`` is refreshed in a temporary thread, so that a forked process inherits no thread
and no connection. A caller waits at most ``REFRESH_WAIT_S`` for a refresh, and gets the previous answer if it takes
longer. While the registry is unavailable a thread tries again every ``AWAY_PAUSE_S`` and no caller waits.

``invalidate`` says that an answer has turned out to be wrong, as after the election of another master. Then the
registry is asked again soon, though it was unavailable just before, and the caller waits ``SOON_WAIT_S`` at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from metaq.errors import MetaqError
from metaq.net.background import Background
from metaq.net.clock import Clock
from metaq.net.forks import notify_after_fork

CACHE_AGE_S_MAX: Final = 5.0
"""Age at which a cached answer is refreshed."""

AWAY_PAUSE_S: Final = 10.0
"""Pause after a failed refresh, if a cached answer exists."""

SOON_S: Final = 0.1
"""Pause after a failed refresh if the answers were marked as old; it doubles with each failure in a row."""

SOON_S_MAX: Final = 2.0
"""The longest of these pauses."""

SOON_WAIT_S: Final = 0.1
"""Longest wait for a refresh that such a pause precedes."""

REFRESH_WAIT_S: Final = 1.0
"""Longest wait for a refresh if a cached answer exists and the last refresh did not fail."""

_DOUBLINGS_MAX: Final = 10

_LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Entry:
    answer: Any
    at_s: float


class RefreshedCache:
    """Answers of ``registry``, which is named in logs, by key. Not thread-safe: a caller that shares it holds a lock.

    ``away`` are the errors after which the previous answer stays valid.
    """

    def __init__(self, registry: str, thread_name: str, away: tuple[type[MetaqError], ...], clock: Clock) -> None:
        self._registry, self._thread_name, self._away, self._clock = registry, thread_name, away, clock
        self._entries: dict[Hashable, _Entry] = {}
        self._begin()
        self._away_until_s: float | None = None
        self._failed_s, self._failures = 0.0, 0
        self._is_asked_soon = False

    def _begin(self) -> None:
        """Start without refreshes; also in a child process, where the parent's refreshes never end."""
        notify_after_fork(self._begin)
        self._refreshes: dict[Hashable, Background[Any]] = {}

    def get(self, key: Hashable, fetch: Callable[[], _T]) -> _T:
        """Return the answer for ``key``. ``fetch`` asks the registry: in this thread if nothing is cached, else in
        another.

        Raises what ``fetch`` raises: if nothing is cached, or if a refresh failed with an error that is not in
        ``away``.
        """
        if key not in self._entries:
            self._entries[key] = _Entry(fetch(), self._clock.monotonic())
        self._collect()
        if not (self._is_fresh(self._entries[key]) or self._is_paused()) and key not in self._refreshes:
            refresh = self._refreshes[key] = Background(self._thread_name, fetch)
            self._wait(refresh)
            self._collect()
        answer: _T = self._entries[key].answer
        return answer

    def invalidate(self) -> None:
        """Mark every answer as old: the next call refreshes it."""
        self._entries = {key: replace(entry, at_s=float("-inf")) for key, entry in self._entries.items()}
        if self._away_until_s is not None:
            soon_s = min(SOON_S * 2.0 ** min(self._failures - 1, _DOUBLINGS_MAX), SOON_S_MAX)
            self._away_until_s = min(self._away_until_s, self._failed_s + soon_s)
            self._is_asked_soon = True

    def _wait(self, refresh: Background[Any]) -> None:
        if self._away_until_s is None:
            if not refresh.wait(REFRESH_WAIT_S):
                self._note_away(f"{self._registry} does not answer")
        elif self._is_asked_soon:
            self._is_asked_soon = False
            refresh.wait(SOON_WAIT_S)

    def _is_fresh(self, entry: _Entry) -> bool:
        return self._clock.monotonic() - entry.at_s < CACHE_AGE_S_MAX

    def _is_paused(self) -> bool:
        return self._away_until_s is not None and self._clock.monotonic() < self._away_until_s

    def _collect(self) -> None:
        """Store the answers of the refreshes that are done."""
        for key in [key for key, refresh in self._refreshes.items() if refresh.done]:
            refresh = self._refreshes.pop(key)
            try:
                answer = refresh.result()
            except self._away as error:
                self._note_away(str(error))
            else:
                self._store(key, answer)

    def _note_away(self, why: str) -> None:
        if self._away_until_s is None:
            _LOG.warning("%s. Continuing with the brokers as last known", why)
        self._failed_s = self._clock.monotonic()
        self._failures += 1
        self._away_until_s = self._failed_s + AWAY_PAUSE_S

    def _store(self, key: Hashable, answer: Any) -> None:
        if self._away_until_s is not None:
            _LOG.warning("%s is back", self._registry)
            self._away_until_s, self._failures = None, 0
        self._entries[key] = _Entry(answer, self._clock.monotonic())
