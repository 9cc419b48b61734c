"""Ends of failed jobs: the message of the first cause, without the stack traces of Python and Java, and status 1."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from metaq.errors import MetaqError
from metaq_spark.worker_package import why_not_found

_OURS = re.compile(
    r"(?:^|: )(?:metaq[\w.]*|numbered_files|archive_manifests)\.[A-Z]\w*: (.+?)(?: SQLSTATE: \w+)*$",
    re.M,
)
_RAISED_BY_A_ROW = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)*$", re.M)


_NOT_FOUND = re.compile(r"\[DATA_SOURCE_NOT_FOUND\] .*?: (?:metaq|rocketmq)\.")


def sentence(problem: BaseException) -> str:
    """Return the last error of the connector, of a job or of a row that the text quotes; the whole text without one.

    Where Spark does not find the format because its Python lacks the package, say that.
    """
    text = str(problem)
    for known in (_OURS, _RAISED_BY_A_ROW):
        if found := known.findall(text):
            return str(found[-1])
    if isinstance(problem, Py4JJavaError):
        return str(problem.java_exception)  # without the stack trace
    return (why_not_found() if _NOT_FOUND.search(text) else None) or text


@contextmanager
def exit_on_failure(job: str) -> Iterator[None]:
    """End the program with a message and status 1 if the block fails for a reason outside of the program."""
    try:
        yield
    except (OSError, ValueError, MetaqError, PySparkException, Py4JJavaError) as problem:
        sys.exit(f"{job}: {sentence(problem)}")
