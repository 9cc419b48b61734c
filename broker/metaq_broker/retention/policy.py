"""Which segments are kept, and what becomes of the others (``deletePolicy``). Pure: lists in, lists out.

::

    delete,TIME           gone
    archive,TIME          renamed to START.meta.arc
    archive,TIME,true     packed into START.meta.zip

TIME is a number of hours, or a number with ``s``, ``m`` or ``h``. What goes is always a front part of the partition, or
it would have a hole. Source: docs/operations.md, docs/log-format.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Final

from metaq_broker.storage.segment import SegmentInfo

_TIME: Final = re.compile(r"(\d{1,9})([smh]?)", re.ASCII)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "": 3_600_000}
_ALLOWED: Final = "delete,TIME or archive,TIME[,true]; TIME is a number of hours, or a number with s, m or h"


class Removal(Enum):
    """What becomes of a segment that is not kept."""

    DELETE = "delete"
    ARCHIVE = "archive"
    ARCHIVE_PACKED = "archive packed"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Segments that were last written more than ``age_ms_max`` ago leave by ``removal``."""

    removal: Removal
    age_ms_max: int

    @classmethod
    def parse(cls, text: str) -> RetentionPolicy:
        """Read a policy as server.ini has it; blanks around the commas are harmless.

        Raises:
            ValueError: Says what is allowed.
        """
        word, *rest = (part.strip() for part in text.split(","))
        time = _TIME.fullmatch(rest[0]) if rest else None
        removal = _removal(word, rest[1:])
        if time is None or removal is None:
            raise ValueError(_ALLOWED)
        return cls(removal, int(time[1]) * _UNIT_MS[time[2]])

    def expired(self, segments: Sequence[SegmentInfo], now_ms: int) -> list[SegmentInfo]:
        """Return those of ``segments`` (a whole partition, oldest first) that are not kept any more, oldest first.

        Never the one that is being written, and none behind one that is kept.
        """

        def too_old(segment: SegmentInfo) -> bool:
            return segment.read_only and now_ms - segment.mtime_ms > self.age_ms_max

        return list(takewhile(too_old, segments))


def _removal(word: str, options: Sequence[str]) -> Removal | None:
    if word == "delete" and not options:
        return Removal.DELETE
    if word == "archive" and options in ([], ["false"]):
        return Removal.ARCHIVE
    return Removal.ARCHIVE_PACKED if word == "archive" and options == ["true"] else None
