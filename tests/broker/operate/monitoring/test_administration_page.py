"""The operator's page names every metric and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[4] / "docs" / "administration.md").read_text()


def section(title: str) -> str:
    """Return the text from a heading to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def first_cells(text: str) -> list[str]:
    """Return what stands in backquotes in the first column of the tables of a section."""
    rows = (line.split("|")[1] for line in text.replace("\\|", "/").splitlines() if line.startswith("| `"))
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@pytest.mark.process
def test_every_metric_is_on_the_page(scraped_names: set[str]) -> None:
    assert set(first_cells(section("Metrics"))) - {"process_*"} == scraped_names
