"""The same totals by ``applyInPandasWithState``: a function of your own keeps the state of each customer.

    python examples/totals_in_pandas.py 127.0.0.1:8123

It reads topic ``orders`` and sends to ``totals`` as ``totals_in_update_mode.py`` does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from totals_in_update_mode import orders

from metaq_spark.foreach_batch import ExactlyOnceBatches


def add_up(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Add the amounts of a customer's new orders to the total so far."""
    total = (state.get[0] if state.exists else 0) + sum(int(frame.amount.sum()) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"customer": [key[0]], "total": [total]})


def totals(rows: DataFrame) -> DataFrame:
    """The total of each customer that has new orders."""
    return rows.groupBy("customer").applyInPandasWithState(
        add_up, "customer STRING, total BIGINT", "total BIGINT", "update", GroupStateTimeout.NoTimeout
    )


def query(spark: SparkSession, brokers: str) -> DataStreamWriter:
    """Send the totals that changed to topic ``totals``."""
    changed = totals(orders(spark, brokers)).select(F.to_json(F.struct("customer", "total")).alias("value"))
    write = ExactlyOnceBatches("metaq", brokers=brokers, topic="totals", txnAppId="totals-in-pandas-1")
    return changed.writeStream.outputMode("update").foreachBatch(write)


if __name__ == "__main__":
    session = SparkSession.builder.appName("totals in pandas").getOrCreate()
    query(session, sys.argv[1]).option("checkpointLocation", "checkpoints/pandas").start().awaitTermination()
