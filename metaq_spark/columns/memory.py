"""Where the large buffers of a task come from, so that each is not paid for twice.

Fresh pages of the operating system cost as much to fault in as to fill. Column buffers are Arrow's own memory, whose
pool keeps what was freed at hand for a while. Blocks that are fetched or sent are malloc's; glibc's is set to keep
freed memory.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa

_TEACHING_BYTES: Final = 16 << 20


def empty_array(count: int, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    """A writable array of Arrow's memory; its content is arbitrary."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype=dtype)


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Where an array's memory begins. The array has to be kept as long as the address is used."""
    return int(array.ctypes.data)


@functools.cache
def keep_freed_memory() -> None:
    """Make malloc keep freed blocks of up to 16 MiB instead of returning them to the system, from now on in this
    process.

    glibc returns large blocks at once, until one larger than its present threshold has been freed; so one is,
    untouched. Other allocators take no notice.
    """
    np.empty(_TEACHING_BYTES, dtype=np.uint8)
