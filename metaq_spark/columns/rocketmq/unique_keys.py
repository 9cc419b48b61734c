"""UNIQ_KEYs of rows: equal for the same row of the same write, so that a repeated message can be recognised.

A key has 32 hexadecimal digits, like keys of Java producers: 20 are a hash of the write, the batch and the task, and 12
the number of the row in the task's input. When Java's tools look a message up by its key, they read digits 21 to 28 as
the time since the month began; here these are nearly zero, so such a look-up begins at the first of the month.
"""

from __future__ import annotations

import hashlib
from typing import Final

_PREFIX_BYTES: Final = 10
ROW_DIGITS: Final = 12


def key_prefix(write: str, batch_id: int, task: int) -> bytes:
    """The first 20 digits of the keys of a task: ``write`` names the query, or the batch write."""
    named = f"{write}/{batch_id}/{task}".encode()
    return hashlib.blake2b(named, digest_size=_PREFIX_BYTES).hexdigest().upper().encode()


def unique_key(prefix: bytes, row: int) -> bytes:
    """The key of a row, counted from 0."""
    return prefix + f"{row:0{ROW_DIGITS}X}".encode()
