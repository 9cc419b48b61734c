"""Frames: messages as they are stored and fetched. Back to back, no padding, all numbers big-endian.

::

    at   size  field
     0     4   int32  body length
     4     4   int32  checksum of the body (masked CRC-32)
     8     8   int64  message id
    16     4   int32  flag; bit 0: has an attribute, bit 1: see ``stored_form``, the others have no meaning
    20     n   body   = [int32 attribute length + attribute, if flag bit 0 is set] + payload

A run is a slice of a partition in whole frames, except that its end may be cut anywhere, even inside a header.

This module owns the header: no other one unpacks it. There are four ways over a run: ``walk`` yields frames and raises
at a damaged one, ``intact`` yields the parts of frames and ends there, ``pass_whole`` steps over frames by their
lengths, ``header_at`` and its siblings look at a single one. ``frame_loops`` has the compiled siblings.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from metaq.errors import CorruptFrame
from metaq.formats.checksum import CHECKSUM_MASK, checksum, crc32
from metaq.formats.stored_form import FLAG_ATTRIBUTE, STORED_FORM, StoredFields, split_attribute
from metaq.model import INT32_MAX, INT64_MAX, Buffer, Message

__all__ = [
    "FLAG_ATTRIBUTE",
    "HEADER_BYTES",
    "Frame",
    "FrameHeader",
    "PassedFrames",
    "attribute_span",
    "encode_body",
    "encode_frame",
    "encode_message",
    "encode_stored",
    "frame_bytes",
    "header_at",
    "intact",
    "message_id_at",
    "pack_header",
    "pass_whole",
    "require_length",
    "search",
    "unpack_header",
    "walk",
    "whole_bytes",
]

HEADER_BYTES: Final = 20

_HEADER: Final = struct.Struct(">iiqi")
_PLAIN_HEADER: Final = struct.Struct(">ii12x")
"""The header of a message without id and attribute."""
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")

ID_AT: Final = 8
"""Where the message id is in a frame."""

unpack_header: Final = _HEADER.unpack_from
"""Return the fields of the header at a position as a tuple: for loops inside of this package."""

pack_header: Final = _HEADER.pack
"""Return the header of ``(length, checksum, message_id, flag)``."""


class FrameHeader(NamedTuple):
    """The header of a frame, unchecked: any field may have any value."""

    length: int
    checksum: int
    message_id: int
    flag: int

    @property
    def frame_bytes(self) -> int:
        """Size of the frame, its header included; below ``HEADER_BYTES`` if the length is negative."""
        return HEADER_BYTES + self.length


def header_at(data: Buffer, at: int = 0) -> FrameHeader:
    """Return the header at a position that has ``HEADER_BYTES`` after it."""
    return FrameHeader._make(_HEADER.unpack_from(data, at))


def frame_bytes(data: Buffer, at: int = 0) -> int:
    """Return the size of the frame at a position, its header included, by its first four bytes.

    It is below ``HEADER_BYTES`` if the length is negative.
    """
    return HEADER_BYTES + int(_INT32.unpack_from(data, at)[0])


def message_id_at(data: Buffer, at: int = 0) -> int:
    """Return the message id of the frame at a position."""
    return int(_INT64.unpack_from(data, at + ID_AT)[0])


def attribute_span(frame: Buffer, at: int = 0) -> tuple[int, int]:
    """Return where the attribute of the frame at a position begins and ends, by its length; the frame has one."""
    start = at + HEADER_BYTES + _INT32.size
    return start, start + int(_INT32.unpack_from(frame, at + HEADER_BYTES)[0])


class Frame(NamedTuple):
    """A whole frame of a partition; ``offset`` is the position of its first byte."""

    offset: int
    message_id: int
    flag: int
    checksum: int
    body: bytes

    @property
    def end(self) -> int:
        """Offset of the byte after this frame, where the next frame begins."""
        return self.offset + HEADER_BYTES + len(self.body)

    @property
    def intact(self) -> bool:
        """Whether the body matches the checksum of the header."""
        return checksum(self.body) == self.checksum

    @property
    def message(self) -> Message:
        """The payload and the attribute; of a RocketMQ message the tag is the attribute, ``None`` without one.

        Raises:
            CorruptFrame: The flag announces an attribute that the body cannot hold, or that is not UTF-8.
        """
        return Message(*self.split())

    def split(self) -> tuple[bytes, str | None]:
        """Return the payload and the attribute; see ``message``."""
        if not self.flag & FLAG_ATTRIBUTE:
            return self.body, None
        end = self._attribute_end()
        attribute: bytes | None = self.body[_INT32.size : end]
        if self.flag & STORED_FORM == STORED_FORM and (fields := self.stored_fields) is not None:
            attribute = fields.tag or None
        try:
            return self.body[end:], None if attribute is None else attribute.decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(f"the attribute is not UTF-8: {error.reason}") from None

    @property
    def stored_fields(self) -> StoredFields | None:
        """What the frame says beside tag and body if a RocketMQ client sent the message, else ``None``.

        Raises:
            CorruptFrame: The flag announces an attribute that the body cannot hold.
        """
        if self.flag & STORED_FORM != STORED_FORM:
            return None
        return split_attribute(self.flag, self.body[_INT32.size : self._attribute_end()])

    def _attribute_end(self) -> int:
        if len(self.body) < _INT32.size:
            raise self._corrupt(f"the flag announces an attribute, but the body has only {len(self.body)} bytes")
        end: int = _INT32.size + _INT32.unpack_from(self.body)[0]
        if not _INT32.size <= end <= len(self.body):
            raise self._corrupt(f"attribute length {end - _INT32.size} in a body of {len(self.body)} bytes")
        return end

    def _corrupt(self, reason: str) -> CorruptFrame:
        return CorruptFrame("run", self.offset, reason)


def encode_body(message: Message) -> tuple[int, bytes]:
    """Return ``(flag, body)`` of a message.

    Raises:
        TypeError: ``message`` is not a ``Message``.
        ValueError: The attribute cannot be written as UTF-8.
    """
    Message.require(message)
    if message.attribute is None:
        return 0, bytes(message.payload)
    try:
        attribute = message.attribute.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"attribute: the text cannot be written as UTF-8, {error.reason}") from None
    return FLAG_ATTRIBUTE, b"".join((_INT32.pack(len(attribute)), attribute, message.payload))


def encode_frame(message_id: int, flag: int, body: Buffer, crc: int | None = None) -> bytes:
    """Return one whole frame. ``crc`` is the checksum of the body, if the caller knows it.

    Raises:
        ValueError: A number does not fit its field, or the body is longer than an int32 can express.
    """
    payload = body if isinstance(body, bytes) else bytes(body)
    if crc is None:
        crc = crc32(payload) & CHECKSUM_MASK
    try:
        return _HEADER.pack(len(payload), crc, message_id, flag) + payload
    except struct.error as error:
        sizes = f"body of {len(payload)} bytes, checksum {crc}, id {message_id}, flag {flag}"
        raise ValueError(f"frame does not fit its header: {sizes}: {error}") from None


def encode_message(payload: bytes, attribute: str | None = None) -> bytes:
    """Return the frame of a message that has no id yet. Fast for messages without an attribute, which most are.

    Raises:
        TypeError: The payload is not bytes, or the attribute not a string.
        ValueError: The attribute cannot be written as UTF-8, or the payload is longer than an int32 can express.
    """
    if attribute is None and type(payload) is bytes and len(payload) <= INT32_MAX:
        return _PLAIN_HEADER.pack(len(payload), crc32(payload) & CHECKSUM_MASK) + payload
    return encode_frame(0, *encode_body(Message(payload, attribute)))


def encode_stored(tag: bytes, head: bytes, properties: bytes, body: bytes, message_id: int = 0) -> bytes:
    """Return the frame of a RocketMQ message in the stored form; ``head`` is of ``stored_form.encode_head``."""
    length = _INT32.pack(len(tag) + len(head) + len(properties))
    content = b"".join((length, tag, head, properties, body))
    return _HEADER.pack(len(content), crc32(content) & CHECKSUM_MASK, message_id, STORED_FORM) + content


def walk(run: Buffer, base_offset: int = 0, *, verify: bool = True, where: str = "run") -> Iterator[Frame]:
    """Yield the whole frames of a run in order; stop silently at a cut tail.

    ``base_offset`` is the offset of the run's first byte. Without ``verify`` the caller verifies checksums
    (``Frame.intact``). ``where`` names the run in errors.

    Raises:
        CorruptFrame: A length is negative, or a checksum does not match. Earlier frames were yielded.
    """
    data = run if isinstance(run, bytes) else bytes(run)
    total, start, unpack, frame, crc = len(data), 0, _HEADER.unpack_from, Frame, crc32
    while (body_start := start + HEADER_BYTES) <= total:
        length, checksum_stored, message_id, flag = unpack(data, start)
        if length < 0:
            raise CorruptFrame(where, base_offset + start, f"body length {length}")
        end = body_start + length
        if end > total:
            return
        body = data[body_start:end]
        if verify and crc(body) & CHECKSUM_MASK != checksum_stored:
            raise CorruptFrame(where, base_offset + start, _checksum_reason(body, checksum_stored))
        yield frame(base_offset + start, message_id, flag, checksum_stored, body)
        start = end


class PassedFrames(NamedTuple):
    """Frames that ``search`` stepped over: the offset after them, how many there were, bytes of their bodies."""

    end: int
    frames: int
    body_bytes: int


PASSED_MAX: Final = 1024
"""Limit on frames that ``search`` steps over before it says so."""


def search(
    run: bytes, needles: Collection[bytes], base_offset: int = 0, *, where: str = "run", frames_max: int = INT64_MAX
) -> Iterator[Frame | PassedFrames]:
    """Yield the whole frames of a run whose body may contain one of ``needles``, and what is between them, in order.

    A body may contain them if its bytes do, or if it is a RocketMQ message, whose bytes may be compressed. Checksums of
    all frames are verified. Stops after ``frames_max`` of them. Several times faster than ``walk``, where few match.
    Arguments and errors: as ``walk``.
    """
    total, start, passed, passed_from = len(run), 0, 0, 0
    unpack, find, crc = _HEADER.unpack_from, run.find, crc32
    places = {needle: find(needle) for needle in needles}
    nearest = min((at for at in places.values() if at >= 0), default=total)
    left = frames_max
    while (body_start := start + HEADER_BYTES) <= total and left:
        length, checksum_stored, message_id, flag = unpack(run, start)
        if length < 0:
            raise CorruptFrame(where, base_offset + start, f"body length {length}")
        end = body_start + length
        if end > total:
            break
        left -= 1
        body = run[body_start:end]
        if crc(body) & CHECKSUM_MASK != checksum_stored:
            raise CorruptFrame(where, base_offset + start, _checksum_reason(body, checksum_stored))
        if nearest < end or flag & STORED_FORM == STORED_FORM:
            if passed:
                yield PassedFrames(base_offset + start, passed, start - passed_from - passed * HEADER_BYTES)
            yield Frame(base_offset + start, message_id, flag, checksum_stored, body)
            passed, passed_from = 0, end
            if nearest < end:
                places = {needle: find(needle, end) if 0 <= at < end else at for needle, at in places.items()}
                nearest = min((at for at in places.values() if at >= 0), default=total)
        else:
            passed += 1
            if passed == PASSED_MAX:
                yield PassedFrames(base_offset + end, passed, end - passed_from - passed * HEADER_BYTES)
                passed, passed_from = 0, end
        start = end
    if passed:
        yield PassedFrames(base_offset + start, passed, start - passed_from - passed * HEADER_BYTES)


def _checksum_reason(body: bytes, stored: int) -> str:
    return f"checksum {stored:#x} in the header, {checksum(body):#x} of the {len(body)} body bytes"


def intact(run: bytes, start: int = 0) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield ``(end, message_id, flag, checksum, body)`` of the frames from ``start`` on, up to one that is not intact.

    ``end`` is a position in the run. A frame that is cut, has a negative length or a wrong checksum ends the iteration.
    """
    total, unpack, crc = len(run), _HEADER.unpack_from, crc32
    while (body_start := start + HEADER_BYTES) <= total:
        length, checksum_stored, message_id, flag = unpack(run, start)
        start = body_start + length
        if length < 0 or start > total:
            return
        body = run[body_start:start]
        if crc(body) & CHECKSUM_MASK != checksum_stored:
            return
        yield start, message_id, flag, checksum_stored, body


TAIL_STEPS_MAX: Final = 1_000_000
"""Frames that a search for a tail steps over: bytes of payloads may look like many."""


def whole_tail(run: bytes) -> list[int]:
    """Return where the frames at the end of a run begin; ``run`` may begin inside a frame, and ends with a whole one.

    Empty if none is found: the last frame is longer than the run, or payloads look like frames everywhere. A position
    counts if intact frames lead from it to the end of the run, with ids other than 0, which zeroed bytes would have.
    """
    total, unpack, steps = len(run), _INT32.unpack_from, 0
    for start in range(total - HEADER_BYTES + 1):
        length: int = unpack(run, start)[0]
        if not 0 <= length <= total - start - HEADER_BYTES:
            continue
        found, at = [start], start
        for end, message_id, *_ in intact(run, start):
            steps += 1
            if message_id == 0 or steps > TAIL_STEPS_MAX:
                break
            at = end
            found.append(end)
        if at == total:
            return found[:-1]
        if steps > TAIL_STEPS_MAX:
            break
    return []


def pass_whole(run: Buffer, start: int = 0, end: int | None = None, frames_max: int = INT64_MAX) -> tuple[int, int]:
    """Step over whole frames by their lengths; return where the next one begins, and how many there were.

    Stops before a frame that ends after ``end`` (``None``: the end of the run), after ``frames_max``, and before a
    negative length.
    """
    view = run if isinstance(run, bytes) else memoryview(run)
    end, count, unpack = len(view) if end is None else end, 0, _INT32.unpack_from
    headers_end = min(end, len(view)) - HEADER_BYTES
    while start <= headers_end and count < frames_max:
        length: int = unpack(view, start)[0]
        next_start = start + HEADER_BYTES + length
        if length < 0 or next_start > end:
            break
        start, count = next_start, count + 1
    return start, count


def whole_bytes(run: Buffer) -> int:
    """Return how many bytes at the front of a run are whole frames. Reads lengths only.

    Raises:
        CorruptFrame: A length is negative, so later frames cannot be found.
    """
    end, _ = pass_whole(run)
    require_length(run, end)
    return end


def require_length(run: Buffer, at: int, base_offset: int = 0, where: str = "run") -> None:
    """Check the length in the header at a position, if the run has all of that header.

    Raises:
        CorruptFrame: It is negative.
    """
    if len(run) - at >= HEADER_BYTES and (size := frame_bytes(run, at)) < HEADER_BYTES:
        raise CorruptFrame(where, base_offset + at, f"body length {size - HEADER_BYTES}")
