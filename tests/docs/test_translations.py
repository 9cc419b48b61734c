"""Pages in Chinese keep step with those in English: headings, code blocks, and what the tables name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import ROOT

from metaq_spark.backends.rocketmq import options as rocketmq_options

PAIRS = {path: ROOT / "docs" / path.name for path in sorted((ROOT / "docs" / "zh").glob("*.md"))}
if (ROOT / "README.zh-CN.md").exists():
    PAIRS[ROOT / "README.zh-CN.md"] = ROOT / "README.md"
FENCED = re.compile(r"^```[^\n]*\n.*?^```$", re.DOTALL | re.MULTILINE)
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def code_of(page: Path) -> list[str]:
    """Return the fenced blocks without the remarks, which are translated."""
    blocks = FENCED.findall(page.read_text(encoding="utf-8"))
    return [re.sub(r"(?m)\s*#.*$", "", block) for block in blocks]


def levels(page: Path) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", prose(page), re.MULTILINE)]


def first_cells(page: Path) -> list[list[str]]:
    """Return what the first cell of each row of a table names."""
    rows = re.findall(r"^\|((?:[^|\\\n]|\\.)*)\|", prose(page), re.MULTILINE)
    return [re.findall(r"`([^`]+)`", row) for row in rows]


@pytest.mark.parametrize("page", PAIRS, ids=lambda page: page.name)
class TestEachPage:
    def test_it_is_in_chinese(self, page: Path) -> None:
        assert len(CHINESE.findall(prose(page))) > 500

    def test_headings_have_the_same_levels(self, page: Path) -> None:
        assert levels(page) == levels(PAIRS[page])

    def test_code_is_the_same(self, page: Path) -> None:
        assert code_of(page) == code_of(PAIRS[page])

    def test_tables_name_the_same_things_in_the_same_order(self, page: Path) -> None:
        assert first_cells(page) == first_cells(PAIRS[page])

    def test_links_lead_somewhere(self, page: Path) -> None:
        for target in re.findall(r"\]\(([^)#]+)", prose(page)):
            assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_page_in_english_exists() -> None:
    assert [page.name for page in PAIRS.values() if not page.exists()] == []


def test_defaults_of_options_are_those_of_the_page_in_english() -> None:
    names = {option.name for option in rocketmq_options.OPTIONS}

    def defaults(page: Path) -> dict[str, str]:
        rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
        return {name: default for name, default in reversed(rows) if name in names}  # the first table has the options

    assert len(defaults(ROOT / "docs" / "rocketmq.md")) >= len(names)
    assert defaults(ROOT / "docs" / "zh" / "rocketmq.md") == defaults(ROOT / "docs" / "rocketmq.md")
