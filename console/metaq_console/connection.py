"""A connection of a client, which does not wait for ever: neither for the rest of a request, nor for somebody to read.

uvicorn closes a connection that is idle after an answer, and no other. Without these limits, clients that connect and
send nothing, or read nothing, would use up ``CONNECTIONS_MAX`` before anybody has asked them for a token.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedConnection(H11Protocol):
    """``request_s``: longest time until a request is there with its body, from the connection or from its first bytes
    on. ``unread_s``: longest time in which a client may read nothing of an answer that waits for it.
    """

    request_s: ClassVar[float] = 60.0
    unread_s: ClassVar[float] = 60.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._request: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._await_request()
        elif self._request is not None:
            self._request.cancel()
            self._request = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._request is not None:
            self._request.cancel()
        self._end_unread()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if self._request is None:
            self._request = self.loop.call_later(self.request_s, self.transport.abort)

    def _await_reader(self, waiting: int) -> None:
        """Look later whether the client has read some of the ``waiting`` bytes."""
        self._unread = self.loop.call_later(self.unread_s, self._look_at_reader, waiting)

    def _look_at_reader(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting < before:
            self._await_reader(waiting)
        else:
            self.transport.abort()

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
