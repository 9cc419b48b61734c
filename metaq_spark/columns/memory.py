"""The large buffers of a task, allocated so that their memory is reused.

Faulting in new pages of the operating system costs as much as filling them. Column buffers are in Arrow's memory, whose
pool keeps freed blocks for a while. Blocks that are fetched or sent use malloc; glibc's is configured to keep freed
memory.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa

_TEACHING_BYTES: Final = 16 << 20


def empty_array(count: int, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    """Return a writable array in Arrow's memory; its content is undefined."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype=dtype)


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Where an array's memory begins. The array has to be kept as long as the address is used."""
    return int(array.ctypes.data)


@functools.cache
def keep_freed_memory() -> None:
    """Make malloc keep freed blocks of up to 16 MiB in this process instead of returning them to the system.

    glibc returns large blocks at once until a block above its current threshold is freed; so such a block is allocated
    and freed, untouched. Other allocators ignore this.
    """
    np.empty(_TEACHING_BYTES, dtype=np.uint8)
