"""Up to where two copies of a stream have the same bytes."""

from __future__ import annotations

import pytest
from metaq_broker.log.streams.facts import EpochStart, StreamFacts, StreamOrigin
from metaq_broker.replication.pair.streams import agreed_end


def copy(end: int, *epochs: tuple[int, int], start: int = 0, incarnation: str = "a") -> StreamFacts:
    return StreamFacts(StreamOrigin("t-0", incarnation, start, 0), end, tuple(EpochStart(*each) for each in epochs), 0)


@pytest.mark.parametrize(
    ("one", "other", "agreed"),
    [
        (copy(0), copy(0), 0),
        (copy(100), copy(70), 70),  # both of epoch 0: one lags
        (copy(100, (1, 0)), copy(100, (1, 0)), 100),
        (copy(100, (1, 0)), copy(130, (1, 0)), 100),
        (copy(100, (1, 0), (2, 60)), copy(80, (1, 0)), 60),  # the old master wrote 20 bytes that nobody has
        (copy(100, (1, 0), (2, 90)), copy(80, (1, 0)), 80),
        (copy(100, (1, 0), (2, 60)), copy(100, (1, 0), (3, 70)), 60),  # two successors of epoch 1
        (copy(100, (2, 50)), copy(100, (3, 70)), 50),  # the common epoch is 0
        (copy(40, (1, 0), (2, 60)), copy(100, (1, 0), (2, 60)), 40),  # entries behind the end have no bytes yet
        (copy(100, (1, 0)), copy(100, (1, 0), incarnation="b"), None),
        (copy(100, (1, 0), start=50), copy(40, (1, 0)), None),  # what they have in common is deleted by now
        (copy(100, (1, 0), start=50), copy(50, (1, 0)), 50),
        (copy(50, (1, 0)), copy(100, (1, 0), start=50), 50),
        (copy(5_000_000_000, (1, 0)), copy(700, (1, 0)), 700),
    ],
)
def test_agreed_ends(one: StreamFacts, other: StreamFacts, agreed: int | None) -> None:
    assert agreed_end(one, other) == agreed
    assert agreed_end(other, one) == agreed
