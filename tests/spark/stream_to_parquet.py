"""A driver to be killed: reads topics as a stream into Parquet, in small batches.

Usage: stream_to_parquet.py FORMAT FOLDER OPTION=VALUE ...
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(source: str, folder: str, *options: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    given = dict(option.split("=", 1) for option in options)
    rows = spark.readStream.format(source).option("startingOffsets", "earliest").options(**given).load()
    writer = rows.writeStream.format("parquet")
    writer = writer.options(path=f"{folder}/rows", checkpointLocation=f"{folder}/checkpoint")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
