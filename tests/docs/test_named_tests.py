"""Tests that pages name are there, and every concept of the client's page has one in docs/testing.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from doc_blocks import PAGES, ROOT

NAMED = re.compile(r"`(?:tests/[\w/]+/)?(test_\w+\.py)::(test_\w+)`")


@cache
def files() -> dict[str, Path]:
    """The test files by their names, which are unique."""
    return {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}


@cache
def names_in(file: str) -> set[str]:
    """The names of the tests in a file; none if there is no such file."""
    path = files().get(file)
    return set() if path is None else set(re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))


def section(page: Path, heading: str) -> str:
    """A section of second level, without those behind it."""
    return page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of a section's tables, without their headings."""
    tables = re.findall(r"^\|.*\n\|-[-|]*\n((?:\|.*\n)*)", text + "\n", re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_tests_that_pages_name_are_there() -> None:
    named = [(page, *match.groups()) for page in PAGES for match in NAMED.finditer(page.read_text())]
    assert len(named) > 80
    assert [f"{page.name}: {file}::{name}" for page, file, name in named if name not in names_in(file)] == []


def test_every_concept_of_the_client_has_a_test() -> None:
    concepts = [row[2] for row in rows(section(ROOT / "docs" / "client.md", "If you know another client"))]
    tested = {row[0]: row[1] for row in rows(section(ROOT / "docs" / "testing.md", "The client"))}
    assert len(concepts) > 20
    assert [concept for concept in concepts if concept not in tested] == []
    assert {row for row, tests in tested.items() if not NAMED.search(tests)} == {"exactly once that was not"}
