"""How one partition is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verify = Literal["tail", "full", "trust"]
"""What is checked when a partition is opened.

``tail``: the last segment, frame by frame; older ones by their sizes and indexes. ``full``: every segment. ``trust``:
nothing but the indexes, for partitions that were closed cleanly; falls back to ``tail`` where an index is not complete.
"""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Sizes of one partition's files.

    ``segment_bytes_max``: a segment that has reached this size is not written any more (it may exceed it by one message
    or one unit). ``index_interval_bytes``: log bytes between two index entries.
    """

    segment_bytes_max: int = 1 << 30
    index_interval_bytes: int = 4096

    def __post_init__(self) -> None:
        for name in ("segment_bytes_max", "index_interval_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: expected 1 or more")
