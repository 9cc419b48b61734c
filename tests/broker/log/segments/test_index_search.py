"""The search in an index file: right whatever it guesses, and short where the guess is good."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from unittest.mock import patch

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metaq_broker.log.files.files import Files, HandleCache
from metaq_broker.log.segments import index as index_module
from metaq_broker.log.segments.index import RECORD_BYTES, Entries, IndexEntry, SegmentIndex, write_entries

OFFSET, ORDINAL = attrgetter("offset"), attrgetter("ordinal")


def entries_of(count: int) -> list[IndexEntry]:
    return [IndexEntry(16_384 * number, 10 * number, 1000 + number // 3, 0) for number in range(count)]


class CountingFiles(Files):
    """Counts reads."""

    def __init__(self) -> None:
        self.reads = 0

    def pread(self, fd: int, count: int, position: int) -> bytes:
        self.reads += 1
        return super().pread(fd, count, position)


def index_in(path: Path, count: int, damaged: frozenset[int] = frozenset()) -> SegmentIndex:
    write_entries(Files(), path, 0, 4096, 0, Entries(entries_of(count)).records)
    with open(path, "r+b") as file:
        for number in damaged:
            file.seek(RECORD_BYTES * (1 + number) + 5)
            file.write(b"\xff")
    return SegmentIndex(path, count, Entries())


ENDS = st.none() | st.integers(-(10**6), 10**8) | st.sampled_from([0, 10**12])


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 700),
    wanted=st.integers(-1, 701),
    front=st.integers(-(10**6), 10**8),
    end=ENDS,
    damaged=st.frozensets(st.integers(0, 699)),
    hole=st.tuples(st.integers(0, 699), st.integers(0, 400)),
    window_entries=st.integers(1, 128),
)
def test_the_last_intact_entry_is_found_whatever_is_said_of_both_ends(
    tmp_path: Path,
    count: int,
    wanted: int,
    front: int,
    end: int | None,
    damaged: frozenset[int],
    hole: tuple[int, int],
    window_entries: int,
) -> None:
    damaged |= frozenset(range(hole[0], sum(hole)))
    damaged = frozenset(number for number in damaged if number < count)
    index = index_in(tmp_path / "index", count, damaged)
    with patch.object(index_module, "WINDOW_ENTRIES", window_entries):
        found = index.last_at_most(HandleCache(Files()), OFFSET, 16_384 * wanted, front, end)
    intact = [entry for number, entry in enumerate(entries_of(count)) if number not in damaged]
    assert found == next((entry for entry in reversed(intact) if entry.offset <= 16_384 * wanted), None)


@pytest.mark.parametrize("end_known", [False, True])
@pytest.mark.parametrize("count", [10, 1000, 100_000])
def test_even_values_cost_no_more_in_a_long_index(tmp_path: Path, count: int, end_known: bool) -> None:
    files = CountingFiles()
    index, handles = index_in(tmp_path / "index", count), HandleCache(files)
    for wanted in (0, 3, count // 3, count // 2, count - 1):
        before = files.reads
        found = index.last_at_most(handles, ORDINAL, 10 * wanted + 5, 0, 10 * count if end_known else None)
        assert found == entries_of(count)[wanted]
        assert files.reads - before <= (2 if end_known else 3)


@pytest.mark.parametrize("end_known", [False, True])
def test_uneven_values_cost_at_most_twice_a_search_by_halves(tmp_path: Path, end_known: bool) -> None:
    entries = [IndexEntry(16_384 * number, number**3, 0, 0) for number in range(65_536)]
    write_entries(Files(), tmp_path / "index", 0, 4096, 0, Entries(entries).records)
    files = CountingFiles()
    index, handles = SegmentIndex(tmp_path / "index", len(entries), Entries()), HandleCache(files)
    for wanted in (1, 300, 5000, 40_000):
        before = files.reads
        end = entries[-1].ordinal + 1 if end_known else None
        assert index.last_at_most(handles, ORDINAL, wanted**3, 0, end) == entries[wanted]
        assert files.reads - before <= 2 * (16 - 7) + 2
