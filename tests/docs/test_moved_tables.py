"""The ten jobs and twenty mistakes of docs/coming-from-kafka.md do what the page says, in both languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from moved_jobs import JOBS
from moved_mistakes import MISTAKES
from moved_page import CODE, MARKED, PAGES, WORDS, page, tables
from pyspark.sql import SparkSession


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_the_tables_are_those_of_a_run(spark: SparkSession, tmp_path: Path) -> None:
    found = tables(spark, tmp_path)
    for language, path in PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert page(text, found, language) == text, "run tests/support/moved_page.py"


@pytest.mark.parametrize("language", PAGES)
def test_a_page_has_a_row_for_each(language: str) -> None:
    text = PAGES[language].read_text(encoding="utf-8")
    found = {match[1]: len(re.findall(r"(?m)^\| ", match[0])) - 1 for match in MARKED.finditer(text)}
    assert found == {"jobs": len(JOBS), "mistakes": len(MISTAKES)} == {"jobs": 10, "mistakes": 20}


def test_every_title_is_translated_and_differs() -> None:
    titles = [each.title for each in (*JOBS, *MISTAKES)]
    assert len(set(titles)) == len(titles)
    assert [words for words in titles if words not in WORDS and not CODE.fullmatch(words)] == []
