"""Which machine this process runs on, so that two processes can tell whether they share one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str | None:
    """A text that no other machine has, and this one has until it starts again; ``None`` where there is none.

    Containers on one machine share it. Only Linux has one.

    Source: random(4).
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
