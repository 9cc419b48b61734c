"""Implements ``source.backend.LastMessages``: a message is identified by the head of its frame, without the flag.

The head has the length, so it also determines where the message begins. A broker with the extension looks that offset
up, unless the batch's limit has found it. With a Java broker the bytes before the offset are searched for a frame that
ends there and matches its checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from metaq.backends.metaq.fetch import GROUP, Run, read_outcome
from metaq.backends.metaq.session import Session, call_all
from metaq.errors import BrokerError
from metaq.formats.frames import HEADER_BYTES, frame_bytes, intact, message_id_at
from metaq.formats.message_id import timestamp_ms
from metaq.model import TopicPartition
from metaq.protocols.text.commands import Get
from metaq.protocols.text.extensions import EXT_BOUNDARY
from metaq_spark.backends.metaq.ordinals import numbers
from metaq_spark.backends.metaq.positions import AskEach
from metaq_spark.offsets import Ranges

SEARCHED_BYTES: Final = 64 << 10
"""Bytes that are searched before an offset for the message that ends there; a longer one is not found."""

HEAD_BYTES: Final = 16
"""Length, checksum and id, without the flag."""


class FrameHeads:
    """Implements ``LastMessages``. ``ask_each`` is ``Cluster.ask_each``, with its errors.

    ``last_start`` returns where the message before an offset begins, if that is known.
    """

    def __init__(self, ask_each: AskEach, last_start: Callable[[TopicPartition, int], int | None]) -> None:
        self._ask_each, self._last_start = ask_each, last_start

    def before(self, spans: Ranges) -> dict[TopicPartition, str]:
        known = {where: self._last_start(where, span.end) for where, span in spans.items()}
        return self._ask_each(spans, partial(_before, spans, known))

    def differing(self, asked: Mapping[TopicPartition, tuple[int, str]]) -> set[TopicPartition]:
        same = self._ask_each(asked, partial(_same, asked))
        return {where for where, is_same in same.items() if not is_same}

    def stored_ms(self, message: str) -> int | None:
        """Return the time in the message's id; a Java broker's has none."""
        return timestamp_ms(message_id_at(bytes.fromhex(message)))


def _before(
    spans: Ranges, known: Mapping[TopicPartition, int | None], session: Session, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, str]:
    if EXT_BOUNDARY not in session.extensions:
        return dict(_searched(spans, session, partitions))
    starts = {where: at for where in partitions if (at := known[where]) is not None}
    others = [where for where in partitions if where not in starts]
    found = numbers(session, [(where, "boundary", spans[where].end - 1) for where in others])
    starts |= zip(others, found, strict=True)
    heads = _heads(session, starts).items()
    return {where: head.hex() for where, head in heads if starts[where] + _frame_bytes(head) == spans[where].end}


def _same(
    asked: Mapping[TopicPartition, tuple[int, str]], session: Session, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, bool]:
    known = {where: (asked[where][0], bytes.fromhex(asked[where][1])) for where in partitions}
    starts = {where: offset - _frame_bytes(head) for where, (offset, head) in known.items()}
    heads = _heads(session, {where: start for where, start in starts.items() if start >= 0})
    return {where: starts[where] >= 0 and heads.get(where, head) == head for where, (_, head) in known.items()}


def _heads(session: Session, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, bytes]:
    """Return the bytes at each offset where a head is expected."""
    gets = {where: Get(where.topic, GROUP, where.partition.index, at, HEADER_BYTES, 0) for where, at in starts.items()}
    found = {}
    for (where, get), reply in zip(gets.items(), call_all(session, list(gets.values())), strict=True):
        try:
            outcome = read_outcome(session, get, reply)
        except BrokerError:
            continue
        if isinstance(outcome, Run) and len(outcome.data) == HEADER_BYTES:
            found[where] = bytes(outcome.data[:HEAD_BYTES])
    return found


def _searched(
    spans: Ranges, session: Session, partitions: Sequence[TopicPartition]
) -> Iterator[tuple[TopicPartition, str]]:
    gets = []
    for where in partitions:
        start = max(spans[where].start, spans[where].end - SEARCHED_BYTES)
        gets.append(Get(where.topic, GROUP, where.partition.index, start, spans[where].end - start, 0))
    for where, get, reply in zip(partitions, gets, call_all(session, gets), strict=True):
        outcome = read_outcome(session, get, reply)
        if isinstance(outcome, Run) and outcome.end == spans[where].end:
            head = _last_head(outcome.data)
            if head is not None:
                yield where, head.hex()


def _last_head(data: bytes) -> bytes | None:
    """Return the head of the frame that ends with ``data`` and matches its checksum."""
    size = len(data)
    for at in range(size - HEADER_BYTES, -1, -1):
        if frame_bytes(data, at) == size - at and next(intact(data, at), None) is not None:
            return data[at : at + HEAD_BYTES]
    return None


def _frame_bytes(head: bytes) -> int:
    return max(HEADER_BYTES, frame_bytes(head))
