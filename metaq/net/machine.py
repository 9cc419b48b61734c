"""Identifies the machine, so that two processes can tell whether they run on the same one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str | None:
    """Return an id that is unique to this machine until its next start; ``None`` if the system has none.

    Containers on one machine share it. Only Linux has one.

    Source: random(4).
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
