"""The search in an index file: right whatever it guesses, and short where the guess is good."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metaq_broker.files import Files
from metaq_broker.log.handles import HandleCache
from metaq_broker.log.index import SegmentIndex, write_entries
from metaq_broker.log.index_entries import RECORD_BYTES, Entries, IndexEntry

SHARES = st.none() | st.floats(0, 1) | st.sampled_from([-3.0, 1.5, 1e12])


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


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(0, 60), wanted=st.integers(-1, 61), share=SHARES, damaged=st.frozensets(st.integers(0, 59)))
def test_the_last_intact_entry_is_found_whatever_is_guessed(
    tmp_path: Path, count: int, wanted: int, share: float | None, damaged: frozenset[int]
) -> None:
    damaged = frozenset(number for number in damaged if number < count)
    index = index_in(tmp_path / "index", count, damaged)
    limit = 16_384 * wanted
    found = index.last_where(HandleCache(Files()), lambda entry: entry.offset <= limit, share)
    intact = [entry for number, entry in enumerate(entries_of(count)) if number not in damaged]
    assert found == next((entry for entry in reversed(intact) if entry.offset <= limit), None)


@pytest.mark.parametrize("count", [10, 1000, 100_000])
def test_with_a_good_guess_a_long_index_costs_no_more_than_a_short_one(tmp_path: Path, count: int) -> None:
    files = CountingFiles()
    index, handles = index_in(tmp_path / "index", count), HandleCache(files)
    for wanted in (0, 3, count // 2, count - 1):
        before = files.reads
        found = index.last_where(handles, lambda entry: entry.ordinal <= 10 * wanted + 5, (wanted + 0.5) / count)  # noqa: B023
        assert found == entries_of(count)[wanted]
        assert files.reads - before <= 2


def test_a_wrong_guess_costs_about_twice_a_search_without_one(tmp_path: Path) -> None:
    files = CountingFiles()
    index, handles = index_in(tmp_path / "index", 4096), HandleCache(files)
    found = index.last_where(handles, lambda entry: entry.offset <= 0, 1.0)
    assert found == entries_of(1)[0]
    assert files.reads <= 24
