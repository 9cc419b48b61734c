"""Blocks: the frames that one request puts into one partition; checked and given their message ids in one pass.

The plain loop handles about 1.3 million frames a second. A broker that is given more than a few of them loads the
compiled loop of ``block_kernel`` in a background thread and uses that from then on, where numba and isal are installed.

Source: docs/adr/0014; the frame is in docs/protocol.md.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from metaq.formats.checksum import CHECKSUM_MASK, crc32
from metaq.formats.frames import HEADER_BYTES, Frame, encode_frame, walk
from metaq.formats.message_id import EPOCH_MS, IDS_PER_MS, IdRange
from metaq.model import Buffer
from metaq_broker.log.engine import block_kernel
from metaq_broker.log.engine.lazy_loop import PLAIN_BYTES_MAX, LazyLoop
from metaq_broker.log.engine.outcomes import ChecksumMismatch, Refusal, TooLarge
from metaq_broker.log.segments.index import IndexBuilder, IndexEntry
from metaq_broker.log.segments.marks import Marks

COMPILED_BYTES_MIN: Final = 2048
"""Shorter blocks are numbered by the plain loop: a call of the compiled one costs as much as a dozen frames."""

COMPILED_FRAMES_MIN: Final = 32
"""The same for frames whose checksums need no look."""

Kernel = Callable[[Buffer, int, IdRange, int, int], Marks | None]

_HEADER: Final = struct.Struct(">iiqi")
_ID: Final = struct.Struct(">q")
_ID_AT: Final = 8
_LENGTH: Final = struct.Struct(">i")


class Block(NamedTuple):
    """``messages`` whole frames for one partition, back to back. The message ids in them are replaced.

    ``frames`` that can be written get their ids where they are; nothing of them is kept. A block is one unit: stored
    whole, in one segment, or not at all. ``independent``: its messages were put one by one. Then a wrong one is left
    out, and a segment may end between two of them.
    """

    topic: str
    partition: int
    frames: Buffer
    messages: int
    independent: bool = False


class MadeBlock(NamedTuple):
    """A block whose ``frames`` this process has made of messages: they are whole, their checksums are right.

    A body may have ``extra_bytes`` beyond maxMessageSize. The ids in the frames count for nothing.
    """

    topic: str
    partition: int
    frames: Sequence[bytes]
    extra_bytes: int = 0

    @property
    def messages(self) -> int:
        """How many there are."""
        return len(self.frames)


class BlockRefused(Exception):
    """The block is not ``count`` whole, correct frames; the text names the frame that is wrong."""


def check_count(block: Buffer, count: int) -> None:
    """Refuse a count that the block cannot hold, before ids are reserved for so many messages.

    Raises:
        BlockRefused: ``count`` frames need more bytes than the block has, if all were empty.
    """
    if count * HEADER_BYTES > len(block):
        raise BlockRefused(f"{count} frames take {count * HEADER_BYTES} bytes at least, the block has {len(block)}")


class BlockNumberer(LazyLoop[Kernel]):
    """Numbers blocks with the plain loop at first, and with the compiled one once that is worth it."""

    def __init__(self, plain_bytes_max: int = PLAIN_BYTES_MAX) -> None:
        super().__init__("batched puts", block_kernel.compiled, _agrees, plain_bytes_max)

    def number(
        self, block: Buffer, count: int, ids: IdRange, message_bytes_max: int, mark_bytes: int
    ) -> tuple[Buffer, Marks]:
        """Return the block with the ids written into it, and marks for the index, at least ``mark_bytes`` apart.

        A block that can be written is numbered where it is, and is worth nothing when it was refused.

        Raises:
            BlockRefused: A frame is cut, too long or fails its checksum, or there are not exactly ``count`` of them.
        """
        if self.loop is not None and len(block) >= COMPILED_BYTES_MIN:
            numbered = _writable(block)
            marks = self.loop(numbered, count, ids, message_bytes_max, mark_bytes)
            if marks is not None:
                return numbered, marks
            # Something is wrong with the block: the plain loop says what.
        elif self.loop is None:
            self.went_without(len(block))
        return number_plainly(block, count, ids, message_bytes_max, mark_bytes)


def number_plainly(
    block: Buffer, count: int, ids: IdRange, message_bytes_max: int, mark_bytes: int
) -> tuple[Buffer, Marks]:
    """Do what ``BlockNumberer.number`` promises, in plain Python."""
    numbered = block if type(block) is bytearray else _writable(block)
    total, start, next_mark = len(block), 0, 0
    pairs, unpack, pack, crc = array("q"), _HEADER.unpack_from, _ID.pack_into, crc32
    for ordinal, message_id in enumerate(consecutive(ids)):
        body_start = start + HEADER_BYTES
        if body_start > total:
            raise BlockRefused(f"frame {ordinal} of {count} begins at byte {start}, but the block has {total} bytes")
        length, stored, _, _ = unpack(block, start)
        end = body_start + length
        if not 0 <= length <= message_bytes_max or end > total:
            raise BlockRefused(_length_fault(ordinal, start, length, message_bytes_max, total))
        if crc(block[body_start:end]) & CHECKSUM_MASK != stored:
            raise BlockRefused(f"frame {ordinal} at byte {start} fails its checksum")
        if start >= next_mark:
            pairs.extend((start, ordinal))
            next_mark = start + mark_bytes
        pack(numbered, start + _ID_AT, message_id)
        start = end
    if start != total:
        raise BlockRefused(f"{count} frames take {start} bytes, but the block has {total} bytes")
    return numbered, Marks(pairs)


def number_made(
    frames: Sequence[bytes], ids: IdRange, message_bytes_max: int, mark_bytes: int
) -> tuple[bytearray, Marks]:
    """Return frames that this process has made as a block with the ids written into it, and marks as ``number`` does.

    Raises:
        BlockRefused: A body is too long.
    """
    if len(frames) == 1:
        return _number_one(frames[0], ids.first, message_bytes_max)
    block, start, next_mark = bytearray().join(frames), 0, 0
    if len(frames) >= COMPILED_FRAMES_MIN:
        if BLOCKS.loop is None:
            BLOCKS.went_without(len(block))
        elif (marks := BLOCKS.loop(block, len(frames), ids, message_bytes_max, mark_bytes)) is not None:
            return block, marks
    pairs, pack, frame_bytes_max = array("q"), _ID.pack_into, HEADER_BYTES + message_bytes_max
    for ordinal, (frame, message_id) in enumerate(zip(frames, consecutive(ids), strict=True)):
        if len(frame) > frame_bytes_max:
            raise BlockRefused(_length_fault(ordinal, start, len(frame) - HEADER_BYTES, message_bytes_max, len(block)))
        if start >= next_mark:
            pairs.extend((start, ordinal))
            next_mark = start + mark_bytes
        pack(block, start + _ID_AT, message_id)
        start += len(frame)
    return block, Marks(pairs)


def _number_one(frame: bytes, message_id: int, message_bytes_max: int) -> tuple[bytearray, Marks]:
    if len(frame) > HEADER_BYTES + message_bytes_max:
        raise BlockRefused(_length_fault(0, 0, len(frame) - HEADER_BYTES, message_bytes_max, len(frame)))
    block = bytearray(frame)
    _ID.pack_into(block, _ID_AT, message_id)
    return block, Marks(array("q", (0, 0)))


def consecutive(ids: IdRange) -> Sequence[int]:
    """Return the ids. Within one millisecond they are consecutive integers, and a range costs nothing to make."""
    if ids.first_sequence + ids.count <= IDS_PER_MS:
        first = ids.first
        return range(first, first + ids.count)
    return list(ids)


def _writable(block: Buffer) -> bytearray | memoryview:
    if isinstance(block, bytes) or (isinstance(block, memoryview) and block.readonly):
        return bytearray(block)
    return block


def _length_fault(ordinal: int, start: int, length: int, message_bytes_max: int, total: int) -> str:
    if length > message_bytes_max:
        return f"frame {ordinal} at byte {start} has a body of {length} bytes, maxMessageSize is {message_bytes_max}"
    return f"frame {ordinal} at byte {start} says {length} body bytes, which the block of {total} bytes does not hold"


def _agrees(kernel: Kernel) -> bool:
    """Say whether a kernel does exactly what the plain code does, on a block that meets all its branches."""
    block = b"".join(encode_frame(-1, flag, bytes([flag]) * (flag * 7)) for flag in range(60))
    arguments = 60, IdRange(EPOCH_MS + 12345, 4070, 60, 1000), 1000, 300
    numbered, damaged = bytearray(block), bytearray(block)
    damaged[-1] ^= 1
    marks, (plainly, plain_marks) = kernel(numbered, *arguments), number_plainly(block, *arguments)
    agrees = (marks, numbered) == (plain_marks, plainly) and kernel(damaged, *arguments) is None
    return agrees and marks is not None and _index(numbered, marks) == _index(numbered, plain_marks)


def _index(block: Buffer, marks: Marks) -> list[IndexEntry]:
    """The index of a log that has a block twice, with entries inside and between the two."""
    builder = IndexBuilder.at_start(1000, 10, EPOCH_MS, 700)
    for _ in range(2):
        builder.add_block(block, 60, marks, lambda: 0)
    builder.mark()
    return list(builder.entries)


BLOCKS: Final = BlockNumberer()
"""Numbers the blocks of this process."""

number_block: Final = BLOCKS.number
"""Checks and numbers the blocks of this process: see ``BlockNumberer.number``."""


def split(frames: Buffer) -> list[bytes]:
    """Return the frames of a block that was checked."""
    found, start = [], 0
    while start < len(frames):
        end = start + HEADER_BYTES + int(_LENGTH.unpack_from(frames, start)[0])
        found.append(bytes(frames[start:end]))
        start = end
    return found


def sort_out(block: Block, message_bytes_max: int) -> tuple[Block | None, dict[int, Refusal]]:
    """Return a block without the wrong messages, ``None`` if none is left, and why these are wrong, by position.

    Raises:
        BlockRefused: It is not so many whole frames.
        CorruptFrame: A length is negative.
    """
    correct: list[Frame] = []
    rejected: dict[int, Refusal] = {}
    found = list(walk(block.frames, verify=False))
    if len(found) != block.messages or sum(HEADER_BYTES + len(frame.body) for frame in found) != len(block.frames):
        raise BlockRefused(f"the block of {len(block.frames)} bytes is not {block.messages} whole frames")
    for position, frame in enumerate(found):
        if crc32(frame.body) & CHECKSUM_MASK != frame.checksum:
            rejected[position] = ChecksumMismatch()
        elif len(frame.body) > message_bytes_max:
            rejected[position] = TooLarge(len(frame.body), message_bytes_max)
        else:
            correct.append(frame)
    frames = b"".join(encode_frame(0, frame.flag, frame.body, frame.checksum) for frame in correct)
    return (block._replace(frames=frames, messages=len(correct)) if correct else None), rejected
