"""The Spark job whose processes are killed: copies one topic to another, and reports its progress on standard output.

Usage: ``query.py '{"brokers": ..., "checkpoint": ..., "delivery": ..., "trigger_bytes": ...}'``. Run by the harness in
a process of its own. It copies all input, prints ``drained``, or ``failed: `` and the reason, and waits for a line on
standard input to start the query again; when standard input ends, it stops.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from metaq_spark.spark_version import ADMISSION_CONTROL

SOURCE, TARGET = "in", "out"
PARTITIONS: Final = 2
"""Partitions of each topic on each of the brokers 0 and 1."""

DRAINED, FAILED = "drained", "failed: "
FAILURES_MAX: Final = 8
"""How often Spark runs a task before it fails the query; task workers are killed, too."""

PATIENCE: Final = {"retries": "100", "retryIntervalMs": "50", "requestTimeoutMs": "15000"}
"""Options that bridge short outages of brokers."""

_SENTENCE: Final = re.compile(r"(?:[a-z_]\w*\.)*(?!Identifier|SQLSTATE|UnboundLocalError)[A-Z]\w+: .")
"""Matches the error of the lowest Python traceback, without Spark's headings and without a bug in its own error
handling.
"""

_RUN: Final = re.compile(r" \[id = [^]]*\]")

_SEQUENCE: Final = "cast(regexp_extract(cast(substring(value, 1, 40) as string), '/([0-9]+)/', 1) as int)"
COLUMNS: Final = (
    "value",
    # Each task writes to both brokers, so each has branches on both. See ``broker_pair.partition_of``.
    f"cast(pmod(broker_id * {PARTITIONS} + partition + {PARTITIONS} * pmod({_SEQUENCE}, 2), 4) as int) as partition",
)


def main(settings: dict[str, Any]) -> None:
    """Copy until standard input ends."""
    spark = _session()
    rows = _rows(spark, settings)
    while True:
        writer = (
            rows.writeStream.format("metaq")
            .options(brokers=settings["brokers"], topic=TARGET, checkpointLocation=settings["checkpoint"], **PATIENCE)
            .options(**settings["sink"])
        )
        try:
            _copy(writer)
        except StreamingQueryException as error:
            print(FAILED + reason_of(str(error)), flush=True)
        else:
            print(DRAINED, flush=True)
        if not sys.stdin.readline():
            return


def _copy(writer: DataStreamWriter) -> None:
    """Copy all there is. Before Spark 4.2, ``availableNow`` would make one micro-batch, with the limit of one."""
    if ADMISSION_CONTROL.present:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.start()
    query.processAllAvailable()
    query.stop()


def _session() -> SparkSession:
    return (
        SparkSession.builder.master(f"local[2,{FAILURES_MAX}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # it runs for seconds
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.streaming.minBatchesToRetain", "10000")  # keeps all batches, for counting and analysis
        .getOrCreate()
    )


def _rows(spark: SparkSession, settings: dict[str, Any]) -> DataFrame:
    return (
        spark.readStream.format("metaq")
        .options(brokers=settings["brokers"], subscribe=SOURCE, startingOffsets="earliest", **PATIENCE)
        .option("maxBytesPerTrigger", str(settings["trigger_bytes"]))
        .load()
        .selectExpr(*COLUMNS)
    )


def reason_of(message: str) -> str:
    """Return the last line of the lowest traceback in a message of Spark, or the beginning of the message."""
    lines = [line.strip() for line in _RUN.sub("", message).splitlines() if line.strip()]
    sentences = [line for line in lines if _SENTENCE.match(line)]
    return (sentences or lines[:1] or ["no reason given"])[-1][:500]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
