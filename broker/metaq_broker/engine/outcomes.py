"""What the engine answers: values that every frontend turns into its own replies. Expected outcomes, never exceptions.

``code`` is MetaQ's status (HTTP numbers); texts are MetaQ's own wherever it has one. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

OK, MOVED, BAD_REQUEST, FORBIDDEN, NOT_FOUND, FAILED, UNAVAILABLE = 200, 301, 400, 403, 404, 500, 503


class Refused(NamedTuple):
    """A request that was not carried out: status code and the text for the client."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Appended:
    """Messages that are written, not yet durable: one id and one byte offset each, all in partition ``index``.

    ``log_end`` is the partition's end behind them: they are acknowledged when that is durable. ``rejected`` maps
    positions in the request to refusals; ids and offsets exist for the other positions only.
    """

    index: int
    message_ids: Sequence[int]
    offsets: Sequence[int]
    log_end: int
    rejected: Mapping[int, Refused]


@dataclass(frozen=True, slots=True)
class BlockAppended:
    """One block of frames that is written, not yet durable: its first id and first offset, and the end behind it."""

    index: int
    first_id: int
    first_offset: int
    log_end: int
