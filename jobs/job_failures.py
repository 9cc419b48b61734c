"""Error messages of failed jobs: the message of the first cause, without the stack traces of Python and Java."""

from __future__ import annotations

import re

_OURS = re.compile(
    r"(?:^|: )(?:metaq[\w.]*|numbered_files|archive_manifests)\.[A-Z]\w*: (.+?)(?: SQLSTATE: \w+)*$",
    re.M,
)
_RAISED_BY_A_ROW = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)*$", re.M)


def sentence(problem: BaseException) -> str:
    """Return the last error of the connector, of a job or of a row that the text quotes; the whole text without one."""
    text = str(problem)
    for known in (_OURS, _RAISED_BY_A_ROW):
        if found := known.findall(text):
            return str(found[-1])
    return text
