"""Chooses the loops of a process: plain ones first, compiled ones when loading numba pays off.

Loading numba costs a Python worker half a second, and Spark ends a worker whenever it needs only the first rows of a
task (``show``, ``limit``). A process therefore processes its first ``PLAIN_BYTES_MAX`` bytes in plain Python, which
takes about as long, and then loads numba. A task that continues beyond the first rows (``FIRST_BYTES``) and has
``TASK_BYTES_MIN`` left loads numba at once. Without numba, everything is plain.
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
"""More than in ``metaq.compiled.lazy_loop``: that loads a loop in the background, while here the task waits."""

FIRST_BYTES: Final = 2 << 20
"""Approximate bytes that Spark reads of a task of which it needs only the first rows."""

TASK_BYTES_MIN: Final = 8 << 20
"""Enough to load numba: a worker is reused, so later tasks benefit, too."""

NO_NUMBA: Final = "METAQ_SPARK_NO_NUMBA"
"""Environment variable: ``1`` disables numba."""


_log = logging.getLogger(__name__)


@functools.cache
def numba_kernels() -> ModuleType | None:
    """Return the compiled kernels, or ``None`` if numba is disabled, missing, or incompatible."""
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
    """Exclude objects that are imported in the block from all garbage collections.

    Spark makes its Python workers collect garbage after every task. The hundred thousands of objects of numba would add
    tens of milliseconds to each task, for nothing: modules are never garbage.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


class ColumnEngine:
    """Counts the bytes that a process has handled without kernels."""

    def __init__(self, plain_bytes_max: int = PLAIN_BYTES_MAX) -> None:
        self._plain_bytes_max = self._plain_bytes_left = plain_bytes_max

    def kernels_for(self, byte_count: int, task_bytes_left: int = 0) -> ModuleType | None:
        """Return the kernels for the next ``byte_count`` bytes; ``None`` = plain Python.

        ``task_bytes_left``: remaining bytes of the task, including these, as far as known.
        """
        begun = self._plain_bytes_left <= self._plain_bytes_max - FIRST_BYTES
        if begun and task_bytes_left >= TASK_BYTES_MIN:
            self._plain_bytes_left = 0
        if self._plain_bytes_left > 0:
            self._plain_bytes_left -= byte_count
            return None
        return numba_kernels()


_SHARED: Final = ColumnEngine()


def shared_engine() -> ColumnEngine:
    return _SHARED
