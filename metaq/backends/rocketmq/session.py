"""One connection to one server, for one thread at a time. Responses are matched to requests by opaque.

A server answers in any order, from its thread pools. It may also send requests; a client that is not a member of a
group has nothing to answer, so it replies that the request is not supported. After an error in the middle of an
exchange the session is closed and stays closed. A refusal is an ordinary response and closes nothing, except the
server's announcement that it is shutting down (``GO_AWAY``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from metaq.backends.rocketmq.answers import refusal_of
from metaq.backends.rocketmq.errors import RequestRefused
from metaq.errors import FieldError, ProtocolError
from metaq.model import Address, Buffer
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.identification import ROCKETMQ
from metaq.net.session import RequestSession
from metaq.net.transport import DEFAULT_TIMEOUTS, TCP, Timeouts, Transport
from metaq.protocols.remoting.acl import Credentials, sign
from metaq.protocols.remoting.codes import ResponseCode, name_of
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode, encode_start
from metaq.protocols.remoting.headers.fields import Response

PIPELINED_MAX: Final = 128
"""Limit on the requests of ``exchange`` that are in flight at once."""

OUTSTANDING_MAX: Final = 256
"""Limit on requests of one session that were posted and not yet waited for."""

FRAME_BYTES_MAX: Final = 64 << 20
"""Longest response that is accepted: far above a pull of one message of 4 MiB, below what would exhaust a worker."""

ANSWERED_BYTES_MAX: Final = 256 << 20
"""Limit on bytes of all responses that have arrived and were not yet waited for, so on a session's memory, beside one
response in transit: over 32 pulls of messages of 4 MiB.
"""

_RECEIVE_BYTES: Final = 256 << 10
_OPAQUE_MAX: Final = (1 << 31) - 1

R = TypeVar("R", bound=Response)


class Session(RequestSession[str, RemotingCommand]):
    """A connection to the server at ``address``, which is a broker or a name server. Made by ``Session.connect``."""

    protocol, server, response, kind = "RocketMQ's protocol", "server", "response", ROCKETMQ
    _decoder: FrameDecoder

    def __init__(
        self, address: Address, timeouts: Timeouts, transport: Transport, clock: Clock, credentials: Credentials | None
    ) -> None:
        super().__init__(address, timeouts, clock)
        self._answered_bytes = 0
        self.has_moved: Callable[[Address], bool] | None = None
        """Returns whether the broker is elsewhere by now; asked while the server is silent. Set by the lessee."""
        self._credentials = credentials
        self._opaques = itertools.count()
        self._stream = transport.connect_tcp(address, timeouts.connect_s)
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))  # reused: allocating it is expensive

    @classmethod
    def connect(
        cls,
        address: Address,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        transport: Transport = TCP,
        clock: Clock = SYSTEM_CLOCK,
        credentials: Credentials | None = None,
    ) -> Session:
        """Open a connection; requests are signed with ``credentials``.

        Raises:
            ConnectionFailed, DeadlineExceeded: There is no server, or it does not answer within ``timeouts.connect_s``.
        """
        return cls(address, timeouts, transport, clock, credentials)

    def call(self, command: RemotingCommand, action: str, timeout_s: float | None = None) -> RemotingCommand:
        """Send ``command`` and return its response, whatever its code; ``action`` describes the request in errors.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
            FieldError: The command does not fit a frame. Nothing was sent.
        """
        return self.wait(self.post(command, action, timeout_s), timeout_s)

    def ask(self, command: RemotingCommand, action: str, timeout_s: float | None = None) -> RemotingCommand:
        """Send a request that succeeds only with code 0; return its response.

        Raises:
            RequestRefused, AccessDenied: Any other code. The session stays usable, except after ``GO_AWAY``.
        """
        return self.accepted(self.call(command, action, timeout_s), command, action)

    def accepted(self, response: RemotingCommand, command: RemotingCommand, action: str) -> RemotingCommand:
        """Return ``response`` if its code is 0. Raises as ``ask``."""
        if response.code != ResponseCode.SUCCESS:
            raise self.refusal(response, command, action)
        return response

    def refusal(self, response: RemotingCommand, command: RemotingCommand, action: str) -> RequestRefused:
        if response.code == ResponseCode.GO_AWAY:
            self.close("the server is shutting down")
        return refusal_of(self.address, response, command, action)

    def read(self, response: RemotingCommand, kind: type[R]) -> R:
        """Parse the fields of ``response``.

        Raises:
            ProtocolError: A field is missing or not valid. The session is closed.
        """
        try:
            return kind.from_ext(response.ext)
        except FieldError as error:
            raise self.protocol_error(f"an answer in which {error}") from None

    def post(
        self, command: RemotingCommand, action: str, timeout_s: float | None = None, *, body: Buffer | None = None
    ) -> int:
        """Send ``command`` under a new opaque and return the opaque; collect the response with ``wait``.

        ``body`` replaces the command's body, and is not copied.

        Raises:
            RuntimeError: ``OUTSTANDING_MAX`` requests are in flight already.
            ConnectionFailed, DeadlineExceeded: The session is closed.
            FieldError: The command does not fit a frame. Nothing was sent.
        """
        if body is None:
            return self.post_all([command], action, timeout_s)[0]
        (opaque,) = self._next_opaques(1)
        command = command.numbered(opaque)
        start = encode_start(self._signed(command, body), len(body))
        with self._conversation(action, timeout_s) as limit_s:
            self._stream.send(start, limit_s, more=True)
            self._stream.send(body, limit_s)
        self._waiting[opaque] = action
        return opaque

    def post_all(self, commands: Sequence[RemotingCommand], action: str, timeout_s: float | None = None) -> list[int]:
        """Post each of ``commands``, all in one write; return the opaques.

        Raises:
            RuntimeError: More than ``OUTSTANDING_MAX`` requests would be in flight. Nothing was sent.
            ConnectionFailed, DeadlineExceeded: The session is closed.
            FieldError: A command does not fit a frame. Nothing was sent.
        """
        opaques = self._next_opaques(len(commands))
        frames = [self._encoded(command, opaque) for command, opaque in zip(commands, opaques, strict=True)]
        written = frames[0] if len(frames) == 1 else b"".join(frames)
        with self._conversation(action, timeout_s) as limit_s:
            self._stream.send(written, limit_s)
        self._waiting |= dict.fromkeys(opaques, action)
        return opaques

    def exchange(self, commands: Sequence[RemotingCommand], action: str) -> list[RemotingCommand]:
        """Return the responses to ``commands``, whatever their codes; pipelined. Raises as ``call``."""
        responses = []
        for start in range(0, len(commands), PIPELINED_MAX):
            opaques = self.post_all(commands[start : start + PIPELINED_MAX], action)
            responses += [self.wait(opaque) for opaque in opaques]
        return responses

    def oneway(self, command: RemotingCommand, action: str, timeout_s: float | None = None) -> None:
        """Send a request without a response. Raises as ``post``."""
        written = self._encoded(replace(command, flag=command.flag | 2), next(self._opaques) % _OPAQUE_MAX)
        with self._conversation(action, timeout_s) as limit_s:
            self._stream.send(written, limit_s)

    def _encoded(self, command: RemotingCommand, opaque: int) -> bytes:
        return encode(self._signed(command.numbered(opaque)))

    def _signed(self, command: RemotingCommand, body: Buffer | None = None) -> RemotingCommand:
        return command if self._credentials is None else sign(command, self._credentials, body)

    def _next_opaques(self, count: int) -> list[int]:
        if self.outstanding + count > OUTSTANDING_MAX:
            raise RuntimeError(f"{self!r}: {OUTSTANDING_MAX} requests are in flight; wait for one first")
        return [next(self._opaques) % _OPAQUE_MAX for _ in range(count)]

    def wait(self, opaque: int, timeout_s: float | None = None) -> RemotingCommand:
        """Return the response to the request that ``post`` gave ``opaque``; each can be collected once.

        Raises:
            ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
            KeyError: No such request on this connection.
        """
        if self._closed_because is not None:
            raise self._given_up(f"waiting for response {opaque}")
        if opaque not in self._answered:
            with self._conversation(self._waiting[opaque], timeout_s) as limit_s:
                deadline = self.clock.monotonic() + limit_s
                while opaque not in self._answered:
                    self._receive(deadline)
        response = self._answered.pop(opaque)
        self._answered_bytes -= _byte_count(response)
        return response

    def abandon(self, opaque: int) -> None:
        if (response := self._answered.get(opaque)) is not None:
            self._answered_bytes -= _byte_count(response)
        super().abandon(opaque)

    def _take(self, opaque: int, response: RemotingCommand) -> None:
        super()._take(opaque, response)
        if opaque in self._answered:
            self._answered_bytes += _byte_count(response)
            if self._answered_bytes > ANSWERED_BYTES_MAX:
                what = f"{len(self._answered)} responses of {self._answered_bytes} bytes together"
                raise ProtocolError(f"{what}, above the limit of {ANSWERED_BYTES_MAX}")

    def wait_any(self, opaques: Sequence[int], timeout_s: float | None = None) -> None:
        """Return when at least one of ``opaques``, which must be in flight, is answered. Raises as ``wait``."""
        if self._closed_because is not None:
            raise self._given_up(f"waiting for response {opaques[0]}")
        if not any(map(self.is_answered, opaques)):
            with self._conversation(self._waiting[opaques[0]], timeout_s) as limit_s:
                deadline = self.clock.monotonic() + limit_s
                while not any(map(self.is_answered, opaques)):
                    self._receive(deadline)

    def is_answered(self, opaque: int) -> bool:
        """Whether ``wait`` would return the response to this request at once."""
        return opaque in self._answered

    def poll(self, action: str) -> None:
        """Process the data that has arrived, for ``is_answered``. Never waits.

        Raises:
            ConnectionFailed, ProtocolError: The session is closed.
        """
        if self._waiting and self._stream.readable():
            with self._conversation(action, None) as limit_s:
                deadline = self.clock.monotonic() + limit_s
                while self._waiting and self._stream.readable():
                    self._receive(deadline)

    @property
    def _may_have_moved(self) -> bool:
        return self.has_moved is not None

    def _require_current(self) -> None:
        if self.has_moved is not None and self.has_moved(self.address):
            raise self._replaced("its broker has another master by now")

    def _receive_within(self, timeout_s: float) -> None:
        count = self._stream.recv_into(self._buffer, timeout_s)
        if not count:
            raise self._end_of_stream()
        for command in self._decoder.receive(self._buffer[:count]):
            if command.is_response:
                self._take(command.opaque, command)
            elif not command.is_oneway:
                self._refuse(command, timeout_s)

    def _refuse(self, command: RemotingCommand, timeout_s: float) -> None:
        text = f"request {name_of(command.code)} is not supported by this client"
        self._stream.send(encode(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=text)), timeout_s)


def _byte_count(response: RemotingCommand) -> int:
    """Return the approximate size of a response."""
    ext = response.ext
    return len(response.body) + len("".join(ext)) + len("".join(ext.values())) + len(response.remark or "")
