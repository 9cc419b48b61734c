"""Which partition of the target takes the copies of a partition of the source."""

from __future__ import annotations

import pytest

from metaq.model import Partition
from metaq.operate.mirror.targets import TooFewPartitions, assign


def named(text: str) -> list[Partition]:
    return [Partition.parse(name) for name in text.split()]


def pairs(text: str) -> dict[Partition, Partition]:
    """``0-0:7-1 0-1:7-0`` as targets of sources."""
    return dict(tuple(named(pair.replace(":", " "))) for pair in text.split())


@pytest.mark.parametrize(
    ("sources", "targets", "known", "fold", "expected"),
    [
        ("0-0 0-1", "7-0 7-1", "", False, "0-0:7-0 0-1:7-1"),
        ("0-1 1-0 0-10 0-9", "7-0 7-1 8-0 8-1 8-2", "", False, "0-1:7-0 0-9:7-1 0-10:8-0 1-0:8-1"),
        ("0-0 0-1", "3-1 3-0", "", False, "0-0:3-0 0-1:3-1"),
        ("", "7-0", "", False, ""),
        # what is settled stays, whatever comes on either side
        ("0-0 0-1 1-0", "7-0 7-1 7-2", "0-0:7-0 1-0:7-1", False, "0-0:7-0 1-0:7-1 0-1:7-2"),
        ("0-0 0-1", "5-0 7-0 7-1", "0-0:7-0", False, "0-0:7-0 0-1:5-0"),
        ("0-1", "7-0 7-1", "0-0:7-0", False, "0-0:7-0 0-1:7-1"),
        ("0-0", "9-0", "0-0:7-0", False, "0-0:7-0"),
        ("0-0 0-1", "7-0 7-1 7-2", "0-1:7-0", False, "0-1:7-0 0-0:7-1"),
        ("0-0", "7-0", "0-5:7-9", False, "0-5:7-9 0-0:7-0"),
        ("0-0 0-1 1-0", "7-0 7-1 7-2", "", False, "0-0:7-0 0-1:7-1 1-0:7-2"),
        # shared
        ("0-0 0-1 0-2", "7-0 7-1", "", True, "0-0:7-0 0-1:7-1 0-2:7-0"),
        ("0-0 0-1 0-2 0-3 0-4", "7-0 7-1", "", True, "0-0:7-0 0-1:7-1 0-2:7-0 0-3:7-1 0-4:7-0"),
        ("0-0 0-1 0-2 0-3", "7-0 7-1", "0-0:7-0 0-2:7-1", True, "0-0:7-0 0-2:7-1 0-1:7-0 0-3:7-1"),
        ("0-0 0-1", "7-0 7-1 7-2", "", True, "0-0:7-0 0-1:7-1"),
    ],
)
def test_targets(sources: str, targets: str, known: str, fold: bool, expected: str) -> None:
    assert assign("orders", named(sources), named(targets), pairs(known), fold=fold) == pairs(expected)


@pytest.mark.parametrize(
    ("sources", "known", "said"),
    [
        ("0-0 0-1 0-2", "", "topic 'orders': 3 partitions at the source, only 2 at the target, and none .* for 0-2"),
        ("0-0 0-1 0-2", "0-1:7-0 0-2:7-1", "3 partitions at the source, only 2 at the target, and none .* for 0-0"),
    ],
)
def test_too_few_partitions_are_refused(sources: str, known: str, said: str) -> None:
    with pytest.raises(TooFewPartitions, match=said):
        assign("orders", named(sources), named("7-0 7-1"), pairs(known), fold=False)
