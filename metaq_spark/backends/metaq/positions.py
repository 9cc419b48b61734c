"""Implements ``source.backend.Positions`` by asking the brokers: one pipelined conversation with each.

A broker with the extensions looks everything up in its indexes. With a Java broker, frame headers are walked from a
known boundary up to the requested offset. Small frames are read in bulk, in growing windows; after a large body only
the next header is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from metaq.backends.metaq.boundaries import frame_boundary
from metaq.backends.metaq.fetch import GROUP, Moved, Run, fetch, read_outcome
from metaq.backends.metaq.session import Session, call_all
from metaq.errors import DataMissing, ExtensionMissing
from metaq.formats.frames import HEADER_BYTES, frame_bytes, pass_whole, require_length
from metaq.model import OffsetRange, TopicPartition
from metaq.protocols.text.commands import Get, Reply
from metaq.protocols.text.extensions import EXT_BOUNDARY, EXT_ORDINAL, EXT_TIMESTAMP
from metaq_spark.backends.metaq.ordinals import CountedEnd, Question, counted_ends, numbers
from metaq_spark.offsets import Ranges
from metaq_spark.source.backend import Cuts, MessageStart, SkipAhead, Skipped

T = TypeVar("T")


class AskEach(Protocol):
    """Calls a function for each broker of some partitions."""

    def __call__(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Session, list[TopicPartition]], dict[TopicPartition, T]],
    ) -> dict[TopicPartition, T]:
        """Return the results of ``ask``, called once per broker with its partitions among ``partitions``."""


class FrameLookup:
    """Implements ``Positions``. ``ask_each`` is ``Cluster.ask_each``, with its errors.

    ``connections`` counts them: behind a new one may be another broker, which numbers its messages differently.
    """

    offsets_per_message_min = HEADER_BYTES

    def __init__(self, ask_each: AskEach, connections: Callable[[], int]) -> None:
        self._ask_each, self._connections = ask_each, connections
        self._known_at, self._ends = 0, dict[TopicPartition, CountedEnd]()

    def bytes_per_offset(self, ranges: Ranges) -> dict[TopicPartition, float]:
        """Return 1 for each: an offset is a byte."""
        return dict.fromkeys(ranges, 1)

    def boundaries(self, asked: Mapping[TopicPartition, Cuts]) -> dict[TopicPartition, list[int]]:
        return self._ask_each(asked, partial(_boundaries, asked))

    def message_ends(self, starts: Collection[MessageStart]) -> dict[MessageStart, int]:
        """Return the end of the message at each start.

        Raises:
            DataMissing: No frame is at one of the starts.
        """
        offsets: dict[TopicPartition, list[int]] = {}
        for where, offset in starts:
            offsets.setdefault(where, []).append(offset)
        found = self._ask_each(offsets, partial(_frame_ends, offsets))
        return {(where, at): end for where in found for at, end in zip(offsets[where], found[where], strict=True)}

    def skip(self, asked: Mapping[TopicPartition, SkipAhead]) -> dict[TopicPartition, Skipped]:
        return self._ask_each(asked, partial(self._skip, asked))

    def last_start(self, where: TopicPartition, end: int) -> int | None:
        """Return where the message before ``end`` begins, if the last ``skip`` has found it."""
        known = self._ends.get(where)
        return known.last if known is not None and known.offset == end else None

    def _skip(
        self, asked: Mapping[TopicPartition, SkipAhead], session: Session, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Skipped]:
        asked = {where: asked[where] for where in partitions}
        if EXT_ORDINAL not in session.extensions:
            return {at: skip_messages(session, at.topic, at.partition.index, *skip) for at, skip in asked.items()}
        if (connections := self._connections()) != self._known_at:
            self._known_at, self._ends = connections, {}
        found = {}
        for where, (end, count) in counted_ends(session, asked, self._ends).items():
            span, at = asked[where].span, end.offset
            if span.start < at <= span.end:
                self._ends[where] = end
            else:
                self._ends.pop(where, None)
            if at <= span.start:  # after the damaged bytes that hide messages
                at = _frame_ends({where: [span.start]}, session, [where])[where][0]
            found[where] = Skipped(min(at, span.end), max(1, count))
        return found

    def first_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offset of the first message at or after each time (since 1970), else the readable end.

        Raises:
            ExtensionMissing: A broker stores no times (a Java broker).
        """
        return self._ask_each(times_ms, partial(_first_at, times_ms))


def _boundaries(
    asked: Mapping[TopicPartition, Cuts], session: Session, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, list[int]]:
    if EXT_BOUNDARY not in session.extensions:
        return {where: list(_walked(session, where, asked[where])) for where in partitions}
    questions: list[Question] = [(where, "boundary", at) for where in partitions for at in asked[where].offsets]
    found: dict[TopicPartition, list[int]] = {where: [] for where in partitions}
    for (where, _, _), answer in zip(questions, numbers(session, questions), strict=True):
        found[where].append(max(answer, asked[where].floor))
    return found


def _walked(session: Session, where: TopicPartition, cuts: Cuts) -> Iterable[int]:
    at = cuts.floor
    for offset in cuts.offsets:
        if offset > at:
            at = frame_boundary(session, where.topic, where.partition.index, offset, at)
        yield at


def _frame_ends(
    offsets: Mapping[TopicPartition, Sequence[int]], session: Session, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, list[int]]:
    gets = [
        (where, Get(where.topic, GROUP, where.partition.index, offset, HEADER_BYTES, 0))
        for where in partitions
        for offset in offsets[where]
    ]
    found: dict[TopicPartition, list[int]] = {where: [] for where in partitions}
    replies = call_all(session, [get for _, get in gets])
    for (where, get), reply in zip(gets, replies, strict=True):
        found[where].append(_frame_end(session, where, get, reply))
    return found


def _frame_end(session: Session, where: TopicPartition, get: Get, reply: Reply) -> int:
    outcome = read_outcome(session, get, reply)
    if isinstance(outcome, Moved) and outcome.offset > get.offset:  # removed or damaged: continue there
        return outcome.offset
    if not isinstance(outcome, Run) or len(outcome.data) < HEADER_BYTES:
        raise DataMissing(str(where), get.offset, get.offset + HEADER_BYTES, "no frame there")
    return get.offset + max(HEADER_BYTES, frame_bytes(outcome.data))


def _first_at(
    times_ms: Mapping[TopicPartition, int], session: Session, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    if EXT_TIMESTAMP not in session.extensions:
        raise ExtensionMissing(session.address, EXT_TIMESTAMP, "starting or ending at a time")
    answers = numbers(session, [(where, "timestamp", times_ms[where]) for where in partitions])
    return dict(zip(partitions, answers, strict=True))


_WINDOW_BYTES_START: Final = 16 << 10
_WINDOW_BYTES_MAX: Final = 1 << 20
_WINDOW_FACTOR: Final = 4
_LARGE_MESSAGE_BYTES: Final = 64 << 10


def skip_messages(session: Session, topic: str, partition_index: int, span: OffsetRange, count: int) -> Skipped:
    """The boundary after up to ``count`` (>= 1) messages from the start of the non-empty ``span``; see ``SkipAhead``.

    Raises:
        CorruptFrame: The walk met a negative length.
        BrokerError: The broker refused.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    at, counted, window_bytes = span.start, 0, _WINDOW_BYTES_START
    while at < span.end and counted < count:
        outcome = fetch(session, topic, partition_index, at, window_bytes)
        if isinstance(outcome, Moved) and outcome.offset > at:  # deleted meanwhile
            at, counted = outcome.offset, counted + (at == span.start)
            continue
        if not isinstance(outcome, Run) or len(outcome.data) < HEADER_BYTES:
            break  # the log ends early: the task reports what is missing
        passed_bytes, passed = pass_whole(outcome.data, 0, span.end - at, count - counted)
        require_length(outcome.data, passed_bytes, at, f"{topic} partition {partition_index}")
        if not passed:
            break  # a message that extends beyond the end
        at, counted = at + passed_bytes, counted + passed
        window_bytes = _next_window(window_bytes, passed_bytes // passed)
    return Skipped(min(at, span.end) if at > span.start else span.end, max(1, counted))


def _next_window(window_bytes: int, message_bytes: int) -> int:
    if message_bytes >= _LARGE_MESSAGE_BYTES:
        return HEADER_BYTES
    return min(_WINDOW_BYTES_MAX, max(_WINDOW_BYTES_START, window_bytes * _WINDOW_FACTOR))
