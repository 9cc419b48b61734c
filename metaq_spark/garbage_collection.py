"""Reduces the cost of garbage collections in Spark's Python processes."""

from __future__ import annotations

import gc
import sys

_frozen = 0
"""How many modules there were the last time."""


def freeze_modules() -> None:
    """Exclude everything imported so far from garbage collections in this process.

    Spark has its Python processes collect garbage after every task, and after every plan and commit. Scanning the
    modules of pyarrow and pyspark takes some 20 ms each time: as long as a small task. Modules are never garbage.
    Called whenever a plan, a task or a commit begins; has an effect only if modules were imported since the last call.
    Only for processes that Spark starts: in a user's process, later garbage would be kept, too.
    """
    global _frozen
    if len(sys.modules) != _frozen:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)
