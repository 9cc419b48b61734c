"""Count log lines and errors by component and time window: a topic of log lines in, a topic of JSON values out.

    spark-submit --properties-file spark-conf/spark-defaults.conf jobs/error_rates.py \\
        --brokers 127.0.0.1:8123 --from-topic lines --to-topic error_rates --checkpoint progress/error_rates

Two forms of lines are parsed, HDFS's and OpenSSH's (through syslog):

    081109 203615 148 INFO dfs.DataNode$PacketResponder: PacketResponder 1 for block blk_38 terminating
    Dec 10 06:55:46 LabSZ sshd[24200]: Failed password for invalid user webmaster from 173.234.31.186 port 38926 ssh2

Syslog lines carry neither a year nor a level. The year is chosen so that the line is before its arrival. The level is
ERROR if the line says error or fatal, WARN for refused log-ins, else INFO. Lines of any other form are counted under
the component ``(unknown)`` at their time of arrival, so that the counts add up. Times are UTC.

One value per window and component, sent when the watermark has passed the window's end:

    {"window_start":"2008-11-09T20:35:00.000Z","window_end":"2008-11-09T20:40:00.000Z",
     "component":"dfs.FSDataset","lines":94,"errors":4,"error_rate":0.0426}

``errors`` are lines at WARN, ERROR or FATAL. Time advances with the newest line: lines more than ``--lateness`` behind
it are not counted, and the last windows wait for newer lines. Without ``--every`` the input counts as finished, and
waiting windows are sent, too, at the end of every run, until a newer line closes them: with all of their lines each
time, so the newest value of a window counts.
"""

from __future__ import annotations

import argparse

from job_arguments import add_trigger, duration, trigger
from job_failures import exit_on_failure
from job_report import JobReport, append, count_rows_out
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

HDFS_LINE = r"^(\d{6} \d{6}) \d+ ([A-Z]+) ([^:\s]+):"
SYSLOG_LINE = r"^([A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2}) \S+ ([^:\[\s]+)(?:\[\d+\])?: (.*)"
OWN_ERROR = r"^(error|fatal): "
REFUSED = r"^Failed |^Invalid user |authentication failure|BREAK-IN ATTEMPT"
ERROR_LEVELS = ("WARN", "ERROR", "FATAL")
UNKNOWN = "(unknown)"


def parse_lines(lines: DataFrame) -> DataFrame:
    """Parse each row's ``value`` (binary) and ``timestamp`` (its arrival) to ``event_time``, ``component`` and
    ``level``.

    ``level`` is null if the form of the line is unknown.
    """
    # If message ids have no time, the timestamp is null; then the time of the batch is used.
    arrival = F.coalesce("timestamp", F.current_timestamp())
    rows = lines.select(F.col("value").cast("string").alias("text"), arrival.alias("arrival"))
    is_hdfs, is_syslog = F.col("text").rlike(HDFS_LINE), F.col("text").rlike(SYSLOG_LINE)
    event_time = F.when(is_hdfs, _hdfs_time()).when(is_syslog, _syslog_time())
    component = F.when(is_hdfs, _part(HDFS_LINE, 3)).when(is_syslog, _part(SYSLOG_LINE, 2)).otherwise(UNKNOWN)
    level = F.when(is_hdfs, _part(HDFS_LINE, 2)).when(is_syslog, _syslog_level())
    return rows.select(
        F.coalesce(event_time, "arrival").alias("event_time"), component.alias("component"), level.alias("level")
    )


def _part(pattern: str, group: int) -> Column:
    return F.regexp_extract("text", pattern, group)


def _hdfs_time() -> Column:
    return F.try_to_timestamp(_part(HDFS_LINE, 1), F.lit("yyMMdd HHmmss"))


def _syslog_time() -> Column:
    day_and_time = F.regexp_replace(_part(SYSLOG_LINE, 1), "  ", " ")
    in_year = F.concat_ws(" ", F.year("arrival").cast("string"), day_and_time)
    this_year = F.try_to_timestamp(in_year, F.lit("yyyy MMM d HH:mm:ss"))
    is_ahead = this_year > F.col("arrival") + F.expr("INTERVAL 1 DAY")  # tolerance: clocks and zones differ
    return F.when(is_ahead, this_year - F.expr("INTERVAL 1 YEAR")).otherwise(this_year)


def _syslog_level() -> Column:
    text = _part(SYSLOG_LINE, 3)
    return F.when(text.rlike(OWN_ERROR), "ERROR").when(text.rlike(REFUSED), "WARN").otherwise("INFO")


def count_errors(parsed: DataFrame, window: str, lateness: str) -> DataFrame:
    """Return lines, errors and error rate (0..1, four digits) by window and component."""
    is_error = F.col("level").isin(*ERROR_LEVELS)
    counts = (
        parsed.withWatermark("event_time", lateness)
        .groupBy(F.window("event_time", window), "component")
        .agg(F.count("*").alias("lines"), F.count_if(is_error).alias("errors"))
    )
    return _rates(counts)


def _rates(counts: DataFrame) -> DataFrame:
    return counts.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "component",
        "lines",
        "errors",
        F.round(F.col("errors") / F.col("lines"), 4).alias("error_rate"),
    )


def transform(lines: DataFrame, window: str = "5 minutes", lateness: str = "10 minutes") -> DataFrame:
    """Convert log lines (``value``, ``timestamp``) to one JSON document per row (``value``, binary)."""
    rates = count_errors(parse_lines(lines), window, lateness)
    return _as_json(rates)


def _as_json(rates: DataFrame) -> DataFrame:
    return rates.select(F.to_json(F.struct("*")).cast("binary").alias("value"))


def waiting_windows(spark: SparkSession, checkpoint: str) -> DataFrame:
    """Return the windows that a stopped query has counted and not sent, in the form of ``transform``, from its
    checkpoint.
    """
    state = spark.read.format("statestore").load(checkpoint).select("key.window", "key.component", "value")
    # The two counts have the same name in the state, so they are selected by position.
    rows = [(tuple(row.window), row.component, row.value[0], row.value[1]) for row in state.collect()]
    kind = "window struct<start: timestamp, end: timestamp>, component string, lines bigint, errors bigint"
    return _as_json(_rates(spark.createDataFrame(rows, kind).coalesce(1)))


def run(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    lines = (
        spark.readStream.format("metaq")
        .option("brokers", arguments.brokers)
        .option("subscribe", arguments.from_topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        count_rows_out(transform(lines, arguments.window, arguments.lateness))
        .writeStream.format("metaq")
        .option("brokers", arguments.brokers)
        .option("topic", arguments.to_topic)
        .option("checkpointLocation", arguments.checkpoint)
        .queryName("error_rates")
        .trigger(**trigger(arguments))
        .start()
    )


def finish(spark: SparkSession, arguments: argparse.Namespace, query: StreamingQuery, report: JobReport) -> None:
    """Wait for the end of the input, then send the windows that wait for newer lines.

    Also without new lines: the run before may have ended before it sent them.
    """
    report.follow(query)
    rows = waiting_windows(spark, arguments.checkpoint)
    append(rows, {"brokers": arguments.brokers, "topic": arguments.to_topic})
    report.rows_out += rows.count()


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count log lines and errors by component and time window.")
    parser.add_argument("--brokers", required=True, help="host:port of the brokers, separated by commas")
    parser.add_argument("--from-topic", required=True, help="the topic of log lines")
    parser.add_argument("--to-topic", required=True, help="the topic for the JSON values")
    parser.add_argument("--checkpoint", required=True, help="folder or URI for Spark's progress, kept between runs")
    parser.add_argument("--window", type=duration, default="5 minutes", help="length of a window (%(default)s)")
    parser.add_argument("--lateness", type=duration, default="10 minutes", help="how late lines may be (%(default)s)")
    add_trigger(parser)
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName("error_rates").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    with exit_on_failure("error_rates"), JobReport("error_rates") as report:
        finish(spark, arguments, run(spark, arguments), report)


if __name__ == "__main__":
    main()
