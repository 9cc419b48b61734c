"""Which topic names can be stored: a partition lives in a folder called ``TOPIC-INDEX``."""

from __future__ import annotations

import re
from functools import lru_cache

FOLDER_NAME_BYTES_MAX = 255
"""Longest name of a folder on the file systems of Linux."""

_FORBIDDEN = re.compile(r"[/\x00-\x20\x7f]")


@lru_cache(maxsize=4096)
def topic_name_fault(topic: str, num_partitions: int = 1) -> str | None:
    """Return why ``topic`` cannot be a folder name on any of its partitions, or ``None`` when it can."""
    if not topic or topic in (".", ".."):
        return f"topic name {topic!r} cannot be a folder name"
    if _FORBIDDEN.search(topic):
        return f"topic name {topic[:50]!r} contains a slash, a blank or a control character and cannot be a folder name"
    folder_bytes = len(f"{topic}-{num_partitions - 1}".encode())
    if folder_bytes > FOLDER_NAME_BYTES_MAX:
        return f"topic name {topic[:50]!r}... needs {folder_bytes} bytes as a folder name, {FOLDER_NAME_BYTES_MAX} are possible"
    return None
