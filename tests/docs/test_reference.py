"""The tables of the documentation say what the rows of the code say; ``make reference`` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import reference


@pytest.mark.parametrize("page", reference.marked_pages(), ids=lambda page: page.name)
def test_a_page_has_the_rows_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert reference.with_tables(text) == text, "run `make reference`"


def test_every_table_is_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in reference.marked_pages())
    assert sorted(reference.MARKED.findall(pages)) == sorted(reference.TABLES)


def test_a_table_is_written_between_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference.TABLES, "some", lambda: [("a", "b"), ("`x`", "y || z")])
    marks = "before\n<!-- rows: some -->\n{}<!-- end of rows -->\nbehind\n"
    written = marks.format("\n| a | b |\n|---|---|\n| `x` | y \\|\\| z |\n\n")
    assert reference.with_tables(marks.format("old\n")) == written
