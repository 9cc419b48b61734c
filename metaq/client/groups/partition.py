"""The state of one partition that a consumer owns: what is fetched, what is handed out, how far it is settled. Pure.

::

    offset     position          frontier             fetched
    settled ──────┤                 │                    │
    in hand       ├─────────────────┤                    │
    buffered                        ├────────────────────┤

``position`` is what is saved: every message before it is settled. Bytes come in runs that may cut a frame anywhere; the
front of a cut frame waits for the rest, however long the frame is. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from metaq.backends.metaq.fetch import AtEnd, Moved, Run
from metaq.backends.metaq.filtered import Filtered
from metaq.backends.metaq.polls import PartitionRequest, Polled
from metaq.backends.metaq.range_reader import FRAME_BYTES_MAX
from metaq.client.groups.deliveries import Delivery, InHand, Settler
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import CorruptFrame
from metaq.formats.frames import HEADER_BYTES, Frame, walk
from metaq.formats.message_id import timestamp_ms
from metaq.model import TopicPartition

POLL_STEPS: Final = 10
"""Pauses grow by tenths of the longest one, between requests and between attempts. Source: MetaQ's Java client."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How partitions are read. ``poll_max_s``: longest pause between two requests while there is nothing new."""

    group: str
    fetch_bytes: int = 1 << 20
    poll_max_s: float = 1.0
    types: tuple[str, ...] = ()
    skip_corrupt: bool = False


@dataclass(frozen=True, slots=True)
class Jump:
    """The broker had nothing at ``asked`` any more and said to go on at ``to``."""

    where: TopicPartition
    asked: int
    to: int


class OwnedPartition:
    """See the module. ``saved`` is what the offset storage has, ``None`` if it has nothing. Not thread-safe."""

    def __init__(
        self,
        where: TopicPartition,
        start: GroupOffset,
        generation: int,
        settings: ReadSettings,
        saved: GroupOffset | None = None,
    ) -> None:
        self.where, self.generation, self.saved = where, generation, saved
        self.revoking = False
        """No more messages are handed out, those in hand may still be settled."""
        self.lost = False
        """Nothing is settled or saved any more."""
        self.busy = False
        """A worker has it; another one leaves it alone."""
        self._settings = settings
        self._types = frozenset(settings.types)
        self._last_id = start.message_id
        self._failed: tuple[int, int] = (-1, 0)  # offset of a message that was refused, and how often
        self._again: tuple[Delivery, float] | None = None
        self._in_hand: deque[InHand] = deque()
        self._not_before = self._pause_s = 0.0
        self._seek(start.offset)

    def _seek(self, offset: int) -> None:
        self._frontier = self._fetched = offset
        self._runs: deque[Run | Filtered | Moved] = deque()
        self._parts: list[bytes] = []  # the front of a cut frame
        self._parts_at, self._parts_bytes, self._need_bytes = offset, 0, HEADER_BYTES
        self._frames: Iterator[Frame] = iter(())
        self._run: Run | Filtered | None = None
        self._asked: PartitionRequest | None = None

    # what is fetched

    def request(self, now_s: float) -> PartitionRequest | None:
        """Return the next request, ``None`` if there is none now: one is under way, or enough is buffered."""
        if self.lost or self.revoking or self._asked is not None or self._runs or now_s < self._not_before:
            return None
        where, settings = self.where, self._settings
        self._asked = PartitionRequest(
            where.topic, where.partition.index, self._fetched, settings.fetch_bytes, settings.group, settings.types
        )
        return self._asked

    def next_request_s(self) -> float | None:
        """Return when ``request`` is worth asking, ``None`` if something else has to happen first."""
        waits = self.lost or self.revoking or self._asked is not None or bool(self._runs)
        return None if waits else self._not_before

    def fetched(self, request: PartitionRequest, outcome: Polled | None, now_s: float) -> Jump | None:
        """Take what came of ``request``; ``None`` if its broker could not be asked."""
        if request is not self._asked:
            return None  # rolled back since
        self._asked = None
        match outcome:
            case Run() | Filtered():
                self._runs.append(outcome)
                self._fetched = outcome.end if isinstance(outcome, Run) else outcome.next_offset
                self._pause_s = 0.0
            case Moved(offset) if offset != request.offset:
                self._runs.append(outcome)  # what was fetched before comes first
                self._fetched = offset
                return Jump(self.where, request.offset, offset)
            case CorruptFrame() | Moved() | AtEnd() | _:
                self._pause_s = min(self._settings.poll_max_s, self._pause_s + self._settings.poll_max_s / POLL_STEPS)
                self._not_before = now_s + self._pause_s
        return None

    # what is handed out

    def take(self, now_s: float, seen: Callable[[int], bool], settler: Settler) -> Delivery | None:
        """Hand out the next message; ``None`` if there is none now. ``seen``: leave out a message with this id.

        Raises:
            CorruptFrame: The next frame is damaged, and damaged frames are not to be skipped.
        """
        if self.lost or self.revoking:
            return None
        if self._again is not None:
            return self._take_again(now_s)
        while (frame := self._next_frame()) is not None:
            try:
                message = frame.message if frame.flag else None
            except CorruptFrame as error:
                self._skip_corrupt(error)
                continue
            attribute = message.attribute if message is not None else None
            if (self._types and attribute not in self._types) or seen(frame.message_id):
                self._frontier = frame.end
                continue
            return self._hand_out(frame, frame.body if message is None else message.payload, attribute, settler)
        return None

    def _hand_out(self, frame: Frame, data: bytes, attribute: str | None, settler: Settler) -> Delivery:
        offset, end = frame.offset, frame.end
        entry = InHand(offset, end, frame.message_id)
        self._in_hand.append(entry)
        self._frontier = end
        failed_at, failures = self._failed
        return Delivery(
            topic=self.where.topic,
            partition=self.where.partition,
            offset=offset,
            end=end,
            message_id=frame.message_id,
            timestamp_ms=timestamp_ms(frame.message_id),
            attribute=attribute,
            data=data,
            attempt=failures + 1 if failed_at == offset else 1,
            generation=self.generation,
            entry=entry,
            settler=settler,
        )

    def _take_again(self, now_s: float) -> Delivery | None:
        assert self._again is not None
        delivery, due_s = self._again
        if now_s < due_s:
            return None
        self._again = None
        return delivery

    def _next_frame(self) -> Frame | None:
        while True:
            try:
                frame = next(self._frames, None)
            except CorruptFrame as error:
                self._skip_corrupt(error)
                continue
            if frame is not None:
                return frame
            self._end_run()
            if not self._runs:
                return None
            self._begin_run(self._runs.popleft())

    def _begin_run(self, run: Run | Filtered | Moved) -> None:
        self._run = None
        if isinstance(run, Moved):
            self._frontier = run.offset
            self._parts, self._parts_bytes, self._need_bytes = [], 0, HEADER_BYTES
            return
        if isinstance(run, Filtered):
            self._run, self._frames = run, iter(run.frames)
            return
        if not self._parts:
            self._parts_at = run.offset
        self._parts.append(run.data)
        self._parts_bytes += len(run.data)
        if self._parts_bytes < HEADER_BYTES or self._parts_bytes < self._need_bytes:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._walk(Run(self._parts_at, data))

    def _walk(self, run: Run) -> None:
        self._parts, self._parts_bytes, self._need_bytes = [], 0, HEADER_BYTES
        self._run, self._frames = run, walk(run.data, run.offset, where=str(self.where))

    def _end_run(self) -> None:
        run, self._run = self._run, None
        self._frames = iter(())
        if isinstance(run, Filtered):
            self._frontier = run.next_offset
        elif run is not None and (rest := run.data[self._frontier - run.offset :]):
            self._parts, self._parts_bytes, self._parts_at = [rest], len(rest), self._frontier
            if len(rest) >= HEADER_BYTES:
                self._need_bytes = HEADER_BYTES + self._length(rest)

    def _length(self, frame: bytes) -> int:
        length = int.from_bytes(frame[:4], signed=True)
        if not 0 <= length <= FRAME_BYTES_MAX:
            raise CorruptFrame(str(self.where), self._frontier, f"body length {length}, expected 0..{FRAME_BYTES_MAX}")
        return length

    def _skip_corrupt(self, error: CorruptFrame) -> None:
        """Go on behind a damaged frame, if that is wanted and its length leads there."""
        run = self._run
        assert isinstance(run, Run)
        rest = run.data[error.offset - run.offset :]
        if not self._settings.skip_corrupt:
            self._walk(Run(error.offset, rest))  # the next look finds it again
            self._frontier = error.offset
            raise error
        self._frontier = error.offset + HEADER_BYTES + self._length(rest)
        self._walk(Run(self._frontier, run.data[self._frontier - run.offset :]))

    # how far it is settled

    @property
    def position(self) -> GroupOffset:
        """Every message before this offset is settled; the id is that of the last one."""
        return GroupOffset(self._in_hand[0].offset if self._in_hand else self._frontier, self._last_id)

    @property
    def in_hand(self) -> int:
        """Messages that were handed out and are not settled."""
        return len(self._in_hand)

    def settle(self, entry: InHand) -> bool:
        """Settle a message; return whether that counts: not after its partition was lost or it was rolled back."""
        if self.lost or entry.dropped:
            return False
        entry.settled = True
        in_hand = self._in_hand
        while in_hand and in_hand[0].settled:
            self._last_id = in_hand.popleft().message_id
        return True

    @property
    def retry_s(self) -> float | None:
        """When a refused message is handed out again; ``None`` if there is none."""
        return None if self._again is None else self._again[1]

    def retry(self, delivery: Delivery, again: Delivery, due_s: float) -> bool:
        """Hand ``again`` out from ``due_s`` on, before anything else of the partition; return as ``settle``."""
        if self.lost or delivery.entry.dropped:
            return False
        self._again = again, due_s
        return True

    def roll_back(self, now_s: float, pause_s: Callable[[int], float]) -> int:
        """Drop what is in hand; it is fetched and handed out again. Return how many messages that are.

        Only the first of them counts as refused: nobody can say which one was meant. ``pause_s``: how long to wait
        after so many refusals.
        """
        if not self._in_hand:
            return 0
        count, first = len(self._in_hand), self._in_hand[0].offset
        for entry in self._in_hand:
            entry.dropped = True
        self._in_hand.clear()
        self._again = None
        failures = 1 + (self._failed[1] if self._failed[0] == first else 0)
        self._failed = first, failures
        self._seek(first)
        self._not_before = now_s + pause_s(failures)
        return count

    def seek(self, offset: int) -> None:
        """Go on at ``offset``; what is in hand will not be settled any more."""
        for entry in self._in_hand:
            entry.dropped = True
        self._in_hand.clear()
        self._again = None
        self._seek(offset)
        self._not_before = 0.0
