"""Answers of a registry that are refreshed in threads, and a fork meanwhile."""

from __future__ import annotations

import threading

from forked import in_child

from metaq.discovery.refreshed import AWAY_PAUSE_S, CACHE_AGE_S_MAX, RefreshedCache
from metaq.errors import ZooKeeperAway
from metaq.testing.manual_clock import ManualClock


def test_a_child_does_not_wait_for_a_refresh_of_its_parent() -> None:
    clock, answer = ManualClock(), threading.Event()
    cache = RefreshedCache("the registry", "refresh", (ZooKeeperAway,), clock)

    def hangs() -> str:
        assert answer.wait(60)
        return "of the parent"

    assert cache.get("key", lambda: "first") == "first"
    clock.advance(CACHE_AGE_S_MAX)
    assert cache.get("key", hangs) == "first"
    clock.advance(AWAY_PAUSE_S)
    assert in_child(lambda: cache.get("key", lambda: "of the child") == "of the child")
    answer.set()
