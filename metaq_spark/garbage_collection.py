"""What the garbage collections of Spark's Python processes cost."""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze_modules() -> None:
    """Leave what this process has imported so far out of all garbage collections from now on.

    Spark has its Python processes collect garbage after every task, and after every plan and commit. Looking through
    the modules of pyarrow and pyspark takes some 20 ms each time: as long as a small task itself. Modules are never
    garbage. Only for processes that Spark starts: in a user's own, what is garbage later would be kept, too.
    """
    gc.collect()
    gc.freeze()
