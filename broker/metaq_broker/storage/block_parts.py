"""What a unit of several blocks consists of."""

from __future__ import annotations

from typing import NamedTuple

from metaq.model import Buffer
from metaq_broker.storage.marks import Marks


class BlockPart(NamedTuple):
    """A part of a unit: ``messages`` whole frames, and where some of them begin."""

    block: Buffer
    messages: int
    marks: Marks
