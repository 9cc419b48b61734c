"""Runs of text puts in compiled code: from lines and bodies to frames, and from stored frames to replies.

Many puts of one connection that are there together become one block of frames, which is checked, numbered and written
as a batched put is. The plain way, ``metaq.protocols.text.put_runs`` and ``put_runs`` here, handles all else: few puts,
unusual ones, rejected ones, and everything where numba or isal is missing.

Source: docs/adr/0028.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import EPOCH_MS, IdRange
from metaq.formats.native_crc import required_crc32
from metaq.model import INT32_MAX, INT32_MIN
from metaq.protocols.text.codes import OK
from metaq.protocols.text.commands import Put, Result
from metaq.protocols.text.encode import encode
from metaq.protocols.text.framed_puts import Framed, FramedPuts
from metaq_broker.log.engine.blocks import BLOCKS
from metaq_broker.log.engine.lazy_loop import PLAIN_BYTES_MAX, LazyLoop

BLOCK_BYTES: Final = 1 << 20
"""Size of the buffer for the frames of one run, shared by all connections: they are written before the next run."""

RUN_PUTS_MAX: Final = 8192
"""Puts of one run at most."""

_HEAD: Final = b"result %d " % OK
_REPLY_BYTES_MAX: Final = len(_HEAD) + len("99 -2147483648\r\n") + len("9223372036854775807 2147483647 ") + 19


class CompiledRuns:
    """The loops of ``text_loop`` with the memory that they work in. For one thread.

    Raises:
        ImportError: numba or isal is not installed. (Blocks could not be numbered in compiled code without isal.)
    """

    def __init__(self) -> None:
        required_crc32()
        import numpy

        loop: Any = importlib.import_module("metaq_broker.text.text_loop")
        self._frame, self._reply, self._numpy = loop.frame, loop.reply, numpy
        self._view = memoryview(bytearray(BLOCK_BYTES))
        self._block = numpy.frombuffer(self._view, numpy.uint8)
        self._opaques = numpy.empty(RUN_PUTS_MAX, numpy.int32)
        self._replies = numpy.empty(RUN_PUTS_MAX * _REPLY_BYTES_MAX, numpy.uint8)
        self._head = numpy.frombuffer(bytearray(_HEAD), numpy.uint8)
        # The pages of this memory are used from here on, not at the first puts.
        self._opaques.fill(0)
        self._replies.fill(0)

    def frame(
        self, data: bytes, start: int, prefix_bytes: int, count_max: int, line_bytes_max: int, body_bytes_max: int
    ) -> Framed | None:
        address = self._numpy.frombuffer(data, self._numpy.uint8).ctypes.data + start
        size, made, count = self._frame(
            address,
            len(data) - start,
            prefix_bytes,
            line_bytes_max,
            body_bytes_max,
            self._block.ctypes.data,
            BLOCK_BYTES,
            self._opaques[:count_max],
        )
        if not count:
            return None
        return Framed(size, self._view[:made], self._opaques[:count].copy(), count)

    def replies(self, count: int, opaques: Any, index: int, first_offset: int) -> bytes:
        """Return the replies to the last run, whose frames are stored in partition ``index`` and have their ids."""
        size = self._reply(self._block.ctypes.data, count, first_offset, index, opaques, self._head, self._replies)
        return self._replies[:size].tobytes()


class TextPuts(LazyLoop[CompiledRuns]):
    """Takes runs of text puts apart, once the compiled loops are there.

    They are loaded when so many bytes came in runs that are long enough for them. For one broker: it works in one
    thread, and so does the memory that they use.
    """

    def __init__(self, plain_bytes_max: int = PLAIN_BYTES_MAX) -> None:
        super().__init__("text puts", CompiledRuns, _agrees, plain_bytes_max)

    def frame(
        self, data: bytes, start: int, prefix_bytes: int, count_max: int, line_bytes_max: int, body_bytes_max: int
    ) -> Framed | None:
        if self.loop is None:
            self.went_without(len(data) - start)
            return None
        return self.loop.frame(data, start, prefix_bytes, count_max, line_bytes_max, body_bytes_max)

    def replies(self, puts: FramedPuts, index: int, first_offset: int) -> bytes:
        """Return the replies to the last run that ``frame`` made, when its frames are stored and have their ids."""
        assert self.loop is not None  # it made them
        return self.loop.replies(puts.messages, puts.opaques, index, first_offset)

    def load(self) -> None:
        """Load the loops now, and first that which numbers blocks."""
        if BLOCKS.loading:  # by puts that went through plain code meanwhile
            BLOCKS.join()
        elif not BLOCKS.compiled:
            BLOCKS.load()
        super().load()


_RESTS: Final = (b"", b"put topic 3 1 0 5 5\r\n", b"put topic 3 0 0 -1 5\r\n", b"put topic 4 0 0 0 5\r\n", b"quit\r\n")
"""What may stand behind a run and does not belong to it."""

_EDGES: Final = ((0, 0), (1, 9), (-1, 10), (INT32_MAX, INT32_MAX), (INT32_MIN, INT32_MIN))
"""Flags and opaques."""


def _agrees(runs: CompiledRuns) -> bool:
    """Say whether the loops do exactly what the plain code does, with runs that meet all their branches."""
    bodies = [bytes([number]) * (7 * number) for number in range(len(_EDGES))]
    puts = [Put("topic", 3, body, *edge, checksum(body)) for body, edge in zip(bodies, _EDGES, strict=True)]
    lines = b"".join(map(encode, puts))
    frames = [encode_frame(0, put.flag, put.body) for put in puts]
    for rest in _RESTS:
        data = b"behind " + lines + rest
        framed = runs.frame(data, len(b"behind "), len(b"put topic 3 "), 100, 100, 100)
        if framed is None or (framed.size, bytes(framed.block)) != (len(lines), b"".join(frames)):
            return False
        if framed.opaques.tolist() != [put.opaque for put in puts] or framed.messages != len(puts):
            return False
        ids, offset, expected = IdRange(EPOCH_MS + 1, 4094, len(puts), 5), 9_999_999, []
        for put, frame, message_id in zip(puts, frames, ids, strict=True):
            at = offset - 9_999_999
            memoryview(framed.block)[at : at + len(frame)] = encode_frame(message_id, put.flag, put.body)
            expected.append(encode(Result(OK, f"{message_id} 12 {offset}", put.opaque)))
            offset += len(frame)
        if runs.replies(len(puts), framed.opaques, 12, 9_999_999) != b"".join(expected):
            return False
    return True
