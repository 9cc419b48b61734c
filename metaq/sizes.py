"""Parses sizes as people write them: ``65536``, ``512k``, ``64m``, ``10mb``, ``10 MB``, ``1 GiB``."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"(\d{1,19})\s*(?:([kmgt])(?:i?b)?|b|bytes?)?", re.ASCII)
_SHIFTS: Final = {None: 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_size(text: str) -> int:
    """Return the number of bytes in ``text``: a whole number, alone or followed by a unit, in any case.

    Units are binary, whichever way they are written: ``k``, ``KB`` and ``KiB`` are 1,024 bytes, and so on to ``t``.

    Raises:
        ValueError: It is neither.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r}: expected a number of bytes such as 65536, 512k, 64m or 10 MB")
    return int(match[1]) << _SHIFTS[match[2]]
