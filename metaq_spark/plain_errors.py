"""Makes Spark show the connector's errors as sentences, without tracebacks.

A PySpark worker reports a failure with its traceback and all of its causes, and Spark shows them to the user. For an
expected error (``MetaqError``) the sentence is sufficient, so the methods that Spark calls are wrapped here: the error
loses its causes, and in a worker its traceback, through PySpark's own switch (also set by
``spark.sql.execution.pyspark.udf.hideTraceback.enabled``). Any other error is a bug of the connector and keeps its
traceback.

The dropped traceback is logged at DEBUG.
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
"""Environment variable that PySpark reads when it reports a failure. A worker ends after its first failure, so no other
traceback is hidden.
"""

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
    """``plain_errors`` for a generator method, whose errors occur during iteration."""

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
    """Whether this process is a Spark worker. The environment of other programs is not changed."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.split(".")[0] == "pyspark"
