"""The rules of the archive: what comes next, what a manifest says, and which archives are not in order."""

from __future__ import annotations

from typing import Any

import pytest
from archive_manifests import (
    ArchivedUpTo,
    ArchiveError,
    Contents,
    PlannedRange,
    archived_after,
    check_chain,
    check_contents,
    check_leftovers,
    last_archived,
    make_manifest,
    plan,
    refuse_losses,
    refuse_older_copies,
)

from metaq.model import OffsetRange, Partition, PartitionState, TopicPartition

ORDERS = TopicPartition("orders", Partition(0, 3))
OTHERS = TopicPartition("orders", Partition(0, 10))


def part(start: int, end: int, incarnation: str | None = "a", loss: str | None = None) -> PlannedRange:
    return PlannedRange(ORDERS, incarnation, OffsetRange(start, end), loss)


def available(start: int, end: int, incarnation: str | None = "a") -> dict[TopicPartition, PartitionState]:
    return {ORDERS: PartitionState(OffsetRange(start, end), incarnation)}


NEW_INCARNATION = "deleted and made anew; what came after offset 50 of its former incarnation was not archived"
TOO_LATE = "deleted by the broker before it was archived"


@pytest.mark.parametrize(
    ("found", "done", "expected"),
    [
        (available(0, 90), None, [part(0, 90)]),
        (available(40, 90), None, [part(40, 90)]),
        (available(0, 0), None, []),
        (available(0, 90), ArchivedUpTo("a", 50), [part(50, 90)]),
        (available(50, 90), ArchivedUpTo("a", 50), [part(50, 90)]),
        (available(0, 50), ArchivedUpTo("a", 50), []),
        (available(60, 90), ArchivedUpTo("a", 50), [part(50, 60, loss=TOO_LATE), part(60, 90)]),
        (available(90, 90), ArchivedUpTo("a", 50), [part(50, 90, loss=TOO_LATE)]),
        (available(0, 90, "b"), ArchivedUpTo("a", 50), [part(0, 0, "b", NEW_INCARNATION), part(0, 90, "b")]),
        (available(0, 20, "b"), ArchivedUpTo("a", 50), [part(0, 0, "b", NEW_INCARNATION), part(0, 20, "b")]),
        (available(0, 0, "b"), ArchivedUpTo("a", 50), [part(0, 0, "b", NEW_INCARNATION)]),
        # a broker that does not tell incarnations
        (available(0, 90, None), ArchivedUpTo("a", 50), [part(50, 90, None)]),
        (available(0, 90), ArchivedUpTo(None, 50), [part(50, 90)]),
    ],
)
def test_what_comes_next(
    found: dict[TopicPartition, PartitionState], done: ArchivedUpTo | None, expected: list[PlannedRange]
) -> None:
    assert plan(found, {ORDERS: done} if done else {}) == expected


def test_partitions_come_in_order_and_one_that_is_not_listed_waits() -> None:
    found = {where: PartitionState(OffsetRange(0, 9), None) for where in (OTHERS, ORDERS)}
    gone = TopicPartition("gone", Partition(0, 0))
    assert [part.where for part in plan(found, {gone: ArchivedUpTo("a", 7)})] == [ORDERS, OTHERS]


def test_a_partition_that_has_become_shorter_is_reported() -> None:
    with pytest.raises(ArchiveError, match="orders/0-3: ends at offset 40, before 50, up to which it has been"):
        plan(available(0, 40), {ORDERS: ArchivedUpTo("a", 50)})


LAST = "0" * 31 + "1"


@pytest.mark.parametrize(
    ("found", "done", "asked"),
    [
        (available(0, 90), ArchivedUpTo("a", 50, LAST), {ORDERS: (50, LAST)}),
        (available(0, 50, None), ArchivedUpTo(None, 50, LAST), {ORDERS: (50, LAST)}),
        (available(0, 90), ArchivedUpTo("a", 50), {}),  # of an older version
        (available(50, 90), ArchivedUpTo("a", 50, LAST), {}),  # deleted
        (available(0, 40), ArchivedUpTo("a", 50, LAST), {}),
        (available(0, 90, "b"), ArchivedUpTo("a", 50, LAST), {}),
        ({}, ArchivedUpTo("a", 50, LAST), {}),
    ],
)
def test_which_messages_must_be_there(
    found: dict[TopicPartition, PartitionState],
    done: ArchivedUpTo,
    asked: dict[TopicPartition, tuple[int, str]],
) -> None:
    assert last_archived(found, {ORDERS: done}) == asked


def test_a_broker_that_was_put_back_is_reported() -> None:
    done = {ORDERS: ArchivedUpTo("a", 50, LAST)}
    refuse_older_copies((), done)
    with pytest.raises(ArchiveError, match="orders/0-3, offset 50: the message before it is not the one that was arch"):
        refuse_older_copies([ORDERS], done)


def test_a_manifest_says_which_message_is_last() -> None:
    files = {ORDERS: {"f": Contents(1, 0, 0, 50, 0)}}
    manifest = make_manifest(0, [part(0, 50)], files, False, {ORDERS: LAST})
    assert archived_after([manifest]) == {ORDERS: ArchivedUpTo("a", 50, LAST)}
    assert archived_after([make_manifest(0, [part(0, 50)], files, False)]) == {ORDERS: ArchivedUpTo("a", 50)}
    assert list(check_chain([0], [manifest])) == []


def test_losses_need_somebody_who_accepts_them() -> None:
    with pytest.raises(ArchiveError, match=f"orders/0-3, offsets 50 to 60: {TOO_LATE}. To note .* --accept-loss"):
        refuse_losses([part(60, 90), part(50, 60, loss=TOO_LATE)])
    refuse_losses([part(60, 90)])


def contents(messages: int, first: int, last: int, size: int, replaced: int = 0) -> Contents:
    return Contents(messages, first, last, size, replaced)


FILES = {ORDERS: {"b": contents(1, 80, 80, 10), "a": contents(3, 50, 70, 30)}}
ENTRY: dict[str, Any] = {
    "topic": "orders",
    "partition": "0-3",
    "incarnation": "a",
    "start": 50,
    "end": 90,
    "messages": 4,
    "first_offset": 50,
    "last_offset": 80,
    "bytes": 40,
    "replaced_attributes": 0,
    "damaged_bytes": 0,
    "files": ["a", "b"],
}


def manifest(batch: int, *ranges: dict[str, Any], lost: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"v": 1, "batch": batch, "ranges": list(ranges), "lost": list(lost)}


def entry(start: int, end: int, incarnation: str | None = "a", partition: str = "0-3", **more: Any) -> dict[str, Any]:
    changed = {"start": start, "end": end, "incarnation": incarnation, "partition": partition, "bytes": end - start}
    return ENTRY | changed | more


def loss(start: int, end: int, incarnation: str = "a") -> dict[str, Any]:
    done = {"topic": "orders", "partition": "0-3", "incarnation": incarnation}
    return done | {"start": start, "end": end, "why": TOO_LATE}


def test_a_manifest_says_what_the_files_hold() -> None:
    lost = part(40, 50, loss=TOO_LATE)
    made = make_manifest(7, [lost, part(50, 90)], FILES, damage_skipped=False)
    assert made == manifest(7, ENTRY, lost=(loss(40, 50),))
    assert archived_after([manifest(6, entry(10, 40)), made]) == {ORDERS: ArchivedUpTo("a", 90)}
    made_anew = manifest(7, lost=(loss(0, 5, "b"),))
    assert archived_after([manifest(6, entry(10, 40)), made_anew]) == {ORDERS: ArchivedUpTo("b", 5)}


@pytest.mark.parametrize(
    ("files", "skipped", "damaged"),
    [
        ({ORDERS: {"a": contents(3, 50, 70, 30)}}, True, 10),
        ({}, True, 40),
        ({ORDERS: {"a": contents(3, 50, 70, 45, 1)}}, False, None),
    ],
)
def test_damage_is_counted_where_it_can_be(files: dict[Any, Any], skipped: bool, damaged: int | None) -> None:
    [made] = make_manifest(0, [part(50, 90)], files, skipped)["ranges"]
    assert made["damaged_bytes"] == damaged


@pytest.mark.parametrize(
    ("files", "skipped", "said"),
    [
        (
            {ORDERS: {"a": contents(3, 50, 70, 30)}},
            False,
            "0-3: offsets 50 to 90 are 40 bytes, the .* archived 30",
        ),
        ({ORDERS: {"a": contents(5, 50, 80, 50)}}, True, "offsets 50 to 90 are 40 bytes, the messages archived 50"),
        ({}, False, "offsets 50 to 90 are 40 bytes, the messages archived 0"),
        (FILES | {OTHERS: {"a": contents(1, 0, 0, 9)}}, False, "its files hold messages of orders/0-10"),
    ],
)
def test_files_that_do_not_fit_are_not_noted(files: dict[Any, Any], skipped: bool, said: str) -> None:
    with pytest.raises(ArchiveError, match=said):
        make_manifest(0, [part(50, 90)], files, skipped)


@pytest.mark.parametrize(
    ("manifests", "expected"),
    [
        ({}, []),
        ({0: manifest(0, entry(0, 50), entry(9, 20, None, "0-10")), 1: manifest(1, entry(50, 90))}, []),
        ({0: manifest(0, entry(0, 50)), 1: manifest(1, entry(0, 9, "b"), lost=(loss(0, 0, "b"),))}, []),
        ({0: manifest(0, entry(0, 50)), 1: manifest(1, entry(60, 90), lost=(loss(50, 60),))}, []),
        ({0: manifest(0, entry(0, 50, None)), 1: manifest(1, entry(50, 90))}, []),
        ({0: manifest(0, entry(0, 50)), 2: manifest(2, entry(50, 90))}, ["manifest 1 is missing"]),
        ({1: manifest(1, entry(0, 50))}, ["manifest 0 is missing"]),
        ({0: manifest(3, entry(0, 50))}, ["manifest 0 says that it is for batch 3"]),
        (
            {0: manifest(0, entry(0, 50)), 1: manifest(1, entry(60, 90))},
            ["batch 1: orders/0-3: gap: offsets 50 to 60 are in no batch"],
        ),
        (
            {0: manifest(0, entry(0, 50)), 1: manifest(1, entry(40, 45))},
            ["batch 1: orders/0-3: overlap: offsets 40 to 45 are in an earlier batch, too"],
        ),
        (
            {0: manifest(0, entry(0, 50)), 1: manifest(1, lost=(loss(60, 70),))},
            ["batch 1: orders/0-3: gap: offsets 50 to 60 are in no batch"],
        ),
        (
            {0: manifest(0, entry(0, 50)), 1: manifest(1, entry(50, 90, "b"))},
            ["batch 1: orders/0-3: incarnation b begins at offset 50, and no loss is recorded"],
        ),
        ({0: manifest(0, entry(50, 50))}, ["batch 0: orders/0-3: offsets 50 to 50 are no range"]),
        (
            {0: manifest(0, entry(0, 50, bytes=30))},
            ["batch 0: orders/0-3: offsets 0 to 50 are 50 bytes, the messages archived 30"],
        ),
        ({0: manifest(0, entry(0, 50, bytes=30, damaged_bytes=20))}, []),
        ({0: manifest(0, entry(0, 50, bytes=30, damaged_bytes=None))}, []),
    ],
)
def test_manifests_follow_each_other(manifests: dict[int, dict[str, Any]], expected: list[str]) -> None:
    assert list(check_chain(list(manifests), list(manifests.values()))) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (FILES, []),
        (
            {ORDERS: {"a": FILES[ORDERS]["a"]}},
            [
                "file b is missing, or holds nothing of it",
                "messages is 3, the manifest says 4",
                "last_offset is 70, the manifest says 80",
                "bytes is 30, the manifest says 40",
            ],
        ),
        (
            {ORDERS: FILES[ORDERS] | {"c": contents(1, 90, 90, 5)}},
            [
                "file c is not in the manifest",
                "messages is 5, the manifest says 4",
                "last_offset is 90, the manifest says 80",
                "bytes is 45, the manifest says 40",
                "messages outside of offsets 50 to 90",
            ],
        ),
    ],
)
def test_files_are_compared_with_their_manifest(files: dict[Any, Any], expected: list[str]) -> None:
    assert list(check_contents(manifest(7, ENTRY), files)) == [f"batch 7: orders/0-3: {text}" for text in expected]


def test_only_the_next_batch_may_have_files_without_a_manifest() -> None:
    assert list(check_leftovers([0, 1], [0, 1, 2])) == []
    assert list(check_leftovers([0, 2], [0, 1, 5, 4])) == [
        "batch 4 has files, and the last manifest is 2",
        "batch 5 has files, and the last manifest is 2",
    ]


def test_files_of_another_partition_are_reported() -> None:
    files = FILES | {OTHERS: {"a": contents(1, 0, 0, 9)}}
    said = "batch 7: orders/0-10: its files hold messages of it, the manifest does not name it"
    assert list(check_contents(manifest(7, ENTRY), files)) == [said]
