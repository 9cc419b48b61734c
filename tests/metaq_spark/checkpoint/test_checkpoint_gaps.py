"""Whether a checkpoint says that a query was moved back to where its sink's brokers know no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import commit, offset, plan, query

from metaq_spark.checkpoint.gaps import has_batch, leads_back

BATCHES = [offset(orders={"0-0": 10 * n}, bills={"0-0": 7}) for n in range(6)]
OTHER = '{"logOffset": 3}'


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (offset(moved=True, orders={"0-0": 20}, bills={"0-0": 7}), True),
        (offset(moved=True, orders={"0-0": 0}, bills={"0-0": 7}), True),
        (offset(moved=True, orders={"0-0": 20, "0-1": 5}, bills={"0-0": 7}), True),
        (offset(moved=True, orders={"0-0": 30}, bills={"0-0": 7}), False),
        (offset(moved=True, orders={"0-0": 20}, bills={"0-0": 8}), False),
        (offset(orders={"0-0": 20}, bills={"0-0": 7}), False),
        (OTHER, False),
    ],
)
def test_a_move_back_to_the_last_batch_that_is_known(tmp_path: Path, line: str, found: bool) -> None:
    folder = query(tmp_path, *BATCHES)
    plan(folder, 6, line)
    assert leads_back(str(folder), 6, (3, 5)) is leads_back(f"file:{folder}", 6, (3, 5)) is found


def test_another_source_must_not_have_read_anything_since(tmp_path: Path) -> None:
    query(tmp_path)
    moved = offset(moved=True, orders={"0-0": 20})
    for name, others, found in (("same", [OTHER] * 7, True), ("more", [*[OTHER] * 3, *["{}"] * 4], False)):
        for number in range(6):
            plan(tmp_path / name, number, offset(orders={"0-0": 10 * number}), others[number])
            commit(tmp_path / name, number)
        plan(tmp_path / name, 6, moved, others[6])
        assert leads_back(str(tmp_path / name), 6, (3, 5)) is found


def test_any_move_leads_back_to_before_the_first_batch(tmp_path: Path) -> None:
    folder = query(tmp_path, *BATCHES)
    plan(folder, 6, offset(moved=True, orders={"0-0": 0}, bills={"0-0": 0}))
    assert leads_back(str(folder), 6, (0, 5))


def test_a_batch_that_was_abandoned_with_the_move_need_not_be_known(tmp_path: Path) -> None:
    folder = query(tmp_path, *BATCHES)
    plan(folder, 6, offset(orders={"0-0": 60}, bills={"0-0": 7}))
    plan(folder, 7, offset(moved=True, orders={"0-0": 90}, bills={"0-0": 7}))
    assert leads_back(str(folder), 7, (6, 6))
    assert not leads_back(str(folder), 7, (5, 6))


@pytest.mark.parametrize("place", ["hdfs://nn/checkpoints/query", "nowhere"])
def test_a_checkpoint_that_cannot_be_read(place: str) -> None:
    assert not has_batch(place, 6)
    assert not leads_back(place, 6, (3, 5))
    assert not leads_back(place, 6, (0, 5))


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        (("orders",), ("orders",), True),
        (("orders", "files"), ("files", "orders"), True),
        (("orders",), ("orders", "files"), False),
        (("orders", "files"), ("orders",), False),
        (("orders",), ("sales",), False),
    ],
)
def test_sources_with_names_that_were_added_or_removed_since(
    tmp_path: Path, then: tuple[str, ...], now: tuple[str, ...], found: bool
) -> None:
    query(tmp_path)
    for number in range(3):
        names = then if number < 2 else now
        lines = [f"{name}:{OTHER if name == 'files' else offset(orders={'0-0': number})}" for name in names]
        plan(tmp_path, number, *lines, form="v2")
        commit(tmp_path, number)
    moved = offset(moved=True, orders={"0-0": 1})
    plan(tmp_path, 3, *[f"{name}:{OTHER if name == 'files' else moved}" for name in now], form="v2")
    assert leads_back(str(tmp_path), 3, (2, 2)) is found
