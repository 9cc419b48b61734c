"""A MetaQ partition that a consumer owns: what is fetched of it, and the frames in that. Pure.

::

    offset     position          frontier             fetched
    settled ──────┤                 │                    │
    in hand       ├─────────────────┤                    │
    buffered                        ├────────────────────┤

Bytes come in runs that may cut a frame anywhere; the front of a cut frame waits for the rest, however long the frame
is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from metaq.backends.metaq.fetch import AtEnd, Moved, Run
from metaq.backends.metaq.filtered import Filtered
from metaq.backends.metaq.polls import PartitionRequest, Polled
from metaq.backends.metaq.range_reader import FRAME_BYTES_MAX
from metaq.client.groups.deliveries import Delivery, InHand, Settler
from metaq.client.groups.owned import POLL_STEPS, Jump, Owned
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import CorruptFrame
from metaq.formats.frames import HEADER_BYTES, Frame, walk
from metaq.formats.message_id import timestamp_ms
from metaq.model import TopicPartition


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How partitions are read. ``poll_max_s``: longest pause between two requests while there is nothing new."""

    group: str
    fetch_bytes: int = 1 << 20
    poll_max_s: float = 1.0
    types: tuple[str, ...] = ()
    skip_corrupt: bool = False


class OwnedPartition(Owned[Delivery, PartitionRequest, Polled]):
    """See the module and ``Owned``. Not thread-safe."""

    def __init__(
        self,
        where: TopicPartition,
        start: GroupOffset,
        generation: int,
        settings: ReadSettings,
        saved: GroupOffset | None = None,
    ) -> None:
        super().__init__(where, start, generation, saved)
        self._settings = settings
        self._types = frozenset(settings.types)
        self._pause_s = 0.0
        self._restart(start.offset)

    def _restart(self, offset: int) -> None:
        self._fetched = offset
        self._runs: deque[Run | Filtered | Moved] = deque()
        self._parts: list[bytes] = []  # the front of a cut frame
        self._parts_at, self._parts_bytes, self._need_bytes = offset, 0, HEADER_BYTES
        self._frames: Iterator[Frame] = iter(())
        self._run: Run | Filtered | None = None
        self._asked: PartitionRequest | None = None

    # what is fetched

    def request(self, now_s: float) -> PartitionRequest | None:
        """See ``Owned``."""
        if self.lost or self.revoking or self._asked is not None or self._runs or now_s < self._not_before:
            return None
        where, settings = self.where, self._settings
        self._asked = PartitionRequest(
            where.topic, where.partition.index, self._fetched, settings.fetch_bytes, settings.group, settings.types
        )
        return self._asked

    def next_request_s(self) -> float | None:
        """See ``Owned``."""
        waits = self.lost or self.revoking or self._asked is not None or bool(self._runs)
        return None if waits else self._not_before

    def fetched(self, request: PartitionRequest, outcome: Polled | None, now_s: float) -> Jump | None:
        """See ``Owned``."""
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

    def _take_next(self, seen: Callable[[int | str], bool], settler: Settler[Delivery]) -> Delivery | None:
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

    def _hand_out(self, frame: Frame, data: bytes, attribute: str | None, settler: Settler[Delivery]) -> Delivery:
        offset, end, message_id = frame.offset, frame.end, frame.message_id
        entry = InHand(offset, end, message_id)
        topic, partition = self.where
        return Delivery(
            topic=topic,
            partition=partition,
            offset=offset,
            end=end,
            message_id=message_id,
            timestamp_ms=timestamp_ms(message_id),
            attribute=attribute,
            data=data,
            attempt=self._enter(entry),
            generation=self.generation,
            entry=entry,
            settler=settler,
        )

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
