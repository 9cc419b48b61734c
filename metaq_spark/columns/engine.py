"""Which loops a process uses: the plain ones at first, the compiled ones once they are worth their start.

Loading numba costs a Python worker half a second, and Spark ends a worker whenever it needs only the first rows of a
task (``show``, ``limit``). A process therefore handles its first ``PLAIN_BYTES_MAX`` bytes in plain Python, which
takes about as long, and loads numba when that was not the end of it. A task that has gone on beyond the first rows
(``FIRST_BYTES``) and has ``TASK_BYTES_MIN`` before it loads numba at once. Where numba is missing, everything is plain.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

PLAIN_BYTES_MAX: Final = 16 << 20

FIRST_BYTES: Final = 2 << 20
"""About what Spark takes of a task that only has to show its first rows."""

TASK_BYTES_MIN: Final = 8 << 20
"""Worth loading numba for: a worker is used again, so what it has loaded serves the tasks behind this one, too."""

NO_NUMBA: Final = "METAQ_SPARK_NO_NUMBA"
"""Environment variable: ``1`` makes the connector do without numba."""


_log = logging.getLogger(__name__)


@functools.cache
def numba_kernels() -> ModuleType | None:
    """The compiled kernels, or ``None`` where numba is switched off, missing, or does not go with what is installed."""
    if os.environ.get(NO_NUMBA) == "1":
        return None
    try:
        with _collection_paused():
            from metaq_spark.columns import kernels

            kernels.first_call()
    except ImportError as error:
        _log.warning("numba cannot be used (%s); messages are handled in plain Python, several times slower", error)
        return None
    return kernels


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Keep what is imported meanwhile out of all garbage collections, those of now and those to come.

    Spark has its Python workers collect garbage after every task. With the hundred thousands of objects that numba
    brings, that alone would cost each task tens of milliseconds, for nothing: modules are never garbage.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


class Engine:
    """Counts the bytes that a process has handled without kernels."""

    def __init__(self, plain_bytes_max: int = PLAIN_BYTES_MAX) -> None:
        self._plain_bytes_max = self._plain_bytes_left = plain_bytes_max

    def kernels_for(self, byte_count: int, task_bytes_left: int = 0) -> ModuleType | None:
        """The kernels to handle the next ``byte_count`` bytes with; ``None`` = in plain Python.

        ``task_bytes_left``: what the task has before it, these included, as far as it knows.
        """
        begun = self._plain_bytes_left <= self._plain_bytes_max - FIRST_BYTES
        if begun and task_bytes_left >= TASK_BYTES_MIN:
            self._plain_bytes_left = 0
        if self._plain_bytes_left > 0:
            self._plain_bytes_left -= byte_count
            return None
        return numba_kernels()


_SHARED: Final = Engine()


def shared_engine() -> Engine:
    """The engine of this process."""
    return _SHARED
