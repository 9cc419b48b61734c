"""Store the messages of topics as Parquet, in folders by topic, day and hour.

    spark-submit --properties-file spark-conf/spark-defaults.conf jobs/topic_to_parquet.py \\
        --brokers 127.0.0.1:8123 --topics lines --output lake --checkpoint progress/lake

    lake/topic=lines/date=2026-11-20/hour=21/part-....parquet

With ``--rocketmq NAME_SERVERS`` instead of ``--brokers`` the topics are RocketMQ's.

Day and hour are taken from a message's timestamp (when the broker stored it), in UTC; an id without a time goes
to ``date=__HIVE_DEFAULT_PARTITION__``. Run it again to add newer messages; with ``--every`` it keeps running.

Each message is in the files once: Spark lists the valid files in ``_spark_metadata``, and uses that list when it reads
the folder.
"""

from __future__ import annotations

import argparse

from job_arguments import add_source, add_trigger, queue_system, trigger
from job_failures import exit_on_failure
from job_report import JobReport, count_rows_out
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

FOLDERS = ("topic", "date", "hour")
HOUR_S, DAY_S = 3600, 86_400


def transform(messages: DataFrame) -> DataFrame:
    """Add ``date`` (date) and ``hour`` (text, two digits) of ``timestamp``, or RocketMQ's ``store_timestamp``, in UTC
    in every session time zone.
    """
    seconds = F.unix_seconds("timestamp" if "timestamp" in messages.columns else "store_timestamp")
    date = F.date_from_unix_date(F.floor(seconds / DAY_S).cast("int"))
    hour = F.floor(F.pmod(seconds, F.lit(DAY_S)) / HOUR_S).cast("string")
    return messages.withColumns({"date": date, "hour": F.lpad(hour, 2, "0")})


def run(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    system, options = queue_system(arguments)
    messages = (
        spark.readStream.format(system)
        .options(**options)
        .option("subscribe", arguments.topics)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        count_rows_out(transform(messages))
        .writeStream.format("parquet")
        .partitionBy(*FOLDERS)
        .option("path", arguments.output)
        .option("checkpointLocation", arguments.checkpoint)
        .queryName("topic_to_parquet")
        .trigger(**trigger(arguments))
        .start()
    )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Store the messages of topics as Parquet.")
    add_source(parser)
    parser.add_argument("--topics", required=True, help="topics to store, separated by commas")
    parser.add_argument("--output", required=True, help="folder or URI for the Parquet files")
    parser.add_argument("--checkpoint", required=True, help="folder or URI for Spark's progress, kept between runs")
    add_trigger(parser)
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName("topic_to_parquet").getOrCreate()
    with exit_on_failure("topic_to_parquet"), JobReport("topic_to_parquet") as report:
        report.follow(run(spark, arguments))


if __name__ == "__main__":
    main()
