"""Examines a segment file: which bytes are messages, which are damage, and where a torn tail begins.

A file can be wrong in two ways, which are distinguished: a torn tail costs no message, damage costs the messages that
it touches.

**A torn tail** is what a crash leaves: bytes at the end that were being written and were never acknowledged. It is cut.
**Damage** is everything else: bytes that were correct once. It is quarantined - named, kept on disk, never served - and
the messages after it stay where they are. The rules, in this order:

1. *Proven spans.* Where the index has two neighbouring entries, one CRC over the bytes between them proves all of them,
   headers included. Only spans that fail are read frame by frame. If then every body is intact, one flipped bit in
   one id or flag is searched for, and that frame is quarantined; if no single bit explains it, the span is reported.
2. *Known damage* (in the quarantine file, or marked in the index) is skipped without being read again.
3. *A frame* is valid if its length fits into the file, its body matches its checksum, and it is not an empty message
   with id 0: files that lost their data are full of zeros, and twenty zeros would otherwise be a message.
4. *After a bad frame* the next one is searched for, by the most reliable sign first:
   a. at the end given by the bad frame's own length, if frames continue there (the damage is in its body, or in its
      checksum);
   b. at the end of its body according to its own checksum, if frames continue there (the damage is in its length);
   c. if its header is plausible but the frame would end after the end of the file, and nothing is known after it, the
      tail is torn. Apparent frames further on are inside the payload of that message;
   d. at the first position after it from which valid frames continue. Candidates have an id of the same broker; if no
      index entry is after it, bytes within the length of a plausible header do not count as messages;
   e. at the next index entry.
   "Continue" means: up to exactly the next index entry, with fewer messages than the entry counts (so that frames
   inside a payload do not count as messages); without an entry, at least one valid frame with a body.
5. *Nothing after it*: everything from the bad frame on is the torn tail. But bytes below the durable end - the last
   index entry, a clean shutdown's end, all of an older segment - were acknowledged once: they are quarantined, never
   cut, so that an offset that a reader has seen is never given to another message.

One case is undecidable: damage that destroys a whole header, in the last few KiB without an index entry, of a message
that contains frames. Rule 4d then treats the contained frames as messages rather than lose acknowledged ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from metaq.formats.frames import HEADER_BYTES
from metaq.formats.message_id import timestamp_ms
from metaq.formats.native_crc import crc32_of_block
from metaq.model import OffsetRange
from metaq_broker.log.partitions.damage import Damage
from metaq_broker.log.partitions.losses import LostEnd
from metaq_broker.log.partitions.resync import Anchor, flipped_header, next_boundary
from metaq_broker.log.segments.index import SPAN_DAMAGED, IndexBuilder, IndexEntry
from metaq_broker.log.segments.segment_view import SegmentView


@dataclass(slots=True)
class Examined:
    """The result for one segment. Its messages end at ``end``; after it is a torn tail.

    ``builder`` has the segment's index entries up to ``end``. ``suspect`` are spans whose bodies are all intact but
    whose ids or flags have changed.
    """

    end: int
    builder: IndexBuilder
    damage: list[Damage] = field(default_factory=list)
    suspect: list[OffsetRange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a segment before it is read.

    ``entries`` of its old index; ``known`` damage; ``durable_end``: bytes below it are never part of a torn tail;
    ``changed_ms``: the last change of the file, so that no message in it is later.
    """

    entries: Sequence[IndexEntry]
    known: Sequence[Damage]
    durable_end: int
    changed_ms: int


def examine(view: SegmentView, builder: IndexBuilder, evidence: Evidence) -> Examined:
    """Examine one segment; ``builder`` is at its start and makes its new index."""
    examination = _Examination(view, builder, evidence)
    examination.run()
    return examination.verdict


class _Examination:
    def __init__(self, view: SegmentView, builder: IndexBuilder, evidence: Evidence) -> None:
        self._view = view
        self._builder = builder
        self._entries = [entry for entry in evidence.entries if view.start <= entry.offset <= view.end]
        self._offsets = [entry.offset for entry in self._entries]
        self._known = {damage.start: damage for damage in evidence.known if damage.end <= view.end}
        self._durable_end = min(evidence.durable_end, view.end)
        self._changed_ms = evidence.changed_ms
        self._ordinal_shift: int | None = None  # ordinals now minus ordinals of the old entries
        self._intact_at: int | None = None  # start of an intact frame
        self.verdict = Examined(view.end, builder)

    def run(self) -> None:
        builder, end = self._builder, self._view.end
        while builder.offset < end:
            here, behind = self._neighbours(builder.offset)
            if here is not None:
                builder.mark()
                self._ordinal_shift = builder.ordinal - here.ordinal
            if (known := self._known.get(builder.offset)) is not None:
                self._quarantine(known)
            elif here is None or behind is None or not self._leap(here, behind):
                arrived = self._walk(behind.offset if behind else end)
                if not arrived and not self._pass_damage():
                    break
        self.verdict.end = builder.offset

    def _neighbours(self, offset: int) -> tuple[IndexEntry | None, IndexEntry | None]:
        """Return the old entry exactly at ``offset``, and the next one."""
        place = bisect_right(self._offsets, offset)
        here = self._entries[place - 1] if place and self._offsets[place - 1] == offset else None
        return here, self._entries[place] if place < len(self._entries) else None

    def _leap(self, here: IndexEntry, behind: IndexEntry) -> bool:
        """Skip the span between two entries if its checksum proves it."""
        span = self._view.read(here.offset, behind.offset - here.offset)
        count = behind.ordinal - here.ordinal
        if crc32_of_block(span) == behind.span:
            self._builder.leap(len(span), count, behind.time_ms, behind.span)
            self._intact_at = here.offset
            return True
        if behind.span == SPAN_DAMAGED:
            self._quarantine(Damage(here.offset, behind.offset, count, "the index says that it is damaged"))
            return True
        if self._bodies_intact(here.offset, behind.offset, count):
            self._blame_header(span, here.offset, behind)
        return False

    def _bodies_intact(self, start: int, end: int, count: int) -> bool:
        reached, found = start, 0
        for frame in self._view.frames(start):
            reached, found = frame.end, found + 1
            if reached >= end:
                break
        return reached == end and found == count

    def _blame_header(self, span: bytes, start: int, behind: IndexEntry) -> None:
        frame = flipped_header(span, behind.span)
        if frame is None:
            self.verdict.suspect.append(OffsetRange(start, behind.offset))
            return
        reason = "a bit of its message id or flag has changed"
        self._known[start + frame[0]] = Damage(start + frame[0], start + frame[1], 1, reason)

    def _walk(self, stop: int) -> bool:
        """Process valid frames up to ``stop`` or known damage; return ``False`` if a bad frame comes first."""
        builder = self._builder
        stop = min([stop, *(start for start in self._known if start >= builder.offset)])
        while builder.offset < stop:
            run = self._view.run(builder.offset, stop, builder.free_bytes)
            if run is None:
                return False
            self._intact_at = builder.offset
            builder.advance(run.data, len(run.message_ids), self._latest_ms(run.message_ids))
            if builder.free_bytes <= 0:
                builder.mark()
        return True

    def _latest_ms(self, message_ids: Sequence[int]) -> int:
        latest = timestamp_ms(max(message_ids))
        if latest is None or min(message_ids) < 0:
            return max(self._changed_ms, latest or 0)
        return latest

    def _pass_damage(self) -> bool:
        """Quarantine the damage here, up to where messages continue; return ``False`` if this is the torn tail."""
        start = self._builder.offset
        anchor = self._anchor(start)
        end = next_boundary(self._view, start, self._reference_id(), anchor)
        if end is None:
            if start >= self._durable_end:
                return False
            end = self._durable_end
        self._quarantine(Damage(start, end, self._messages_lost(end, anchor), _reason(self._view, start)))
        return True

    def _anchor(self, offset: int) -> Anchor | None:
        """Return the first old entry after ``offset`` that is still a frame boundary."""
        for entry in self._entries[bisect_right(self._offsets, offset) :]:
            if entry.offset == self._view.end or self._view.valid_at(entry.offset):
                if self._ordinal_shift is None:
                    return Anchor(entry.offset, (entry.offset - offset) // HEADER_BYTES + 1)
                return Anchor(entry.offset, entry.ordinal + self._ordinal_shift - self._builder.ordinal)
        return None

    def _reference_id(self) -> int | None:
        header = None if self._intact_at is None else self._view.header(self._intact_at)
        return None if header is None else header.message_id

    def _messages_lost(self, end: int, anchor: Anchor | None) -> int:
        """Return the number of messages in the damage up to ``end``: at least one; exact if entries show it."""
        if anchor is None or self._ordinal_shift is None:
            return 1
        reached, count = end, 0
        for frame in self._view.frames(end):
            if reached >= anchor.offset:
                break
            reached, count = frame.end, count + 1
        return max(1, anchor.messages - count) if reached == anchor.offset else 1

    def _quarantine(self, damage: Damage) -> None:
        self._builder.skip(damage.end - damage.start, damage.messages)
        self.verdict.damage.append(damage)


def _reason(view: SegmentView, offset: int) -> str:
    header = view.header(offset)
    if header is None:
        return "fewer bytes than a header"
    if not header.length and not header.message_id:
        return "zeros where a header belongs"
    end = offset + header.frame_bytes
    if header.length < 0 or end > view.end:
        return f"a body length of {header.length} that does not fit into the segment"
    return "the checksum in its header does not match its body"


@dataclass(slots=True)
class RecoveryReport:
    """``bytes_cut`` bytes of a torn tail were cut at offset ``cut_at``; ``damage`` was found now (not known before).

    ``suspect``: spans whose bodies are intact but whose ids or flags have changed. ``indexes_rebuilt``: starts of
    segments whose index was missing or wrong. ``removed``: files of segments that never had an acknowledged message.
    ``missing_bytes``: durable bytes that are missing at the end; ``lost`` says which. ``incarnation_fault``: why the
    partition's incarnation could not be read, so that it got another one. ``renumbered``: the number of the oldest
    message, if all indexes were lost.
    """

    bytes_cut: int = 0
    cut_at: int | None = None
    damage: list[Damage] = field(default_factory=list)
    suspect: list[OffsetRange] = field(default_factory=list)
    indexes_rebuilt: list[int] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    missing_bytes: int = 0
    lost: LostEnd | None = None
    incarnation_fault: str | None = None
    renumbered: int | None = None

    @property
    def bytes_quarantined(self) -> int:
        """Bytes newly found damaged."""
        return sum(len(entry.range) for entry in self.damage)

    def warnings(self) -> Iterator[str]:
        """Yield one sentence for each finding that an operator should know."""
        if self.bytes_cut:
            yield f"torn tail of {self.bytes_cut} bytes cut at offset {self.cut_at}"
        if self.missing_bytes:
            yield f"{self.missing_bytes} bytes that were durable are gone from the end of the partition"
        yield from (f"damaged bytes quarantined: {entry}" for entry in self.damage)
        for span in self.suspect:
            yield f"message ids or flags changed in [{span.start}, {span.end}); bodies are intact"
        if self.incarnation_fault is not None:
            consequence = "it got a new one, and readers that know the old one take it for another partition"
            yield f"the partition's incarnation cannot be read ({self.incarnation_fault}); {consequence}"
        if self.renumbered is not None:
            cause = "the indexes are lost, and nothing tells how many messages came before the oldest one"
            yield f"{cause}; the queue is renumbered from {self.renumbered} on, and its readers begin at its start"
        yield from (f"removed unfinished segment {name}" for name in self.removed)
