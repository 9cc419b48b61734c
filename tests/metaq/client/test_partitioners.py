"""Where messages go if the caller names no partition."""

from __future__ import annotations

import zlib

import pytest

from metaq.client.partitioners import at_random, by_key, fixed, round_robin
from metaq.model import Partition

PARTITIONS = [Partition(0, index) for index in range(3)]


def test_round_robin_for_each_topic() -> None:
    choose = round_robin()
    assert [choose("a", PARTITIONS, None).index for _ in range(4)] == [0, 1, 2, 0]
    assert choose("b", PARTITIONS, b"key").index == 0


def test_the_same_key_goes_to_the_same_partition_as_with_spark() -> None:
    choose = by_key()
    for key in (b"", b"a", "schlüssel".encode()):
        assert choose("t", PARTITIONS, key) == PARTITIONS[zlib.crc32(key) % 3] == choose("t", PARTITIONS, key)
    assert [choose("t", PARTITIONS, None).index for _ in range(2)] == [0, 1]


def test_a_fixed_place() -> None:
    assert fixed(2)("t", PARTITIONS, b"k") == PARTITIONS[2]
    with pytest.raises(ValueError, match="partition 3: topic 't' has the partitions 0 to 2"):
        fixed(3)("t", PARTITIONS, None)


def test_a_seed_repeats_a_random_choice() -> None:
    first, second = at_random(7), at_random(7)
    chosen = [first("t", PARTITIONS, None) for _ in range(50)]
    assert chosen == [second("t", PARTITIONS, None) for _ in range(50)]
    assert set(chosen) == set(PARTITIONS)
