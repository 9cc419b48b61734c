"""What each version of Spark lacks: the rows in the code are true of the installed one, and so is the table."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import TimestampType

from metaq_spark.spark_version import FEATURES, SPARK_MIN, Feature, arrow_type, say_once, spark_version

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "connector.md").read_text(encoding="utf-8")
VERSIONS = ("4.0", "4.1", "4.2", "4.3")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_feature_is_there_from_its_version_on(feature: Feature) -> None:
    assert feature.present == (numbers(spark_version()) >= numbers(feature.since))


def test_what_no_version_has_is_not_there() -> None:
    assert not Feature("", "9.9", "pyspark.sql.datasource", "DataSource.no_such", "").present
    assert not Feature("", "9.9", "pyspark.no_such", "name", "").present


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_the_page_says_of_each_version_what_the_code_does(feature: Feature) -> None:
    cells = ["yes" if numbers(version) >= numbers(feature.since) else feature.without for version in VERSIONS]
    assert f"| {' | '.join([feature.title, *cells])} |" in PAGE


def test_the_page_has_the_versions_and_no_other_rows() -> None:
    heading = f"| | Spark {' | '.join(VERSIONS)} |"
    table = PAGE[PAGE.index(heading) :].partition("\n\n")[0].splitlines()
    always = [line for line in table[2:] if re.fullmatch(r"\| [^|]+ \| yes \| yes \| yes \| yes \|", line)]
    assert len(table) == 2 + len(always) + len(FEATURES)
    assert VERSIONS[0] == SPARK_MIN


def test_times_are_in_utc() -> None:
    assert arrow_type(TimestampType()) == pa.timestamp("us", tz="UTC")


def test_a_sentence_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    for _ in range(3):
        say_once("100% of it")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, "100% of it")]


OLD_SPARK = """
import sys, types
old = types.ModuleType("pyspark")
old.__version__, old.__path__ = "3.5.9", []
sql = types.ModuleType("pyspark.sql")
sql.__path__ = []
sys.modules |= {"pyspark": old, "pyspark.sql": sql}
import pyspark_metaq
"""


@pytest.mark.process
def test_a_version_without_python_data_sources_is_refused_with_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", OLD_SPARK], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: MetaQ for Spark needs Spark {SPARK_MIN} or newer; this is Spark 3.5.9"
    )
