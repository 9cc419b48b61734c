"""Base of the sessions of both systems: requests in flight on one connection, matched by opaque.

The connection is for one thread at a time. After an error in the middle of an exchange it is unknown which response is
next; the session is then closed and stays closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from metaq.errors import ConnectionFailed, DeadlineExceeded, ProtocolError, WrongServer
from metaq.model import Address
from metaq.net.clock import Clock, wait_s_until
from metaq.net.identification import IDENTIFY_S, SILENT_S, identify
from metaq.net.transport import Stream, TcpStream, Timeouts

NEXT_LOOK_S: Final = 0.25
"""Seconds from an answer that none has, until it is asked again: an election may be under way."""

Request = TypeVar("Request")
Response = TypeVar("Response")


class Decoder(Protocol):
    """What a session needs of its decoder."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete response."""


class RequestSession(ABC, Generic[Request, Response]):
    """The requests of one connection. A subclass sends and receives."""

    protocol: ClassVar[str]
    server: ClassVar[str]
    response: ClassVar[str]
    """Names in errors: ``RocketMQ's protocol``, ``server``, ``response``."""
    kind: ClassVar[str]
    """The result of ``identify`` for a server of this protocol."""

    _stream: Stream
    _decoder: Decoder

    def __init__(self, address: Address, timeouts: Timeouts, clock: Clock) -> None:
        self.address, self.timeouts, self.clock = address, timeouts, clock
        self.until_s: float | None = None
        """The lessee's deadline on the clock: no request is waited for longer."""
        self._closed_because: str | None = None
        self._waiting: dict[int, Request] = {}
        self._answered: dict[int, Response] = {}
        self._abandoned: set[int] = set()
        self._identified = False
        """Whether the server has answered, or was identified."""

    def _action(self, request: Request) -> str:
        """Return the description of ``request`` for errors."""
        return str(request)

    @property
    def closed(self) -> bool:
        """Whether this session can no longer be used."""
        return self._closed_because is not None

    @property
    def outstanding(self) -> int:
        """Number of posted requests whose responses were not collected yet, including abandoned ones."""
        return len(self._waiting) + len(self._answered)

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way and nothing unasked has arrived: fit for the next user. Never waits."""
        if self._closed_because is not None or self._waiting or self._answered:
            return False
        return not (self._decoder.pending_bytes or self._stream.readable())

    def abandon(self, opaque: int) -> None:
        """Give up waiting for a request; its response is dropped when it comes. Unknown opaques are ignored."""
        self._answered.pop(opaque, None)
        if opaque in self._waiting:
            self._abandoned.add(opaque)

    def protocol_error(self, what: str) -> ProtocolError:
        """Close the session because of an invalid response; return the error to raise."""
        self.close(f"not {self.protocol}: {what}")
        return ProtocolError(what, address=self.address)

    def close(self, reason: str = "closed by the caller") -> None:
        """Drop the connection without writing to it. The first reason is kept for errors."""
        if self._closed_because is None:
            self._closed_because = reason
        self._stream.close()
        self._waiting.clear()
        self._answered.clear()
        self._abandoned.clear()

    def _take(self, opaque: int, response: Response) -> None:
        """Store a response until it is collected, unless its request was abandoned."""
        self._identified = True
        if self._waiting.pop(opaque, None) is None:
            raise ProtocolError(f"a {self.response} to request {opaque}, which is not in flight")
        if opaque in self._abandoned:
            self._abandoned.remove(opaque)
        else:
            self._answered[opaque] = response

    @abstractmethod
    def _receive_within(self, timeout_s: float) -> None:
        """Wait for bytes, and decode them.

        Raises:
            DeadlineExceeded: None came in ``timeout_s``, which is above 0; its action is ``receive``.
        """

    def _receive(self, deadline: float) -> None:
        """Receive. A server that is silent may have been replaced, because a frozen one closes no connection, or be of
        another kind: see ``_look_around``.

        Raises:
            DeadlineExceeded: ``deadline`` has passed.
        """
        silence_s = SILENT_S
        while True:
            left_s = deadline - self.clock.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded(self.address, "receive", 0.0)
            if silence_s >= left_s:
                return self._receive_within(left_s)
            try:
                return self._receive_within(silence_s)
            except DeadlineExceeded as error:
                if error.action != "receive":  # an answer to the server's own request may be sent in part
                    raise
                silence_s = self._look_around(silence_s, left_s - silence_s)

    def _look_around(self, silence_s: float, left_s: float) -> float:
        """Find out whether the server was replaced; identify it if it has never answered and there is time for that.

        Return the seconds of silence until the next look, after a look that followed ``silence_s``.

        Raises:
            ConnectionFailed: Another server has replaced this one.
            WrongServer: It is another kind of server.
        """
        may_have_moved = self._may_have_moved
        if may_have_moved:
            self._require_current()
        if left_s > IDENTIFY_S:
            self._require_kind()
        return self._next_look_s(silence_s) if may_have_moved else float("inf")

    @property
    def _may_have_moved(self) -> bool:
        """Whether another server may have replaced a silent one."""
        return False

    def _require_current(self) -> None:
        """Raise ``ConnectionFailed`` if the silent server is known to have been replaced by one at another address."""

    def _replaced(self, why: str) -> ConnectionFailed:
        """Return the error for a server that was replaced. Its kind is known, from its successor: it is not asked."""
        self._identified = True
        return ConnectionFailed(self.address, "receive", why)

    def _next_look_s(self, silence_s: float) -> float:
        """Return the seconds of silence until the next look, after a look that followed ``silence_s``."""
        return NEXT_LOOK_S

    def _require_kind(self) -> None:
        """Identify the server, once.

        Raises:
            WrongServer: It is another kind of server.
        """
        if self._identified or type(self._stream) is not TcpStream:  # with TLS, the handshake would have failed
            return
        self._identified = True
        found = identify(self.address)
        if found is not None and found != self.kind:
            raise WrongServer(self.address, self.kind, found)

    def _end_of_stream(self) -> ConnectionFailed:
        """Return the error for a connection that ended while a response was pending."""
        where = "in the middle of" if self._decoder.pending_bytes else "without"
        what = f"the {self.server} closed the connection {where} a {self.response}"
        return ConnectionFailed(self.address, "receive", what)

    def _given_up(self, action: str) -> ConnectionFailed:
        """Return the error for the use of a closed session."""
        return ConnectionFailed(self.address, action, f"this session was given up: {self._closed_because}")

    @contextmanager
    def _conversation(self, request: Request, timeout_s: float | None) -> Iterator[float]:
        """Close the session on any error, and add the action to it; yields the deadline."""
        if self._closed_because is not None:
            raise self._given_up(self._action(request))
        timeout_s = self.timeouts.request_s if timeout_s is None else timeout_s
        if self.until_s is not None:
            timeout_s = min(timeout_s, wait_s_until(self.until_s, self.clock))
        try:
            yield timeout_s
        except BaseException as error:
            action = self._action(request)
            self.close(f"{type(error).__name__} in {action}")
            if isinstance(error, ConnectionFailed | ProtocolError):
                self._require_kind()
            if isinstance(error, ConnectionFailed):
                raise type(error)(self.address, action, error.reason) from error
            if isinstance(error, DeadlineExceeded):
                raise DeadlineExceeded(self.address, action, timeout_s) from error
            if isinstance(error, ProtocolError):
                raise ProtocolError(error.what, error.line, self.address) from error
            raise

    def __repr__(self) -> str:
        if self._closed_because is not None:
            state = f"closed: {self._closed_because}"
        else:
            state = f"{self.outstanding} under way" if self.outstanding else "idle"
        return f"<Session {self.address} {state}>"
