"""Readers and writers say so where the Python of a Spark worker lacks this package.

Spark pickles them on the driver and unpickles them in the Python processes of the executors, which may have another
environment. There, unpickling would end with ``No module named 'metaq_spark'`` and a traceback of PySpark. So what is
pickled is an expression, which looks for the package first and needs nothing but Python.
"""

from __future__ import annotations

import os
import pickle
import subprocess
from typing import Any, Final

MISSING: Final = (
    "the Python of this Spark worker, %s, does not have the package metaq-spark; install it on every node, or let "
    "PYSPARK_PYTHON name an interpreter that has it"
)
LOAD: Final = (
    "__import__('pickle').loads(state) if __import__('importlib.util').util.find_spec('metaq_spark') else "
    "exec('raise ModuleNotFoundError(missing % __import__(\"sys\").executable)')"
)


def why_not_found() -> str | None:
    """Return why Spark does not find a format, if the Python that it starts lacks the package; else ``None``.

    Spark starts ``PYSPARK_PYTHON``, or else the ``python3`` of the PATH, whatever the driver's interpreter is.
    """
    python = os.environ.get("PYSPARK_PYTHON") or "python3"
    try:
        done = subprocess.run([python, "-c", "import pyspark_metaq"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"the Python that Spark starts, {python}, cannot be run: {error.strerror}; PYSPARK_PYTHON names it"
    if done.returncode == 0:
        return None
    reason = (done.stderr.splitlines() or ["it ended"])[-1]
    return (
        f"the Python that Spark starts, {python}, cannot import metaq-spark ({reason}); let PYSPARK_PYTHON name an "
        "interpreter that has it"
    )


class ShippedToWorkers:
    """Base of what Spark ships to its workers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (LOAD, {"state": pickle.dumps(_State(self)), "missing": MISSING})


class _State:
    """Pickled in place of an object, which it becomes again."""

    def __init__(self, of: object) -> None:
        self._of = of

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self._of), vars(self._of))


def _made_again(kind: type, state: dict[str, Any]) -> object:
    made: object = object.__new__(kind)
    vars(made).update(state)
    return made
