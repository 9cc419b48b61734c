"""Facts of streams are compared as values."""

from __future__ import annotations

from metaq_broker.log.streams.facts import EpochStart, StreamFacts, StreamOrigin


def test_facts_are_values() -> None:
    origin = StreamOrigin("orders-0", "a" * 32, 0)
    assert StreamFacts(origin, 10, (EpochStart(1, 0),)) == (origin, 10, ((1, 0),), 0)
