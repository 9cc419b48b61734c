"""A driver that kills itself and its JVM between the write of micro-batch 1 and Spark's own commit, in three queries.

Run with the address of a broker and a folder for the checkpoints.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import big_spenders
import totals_in_pandas
import totals_in_update_mode
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from metaq_spark.foreach_batch import ExactlyOnceBatches

KINDS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregation": totals_in_update_mode.totals,
    "apply-in-pandas": totals_in_pandas.totals,
    "transform": big_spenders.big_spenders,
}
DEADLINE_S = 240
Write = Callable[[DataFrame, int], None]


def start(
    spark: SparkSession, brokers: str, kind: str, folder: Path, around: Callable[[Write], Write]
) -> StreamingQuery:
    """Start the query of a kind, one order in each micro-batch, to topic ``kind``."""
    reader = spark.readStream.format("metaq").options(brokers=brokers, subscribe="orders", startingOffsets="earliest")
    reader = reader.options(valueFormat="json", valueSchema="customer STRING, amount BIGINT", maxOffsetsPerTrigger="1")
    changed = KINDS[kind](reader.load().select("value.*"))
    rows = changed.select(F.to_json(F.struct("customer", "total")).alias("value"))
    write = ExactlyOnceBatches("metaq", {"brokers": brokers}, topic=kind, txnAppId=kind)
    writer = rows.writeStream.outputMode("update").foreachBatch(around(write))
    return writer.option("checkpointLocation", str(folder / kind)).trigger(availableNow=True).start()


def main(brokers: str, folder: Path) -> None:
    all_written = threading.Barrier(len(KINDS), timeout=DEADLINE_S)

    def around(write: Write) -> Write:
        def write_and_die(rows: DataFrame, batch_id: int) -> None:
            write(rows, batch_id)
            if batch_id == 1:
                all_written.wait()
                os.killpg(0, signal.SIGKILL)

        return write_and_die

    spark = (
        SparkSession.builder.master("local[3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.streaming.stateStore.providerClass", big_spenders.ROCKSDB)
        .getOrCreate()
    )
    for query in [start(spark, brokers, kind, folder, around) for kind in KINDS]:
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
