"""A message about each customer whose orders pass 100, once: ``transformWithState`` with a processor of your own.

    python examples/big_spenders.py 127.0.0.1:8123

It reads topic ``orders`` as ``totals_in_update_mode.py`` does, and sends ``{"customer": "ann", "total": 104}`` to topic
``big_spenders``. Spark wants its RocksDB state for this, and the Python package ``protobuf``. ``TwsTester`` runs the
processor without Spark's JVM: see ``tests/examples/test_stateful_examples.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StatefulProcessor, StatefulProcessorHandle
from totals_in_update_mode import orders

from metaq_spark.foreach_batch import ExactlyOnceBatches

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LIMIT = 100


class BigSpenders(StatefulProcessor):
    """Keeps the total of each customer, and gives a row when it passes the limit."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total BIGINT")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: object) -> Iterator[Row]:
        before = self._total.get()[0] if self._total.exists() else 0
        total = before + sum(row.amount for row in rows)
        self._total.update((total,))
        if before <= LIMIT < total:
            yield Row(customer=key[0], total=total)


def big_spenders(rows: DataFrame) -> DataFrame:
    """The customers that pass the limit."""
    return rows.groupBy("customer").transformWithState(
        statefulProcessor=BigSpenders(),
        outputStructType="customer STRING, total BIGINT",
        outputMode="update",
        timeMode="none",
    )


def query(spark: SparkSession, brokers: str) -> DataStreamWriter:
    """Send a message about each of them to topic ``big_spenders``."""
    found = big_spenders(orders(spark, brokers)).select(F.to_json(F.struct("customer", "total")).alias("value"))
    write = ExactlyOnceBatches("metaq", brokers=brokers, topic="big_spenders", txnAppId="big-spenders-1")
    return found.writeStream.outputMode("update").foreachBatch(write)


if __name__ == "__main__":
    session = (
        SparkSession.builder.appName("big spenders")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .getOrCreate()
    )
    query(session, sys.argv[1]).option("checkpointLocation", "checkpoints/spenders").start().awaitTermination()
