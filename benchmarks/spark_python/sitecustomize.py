"""Spark's daemons of Python workers print no traceback for an idle worker that Spark has closed.

Spark closes the socket of such a worker, the worker's last flush fails with ``BrokenPipeError``, and the daemon prints
that between the tables of a benchmark. Benchmarks name this folder in ``PYTHONPATH``, and Python imports this file at
its start. ``spark.python.daemon.module`` is not enough: the daemons that plan reads and writes ignore it.
"""

import sys
import traceback
from typing import Any

if "pyspark.daemon" in sys.orig_argv:
    print_exc = traceback.print_exc

    def print_others(*arguments: Any, **named: Any) -> None:
        """Print the current error, unless Spark has closed the socket."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            print_exc(*arguments, **named)

    traceback.print_exc = print_others
