"""Spark's daemon of Python workers, without a traceback for each idle worker that Spark has closed.

Spark closes the socket of such a worker, the worker's last flush fails with ``BrokenPipeError``, and the daemon prints
that. Benchmarks print tables, so they name this module in ``spark.python.daemon.module``. Other errors are printed.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from pyspark import daemon


def print_exc(*arguments: Any, **named: Any) -> None:
    """Print the current error, unless Spark has closed the socket."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc(*arguments, **named)


class _Traceback:
    print_exc = staticmethod(print_exc)
    format_exc = staticmethod(traceback.format_exc)


def main() -> None:
    """Run the daemon until Spark closes its standard input."""
    vars(daemon)["traceback"] = _Traceback
    daemon.manager()


if __name__ == "__main__":
    main()
