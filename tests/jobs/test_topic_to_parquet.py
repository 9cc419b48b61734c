"""Messages to folders by day and hour."""

from datetime import UTC, date, datetime

import pytest
from chispa.dataframe_comparer import assert_df_equality
from pyspark.sql import SparkSession
from topic_to_parquet import parse_arguments, transform

CASES = [
    (datetime(2026, 1, 1, 22, 59, 59, 999_999, tzinfo=UTC), date(2026, 1, 1), "22"),
    (datetime(2026, 1, 2, 0, 0, tzinfo=UTC), date(2026, 1, 2), "00"),
    (datetime(2026, 7, 31, 9, 30, tzinfo=UTC), date(2026, 7, 31), "09"),
    (datetime(1969, 12, 31, 23, 0, tzinfo=UTC), date(1969, 12, 31), "23"),
    (None, None, None),
]


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/St_Johns"])
def test_day_and_hour_are_utc_in_every_session_time_zone(spark: SparkSession, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        messages = spark.createDataFrame([(moment,) for moment, _, _ in CASES], "timestamp timestamp")
        expected = spark.createDataFrame(CASES, "timestamp timestamp, date date, hour string")
        assert_df_equality(transform(messages), expected, ignore_nullable=True)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


REQUIRED = ["--brokers", "h:1", "--topics", "a,b", "--output", "o", "--checkpoint", "c"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (REQUIRED[:-2], "required: --checkpoint"),
        ([*REQUIRED, "--every", "10"], "--every: '10': expected a duration such as '30 seconds'"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert said in capsys.readouterr().err
