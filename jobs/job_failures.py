"""Error messages of failed jobs: the message of the first cause, without the stack traces of Python and Java."""

from __future__ import annotations

import re

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
    return (why_not_found() if _NOT_FOUND.search(text) else None) or text
