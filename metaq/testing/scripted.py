"""A peer that follows a script: bytes it expects, bytes it sends, when it disconnects.

::

    transport = ScriptedTransport([
        [Expect(b"version 1\\r\\n"), Say(b"result 200 5 1\\r\\n1.4.6")],      # the first connection
        [Refuse()],                                                         # the second attempt
        [Expect(b"stats  1\\r\\n"), HangUp()],                                # the third
    ])

After the end of its script a connection stays open and silent: the next ``recv`` advances the clock by its timeout and
raises. Unexpected bytes fail the test at once, as an ``AssertionError`` from ``send``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metaq.errors import ConnectionFailed, DeadlineExceeded
from metaq.model import Address, Buffer
from metaq.net.transport import Stream
from metaq.testing.manual_clock import ManualClock


@dataclass(frozen=True, slots=True)
class Expect:
    """The client must send exactly these bytes next, in pieces of any size."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Say:
    """The client receives these bytes, at most ``chunk_bytes`` at a time."""

    data: bytes
    chunk_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The peer closes the connection."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The only step of a script: the connection is refused."""


Step = Expect | Say | Disconnect | Refuse


class ScriptedStream:
    """One connection of a ``ScriptedTransport``."""

    def __init__(self, address: Address, script: Iterable[Step], clock: ManualClock) -> None:
        self._address = address
        self._clock = clock
        self._steps = deque(script)
        self._to_hear = b""
        self._incoming: deque[bytes] = deque()  # empty bytes = the peer disconnected
        self._hung_up = False
        self.closed = False
        self._speak()

    @property
    def finished(self) -> bool:
        """Whether all bytes of the script were sent and received."""
        return not (self._steps or self._to_hear or any(self._incoming))

    def send(self, data: Buffer, timeout_s: float, *, more: bool = False) -> None:
        self._check_open("send")
        if self._hung_up:
            raise ConnectionFailed(self._address, "send", "the peer disconnected")
        rest = bytes(data)
        while rest:
            heard = rest[: len(self._to_hear)]
            expected = bool(heard) and self._to_hear.startswith(heard)
            assert expected, f"expected {self._to_hear!r}, the client sent {rest!r}"
            self._to_hear, rest = self._to_hear[len(heard) :], rest[len(heard) :]
            self._speak()

    def recv(self, bytes_max: int, timeout_s: float) -> bytes:
        self._check_open("receive")
        if not self._incoming:
            self._clock.advance(timeout_s)
            raise DeadlineExceeded(self._address, "receive", timeout_s)
        if not self._incoming[0]:
            return b""
        chunk = self._incoming.popleft()
        if len(chunk) > bytes_max:
            self._incoming.appendleft(chunk[bytes_max:])
        return chunk[:bytes_max]

    def recv_into(self, buffer: memoryview, timeout_s: float) -> int:
        data = self.recv(len(buffer), timeout_s)
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        return self.closed or bool(self._incoming)

    def close(self) -> None:
        self.closed = True

    def _check_open(self, action: str) -> None:
        if self.closed:
            raise ConnectionFailed(self._address, action, "this side was closed")

    def _speak(self) -> None:
        """Play the script up to the next bytes expected from the client."""
        while self._steps and not self._to_hear:
            match self._steps.popleft():
                case Expect(data):
                    self._to_hear = data
                case Say(data, size):
                    self._incoming.extend(data[at : at + size] for at in range(0, len(data), size))
                case Disconnect():
                    self._incoming.append(b"")
                    self._hung_up = True


class ScriptedTransport:
    """Gives each new connection the next script. ``streams`` are the accepted connections, ``refused`` counts the
    others.
    """

    def __init__(self, scripts: Iterable[Sequence[Step]], clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.streams: list[ScriptedStream] = []
        self.refused = 0
        self._scripts = deque(scripts)

    @property
    def finished(self) -> bool:
        """Whether all scripts are finished."""
        return not self._scripts and all(stream.finished for stream in self.streams)

    def connect_tcp(self, address: Address, timeout_s: float) -> Stream:
        assert self._scripts, f"no script for a further connection to {address}"
        script = self._scripts.popleft()
        if any(isinstance(step, Refuse) for step in script):
            self.refused += 1
            raise ConnectionFailed(address, "connect", "Connection refused")
        self.streams.append(ScriptedStream(address, script, self.clock))
        return self.streams[-1]
