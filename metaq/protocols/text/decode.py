"""Bytes in, commands or replies out. No socket, no clock.

Feed what was received, then take what is complete until ``NEED_DATA``::

    decoder.receive_data(chunk)
    while (command := decoder.next_command()) is not NEED_DATA:
        ...

A ``ProtocolError`` is final: the stream cannot be made sense of any more, so what follows is dropped and every further
call raises the same error. Close the connection. Replies to commands that came before it may still be sent.

A broker reads hundreds of thousands of puts a second here. So those that clients really send can be had as columns,
many at once (``next_puts``); taken one by one (``next_command``) they mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Literal

from metaq.errors import ProtocolError
from metaq.model import Buffer
from metaq.protocols.text.commands import Command, Filled, Oversized, Reply, Result, Value
from metaq.protocols.text.framed_puts import FramedPuts, Framer, take_framed
from metaq.protocols.text.lines import Head, ReplyHead, parse_command, parse_reply
from metaq.protocols.text.put_runs import PUT, PutRun, take_run
from metaq.protocols.text.receive_buffer import Inbox

LINE_BYTES_MAX: Final = 65536
"""Longest line. Java has no limit, but its clients' lines stay below 1 KiB."""

BODY_BYTES_MAX: Final = 64 << 20
"""Longest body, unless the caller says otherwise."""

_FAST_LINE_BYTES_MAX: Final = 256


class _NeedData(Enum):
    NEED_DATA = "NEED_DATA"

    def __repr__(self) -> str:
        return self.value


NEED_DATA: Final = _NeedData.NEED_DATA
"""Nothing is complete; feed more."""


class _Decoder:
    """What both directions share: limits, the bytes that wait, and the error that ended it."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        """Start with nothing received. Both limits count bytes; the line's is without its CRLF."""
        self._line_bytes_max, self._body_bytes_max = line_bytes_max, body_bytes_max
        self._fast_line_bytes_max = min(line_bytes_max, _FAST_LINE_BYTES_MAX)
        self._inbox = Inbox()
        self._error: ProtocolError | None = None
        self._room: memoryview | None = None  # where the body at hand goes, exactly as long as that
        self._filled = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet decoded."""
        return self._inbox.pending_bytes + self._filled

    @property
    def buffer(self) -> memoryview | None:
        """Where the next bytes of the stream belong, not empty; ``None``: give them to ``receive_data``.

        While a body goes to a buffer that was kept for it: who receives its bytes there himself and says so
        (``buffer_filled``) saves copying them twice.
        """
        if self._room is None or self._inbox.pending_bytes or self._filled == len(self._room):
            return None
        return self._room[self._filled :]

    def buffer_filled(self, count: int) -> None:
        """``count`` bytes were received into ``buffer``."""
        self._filled += count

    def receive_data(self, chunk: Buffer) -> None:
        """Take the next bytes of the stream, in pieces of any size."""
        if self._error is None:
            self._inbox.feed(chunk)

    def _fill(self, buffer: memoryview) -> bool:
        """Move what has come for the body at hand to its buffer; return whether it is full, and then let go of it."""
        here = self._inbox.exactly(min(self._inbox.pending_bytes, len(buffer) - self._filled))
        if here:
            buffer[self._filled : self._filled + len(here)] = here
            self._filled += len(here)
        if self._filled < len(buffer):
            return False
        self._room, self._filled = None, 0
        return True

    def _fail(self, error: ProtocolError) -> None:
        self._error = error
        self._inbox = Inbox()
        self._room, self._filled = None, 0


BlockBufferSource = Callable[[int], memoryview]
"""Asked with the length of a block that did not come in one piece: where it is to go, writable and so long."""

ROOM_SHARE: Final = 32
"""A block gets its buffer when a thirty-second of it has come: memory stays close to what a client really sent."""


class CommandDecoder(_Decoder):
    """The broker's side: decodes commands.

    With ``buffers``, the block of a ``PutBatch`` that comes in pieces may be a buffer from there instead of ``bytes``.
    With ``framer``, many puts at once can be had as frames (``next_puts``).
    """

    _head: Head | None = None
    _singly = 0  # so many puts are not to be tried as a run

    def __init__(
        self,
        line_bytes_max: int = LINE_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        buffers: BlockBufferSource | None = None,
        framer: Framer | None = None,
    ) -> None:
        super().__init__(line_bytes_max, body_bytes_max)
        self._buffers = buffers
        self._framer = framer

    @property
    def reserved_bytes(self) -> int:
        """Bytes of memory in use here. A buffer counts as far as it is filled: its pages come with the bytes."""
        return self.pending_bytes

    def abandon(self) -> memoryview | None:
        """Forget what waits here, for nobody will ask for it; return the buffer that was to be filled, if any."""
        buffer, self._room, self._filled, self._head = self._room, None, 0, None
        self._inbox = Inbox()
        return buffer

    def next_command(self) -> Command | Oversized | Literal[_NeedData.NEED_DATA]:
        """Return the next complete command.

        A command whose body is above the limit comes out as ``Oversized`` as soon as its line is known; its body is
        dropped as it arrives, and decoding goes on behind it.

        Raises:
            ProtocolError: The bytes are no command; final.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._any_command()
        except ProtocolError as error:
            self._fail(error)
            raise

    def next_puts(self, count_max: int) -> FramedPuts | PutRun | None:
        """Return the puts that are next, up to ``count_max``, if they are whole and of the usual form.

        As frames if they are many, to one partition, and there is a framer that takes them. ``None``: there are none,
        or none that is usual; ``next_command`` knows.
        """
        inbox = self._inbox
        if self._head is not None or not inbox.data.startswith(PUT, inbox.pos):
            return None
        if self._singly:
            self._singly -= 1
            return None
        limits = count_max, self._fast_line_bytes_max, self._body_bytes_max
        if self._framer is not None:
            framed = take_framed(inbox, self._framer, *limits)
            if framed is not None:
                return framed
        run = take_run(inbox, *limits)
        if isinstance(run, int):
            self._singly = max(0, run - 1)
            return None
        return run

    def _any_command(self) -> Command | Oversized | Literal[_NeedData.NEED_DATA]:
        if self._head is None:
            line = self._inbox.line(self._line_bytes_max)
            if line is None:
                return NEED_DATA
            parsed = parse_command(line)
            if not isinstance(parsed, Head):
                return parsed
            if parsed.length > self._body_bytes_max:
                return self._skip_body(parsed)
            self._head = parsed
        body = self._body(self._head)
        if body is None:
            return NEED_DATA
        head, self._head = self._head, None
        return head.finish(body)

    def _body(self, head: Head) -> Buffer | None:
        """Return the body at hand, ``None`` if it has not all come."""
        if self._room is None:
            body = self._inbox.exactly(head.length)
            if body is not None or self._buffers is None or not head.is_block:
                return body
            if self._inbox.pending_bytes * ROOM_SHARE < head.length:
                return None
            self._room = self._buffers(head.length)
        buffer = self._room
        return buffer if self._fill(buffer) else None

    def _skip_body(self, head: Head) -> Oversized:
        self._inbox.skip(head.length)
        return Oversized(head.word, head.topic, head.partition, head.length, self._body_bytes_max, head.opaque)


BufferSource = Callable[[int, int], memoryview | None]
"""Asked with the opaque and the length of each value: where its body is to go, writable; ``None`` = nowhere special."""


def _no_buffers(opaque: int, length: int) -> memoryview | None:
    return None


class ReplyDecoder(_Decoder):
    """The client's side: decodes replies. Takes ``data`` for ``value``, a name that some documents give it.

    A value that ``buffers`` has a buffer for comes out as ``Filled``. While its body is under way, ``buffer`` is where
    the next bytes belong: who receives them there himself and says so (``buffer_filled``) saves a copy of each.
    """

    _head: tuple[ReplyHead, int] | None = None  # with the opaque
    _room: memoryview | None = None  # where the body of _head goes, exactly as long as that
    _filled = 0

    def __init__(
        self,
        line_bytes_max: int = LINE_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        buffers: BufferSource = _no_buffers,
    ) -> None:
        super().__init__(line_bytes_max, body_bytes_max)
        self._buffers = buffers

    def next_reply(self) -> Reply | Filled | Literal[_NeedData.NEED_DATA]:
        """Return the next complete reply.

        Raises:
            ProtocolError: The bytes are no reply, or its body is above the limit; final.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._any_reply()
        except ProtocolError as error:
            self._fail(error)
            raise

    def _any_reply(self) -> Reply | Filled | Literal[_NeedData.NEED_DATA]:
        if self._head is None:
            line = self._inbox.line(self._line_bytes_max)
            if line is None:
                return NEED_DATA
            self._head = parse_reply(line)
            if self._head[0].length > self._body_bytes_max:
                raise ProtocolError(f"body above the limit of {self._body_bytes_max} bytes", line)
            (code, length), opaque = self._head
            self._room = self._buffers(opaque, length) if code is None else None
        (code, length), opaque = self._head
        if self._room is not None:
            if not self._fill(self._room):
                return NEED_DATA
            self._head = None
            return Filled(length, opaque)
        body = self._inbox.exactly(length)
        if body is None:
            return NEED_DATA
        self._head = None
        if code is None:
            return Value(body, opaque)
        # Any bytes survive: the text of `stats config` is a file in whatever encoding it was written.
        return Result(code, body.decode("utf-8", "surrogateescape"), opaque)
