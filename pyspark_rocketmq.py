"""Found by PySpark itself: a top-level ``pyspark_*`` module with a ``DefaultSource`` needs no registration."""

from metaq_spark.datasource import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
