"""Fetched and not yet decoded data of a partition: runs of bytes of any size. Pure.

A run may end inside a frame; the first part of such a frame waits for the rest, however long the frame is. The frame is
then decoded alone, followed by the rest of the run that completed it: no whole run is copied for one frame. Damage is
detected again on each call, unless damaged messages are skipped.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from metaq.backends.metaq.fetch import Moved, Run
from metaq.backends.metaq.filtered import Filtered
from metaq.backends.metaq.range_reader import FRAME_BYTES_MAX
from metaq.client.groups.deliveries import Delivery, ReadEpoch, deliveries_in, delivery_of
from metaq.client.groups.owned import Chunk
from metaq.errors import CodecMissing, CorruptFrame
from metaq.formats.frames import HEADER_BYTES, Frame, frame_bytes, walk

CHUNK_MESSAGES: Final = 500
"""Messages that are decoded at a time, so that the first of a large run does not wait for all of them. The objects are
created and freed in numbers that do not trigger Python's garbage collector (700 by default).
"""


class FetchedRuns:
    """The buffered runs of a partition. Not thread-safe."""

    def __init__(self, offset: int, *, skip_corrupt: bool) -> None:
        self._skip_corrupt = skip_corrupt
        self._waiting: deque[Run | Filtered | Moved] = deque()
        self._data, self._at, self._data_offset = b"", 0, offset  # the run being decoded, from byte ``_at`` on
        self._parts: list[bytes] = []  # data after a cut frame, until the frame is complete
        self._need_bytes = 0  # bytes missing there
        # the run that has completed a cut frame, and where the frame ends in it
        self._behind: tuple[bytes, int] | None = None
        self._frames: deque[Frame] = deque()  # of a filtered result, which ends where the run begins

    @property
    def is_waiting(self) -> bool:
        """Whether further runs wait after the one being decoded."""
        return bool(self._waiting)

    def add(self, fetched: Run | Filtered | Moved) -> None:
        self._waiting.append(fetched)

    def decode(self, epoch: ReadEpoch) -> Chunk[Delivery] | None:
        """Return the next messages; ``None`` if none is complete.

        Raises:
            CorruptFrame: The next message is damaged.
            CodecMissing: It is compressed, and the package for that is not installed. It is not skipped.
        """
        while True:
            chunk = self._decode_frames(epoch) if self._frames else self._decode_run(epoch)
            if chunk is not None:
                return chunk
            if self._behind is not None:
                self._go_on(*self._behind)
            elif not self._waiting:
                return None
            elif (jump := self._begin(self._waiting.popleft())) is not None:
                return jump

    def _begin(self, fetched: Run | Filtered | Moved) -> Chunk[Delivery] | None:
        """Begin to decode fetched data; return messages that need no decoding."""
        match fetched:
            case Run(_, data):
                self._append(data)
            case Filtered(frames, next_offset):
                self._frames.extend(frames)
                self._restart(next_offset)
                return None if frames else Chunk([], next_offset)
            case Moved(offset):
                self._restart(offset)
                return Chunk([], offset)
        return None

    def _restart(self, offset: int) -> None:
        self._data, self._at, self._data_offset, self._parts, self._need_bytes = b"", 0, offset, [], 0
        self._behind = None

    def _append(self, data: bytes) -> None:
        """Append a run to the undecoded rest, which is a part of a frame, if anything."""
        if self._at:
            self._data_offset += self._at
            self._data, self._at = self._data[self._at :], 0
        if not self._data:
            self._data = data
            return
        if 0 < self._need_bytes < len(data):
            self._behind, data = (data, self._need_bytes), data[: self._need_bytes]
        self._parts.append(data)
        self._need_bytes -= len(data)
        if self._need_bytes <= 0:
            self._data = b"".join((self._data, *self._parts))
            self._parts = []

    def _go_on(self, data: bytes, at: int) -> None:
        """Continue to decode a run at byte ``at``, after a finished frame."""
        self._data_offset += len(self._data) - at
        self._data, self._at, self._behind = data, at, None

    def _decode_run(self, epoch: ReadEpoch) -> Chunk[Delivery] | None:
        while len(self._data) - self._at >= HEADER_BYTES and not self._parts:
            messages, end = deliveries_in(self._data, self._at, self._data_offset, CHUNK_MESSAGES, epoch)
            if messages:
                self._at = end
                return Chunk(messages, self._data_offset + end)
            if not self._pass_damaged(epoch):
                break
        return None

    def _pass_damaged(self, epoch: ReadEpoch) -> bool:
        """Skip the damaged frame at the current position, or raise its error; return ``False`` if it is only cut."""
        offset, where = self._data_offset + self._at, str(epoch.where)
        size = frame_bytes(self._data, self._at)
        if not 0 <= size - HEADER_BYTES <= FRAME_BYTES_MAX:
            raise CorruptFrame(where, offset, f"body length {size - HEADER_BYTES}, expected 0..{FRAME_BYTES_MAX}")
        end = self._at + size
        if end > len(self._data):
            self._need_bytes = end - len(self._data)
            return False
        try:
            (frame,) = walk(self._data[self._at : end], offset, where=where)
            delivery_of(frame, epoch)
        except CorruptFrame:
            if not self._skip_corrupt:
                raise
        self._at = end
        return True

    def _decode_frames(self, epoch: ReadEpoch) -> Chunk[Delivery]:
        frames = self._frames
        messages: list[Delivery] = []
        while frames and len(messages) < CHUNK_MESSAGES:
            try:
                messages.append(delivery_of(frames[0], epoch))
            except (CorruptFrame, CodecMissing) as error:
                if messages:
                    break  # deliver the messages before it first
                if isinstance(error, CodecMissing) or not self._skip_corrupt:
                    raise
            frames.popleft()
        return Chunk(messages, frames[0].offset if frames else self._data_offset)
