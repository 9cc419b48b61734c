"""Whole frames, back to back: the form in which messages travel between all parts of the project.

A put, a batch, a transaction's messages, a send of a RocketMQ client and a unit that is appended to a partition are
``FrameBlock``s: their bytes, how many frames they are, and where each frame ends. This module makes blocks of frames,
checks them, writes message ids into them, and splits them.

The three passes over a block, ``number``, ``check`` and ``ends_of``, have a plain and a compiled body. They are plain
for the first ``PLAIN_BYTES_MAX`` bytes of a process; then a background thread loads the compiled bodies, where numba
and isal are installed. The plain one numbers about 1.3 million frames a second, and Spark writes twice as many.

Source: docs/adr/0014; the frame is in docs/protocol.md.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from operator import add
from typing import Final, NamedTuple

from metaq.compiled.lazy_loop import PLAIN_BYTES_MAX, LazyLoop
from metaq.errors import CorruptFrame
from metaq.formats.checksum import CHECKSUM_MASK, crc32
from metaq.formats.frames import (
    HEADER_BYTES,
    ID_AT,
    encode_frame,
    frame_bytes,
    message_id_at,
    pack_header,
    unpack_header,
    walk,
)
from metaq.formats.message_id import EPOCH_MS, IDS_PER_MS, SEQUENCE_BITS, IdRange
from metaq.formats.native_crc import required_crc32
from metaq.model import Buffer

COMPILED_BYTES_MIN: Final = 2048
"""Shorter blocks are handled by the plain body: a call of the compiled one costs as much as a dozen frames."""

_ID: Final = struct.Struct(">q")


class BlockRefused(Exception):
    """The block is not ``count`` whole, correct frames; the text names the frame that is wrong."""


class FrameBlock:
    """``count`` whole frames, back to back, in ``data``. Who makes one promises the count; ``numbered`` checks it.

    ``data`` that can be written gets message ids where it is. ``ids_ascend``: it is known that no id is negative, or
    less than one before it.
    """

    __slots__ = ("_ends", "count", "data", "ids_ascend")

    def __init__(
        self, data: Buffer, count: int, ends: array[int] | None = None, *, ids_ascend: bool = False
    ) -> None:
        self.data, self.count, self._ends, self.ids_ascend = data, count, ends, ids_ascend

    @classmethod
    def of(cls, frames: Sequence[Buffer]) -> FrameBlock:
        """Return the block of some frames."""
        return cls(bytearray().join(frames), len(frames), array("q", accumulate(map(len, frames))))

    @classmethod
    def of_bodies(cls, bodies: Sequence[bytes], checksums: Iterable[int], flags: Iterable[int]) -> FrameBlock:
        """Return the block of messages with these bodies, with the checksums as they are given, and ids of 0."""
        frames = list(map(add, map(pack_header, map(len, bodies), checksums, (0,) * len(bodies), flags), bodies))
        return cls(bytearray().join(frames), len(frames), array("q", accumulate(map(len, frames))))

    @classmethod
    def joined(cls, blocks: Sequence[FrameBlock]) -> FrameBlock:
        """Return the frames of some blocks as one block."""
        if len(blocks) == 1:
            return blocks[0]
        ends, start = array("q"), 0
        for block in blocks:
            if block.count == 1:
                ends.append(start + len(block.data))
            else:
                ends.extend([start + end for end in block.ends])
            start += len(block.data)
        return cls(bytearray().join([block.data for block in blocks]), len(ends), ends)

    @classmethod
    def checked(cls, run: Buffer, offset: int, where: str) -> FrameBlock:
        """Return the whole frames at the front of ``run``, whose first byte is at ``offset`` of ``where``; an
        incomplete last frame is left out.

        Raises:
            CorruptFrame: A frame is damaged, or was never written; then no frame of the run may be stored.
        """
        if BLOCKS.loop is None:
            BLOCKS.went_without(len(run))
        elif len(run) >= COMPILED_BYTES_MIN:
            block = BLOCKS.loop.check(run)
            if block is not None:
                return block
            # A frame is damaged: the plain pass says which.
        return check_plainly(run, offset, where)

    def __len__(self) -> int:
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameBlock) and (self.count, self.data) == (other.count, other.data)

    __hash__ = None  # type: ignore[assignment]  # its bytes may change

    def __repr__(self) -> str:
        return f"<FrameBlock, {self.count} frames, {len(self)} bytes>"

    @property
    def ends(self) -> array[int]:
        """Where each frame ends, counted from the front of the block."""
        return self.find_ends() if self._ends is None else self._ends

    def find_ends(self) -> array[int]:
        """Return ``ends``, and keep them: a thread that calls this spares the thread that needs them the search."""
        loops = BLOCKS.loop if len(self.data) >= COMPILED_BYTES_MIN else None
        self._ends = ends_plainly(self.data) if loops is None else loops.ends_of(self.data)
        return self._ends

    def start(self, number: int) -> int:
        """Return where the frame with ``number`` others before it begins."""
        return self.ends[number - 1] if number else 0

    def part(self, first: int, count: int) -> FrameBlock:
        """Return ``count`` frames from number ``first`` on, without copying them."""
        start, ends = self.start(first), self.ends[first : first + count]
        return FrameBlock(memoryview(self.data)[start : ends[-1] if ends else start], count, _less(ends, start))

    def picked(self, numbers: Sequence[int]) -> FrameBlock:
        """Return a copy of the frames with these numbers."""
        ends, view = self.ends, memoryview(self.data)
        return FrameBlock.of([view[ends[number - 1] if number else 0 : ends[number]] for number in numbers])

    def split(self) -> list[bytes]:
        """Return the frames."""
        return [bytes(self.data[start:end]) for start, end in pairwise((0, *self.ends))]

    def copy(self) -> FrameBlock:
        """Return a block with the same frames that ``extend`` and ``cut`` can change."""
        return FrameBlock(bytearray(self.data), self.count, self.ends[:])

    def extend(self, block: FrameBlock) -> None:
        """Append the frames of ``block``. Only for a block that ``copy`` has returned."""
        assert isinstance(self.data, bytearray)
        start, own = len(self.data), self.ends
        own.extend(start + end for end in block.ends)
        self.data += block.data
        self.count += block.count

    def cut(self, count: int) -> None:
        """Keep the first ``count`` frames of a block that ``copy`` has returned."""
        assert isinstance(self.data, bytearray)
        del self.data[self.start(count) :]
        del self.ends[count:]
        self.count = count

    def numbered(self, message_ids: IdRange, body_bytes_max: int) -> FrameBlock:
        """Check the frames and return them with these message ids.

        Raises:
            BlockRefused: A frame is cut, too long or fails its checksum, or there are not ``count`` of them. What was
                numbered where it is has lost its ids.
        """
        data, count = self.data, self.count
        if BLOCKS.loop is None:
            BLOCKS.went_without(len(data))
        elif len(data) >= COMPILED_BYTES_MIN:
            numbered = _writable(data)
            ends = BLOCKS.loop.number(numbered, count, message_ids, body_bytes_max)
            if ends is not None:
                return FrameBlock(numbered, count, ends)
            # Something is wrong with the block: the plain pass says what.
        return number_plainly(data, count, message_ids, body_bytes_max)

    def renumbered(self, message_ids: IdRange, body_bytes_max: int) -> FrameBlock:
        """Do the same with frames that this process has made: only the lengths of their bodies are checked.

        Raises:
            BlockRefused: A body is too long.
        """
        data, ends, start = _writable(self.data), self.ends, 0
        pack, frame_bytes_max = _ID.pack_into, HEADER_BYTES + body_bytes_max
        for number, (end, message_id) in enumerate(zip(ends, consecutive(message_ids), strict=True)):
            if end - start > frame_bytes_max:
                raise BlockRefused(
                    _length_fault(number, start, end - start - HEADER_BYTES, body_bytes_max, len(self.data))
                )
            pack(data, start + ID_AT, message_id)
            start = end
        return FrameBlock(data, self.count, ends)

    def message_id(self, number: int) -> int:
        """Return the message id of the frame with ``number`` others before it."""
        return message_id_at(self.data, self.start(number))


def _less(ends: array[int], start: int) -> array[int]:
    return array("q", (end - start for end in ends)) if start else ends


def check_count(block: FrameBlock) -> None:
    """Refuse a count that the block cannot hold, before ids are reserved for so many messages.

    Raises:
        BlockRefused: ``count`` frames need more bytes than the block has, if all were empty.
    """
    least_bytes = block.count * HEADER_BYTES
    if least_bytes > len(block.data):
        raise BlockRefused(f"{block.count} frames take {least_bytes} bytes at least, the block has {len(block.data)}")


def consecutive(ids: IdRange) -> Sequence[int]:
    """Return the ids. Within one millisecond they are consecutive integers, and a range costs nothing to make."""
    if ids.first_sequence + ids.count <= IDS_PER_MS:
        first = ids.first
        return range(first, first + ids.count)
    return list(ids)


# ---- the passes, plain


def number_plainly(data: Buffer, count: int, message_ids: IdRange, body_bytes_max: int) -> FrameBlock:
    """Do what ``FrameBlock.numbered`` promises, in plain Python."""
    numbered = data if type(data) is bytearray else _writable(data)
    total, start, ends = len(data), 0, array("q")
    unpack, pack, crc, note = unpack_header, _ID.pack_into, crc32, ends.append
    for number, message_id in enumerate(consecutive(message_ids)):
        body_start = start + HEADER_BYTES
        if body_start > total:
            raise BlockRefused(f"frame {number} of {count} begins at byte {start}, but the block has {total} bytes")
        length, stored, _, _ = unpack(data, start)
        end = body_start + length
        if not 0 <= length <= body_bytes_max or end > total:
            raise BlockRefused(_length_fault(number, start, length, body_bytes_max, total))
        if crc(data[body_start:end]) & CHECKSUM_MASK != stored:
            raise BlockRefused(f"frame {number} at byte {start} fails its checksum")
        pack(numbered, start + ID_AT, message_id)
        note(end)
        start = end
    if start != total:
        raise BlockRefused(f"{count} frames take {start} bytes, but the block has {total} bytes")
    return FrameBlock(numbered, count, ends)


def check_plainly(run: Buffer, offset: int, where: str) -> FrameBlock:
    """Do what ``FrameBlock.checked`` promises, in plain Python."""
    ends, latest, ascend = array("q"), 0, True
    for frame in walk(run, offset, where=where):
        if not frame.body and not frame.message_id:  # brokers never use the id 0: the bytes were never written
            raise CorruptFrame(where, frame.offset, "an empty message with the id 0")
        ascend, latest = ascend and frame.message_id >= latest, frame.message_id
        ends.append(frame.end - offset)
    return FrameBlock(run[: ends[-1] if ends else 0], len(ends), ends, ids_ascend=ascend)


def ends_plainly(data: Buffer) -> array[int]:
    """Return where each of the whole frames in ``data`` ends."""
    ends, at, total = array("q"), 0, len(data)
    while at < total:
        at += frame_bytes(data, at)
        ends.append(at)
    return ends


def _writable(data: Buffer) -> bytearray | memoryview:
    if isinstance(data, bytes) or (isinstance(data, memoryview) and data.readonly):
        return bytearray(data)
    return data


def _length_fault(number: int, start: int, length: int, body_bytes_max: int, total: int) -> str:
    if length > body_bytes_max:
        return f"frame {number} at byte {start} has a body of {length} bytes, maxMessageSize is {body_bytes_max}"
    return f"frame {number} at byte {start} says {length} body bytes, which the block of {total} bytes does not hold"


# ---- the passes, compiled


class BlockLoops(NamedTuple):
    """``number(data, count, ids, body_bytes_max)`` writes ids into ``data`` that can be written and returns the ends.

    It returns ``None`` if a frame is wrong. ``check(run)`` returns the whole frames at the front of a run, ``None`` if
    one is damaged. ``ends_of(data)`` returns the ends of whole frames.
    """

    number: Callable[[Buffer, int, IdRange, int], array[int] | None]
    check: Callable[[Buffer], FrameBlock | None]
    ends_of: Callable[[Buffer], array[int]]


def compiled_loops() -> BlockLoops:
    """Return the compiled passes.

    Raises:
        ImportError: numba or isal is not installed, or isal exports no usable CRC-32.
    """
    crc = required_crc32()
    import numpy

    from metaq.formats import frame_loops

    def number(data: Buffer, count: int, message_ids: IdRange, body_bytes_max: int) -> array[int] | None:
        ends, frames = numpy.empty(count, numpy.int64), numpy.frombuffer(data, numpy.uint8)
        broker_bits = message_ids.broker_id << SEQUENCE_BITS
        tick = message_ids.first_tick
        is_right = frame_loops.number(frames.ctypes.data, len(data), tick, broker_bits, body_bytes_max, ends, crc)
        return array("q", ends.tobytes()) if is_right else None

    def check(run: Buffer) -> FrameBlock | None:
        ends = numpy.empty(len(run) // HEADER_BYTES, numpy.int64)
        frames = numpy.frombuffer(run, numpy.uint8)
        count, ascend = frame_loops.check(frames.ctypes.data, len(run), ends, crc)
        if count < 0:
            return None
        end = int(ends[count - 1]) if count else 0
        return FrameBlock(run[:end], count, array("q", ends[:count].tobytes()), ids_ascend=bool(ascend))

    def ends_of(data: Buffer) -> array[int]:
        ends = numpy.empty(len(data) // HEADER_BYTES, numpy.int64)
        frames = numpy.frombuffer(data, numpy.uint8)
        return array("q", ends[: frame_loops.ends_of(frames.ctypes.data, len(data), ends)].tobytes())

    return BlockLoops(number, check, ends_of)


def _agree(loops: BlockLoops) -> bool:
    """Return whether the compiled passes do exactly what the plain ones do, on a block that meets all branches."""
    block = b"".join(encode_frame(-1, flag, bytes([flag]) * (flag * 7)) for flag in range(60))
    arguments = 60, IdRange(EPOCH_MS + 12345, 4070, 60, 1000), 1000
    numbered, damaged = bytearray(block), bytearray(block)
    damaged[-1] ^= 1
    ends, plain = loops.number(numbered, *arguments), number_plainly(block, *arguments)
    is_right = (ends, numbered) == (plain.ends, plain.data) and loops.number(damaged, *arguments) is None
    checked, expected = loops.check(numbered[:-1]), check_plainly(numbered[:-1], 0, "")
    is_right = is_right and checked == expected and checked is not None and checked.ids_ascend
    damaged = numbered[:-1] + bytes([numbered[-1] ^ 1])
    is_right = is_right and loops.check(damaged) is None
    return is_right and loops.ends_of(block) == ends_plainly(block) == ends


def block_passes(plain_bytes_max: int = PLAIN_BYTES_MAX) -> LazyLoop[BlockLoops]:
    """Return compiled passes that are loaded when so many bytes were numbered by the plain one."""
    return LazyLoop("frame blocks", lambda: compiled_loops(), _agree, plain_bytes_max)


BLOCKS = block_passes()
"""The compiled passes of this process."""
