"""The texts of the pages: each has a row in the table, in both languages, with the same fields."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

import metaq_console.pages
import pytest
from metaq_console.pages.texts import CHINESE, ENGLISH, ROWS, SINGULAR, preferred, text

FOLDER = Path(metaq_console.pages.__file__).parent
CALL = re.compile(r"""(?<![\w.])t\(\s*(?:"([^"]*)"|'([^']*)')""")
QUOTED = re.compile(r'"([^"\n]+)"')


def used_in_templates() -> set[str]:
    pages = [path.read_text() for path in (FOLDER / "templates").glob("*.html")]
    return {found[1] or found[2] for page in pages for found in CALL.finditer(page)}


def fields(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


def test_each_text_of_a_template_has_a_row() -> None:
    used = used_in_templates()
    assert len(used) > 150
    assert used - {english for english, _ in ROWS} == set()


def test_each_row_is_used() -> None:
    code = "".join(path.read_text() for path in FOLDER.rglob("*.py") if path.name != "texts.py")
    used = used_in_templates() | set(QUOTED.findall(code))
    assert {english for english, _ in ROWS} - used == set()


def test_rows_are_complete() -> None:
    names = [english for english, _ in ROWS]
    assert sorted(names) == sorted(set(names))
    assert [row for row in ROWS if not row[1].strip()] == []
    assert [row for row in ROWS if fields(row[0]) != fields(row[1])] == []
    assert SINGULAR.keys() <= set(names)


def test_a_text_has_its_values() -> None:
    assert text(ENGLISH, "{count} topics", count="1") == "1 topic"
    assert text(ENGLISH, "{count} topics", count="2") == "2 topics"
    assert text(CHINESE, "{count} topics", count="2") == "2 个主题"


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,zh;q=0.9", "en"),
        ("en;q=0.5,zh-TW", "zh"),
        ("fr,de", "en"),
        ("zh;q=what,en;q=0.1", "en"),
    ],
)
def test_the_browser_chooses_the_language(header: str, language: str) -> None:
    assert preferred(header) == language
