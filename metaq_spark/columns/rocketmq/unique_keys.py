"""UNIQ_KEYs of rows: the same for the same row of the same write, so that one that is sent again can be known.

A key has 32 hexadecimal digits, as those of Java producers: 20 that are a hash of the write, the batch and the task,
and 12 that are the number of the row in the task's input. Java's tools take digits 21 to 28 for the time since the
month began when they look a message up by its key; here they are zeros or nearly so, and such a look-up begins at the
first of the month.
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
