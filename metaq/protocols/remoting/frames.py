"""Frames of the remoting protocol: bytes to commands and back. No socket, no clock.

::

    L1 i32 = 4 + header length + body length
    L2 i32 = codec << 24 | header length
    header, body

Feed received bytes and take complete commands::

    for command in decoder.receive(chunk):
        ...

A ``ProtocolError`` is final: the start of the next frame is unknown. Close the connection without a response, as
RocketMQ's own servers do. Commands before the invalid frame are returned first.

Source: docs/remoting-protocol.md, "Frames".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NoReturn

from metaq.errors import FieldError, ProtocolError
from metaq.model import Buffer
from metaq.protocols.remoting.binary_header import read_binary, write_binary
from metaq.protocols.remoting.command import Codec, RemotingCommand
from metaq.protocols.remoting.json_header import read_json, write_json

FRAME_BYTES_MAX: Final = 16 << 20
"""Default limit on a frame, including L1. The same as in Java."""

HEADER_BYTES_MAX: Final = 8 << 20
"""Default limit on a header: the ids of the largest batch of messages fit."""

HEADER_BYTES_LIMIT: Final = (1 << 24) - 1
"""The largest length that fits its 24 bits."""

_WORD: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">iI")
_WORD_BYTES, _HEAD_BYTES = _WORD.size, _HEAD.size
_BINARY: Final = int(Codec.BINARY)
_BODY_BYTES_LIMIT: Final = (1 << 31) - 1 - HEADER_BYTES_LIMIT - _WORD_BYTES


def encode(command: RemotingCommand, codec: Codec | None = None) -> bytes:
    """Return ``command`` as a frame, with its header in ``codec``; ``None``: in the command's own.

    Raises:
        FieldError: A field, the header or the body does not fit the format.
    """
    return b"".join((encode_start(command, len(command.body), codec), command.body))


def encode_start(command: RemotingCommand, body_bytes: int, codec: Codec | None = None) -> bytes:
    """Return the frame of ``command`` without its body of ``body_bytes`` bytes, which the caller sends without a copy.
    Raises as ``encode``.
    """
    codec = command.codec if codec is None else codec
    for field, value in (("code", command.code), ("opaque", command.opaque), ("flag", command.flag)):
        if not -(1 << 31) <= value < 1 << 31:
            raise FieldError(str(command.code), field, value, "a number of 32 bits")
    header = write_json(command) if codec is Codec.JSON else write_binary(command)
    if len(header) > HEADER_BYTES_LIMIT:
        raise FieldError(str(command.code), "header", f"{len(header)} bytes", f"at most {HEADER_BYTES_LIMIT} bytes")
    if body_bytes > _BODY_BYTES_LIMIT:
        raise FieldError(str(command.code), "body", f"{body_bytes} bytes", f"at most {_BODY_BYTES_LIMIT} bytes")
    return _HEAD.pack(_WORD_BYTES + len(header) + body_bytes, codec << 24 | len(header)) + header


def frame_head(header_bytes: int, body_bytes: int) -> bytes:
    """Return the bytes in front of a JSON header; the sizes must fit."""
    return _HEAD.pack(_WORD_BYTES + header_bytes + body_bytes, header_bytes)


class FrameDecoder:
    """Decodes the commands of one direction of a connection."""

    __slots__ = ("_error", "_frame_bytes_max", "_header_bytes_max", "_missing", "_received", "taken_bytes")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX) -> None:
        """Both limits are in bytes; the frame's includes L1."""
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = min(header_bytes_max, HEADER_BYTES_LIMIT)
        self._received: bytearray | bytes = b""
        self._missing = 0  # bytes needed before decoding can continue
        self._error: ProtocolError | None = None
        self.taken_bytes = 0
        """Size of the frame of the command that was taken last."""

    buffer: Final = None
    """There is none: bytes are received elsewhere and given to ``receive_data``."""

    def buffer_filled(self, count: int) -> NoReturn:
        """Never called, since there is no ``buffer``."""
        raise AssertionError(f"{count} bytes for a buffer that is not there")

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet decoded."""
        return len(self._received)

    def receive(self, chunk: Buffer) -> Iterator[RemotingCommand]:
        """Take the next bytes of the stream, in a piece of any size; return the commands that are complete.

        The bytes are stored at once. Commands not taken from the iterator are returned by the next call's iterator.

        Raises:
            ProtocolError: The bytes are not a frame (raised by the iterator); final.
        """
        self.receive_data(chunk)
        return self._commands()

    def receive_data(self, chunk: Buffer) -> None:
        """Take the next bytes of the stream, in a piece of any size."""
        if self._error is None and len(chunk):
            if type(self._received) is bytearray:
                self._received += chunk
            else:
                self._received = bytearray(chunk)

    def _commands(self) -> Iterator[RemotingCommand]:
        while (command := self.take()) is not None:
            yield command

    def take(self) -> RemotingCommand | None:
        """Return the next complete command, ``None`` if there is none. Raises as the iterator."""
        if self._error is not None:
            raise self._error
        received, there = self._received, len(self._received)
        if there < self._missing:
            return None
        try:
            if there < _HEAD_BYTES:
                if there >= _WORD_BYTES:
                    self._check_length(*_WORD.unpack_from(received))
                return None
            length, word = _HEAD.unpack_from(received)
            codec, header_length = word >> 24, word & HEADER_BYTES_LIMIT
            if not _WORD_BYTES <= length <= self._frame_bytes_max - _WORD_BYTES:
                self._check_length(length)
            fits = 0 < header_length <= self._header_bytes_max and header_length <= length - _WORD_BYTES
            if codec > _BINARY or not fits:
                self._check_header(codec, header_length, length)
            end = _WORD_BYTES + length
            if there < end:
                self._missing = end
                return None
            body_start = _HEAD_BYTES + header_length
            view = memoryview(received)
            header, body = view[_HEAD_BYTES : body_start].tobytes(), view[body_start:end].tobytes()
            view.release()  # the bytes after it are moved
            self._missing, self.taken_bytes = 0, end
            if end == there:  # usual: most clients have one request in flight
                self._received = b""
            else:
                assert isinstance(received, bytearray)
                del received[:end]
            return read_binary(header, body) if codec == _BINARY else read_json(header, body)
        except ProtocolError as error:
            self._error, self._received = error, b""
            raise

    def _check_length(self, length: int) -> None:
        if length < _WORD_BYTES:
            raise ProtocolError(f"frame with a length of {length}, below {_WORD_BYTES}", bytes(self._received[:64]))
        if length > self._frame_bytes_max - _WORD_BYTES:
            what = f"frame of {length + _WORD_BYTES} bytes, above the limit of {self._frame_bytes_max}"
            raise ProtocolError(what, bytes(self._received[:64]))

    def _check_header(self, codec: int, header_length: int, length: int) -> None:
        if codec not in (Codec.JSON, Codec.BINARY):
            raise ProtocolError(f"frame with a header of type {codec}, not 0 or 1", bytes(self._received[:64]))
        if not 0 < header_length <= length - _WORD_BYTES:
            what = f"frame of length {length} with a header of {header_length} bytes"
            raise ProtocolError(what, bytes(self._received[:64]))
        if header_length > self._header_bytes_max:
            what = f"header of {header_length} bytes, above the limit of {self._header_bytes_max}"
            raise ProtocolError(what, bytes(self._received[:64]))
