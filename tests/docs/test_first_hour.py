"""The steps of the first hour are lines of README.md and of its translation, and those of the page about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import ROOT
from first_hour import BROKER, DASHBOARD, INSTALL, USE, Page

PAGES = {"README.md": ROOT / "docs" / "first-hour.md", "README.zh-CN.md": ROOT / "docs" / "zh" / "first-hour.md"}


@pytest.mark.parametrize("name", PAGES)
def test_each_step_is_a_line_of_the_page(name: str) -> None:
    page = Page(ROOT / name)
    assert 'format("metaq")' in page.program
    assert [page.line(words).split()[0] for words in (*INSTALL, BROKER, *USE, DASHBOARD)] == [
        "make",
        "make",
        "python3",
        "pip",
        "metaq-broker",
        "SPARK_CONF_DIR=spark-conf",
        "metaq-spark",
        "metaq-broker",
    ]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_with_the_times_has_these_lines(name: str) -> None:
    steps, _, _ = PAGES[name].read_text(encoding="utf-8").partition("\n## ")
    rows = re.findall(r"^\| `([^`]+)`", steps, re.MULTILINE)
    page = Page(ROOT / name)
    assert rows == ["git clone", *(page.line(words) for words in (*INSTALL, BROKER)), "python first.py"] + [
        page.line(words) for words in (*USE, DASHBOARD)
    ]


@pytest.mark.parametrize("folder", ["env", "metaq-data", "loud_orders_progress"])
def test_what_the_hour_makes_in_the_clone_is_nothing_to_commit_or_to_pack(folder: str) -> None:
    assert folder in re.findall(r"[\w-]+", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert f"/{folder}/" in (ROOT / ".gitignore").read_text().splitlines()
    assert folder in (ROOT / ".dockerignore").read_text().splitlines()


def test_a_line_that_fails_ends_the_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from first_hour import Hour

    monkeypatch.setattr("first_hour.ROOT", tmp_path / "absent")
    with pytest.raises(SystemExit, match="git clone"):
        Hour(tmp_path / "hour" / "metaq")
