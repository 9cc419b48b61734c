"""Where partitions are is asked for all topics at once, and kept; a topic that is not known may be new."""

from __future__ import annotations

from metaq_console.cluster.places import FRESH_S, KnownPlaces

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
