"""What a unit of several blocks consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metaq.model import Buffer


class Piece(NamedTuple):
    """A part of a unit: ``messages`` whole frames, and ``marks`` as ``PartitionLog.append_block`` takes them."""

    block: Buffer
    messages: int
    marks: Sequence[tuple[int, int]]
