"""The tables of docs/connector-reference.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from metaq_spark.backends.metaq.sink import SINK_COLUMNS
from metaq_spark.columns.schema import READ_COLUMNS

DOCS = Path(__file__).parents[3] / "docs" / "connector-reference.md"


def section(title: str) -> list[list[str]]:
    """The rows of the first table behind a heading."""
    text = DOCS.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1]
    lines = [line for line in re.split(r"\n##+ ", text, maxsplit=1)[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_columns_of_a_read() -> None:
    rows = section("Columns of a read")
    assert [row[:2] for row in rows] == [[f"`{name}`", kind] for name, kind, _ in READ_COLUMNS]


def test_columns_of_a_write() -> None:
    rows = section("Columns of a write")
    expected = [[f"`{name}`", " or ".join(k().simpleString() for k in kinds)] for name, kinds in SINK_COLUMNS.items()]
    assert [row[:2] for row in rows] == expected
