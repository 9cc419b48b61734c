"""What the garbage collections of Spark's Python processes cost."""

from __future__ import annotations

import gc
import sys

_frozen = 0
"""How many modules there were the last time."""


def freeze_modules() -> None:
    """Leave what this process has imported so far out of all garbage collections from now on.

    Spark has its Python processes collect garbage after every task, and after every plan and commit. Looking through
    the modules of pyarrow and pyspark takes some 20 ms each time: as long as a small task itself. Modules are never
    garbage. Called whenever a plan, a task or a commit begins: it does something only where modules were imported since
    the last time. Only for processes that Spark starts: in a user's own, what is garbage later would be kept, too.
    """
    global _frozen
    if len(sys.modules) != _frozen:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)
