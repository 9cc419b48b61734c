"""SQL over topics: views work, tables of Spark's catalog are refused in a sentence."""

from __future__ import annotations

import pytest
from fix_spark import Topic
from pyspark.errors import PySparkException

pytestmark = [pytest.mark.spark, pytest.mark.process]


def test_a_temporary_view_is_read(topic: Topic) -> None:
    topic.put("a", "b")
    options = f"OPTIONS (brokers '{topic.servers}', subscribe '{topic.name}')"
    topic.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING metaq {options}")
    rows = topic.spark.sql("SELECT topic, string(value) AS value FROM seen ORDER BY value").collect()
    assert [tuple(row) for row in rows] == [(topic.name, "a"), (topic.name, "b")]


REFUSED = r"a table USING metaq does not work, .*CREATE TEMPORARY VIEW"


def test_a_table_is_refused_when_it_is_made(topic: Topic) -> None:
    with pytest.raises(PySparkException, match=REFUSED):
        topic.spark.sql(f"CREATE TABLE wrong USING metaq OPTIONS (brokers '{topic.servers}', subscribe 't')")


def test_a_table_with_columns_is_refused_when_it_is_read(topic: Topic) -> None:
    """Spark makes it without a question."""
    options = f"OPTIONS (brokers '{topic.servers}', subscribe '{topic.name}')"
    topic.spark.sql(f"CREATE TABLE wrong (value binary) USING metaq {options}")
    try:
        with pytest.raises(PySparkException, match=REFUSED):
            topic.spark.sql("SELECT * FROM wrong").collect()
    finally:
        topic.spark.sql("DROP TABLE wrong")


def test_rows_are_inserted_into_a_view_with_columns(topic: Topic) -> None:
    options = f"OPTIONS (brokers '{topic.servers}', topic '{topic.name}')"
    topic.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sink (value STRING) USING metaq {options}")
    topic.spark.sql("INSERT INTO sink VALUES ('a'), ('b')")
    topic.frame([("c",)], "value string").write.insertInto("sink")
    assert topic.stored() == ["a", "b", "c"]


def test_a_table_with_columns_is_refused_without_write_options(topic: Topic) -> None:
    options = f"OPTIONS (brokers '{topic.servers}', topic '{topic.name}')"
    topic.spark.sql(f"CREATE TABLE wrong_sink (value STRING) USING metaq {options}")
    try:
        with pytest.raises(PySparkException, match="in SQL, INSERT INTO a temporary view with columns"):
            topic.spark.sql("INSERT INTO wrong_sink VALUES ('a')")
        with_options = f"WITH ('brokers' = '{topic.servers}', 'topic' = '{topic.name}')"
        topic.spark.sql(f"INSERT INTO wrong_sink {with_options} VALUES ('a')")
        assert topic.stored() == ["a"]
    finally:
        topic.spark.sql("DROP TABLE wrong_sink")
