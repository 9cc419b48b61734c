"""Decodes bytes into commands or replies. No socket, no clock.

Feed received bytes, then take complete commands until ``NEED_DATA``::

    decoder.receive_data(chunk)
    while (command := decoder.next_command()) is not NEED_DATA:
        ...

A ``ProtocolError`` is final: the next command cannot be found any more, so all further bytes are dropped and every
further call raises the same error. Close the connection. Replies to earlier commands may still be sent.

A broker decodes hundreds of thousands of puts a second. ``next_event`` returns plain puts that follow each other as
one event; ``next_command`` decodes the same puts one by one, with the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Literal

from metaq.errors import ProtocolError
from metaq.model import Buffer
from metaq.protocols.text.commands import BLOCK_COMMANDS, Command, Filled, Oversized, Put, Reply, Result, Value
from metaq.protocols.text.lines import Head, ReplyHead, parse_command, parse_reply
from metaq.protocols.text.puts import PUT, Puts, take_puts
from metaq.protocols.text.receive_buffer import Inbox

LINE_BYTES_MAX: Final = 65536
"""Longest line. Java has no limit, but its clients' lines stay below 1 KiB."""

BODY_BYTES_MAX: Final = 64 << 20
"""Default limit on a body."""

_FAST_LINE_BYTES_MAX: Final = 256


class _NeedData(Enum):
    NEED_DATA = "NEED_DATA"

    def __repr__(self) -> str:
        return self.value


NEED_DATA: Final = _NeedData.NEED_DATA
"""Nothing is complete; more data is needed."""


class _Decoder:
    """Base of both decoders: limits, received bytes, and the final error."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        """Both limits are in bytes; the line's excludes its CRLF."""
        self._line_bytes_max, self._body_bytes_max = line_bytes_max, body_bytes_max
        self._fast_line_bytes_max = min(line_bytes_max, _FAST_LINE_BYTES_MAX)
        self._inbox = Inbox()
        self._error: ProtocolError | None = None
        self._body_buffer: memoryview | None = None  # for the current body, of its length
        self._filled = 0
        self._kept_bytes = 0  # of a command that was decoded and not returned yet

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet decoded."""
        inbox = self._inbox
        return len(inbox.data) - inbox.pos + inbox.chunks_bytes + self._filled + self._kept_bytes

    @property
    def buffer(self) -> memoryview | None:
        """A writable buffer, not empty, for the next bytes of the stream; ``None``: pass them to ``receive_data``.

        While a body is received into its own buffer, a caller can receive directly into this one and call
        ``buffer_filled``. That saves a copy.
        """
        if self._body_buffer is None or self._inbox.pending_bytes or self._filled == len(self._body_buffer):
            return None
        return self._body_buffer[self._filled :]

    def buffer_filled(self, count: int) -> None:
        """``count`` bytes were received into ``buffer``."""
        self._filled += count

    def receive_data(self, chunk: Buffer) -> None:
        """Take the next bytes of the stream, in a piece of any size."""
        if self._error is None:
            self._inbox.feed(chunk)

    def _fill(self, buffer: memoryview) -> bool:
        """Move received bytes of the current body to ``buffer``; if it is full, release it and return true."""
        here = self._inbox.exactly(min(self._inbox.pending_bytes, len(buffer) - self._filled))
        if here:
            buffer[self._filled : self._filled + len(here)] = here
            self._filled += len(here)
        if self._filled < len(buffer):
            return False
        self._body_buffer, self._filled = None, 0
        return True

    def _fail(self, error: ProtocolError) -> None:
        self._error = error
        self._inbox = Inbox()
        self._body_buffer, self._filled = None, 0


BlockBufferSource = Callable[[int], memoryview]
"""Returns a writable buffer of the given length, for a block that did not arrive in one piece."""

BUFFER_SHARE: Final = 32
"""A block gets a buffer when a thirty-second of it has arrived, so memory stays close to the bytes received."""


class CommandDecoder(_Decoder):
    """The broker's side: decodes commands.

    With ``buffers``, the block of a ``PutBatch`` or a ``MemberMessage`` that arrives in pieces is in such a buffer
    instead of ``bytes``.
    """

    _head: Head | None = None
    _singly = 0  # puts to decode one by one before the next run is tried

    def __init__(
        self,
        line_bytes_max: int = LINE_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        buffers: BlockBufferSource | None = None,
    ) -> None:
        super().__init__(line_bytes_max, body_bytes_max)
        self._buffers = buffers
        self._behind_puts: Command | Oversized | None = None

    def abandon(self) -> memoryview | None:
        """Drop received bytes that are not decoded; return the buffer of the current body, if it has one."""
        buffer, self._body_buffer, self._filled, self._head = self._body_buffer, None, 0, None
        self._behind_puts, self._kept_bytes = None, 0
        self._inbox = Inbox()
        return buffer

    def next_command(self) -> Command | Oversized | Literal[_NeedData.NEED_DATA]:
        """Return the next complete command.

        A command whose body exceeds the limit is returned as ``Oversized`` as soon as its line is complete; its body is
        dropped as it arrives, and decoding continues after it.

        Raises:
            ProtocolError: The bytes are not a command; final.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._any_command()
        except ProtocolError as error:
            self._fail(error)
            raise

    def next_event(self, puts_max: int) -> Puts | Command | Oversized | Literal[_NeedData.NEED_DATA]:
        """Return what comes next: plain puts that follow each other, up to ``puts_max``, or another command.

        Raises:
            ProtocolError: As ``next_command``; the puts before it have been returned.
        """
        if self._behind_puts is not None:
            event, self._behind_puts, self._kept_bytes = self._behind_puts, None, 0
            return event
        singles: list[Put] = []
        while len(singles) < puts_max:
            if self._head is None and self._inbox.data.startswith(PUT, self._inbox.pos):
                if not self._singly:
                    limits = self._fast_line_bytes_max, self._body_bytes_max
                    taken = take_puts(self._inbox, puts_max - len(singles), *limits)
                    if isinstance(taken, Puts):
                        return taken.behind(singles) if singles else taken
                    self._singly = taken
                self._singly = max(0, self._singly - 1)
            try:
                command = self.next_command()
            except ProtocolError:
                if singles:
                    break  # raised again by the next call
                raise
            if type(command) is not Put or command.transaction is not None:
                if not singles:
                    return command
                if command is not NEED_DATA:
                    self._behind_puts, self._kept_bytes = command, 1 + _block_bytes(command)
                break
            singles.append(command)
        return Puts.of(singles)

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
        """Return the current body, ``None`` if it is not complete."""
        if self._body_buffer is None:
            body = self._inbox.exactly(head.length)
            if body is not None or self._buffers is None or not head.is_block:
                return body
            if self._inbox.pending_bytes * BUFFER_SHARE < head.length:
                return None
            self._body_buffer = self._buffers(head.length)
        buffer = self._body_buffer
        return buffer if self._fill(buffer) else None

    def _skip_body(self, head: Head) -> Oversized:
        self._inbox.skip(head.length)
        return Oversized(head.word, head.topic, head.partition, head.length, self._body_bytes_max, head.opaque)


def _block_bytes(command: Command | Oversized) -> int:
    """Return how much memory a decoded block takes; other commands are small."""
    return len(command.block) if isinstance(command, BLOCK_COMMANDS) else 0


BufferSource = Callable[[int, int], memoryview | None]
"""(opaque, length of a value) -> a writable buffer for its body; ``None``: the body is returned as ``bytes``."""


def _no_buffers(opaque: int, length: int) -> memoryview | None:
    return None


class ReplyDecoder(_Decoder):
    """The client's side: decodes replies. Accepts ``data`` for ``value``, as some documents call it.

    A value for which ``buffers`` returns a buffer is returned as ``Filled``; see ``buffer``.
    """

    _head: tuple[ReplyHead, int] | None = None  # with the opaque

    def __init__(
        self,
        line_bytes_max: int = LINE_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        buffers: BufferSource = _no_buffers,
    ) -> None:
        super().__init__(line_bytes_max, body_bytes_max)
        self._buffers = buffers

    @property
    def missing_bytes(self) -> int:
        """Missing bytes of the current body; 0 while its line is not complete."""
        return 0 if self._head is None else max(0, self._head[0].length - self.pending_bytes)

    def next_reply(self) -> Reply | Filled | Literal[_NeedData.NEED_DATA]:
        """Return the next complete reply.

        Raises:
            ProtocolError: The bytes are not a reply, or its body exceeds the limit; final.
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
            self._body_buffer = self._buffers(opaque, length) if code is None else None
        (code, length), opaque = self._head
        if self._body_buffer is not None:
            if not self._fill(self._body_buffer):
                return NEED_DATA
            self._head = None
            return Filled(length, opaque)
        body = self._inbox.exactly(length)
        if body is None:
            return NEED_DATA
        self._head = None
        if code is None:
            return Value(body, opaque)
        # Any bytes survive: the text of `stats config` is a file in any encoding.
        return Result(code, body.decode("utf-8", "surrogateescape"), opaque)
