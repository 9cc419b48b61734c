"""A copy of the test's process, as Spark forks its workers."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(check: Callable[[], bool]) -> bool:
    """Whether ``check`` holds in a forked copy of this process."""
    child = os.fork()
    if child == 0:
        verdict = 1
        try:
            verdict = 0 if check() else 1
        finally:
            os._exit(verdict)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
