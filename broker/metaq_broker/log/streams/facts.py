"""What identifies a stream, and what two members compare of it before one follows the other.

*Epochs* divide a stream by the master that appended. ``EpochStart(7, 4096)``: from byte 4096 on, the bytes are of the
master of epoch 7. Bytes before the first entry are of epoch 0: that stands for the epoch in which the incarnation was
created, since a master adds an entry to every stream that exists when its epoch begins. So two copies of one
incarnation have the same bytes up to the end of the last epoch that both have. Entries at or after the end have no
bytes yet; entries of epochs that ended before ``start`` are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class EpochStart(NamedTuple):
    """``start`` is the offset of the first byte that the master of ``epoch`` appended."""

    epoch: int
    start: int


Epochs = Sequence[EpochStart]
"""Epochs ascend, starts never descend. Empty: all bytes are of epoch 0."""


class StreamOrigin(NamedTuple):
    """How a copy of a stream begins: at byte ``start``, with ``ordinal`` messages before it (0 if it has none).

    ``incarnation`` is 32 hex digits; another one is another stream, whatever its name.
    """

    name: str
    incarnation: str
    start: int
    ordinal: int = 0


class StreamFacts(NamedTuple):
    """A stream at one moment.

    ``end``: everything before it is written, or durable, as the context says. ``tail``: CRC-32 of the last bytes before
    ``end``; 0 if it was not asked for.
    """

    origin: StreamOrigin
    end: int
    epochs: Epochs
    tail: int = 0
