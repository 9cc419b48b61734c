"""What Spark shows of the connector's errors: their sentence, without the frames of the code that met them.

A worker of PySpark writes a failure with its traceback and with every error that led to it, and Spark shows all of that
to the user. For an error that the connector expects (``MetaqError``) the sentence says everything, so the methods that
Spark calls are wrapped here: the error loses its causes, and in a worker its traceback, by the switch that PySpark has
for it (``spark.sql.execution.pyspark.udf.hideTraceback.enabled`` sets the same). Every other error is a mistake in
the connector and keeps all of its traceback.

The traceback that is dropped is logged at DEBUG.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from metaq.errors import MetaqError

P = ParamSpec("P")
R = TypeVar("R")

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark reads it when it writes a failure. A worker ends after its first failure, so nothing else is hidden."""

_log = logging.getLogger(__name__)


def plain_errors(method: Callable[P, R]) -> Callable[P, R]:
    """``method`` with the connector's errors cut down to their sentence."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except MetaqError as error:
            raise _alone(error) from None

    return call


def plain_errors_of_rows(method: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """``plain_errors`` for a method that yields: its errors come while it is iterated."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from method(*args, **kwargs)
        except MetaqError as error:
            raise _alone(error) from None

    return call


def _alone(error: MetaqError) -> MetaqError:
    _log.debug("%s", error, exc_info=error)
    if _is_spark_worker():
        os.environ[HIDE_TRACEBACK] = "1"
    return error.with_traceback(None)


def _is_spark_worker() -> bool:
    """Whether this process serves Spark alone. A program that makes a reader itself keeps its environment."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.split(".")[0] == "pyspark"
