"""Use what the tests use of Spark, so that its classes are loaded: archive-spark keeps them."""

import os
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable

JAVA_END_S = 300
"""Longest wait for the archive to be written."""


def nothing(rows: DataFrame, batch_id: int) -> None:
    """Let Python be called for a micro-batch."""


def read_and_write(spark: SparkSession, folder: str) -> None:
    """A batch of each kind: Parquet, JSON, text, rows from Python and to Python, a join, an aggregation, a cache."""
    rows = spark.createDataFrame([(b"a", 1, "x"), (b"b", 2, None)], "value binary, number int, word string")
    rows.write.mode("overwrite").partitionBy("number").parquet(f"{folder}/parquet")
    read = spark.read.parquet(f"{folder}/parquet").cache()
    read.join(rows, "number").groupBy("number").count().orderBy("number").collect()
    rows.selectExpr("to_json(struct(number, word)) value").write.text(f"{folder}/text")
    spark.read.text(f"{folder}/text").selectExpr("from_json(value, 'number int') number").collect()
    rows.selectExpr("current_timestamp() t", "number + 1 n").write.format("noop").mode("overwrite").save()
    rows.rdd.map(lambda row: row.number).sum()
    rows.mapInArrow(lambda batches: batches, rows.schema).collect()


def stream(spark: SparkSession, folder: str) -> None:
    """Streaming queries: files and rates in, an aggregation with state, files and Python out."""
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = rates.withWatermark("timestamp", "1 minute").groupBy("timestamp").count()
    text = spark.readStream.format("text").load(f"{folder}/text")
    writers = [
        counts.writeStream.format("parquet").option("path", f"{folder}/counts"),
        text.writeStream.format("parquet").option("path", f"{folder}/rows"),
        rates.writeStream.foreachBatch(nothing),
    ]
    for number, writer in enumerate(writers):
        query = writer.option("checkpointLocation", f"{folder}/{number}").trigger(availableNow=True).start()
        query.awaitTermination()


def metaq(spark: SparkSession) -> None:
    """The formats written in Python are looked up and planned; nobody listens at the address."""
    options = {"brokers": "127.0.0.1:9", "subscribe": "orders", "connectTimeoutMs": "100"}
    try:
        spark.read.format("metaq").options(**options).load().collect()
    except Exception as refused:
        print(refused)


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "OFF").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        read_and_write(spark, folder)
        stream(spark, folder)
        metaq(spark)
    end(spark)


def end(spark: SparkSession) -> None:
    """Stop Spark and wait for its Java process, which writes the archive when it ends."""
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()  # the process ends when its parent is gone
    java.wait(JAVA_END_S)


if __name__ == "__main__":
    main()
