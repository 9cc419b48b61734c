"""The judge of the cluster histories finds what it is there to find."""

from __future__ import annotations

import pytest
from cluster_load import Position, Receipt, holes, lost, repeated

from metaq.model import Address, Partition

ONE, OTHER = Partition(1, 0), Partition(1, 1)
BROKER = Address("127.0.0.1", 8123)
A, B, C = (Receipt(ONE, offset, payload, BROKER) for offset, payload in ((0, b"a"), (21, b"b"), (42, b"c")))
X = Receipt(OTHER, 0, b"x", BROKER)
ALL = {(ONE, 0): b"a", (ONE, 21): b"b", (ONE, 42): b"c", (OTHER, 0): b"x"}


@pytest.mark.parametrize(
    ("gone", "altered", "missing", "cannot_be_a_tail"),
    [
        ([], {}, [], []),
        ([(ONE, 42)], {}, [C], []),
        ([(ONE, 21), (ONE, 42)], {}, [B, C], []),
        ([(ONE, 0), (ONE, 21), (ONE, 42)], {}, [A, B, C], []),
        ([(ONE, 21)], {}, [B], [B]),
        ([(ONE, 0), (ONE, 42)], {}, [A, C], [A]),
        ([], {(ONE, 42): b"another"}, [C], []),
        ([], {(ONE, 0): b"another"}, [A], [A]),
        ([(OTHER, 0)], {}, [X], []),
    ],
)
def test_what_is_lost(
    gone: list[Position], altered: dict[Position, bytes], missing: list[Receipt], cannot_be_a_tail: list[Receipt]
) -> None:
    found = {place: payload for place, payload in ALL.items() if place not in gone} | altered
    receipts = [A, X, B, C]
    assert (lost(receipts, found), holes(receipts, found)) == (
        sorted(missing, key=receipts.index),
        sorted(cannot_be_a_tail, key=receipts.index),
    )


def test_what_is_there_twice() -> None:
    assert repeated(ALL) == []
    assert repeated(ALL | {(OTHER, 21): b"a"}) == [b"a"]
