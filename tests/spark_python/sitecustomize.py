"""Python processes that Spark starts import PySpark from where it is installed, which is compiled.

Spark puts its own ``pyspark.zip`` first on their path. It holds sources only, so that each process compiles what it
imports: 0.4 s of CPU. The tests name this folder in ``PYTHONPATH``, and Python imports this file at its start.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith(("/pyspark.zip", "-src.zip"))]
