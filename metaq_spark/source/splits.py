"""Cutting the ranges of a read into tasks. No broker is asked here but through ``frames``.

Cuts are frame boundaries, and ranges of bytes are half-open, so that each message is in exactly one task: the one whose
range holds its first byte. What comes out depends on the ranges and on where frames begin, and on nothing else: a batch
that is planned again is cut in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from metaq.model import OffsetRange, TopicPartition
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Ranges
from metaq_spark.options.values import TASK_COUNT_MAX
from metaq_spark.source.frames import Cuts, FrameBoundaries


class Piece(NamedTuple):
    """A part of a partition's range. Orders by partition, then offset."""

    where: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def offsets(self) -> OffsetRange:
        """Its bytes."""
        return OffsetRange(self.start, self.end)

    def halved(self, at: int) -> list[Piece]:
        """The two parts before and from ``at``; the piece itself if one would be empty."""
        if not self.start < at < self.end:
            return [self]
        return [Piece(self.where, self.start, at), Piece(self.where, at, self.end)]


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a read is cut up: at least so many tasks, and at most so many bytes each; ``None`` = no matter."""

    task_count_min: int | None = None
    task_bytes_max: int | None = None


def split(ranges: Ranges, splitting: Splitting, frames: FrameBoundaries) -> list[Piece]:
    """The pieces of ``ranges``, in order. Each partition's pieces follow each other without a gap.

    A piece is larger than ``task_bytes_max`` only if it is a single message; there are fewer than ``task_count_min``
    only if every piece is one.

    Raises:
        OptionError: ``task_bytes_max`` makes more than ``TASK_COUNT_MAX`` tasks of it.
    """
    whole = [Piece(where, span.start, span.end) for where, span in sorted(ranges.items()) if len(span)]
    pieces = _evenly(whole, splitting, frames)
    single: set[Piece] = set()
    while wanted := _still_to_cut(pieces, splitting, single):
        found = _cut(wanted, frames)
        single |= {piece for piece, parts in found.items() if len(parts) == 1}
        pieces = [part for piece in pieces for part in found.get(piece, [piece])]
    return pieces


def _evenly(whole: list[Piece], splitting: Splitting, frames: FrameBoundaries) -> list[Piece]:
    """A first cut into parts of about the size that is wanted, with one question for each partition."""
    total, largest = sum(piece.size for piece in whole), splitting.task_bytes_max
    if largest is not None and total // largest > TASK_COUNT_MAX:
        raise OptionError(
            "maxBytesPerPartition", f"{largest} bytes cut {total} bytes into more than {TASK_COUNT_MAX} tasks"
        )
    counts = {piece: _parts(piece, total, splitting) for piece in whole}
    asked = {
        piece.where: Cuts(piece.start, [piece.start + piece.size * n // count for n in range(1, count)])
        for piece, count in counts.items()
        if count > 1
    }
    found = frames.boundaries(asked) if asked else {}
    return [part for piece in whole for part in _at(piece, found.get(piece.where, ()))]


def _parts(piece: Piece, total: int, splitting: Splitting) -> int:
    """Into how many parts a range is cut, as its part of the ``total`` bytes asks for: rounded up."""
    by_count = -(-piece.size * (splitting.task_count_min or 1) // total)
    by_bytes = -(-piece.size // (splitting.task_bytes_max or piece.size))
    return max(by_count, by_bytes)


def _at(piece: Piece, cuts: Iterable[int]) -> list[Piece]:
    marks = [piece.start, *sorted({cut for cut in cuts if piece.start < cut < piece.end}), piece.end]
    return [Piece(piece.where, start, end) for start, end in pairwise(marks)]


def _still_to_cut(pieces: list[Piece], splitting: Splitting, single: set[Piece]) -> dict[Piece, int]:
    """Pieces that are too large, and the largest ones if there are too few; with the offset to cut each at."""
    left = [piece for piece in pieces if piece not in single]
    largest = splitting.task_bytes_max
    wanted = {piece: piece.start + largest for piece in left if largest is not None and piece.size > largest}
    lacking = (splitting.task_count_min or 0) - len(pieces) - len(wanted)
    spare = sorted((piece for piece in left if piece not in wanted), key=lambda piece: (-piece.size, piece))
    return wanted | {piece: piece.start + piece.size // 2 for piece in spare[: max(0, lacking)]}


def _cut(wanted: dict[Piece, int], frames: FrameBoundaries) -> dict[Piece, list[Piece]]:
    """Each piece in two at the last boundary at or below the offset wanted, else behind its first message."""
    asked: dict[TopicPartition, list[Piece]] = {}
    for piece in sorted(wanted):
        asked.setdefault(piece.where, []).append(piece)
    questions = {where: Cuts(parts[0].start, [wanted[part] for part in parts]) for where, parts in asked.items()}
    answers = frames.boundaries(questions)
    found = {p: p.halved(at) for where, parts in asked.items() for p, at in zip(parts, answers[where], strict=True)}
    whole = {(piece.where, piece.start): piece for piece, parts in found.items() if len(parts) == 1}
    ends = frames.frame_ends(whole) if whole else {}
    return found | {piece: piece.halved(ends[place]) for place, piece in whole.items()}
