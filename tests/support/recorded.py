"""A transport that counts what a conversation costs: connections, and how often somebody waited for the other side."""

from __future__ import annotations

from typing import Any

from metaq.model import Address, Buffer
from metaq.net.transport import Stream, Transport


class Recorded:
    """Leads to ``inner``. A round trip is a wait for bytes with something sent since the last one."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.connections = 0
        self.round_trips = 0
        self.writes = 0

    def connect_tcp(self, address: Address, timeout_s: float) -> Stream:
        self.connections += 1
        return _RecordedStream(self._inner.connect_tcp(address, timeout_s), self)

    def forget(self) -> None:
        self.connections = self.round_trips = self.writes = 0


class _RecordedStream:
    def __init__(self, inner: Stream, counts: Recorded) -> None:
        self._inner, self._counts, self._asked = inner, counts, False

    def send(self, data: Buffer, timeout_s: float, *, more: bool = False) -> None:
        self._asked = True
        self._counts.writes += 1
        self._inner.send(data, timeout_s, more=more)

    def recv(self, bytes_max: int, timeout_s: float) -> bytes:
        self._wait()
        return self._inner.recv(bytes_max, timeout_s)

    def recv_into(self, buffer: memoryview, timeout_s: float) -> int:
        self._wait()
        return self._inner.recv_into(buffer, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _wait(self) -> None:
        self._counts.round_trips += self._asked
        self._asked = False
