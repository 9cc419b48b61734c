"""Python processes that Spark starts import PySpark from where it is installed, which is compiled.

Spark puts its own ``pyspark.zip`` first on their path. It holds sources only, so that each process compiles what it
imports: 0.4 s of CPU. The tests name this folder in ``PYTHONPATH``, and Python imports this file at its start.

Spark's daemons fork the processes that plan, read and write. They import for all of them what each one would import.
"""

import sys
from contextlib import suppress
from importlib import import_module

sys.path[:] = [entry for entry in sys.path if not entry.endswith(("/pyspark.zip", "-src.zip"))]

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    for name in (
        *sys.orig_argv[3:],
        *("pyspark_metaq", "pyspark_rocketmq", "metaq_spark.source.stream_reader", "metaq_spark.source.batch_reader"),
        *("metaq_spark.sink.writers", "metaq_spark.sink.task", "metaq_spark.columns.decode"),
        *("metaq_spark.backends.metaq.source", "metaq_spark.backends.metaq.sink"),
        *("metaq_spark.backends.metaq.range_task", "metaq_spark.backends.metaq.exactly_once.commit"),
        *("metaq_spark.backends.rocketmq.source", "metaq_spark.backends.rocketmq.sink"),
    ):
        with suppress(ImportError):  # another version of Spark
            import_module(name)
