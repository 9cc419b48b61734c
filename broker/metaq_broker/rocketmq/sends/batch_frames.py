"""Frames of the messages in a batch: by machine code with numba and isal, some thirty times faster, or in Python.

The machine code handles usual elements: all with one flag, tags in the usual form. The plain code handles other
batches. A broker loads the machine code in a background thread when it has received more than a few batches.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from metaq.compiled.lazy_loop import PLAIN_BYTES_MAX, LazyLoop
from metaq.errors import CorruptRecord
from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_stored
from metaq.formats.native_crc import required_crc32
from metaq.formats.rocketmq.batches import OVERHEAD_BYTES, BatchElement, encode_batch
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.properties import BYTES_MAX
from metaq.formats.stored_form import encode_head, tag_of

COMPILED_BYTES_MIN: Final = 1024
"""Shorter batches are made by the plain code: a call of the compiled one costs as much as a few messages."""

OUT_BYTES: Final = 1 << 20
"""Memory for the frames of one call."""

FRAMES_MAX: Final = 8192
"""Frames of one call."""

_ELEMENT: Final = struct.Struct(">iiiii")
_FLAG_AT: Final = 12


class Shared(NamedTuple):
    """Fields shared by the messages of a batch: ``properties`` are appended to each message's own.

    ``born_host`` has 8 or 20 bytes, ``born_timestamp`` is in milliseconds.
    """

    properties: bytes
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int = 0

    def head(self, flag: int) -> bytes:
        """Return the part between tag and properties of a message with this flag. Raises as ``encode_head``."""
        return encode_head(flag, self.sys_flag, self.born_timestamp, self.born_host, self.reconsume_times)


FrameLoop = Callable[[bytes, Shared], "FrameBlock | None"]
"""Makes the frames of a batch; ``None``: use the plain code."""


def frames_plainly(data: bytes, shared: Shared) -> FrameBlock | None:
    """Implement ``BatchFramer.frames`` in plain Python."""
    frames: list[bytes] = []
    heads: dict[int, bytes] = {}
    at, total, unpack = 0, len(data), _ELEMENT.unpack_from
    while at < total:
        if total - at < OVERHEAD_BYTES:
            raise CorruptRecord("batch", at, 0, f"{total - at} bytes are no whole element")
        size, _, _, flag, length = unpack(data, at)
        body_at, end = at + _ELEMENT.size, at + size
        properties_at = body_at + length + 2
        if length < 0 or end > total or properties_at > end:
            raise CorruptRecord(
                "batch", at, 0, f"its size is {size}, its body has {length} bytes, {total - at} are there"
            )
        properties_end = properties_at + int.from_bytes(data[properties_at - 2 : properties_at])
        if properties_end > end:
            raise CorruptRecord("batch", at, size, "its properties reach beyond it")
        properties = data[properties_at:properties_end]
        if properties and properties[-1] != 2:
            properties += b"\x02"
        properties += shared.properties
        if len(properties) > BYTES_MAX:
            return None
        head = heads.get(flag)
        if head is None:
            head = heads[flag] = shared.head(flag)
        frames.append(encode_stored(tag_of(properties), head, properties, data[body_at : body_at + length]))
        at = end
    return FrameBlock.of(frames) if frames else None


def compiled() -> FrameLoop:
    """Return the compiled loop.

    Raises:
        ImportError: numba or isal is not installed, or isal exports no usable CRC-32.
    """
    crc32 = required_crc32()
    import numpy

    from metaq_broker.rocketmq.sends.batch_loop import IS_UNUSUAL, frames

    out, ends = numpy.empty(OUT_BYTES, numpy.uint8), numpy.empty(FRAMES_MAX, numpy.int64)

    def make(data: bytes, shared: Shared) -> FrameBlock | None:
        if len(data) < OVERHEAD_BYTES:
            return None
        flag = int.from_bytes(data[_FLAG_AT : _FLAG_AT + 4], signed=True)
        batch = numpy.frombuffer(data, numpy.uint8)
        head, properties = (numpy.frombuffer(each, numpy.uint8) for each in (shared.head(flag), shared.properties))
        made: list[FrameBlock] = []
        at = 0
        while at < len(data):
            at, count = frames(batch, at, flag, head, properties, out, ends, crc32)
            if count == IS_UNUSUAL:
                return None
            frames_end = int(ends[count - 1])
            made.append(FrameBlock(bytearray(out[:frames_end].data), count, array("q", ends[:count].tobytes())))
        return FrameBlock.joined(made)

    return make


class BatchFramer(LazyLoop[FrameLoop]):
    """Makes frames with the plain code at first, and with the compiled one when that pays off."""

    def __init__(self, plain_bytes_max: int = PLAIN_BYTES_MAX) -> None:
        super().__init__("batched sends", compiled, _agrees, plain_bytes_max)

    def frames(self, data: bytes, shared: Shared) -> FrameBlock | None:
        """Return the frames of the elements of a batch (``data``); their ids are 0.

        ``None``: the batch is empty, or an element's properties are too long.

        Raises:
            CorruptRecord: ``data`` is not a batch.
            FieldError: A number does not fit.
        """
        if self.loop is None:
            self.went_without(len(data))
        elif len(data) >= COMPILED_BYTES_MIN and shared.properties and (made := self.loop(data, shared)):
            return made
        return frames_plainly(data, shared)


def _agrees(loop: FrameLoop) -> bool:
    """Return whether the loop has the same results as the plain code, on batches that reach all its branches."""
    shared = [
        Shared(b"CLUSTER\x01c", 3, 1 << 40, host_bytes("10.1.2.3", 4), 2),
        Shared(b"x", 0, 5, host_bytes("2001:db8::1", 6)),
    ]
    usual = [
        BatchElement(bytes(size), (b"TAGS\x01t\x02UNIQ_KEY\x01u" + b"\x02" * (size % 2)) * (size % 3 > 0), 7)
        for size in range(1, 50)
    ]
    batches = [encode_batch(usual), encode_batch([*usual, BatchElement(b"", b"K\x01v", 7)])]
    others = [b"XTAGS\x01t", b"TAGS\x01\x02A\x01b", b"TAGS\x01", b"p" * BYTES_MAX]
    odd = [encode_batch([usual[0], BatchElement(b"", each, 7)]) for each in others]
    odd += [encode_batch([usual[0], BatchElement(b"", b"", 8)]), batches[0][:-1], batches[0] + bytes(21)]
    odd += [batches[0] + _ELEMENT.pack(22, 0, 0, 7, each) + bytes(2) for each in (1, -1)]
    odd.append(batches[0] + _ELEMENT.pack(22, 0, 0, 7, 0) + b"\0\1")
    return all(loop(batch, each) == frames_plainly(batch, each) for batch in batches for each in shared) and not any(
        loop(batch, each) for batch in odd for each in shared
    )


BATCHES: Final = BatchFramer()
"""Makes the frames of this process's batches."""
