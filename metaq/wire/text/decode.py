"""Bytes in, commands or replies out. No socket, no clock.

Feed what was received, then take what is complete until ``NEED_DATA``::

    decoder.receive_data(chunk)
    while (command := decoder.next_command()) is not NEED_DATA:
        ...

A ``ProtocolError`` is final: the stream cannot be made sense of any more, so what follows is dropped and every further
call raises the same error. Close the connection. Replies to commands that came before it may still be sent.

A broker reads hundreds of thousands of puts a second here. So the line that clients really send, the put with checksum
and without transaction, takes a path of its own that does without the general parser; what it does not recognise falls
through to ``metaq.wire.text.lines`` and means the same.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

from metaq.errors import ProtocolError
from metaq.model import INT32_MAX, INT32_MIN, Buffer
from metaq.wire.text.commands import Command, Oversized, Put, Reply, Result, Value
from metaq.wire.text.inbox import CRLF, Inbox
from metaq.wire.text.lines import Head, ReplyHead, parse_command, parse_reply, usual_put_head

LINE_BYTES_MAX: Final = 65536
"""Longest line. Java has no limit, but its clients' lines stay below 1 KiB."""

BODY_BYTES_MAX: Final = 64 << 20
"""Longest body, unless the caller says otherwise."""

_FAST_LINE_BYTES_MAX: Final = 256
_new_tuple = tuple.__new__


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

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet decoded."""
        return self._inbox.pending_bytes

    def receive_data(self, chunk: Buffer) -> None:
        """Take the next bytes of the stream, in pieces of any size."""
        if self._error is None:
            self._inbox.feed(chunk)

    def _fail(self, error: ProtocolError) -> None:
        self._error = error
        self._inbox = Inbox()


class CommandDecoder(_Decoder):
    """The broker's side: decodes commands."""

    _head: Head | None = None

    def next_command(self) -> Command | Oversized | Literal[_NeedData.NEED_DATA]:
        """Return the next complete command.

        A command whose body is above the limit comes out as ``Oversized`` as soon as its line is known; its body is
        dropped as it arrives, and decoding goes on behind it.

        Raises:
            ProtocolError: The bytes are no command; final.
        """
        if self._head is None and (put := self._usual_put()) is not None:
            return put
        if self._error is not None:
            raise self._error
        try:
            return self._any_command()
        except ProtocolError as error:
            self._fail(error)
            raise

    def _usual_put(self) -> Put | None:
        """Return the put at hand if it is ``put TOPIC PARTITION LENGTH FLAG CHECKSUM OPAQUE`` with its whole body."""
        inbox = self._inbox
        data, start = inbox.data, inbox.pos
        line_end = data.find(CRLF, start)
        if not 0 <= line_end - start <= self._fast_line_bytes_max:
            return None
        try:
            head, checksum_token, opaque_token = data[start:line_end].rsplit(b" ", 2)
        except ValueError:
            return None
        fields = usual_put_head(head)
        # The Java client's opaques start at -2147483648, so a sign is as usual as none.
        if fields is None or not checksum_token.isdigit() or not opaque_token.removeprefix(b"-").isdigit():
            return None
        topic, partition, length, flag = fields
        body_start = line_end + 2
        end = body_start + length
        checksum, opaque = int(checksum_token), int(opaque_token)
        if (
            end > len(data)
            or length > self._body_bytes_max
            or checksum > INT32_MAX
            or not INT32_MIN <= opaque <= INT32_MAX
        ):
            return None
        inbox.pos = end
        # Straight to the tuple: the named tuple's own argument handling would be a tenth of the whole path.
        return _new_tuple(Put, (topic, partition, data[body_start:end], flag, opaque, checksum, None))

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
        body = self._inbox.exactly(self._head.length)
        if body is None:
            return NEED_DATA
        head, self._head = self._head, None
        return head.finish(body)

    def _skip_body(self, head: Head) -> Oversized:
        self._inbox.skip(head.length)
        return Oversized(head.word, head.topic, head.partition, head.length, self._body_bytes_max, head.opaque)


class ReplyDecoder(_Decoder):
    """The client's side: decodes replies. Takes ``data`` for ``value``, a name that some documents give it."""

    _head: tuple[ReplyHead, int] | None = None  # with the opaque

    def next_reply(self) -> Reply | Literal[_NeedData.NEED_DATA]:
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

    def _any_reply(self) -> Reply | Literal[_NeedData.NEED_DATA]:
        if self._head is None:
            line = self._inbox.line(self._line_bytes_max)
            if line is None:
                return NEED_DATA
            self._head = parse_reply(line)
            if self._head[0].length > self._body_bytes_max:
                raise ProtocolError(f"body above the limit of {self._body_bytes_max} bytes", line)
        (code, length), opaque = self._head
        body = self._inbox.exactly(length)
        if body is None:
            return NEED_DATA
        self._head = None
        if code is None:
            return Value(body, opaque)
        # Any bytes survive: the text of `stats config` is a file in whatever encoding it was written.
        return Result(code, body.decode("utf-8", "surrogateescape"), opaque)
