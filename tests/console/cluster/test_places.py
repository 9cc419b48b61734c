"""Where partitions are is asked for all topics at once, and kept; a topic that is not known may be new."""

from __future__ import annotations

import threading
import time

from metaq_console.cluster.places import FRESH_S, KnownPlaces

from metaq.errors import DeadlineExceeded
from metaq.model import Address, Partition
from metaq.testing.manual_clock import ManualClock

WHERE = {Partition(0, 0): Address("127.0.0.1", 8123)}


def test_what_is_known_is_kept_and_what_is_not_is_asked_for() -> None:
    clock, stored = ManualClock(), {"orders": WHERE}
    asked = 0

    def ask() -> dict[str, dict[Partition, Address]]:
        nonlocal asked
        asked += 1
        return dict(stored)

    places = KnownPlaces(ask, clock)
    assert (places.of("orders"), places.of("orders"), asked) == (WHERE, WHERE, 1)
    assert (places.of("bills"), asked) == ({}, 2)
    stored["bills"] = WHERE
    assert (places.of("bills"), places.of("orders"), asked) == (WHERE, WHERE, 3)
    clock.advance(FRESH_S)
    assert (places.of("orders"), asked) == (WHERE, 4)
    places.forget()
    assert (places.of("orders"), asked) == (WHERE, 5)


def test_who_has_waited_for_a_question_that_failed_does_not_ask_again() -> None:
    began, late = threading.Event(), threading.Event()
    asked: list[int] = []
    failures: list[DeadlineExceeded] = []

    def ask() -> dict[str, dict[Partition, Address]]:
        asked.append(1)
        began.set()
        assert late.wait(60)
        raise DeadlineExceeded("127.0.0.1:8123", "stats", 8.0)

    places = KnownPlaces(ask)

    def look() -> None:
        try:
            places.of("orders")
        except DeadlineExceeded as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for each in threads:
        each.start()
    assert began.wait(60)
    time.sleep(0.2)  # so that most of them wait
    late.set()
    for each in threads:
        each.join(60)
    assert len(failures) == 8
    assert len(asked) < 8
