"""The Spark job whose broker restarts: copies a topic to another, and reports its progress on standard output.

Usage: ``query.py SETTINGS``, in JSON: ``format``, ``servers`` (its options for the brokers), ``checkpoint``, ``sink``
(further options). It prints ``task N`` when a task of micro-batch N has its first rows, ``done N ROWS`` when the
micro-batch is complete, and ``failed: `` with the reason when the query ends. It stops when standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from faults.exactly_once.query import reason_of

SOURCE, TARGET = "in", "out"
FAILURES_MAX: Final = 1
"""How often Spark runs a task: a restart of the broker must not fail it."""

ROWS: Final = 20
"""Rows of a record batch between source and sink."""

DWELL_S: Final = 0.05
"""Seconds for each record batch, so that a micro-batch of some hundred rows takes a second or two."""

BATCH_ID: Final = "streaming.sql.batchId"


def main(settings: dict[str, Any]) -> None:
    """Copy until standard input ends."""
    spark = _session(settings["tries"])
    rows = (
        spark.readStream.format(settings["format"])
        .options(subscribe=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger="400", columns="value")
        .options(**settings["servers"])
        .load()
    )
    query = (
        rows.mapInArrow(_dwelling(settings["marks"]), "value binary")
        .writeStream.format(settings["format"])
        .options(topic=TARGET, checkpointLocation=settings["checkpoint"], **settings["servers"], **settings["sink"])
        .start()
    )
    threading.Thread(target=_report, args=[query], daemon=True).start()
    try:
        sys.stdin.read()
        query.stop()
    except StreamingQueryException as error:
        print(f"failed: {reason_of(str(error))}", flush=True)


def _session(tries: int) -> SparkSession:
    return (
        SparkSession.builder.master(f"local[2,{tries}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.python.authenticate.socketTimeout", "10m")  # a worker may start slowly on a busy machine
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS))
        .getOrCreate()
    )


def _dwelling(marks: str) -> Any:
    def dwell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        batch_id = "0" if context is None else context.getLocalProperty(BATCH_ID)
        for batch in batches:
            with open(os.path.join(marks, str(batch_id)), "a"):
                pass
            time.sleep(DWELL_S)
            yield batch

    return dwell


def _report(query: StreamingQuery) -> None:
    said = -1
    while True:
        error = query.exception()
        if error is not None:
            print(f"failed: {reason_of(str(error))}", flush=True)
            return
        for progress in query.recentProgress:
            if progress["batchId"] > said and progress["numInputRows"]:
                said = progress["batchId"]
                print(f"done {said} {progress['numInputRows']}", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
