"""The checker of what the query has written: each way for an output to be wrong is found, and a right one is not."""

from __future__ import annotations

import pytest

from faults.exactly_once.broker_pair import partition_of
from faults.exactly_once.checker import Kind, Seen, check
from faults.payload import MessageKey

SENT = {"p0-0": 4, "p1-1": 2}
RIGHT = {
    "0-0": ["p0-0/0", "p0-0/2"],
    "1-0": ["p0-0/1", "p0-0/3"],
    "1-1": ["p1-1/0"],
    "0-1": ["p1-1/1"],
}


def key_of(text: str) -> MessageKey:
    source, sequence = text.split("/")
    return MessageKey(source, int(sequence))


def output(held: dict[str, list[str]]) -> dict[str, list[Seen]]:
    return {
        partition_key: [
            Seen(offset, None, "fails its checksum") if text == "?" else Seen(offset, key_of(text))
            for offset, text in enumerate(texts)
        ]
        for partition_key, texts in held.items()
    }


def kinds(held: dict[str, list[str]], *, repeats_allowed: bool = False) -> list[Kind]:
    return [anomaly.kind for anomaly in check(SENT, output(held), partition_of, repeats_allowed=repeats_allowed)]


@pytest.mark.parametrize("repeats_allowed", [False, True])
def test_what_is_right_is_right(repeats_allowed: bool) -> None:
    assert kinds(RIGHT, repeats_allowed=repeats_allowed) == []


@pytest.mark.parametrize(
    ("partition_key", "texts", "found"),
    [
        ("0-0", ["p0-0/0"], [Kind.LOST]),
        ("0-0", [], [Kind.LOST, Kind.LOST]),
        ("0-0", ["p0-0/0", "p0-0/2", "p0-0/2"], [Kind.DUPLICATED]),
        ("0-0", ["p0-0/0", "p0-0/2", "p0-0/0"], [Kind.DUPLICATED]),
        ("0-0", ["p0-0/2", "p0-0/0"], [Kind.REORDERED]),
        ("1-1", ["p1-1/0", "p0-0/2"], [Kind.MISPLACED, Kind.DUPLICATED]),
        ("0-0", ["p0-0/0", "p0-0/2", "p0-0/4"], [Kind.FOREIGN]),
        ("1-1", ["p1-1/0", "p7-1/0"], [Kind.FOREIGN]),
        ("1-1", ["p1-1/0", "stranger/0"], [Kind.FOREIGN]),
        ("0-0", ["p0-0/0", "?", "p0-0/2"], [Kind.CORRUPT]),
        ("0-0", ["p0-0/0", "?"], [Kind.CORRUPT, Kind.LOST]),
    ],
)
def test_every_fault_is_found(partition_key: str, texts: list[str], found: list[Kind]) -> None:
    assert kinds(RIGHT | {partition_key: texts}) == found


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["p0-0/0", "p0-0/2", "p0-0/0", "p0-0/2"], []),
        (["p0-0/0", "p0-0/0", "p0-0/2"], []),
        (["p0-0/2", "p0-0/0", "p0-0/2"], [Kind.REORDERED]),
        (["p0-0/0", "p0-0/0"], [Kind.LOST]),
    ],
)
def test_at_least_once_allows_repeats_behind_the_first_copy(texts: list[str], found: list[Kind]) -> None:
    assert kinds(RIGHT | {"0-0": texts}, repeats_allowed=True) == found


def test_a_finding_says_what_and_where() -> None:
    (anomaly,) = check(SENT, output(RIGHT | {"0-0": ["p0-0/2", "p0-0/0"]}), partition_of, repeats_allowed=False)
    assert str(anomaly) == "out of order: p0-0/0 at offset 1 comes after 2 in partition 0-0"
