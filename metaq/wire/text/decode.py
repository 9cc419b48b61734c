"""Bytes in, commands or replies out. No socket, no clock.

Feed what was received, then take what is complete until ``NEED_DATA``::

    decoder.receive_data(chunk)
    while (command := decoder.next_command()) is not NEED_DATA:
        ...

A ``ProtocolError`` is final: the stream cannot be made sense of any more, and every further call raises the same error.
Close the connection. Replies to commands that were decoded before it may still be sent.

A broker reads hundreds of thousands of puts a second here. So the line that clients really send, the put with
checksum and without transaction, takes a path of its own that does without the general parser; what it does not recognise
falls through to ``metaq.wire.text.lines`` and means the same.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Final, Literal

from metaq.errors import ProtocolError
from metaq.model import INT32_MAX, INT32_MIN, Buffer
from metaq.wire.text.commands import Command, Oversized, Put, Reply, Result, Value
from metaq.wire.text.inbox import CRLF, Inbox
from metaq.wire.text.lines import Head, parse_line, parse_result_line, parse_value_line

LINE_BYTES_MAX: Final = 65536
"""Longest line. Java has no limit; its clients' lines stay below 1 KiB."""

BODY_BYTES_MAX: Final = 64 << 20
"""Longest body, unless the caller says otherwise."""


class _NeedData(Enum):
    NEED_DATA = "NEED_DATA"

    def __repr__(self) -> str:
        return self.value


NEED_DATA: Final = _NeedData.NEED_DATA
"""Nothing is complete; feed more."""

_PUT_HEAD_BYTES_MAX: Final = 256
_PUT_HEADS_MAX: Final = 8192


class CommandDecoder:
    """The broker's side: decodes commands."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._line_bytes_max, self._body_bytes_max = line_bytes_max, body_bytes_max
        self._inbox = Inbox()
        self._head: Head | None = None
        self._error: ProtocolError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet decoded."""
        return self._inbox.pending_bytes

    def receive_data(self, chunk: Buffer) -> None:
        """Take the next bytes of the stream, in any sizes."""
        self._inbox.feed(chunk)

    def next_command(self) -> Command | Oversized | Literal[_NeedData.NEED_DATA]:
        """Return the next complete command.

        A command whose body is above the limit comes out as ``Oversized`` as soon as its line is known; its body is
        dropped as it arrives, and decoding goes on behind it.

        Raises:
            ProtocolError: The bytes are no command; final.
        """
        if self._head is None and self._error is None:
            put = self._fast_put()
            if put is not None:
                return put
        try:
            return self._next_command()
        except ProtocolError as error:
            self._error = error
            raise

    def _fast_put(self) -> Put | None:
        """Return the put at hand if it is ``put TOPIC PARTITION LENGTH FLAG CHECKSUM OPAQUE`` with its whole body."""
        inbox = self._inbox
        data, start = inbox.data, inbox.pos
        line_end = data.find(CRLF, start)
        if line_end < 0:
            return None
        parts = data[start:line_end].rsplit(b" ", 2)
        if len(parts) != 3 or len(parts[0]) > _PUT_HEAD_BYTES_MAX:
            return None
        fields = _put_head(parts[0])
        _, checksum_token, opaque_token = parts
        # The Java client's opaques start at -2147483648, so a sign is as usual as none.
        if fields is None or not checksum_token.isdigit() or not opaque_token.removeprefix(b"-").isdigit():
            return None
        topic, partition, length, flag = fields
        end = line_end + 2 + length
        if end > len(data) or length > self._body_bytes_max or line_end - start > self._line_bytes_max:
            return None
        checksum, opaque = int(checksum_token), int(opaque_token)
        if checksum > INT32_MAX or not INT32_MIN <= opaque <= INT32_MAX:
            return None
        inbox.pos = end
        # tuple.__new__ skips the named tuple's own argument handling: a tenth of the whole path.
        return tuple.__new__(Put, (topic, partition, data[line_end + 2 : end], flag, opaque, checksum, None))

    def _next_command(self) -> Command | Oversized | Literal[_NeedData.NEED_DATA]:
        if self._error is not None:
            raise self._error
        if self._head is None:
            line = self._inbox.line(self._line_bytes_max)
            if line is None:
                return NEED_DATA
            parsed = parse_line(line)
            if not isinstance(parsed, Head):
                return parsed
            if parsed.length > self._body_bytes_max:
                return self._skip_body(parsed)
            self._head = parsed
        body = self._inbox.exactly(self._head.length)
        if body is None:
            return NEED_DATA
        head, self._head = self._head, None
        try:
            return head.finish(body)
        except ValueError as error:
            raise ProtocolError(str(error), head.word.encode()) from None

    def _skip_body(self, head: Head) -> Oversized:
        self._inbox.skip(head.length)
        return Oversized(head.word, head.topic, head.partition, head.length, self._body_bytes_max, head.opaque)


@lru_cache(maxsize=_PUT_HEADS_MAX)
def _put_head(head: bytes) -> tuple[str, int, int, int] | None:
    """Return topic, partition, length and flag of ``put TOPIC PARTITION LENGTH FLAG``; ``None`` if it is not that.

    Heads repeat (few topics and partitions, similar lengths), so most are found here without being parsed.
    """
    try:
        parsed = parse_line(head + b" 0 0")
    except ProtocolError:
        return None
    if not isinstance(parsed, Head) or parsed.word != "put":
        return None
    put = parsed.finish(b"")
    if not isinstance(put, Put) or put.checksum is None or put.transaction is not None:
        return None
    return put.topic, put.partition, parsed.length, put.flag


class ReplyDecoder:
    """The client's side: decodes replies. Takes ``data`` for ``value``, a name that some documents give it."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._line_bytes_max, self._body_bytes_max = line_bytes_max, body_bytes_max
        self._inbox = Inbox()
        self._head: tuple[int | None, int, int] | None = None  # code (None: a value), length, opaque
        self._error: ProtocolError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet decoded."""
        return self._inbox.pending_bytes

    def receive_data(self, chunk: Buffer) -> None:
        """Take the next bytes of the stream, in any sizes."""
        self._inbox.feed(chunk)

    def next_reply(self) -> Reply | Literal[_NeedData.NEED_DATA]:
        """Return the next complete reply.

        Raises:
            ProtocolError: The bytes are no reply, or its body is above the limit; final.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._next_reply()
        except ProtocolError as error:
            self._error = error
            raise

    def _next_reply(self) -> Reply | Literal[_NeedData.NEED_DATA]:
        if self._head is None:
            line = self._inbox.line(self._line_bytes_max)
            if line is None:
                return NEED_DATA
            self._head = self._parse_head(line)
        code, length, opaque = self._head
        body = self._inbox.exactly(length)
        if body is None:
            return NEED_DATA
        self._head = None
        if code is None:
            return Value(body, opaque)
        # Any bytes survive: the text of `stats config` is a file in whatever encoding it was written.
        return Result(code, body.decode("utf-8", "surrogateescape"), opaque)

    def _parse_head(self, line: bytes) -> tuple[int | None, int, int]:
        word = line.partition(b" ")[0]
        code: int | None = None
        if word == b"result":
            code, length, opaque = parse_result_line(line)
        elif word in (b"value", b"data"):
            length, opaque = parse_value_line(line)
        else:
            raise ProtocolError("a reply must start with result or value", line)
        if length > self._body_bytes_max:
            raise ProtocolError(f"body of {length} bytes is above the limit of {self._body_bytes_max}", line)
        return code, length, opaque
