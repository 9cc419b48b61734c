"""Log lines to error rates: what is read out of a line, and what is counted."""

import json
from datetime import UTC, datetime

import pytest
from chispa.dataframe_comparer import assert_df_equality
from error_rates import parse_arguments, parse_lines, transform
from pyspark.sql import DataFrame, SparkSession

ARRIVAL = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

LINES = {
    "HDFS": (
        b"081109 203615 148 INFO dfs.DataNode$PacketResponder: PacketResponder 1 for block blk_38 terminating\n",
        (datetime(2008, 11, 9, 20, 36, 15, tzinfo=UTC), "dfs.DataNode$PacketResponder", "INFO"),
    ),
    "HDFS, CR LF": (
        b"081110 215858 15494 WARN dfs.DataNode$DataXceiver: 10.250.14.143:50010:Got exception\r\n",
        (datetime(2008, 11, 10, 21, 58, 58, tzinfo=UTC), "dfs.DataNode$DataXceiver", "WARN"),
    ),
    "HDFS with an impossible date counts at its arrival": (
        b"089999 203615 148 ERROR dfs.FSDataset: gone\n",
        (ARRIVAL, "dfs.FSDataset", "ERROR"),
    ),
    "sshd, this year": (
        b"Feb  3 06:55:46 LabSZ sshd[24200]: Connection closed by 173.234.31.186 [preauth]\n",
        (datetime(2026, 2, 3, 6, 55, 46, tzinfo=UTC), "sshd", "INFO"),
    ),
    "sshd, a day that is still to come is one of last year": (
        b"Dec 10 06:55:46 LabSZ sshd[24200]: Failed password for root from 5.36.59.76 port 42393 ssh2\r\n",
        (datetime(2025, 12, 10, 6, 55, 46, tzinfo=UTC), "sshd", "WARN"),
    ),
    "sshd, clocks may differ by some hours": (
        b"Mar  1 20:00:00 LabSZ sshd[1]: Invalid user admin from 5.36.59.76\n",
        (datetime(2026, 3, 1, 20, 0, tzinfo=UTC), "sshd", "WARN"),
    ),
    "sshd names an error": (
        b"Feb 10 09:11:21 LabSZ sshd[24439]: error: Received disconnect from 103.99.0.122: 14: No more\n",
        (datetime(2026, 2, 10, 9, 11, 21, tzinfo=UTC), "sshd", "ERROR"),
    ),
    "another program, without a process id": (
        b"Feb 10 09:11:21 LabSZ kernel: eth0 is up\n",
        (datetime(2026, 2, 10, 9, 11, 21, tzinfo=UTC), "kernel", "INFO"),
    ),
    "blank": (b"\n", (ARRIVAL, "(unknown)", None)),
    "no text": (b"\xff\xfe\x00\n", (ARRIVAL, "(unknown)", None)),
    "no UTF-8 behind the part that is read": (
        b"081109 203615 148 INFO dfs.FSDataset: \xff\xc3(\n",
        (datetime(2008, 11, 9, 20, 36, 15, tzinfo=UTC), "dfs.FSDataset", "INFO"),
    ),
}

HDFS_AT = b"081109 %s 1 %s dfs.FSDataset: text\n"


def messages(spark: SparkSession, values: list[bytes]) -> DataFrame:
    """What a read of the topic gives, as far as the job looks at it."""
    return spark.createDataFrame([(value, ARRIVAL) for value in values], "value binary, timestamp timestamp")


@pytest.mark.spark
def test_parsing(spark: SparkSession) -> None:
    parsed = parse_lines(messages(spark, [line for line, _ in LINES.values()]))
    expected = spark.createDataFrame(
        [fields for _, fields in LINES.values()], "event_time timestamp, component string, level string"
    )
    assert_df_equality(parsed, expected, ignore_nullable=True)


@pytest.mark.spark
def test_message_without_a_time_gets_that_of_the_batch(spark: SparkSession) -> None:
    row = parse_lines(spark.createDataFrame([(b"blank", None)], "value binary, timestamp timestamp")).collect()[0]
    assert row.event_time is not None


@pytest.mark.spark
def test_counts_by_window_and_component(spark: SparkSession) -> None:
    lines = [
        HDFS_AT % (b"203501", b"INFO"),
        HDFS_AT % (b"203502", b"WARN"),
        HDFS_AT % (b"203959", b"FATAL"),
        HDFS_AT % (b"204000", b"ERROR"),
        b"Feb 10 09:11:21 LabSZ sshd[1]: Accepted publickey for deploy\n",
    ]
    sent = sorted((json.loads(row.value) for row in transform(messages(spark, lines)).collect()), key=str)
    assert sent == sorted(
        [
            rates("2008-11-09T20:35:00.000Z", "2008-11-09T20:40:00.000Z", "dfs.FSDataset", 3, 2, 0.6667),
            rates("2008-11-09T20:40:00.000Z", "2008-11-09T20:45:00.000Z", "dfs.FSDataset", 1, 1, 1.0),
            rates("2026-02-10T09:10:00.000Z", "2026-02-10T09:15:00.000Z", "sshd", 1, 0, 0.0),
        ],
        key=str,
    )


def rates(start: str, end: str, component: str, lines: int, errors: int, rate: float) -> dict[str, object]:
    """The document that the job sends."""
    return {
        "window_start": start,
        "window_end": end,
        "component": component,
        "lines": lines,
        "errors": errors,
        "error_rate": rate,
    }


REQUIRED = ["--brokers", "h:1", "--from-topic", "a", "--to-topic", "b", "--checkpoint", "c"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (REQUIRED[2:], "required: --brokers"),
        ([*REQUIRED, "--window", "5"], "--window: '5': expected a duration such as"),
        ([*REQUIRED, "--lateness", "0 minutes"], "--lateness: '0 minutes': expected a duration"),
        ([*REQUIRED, "--every", "soon"], "--every: 'soon': expected a duration"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert said in capsys.readouterr().err
