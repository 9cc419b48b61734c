"""One client connection on asyncio: moves bytes between the socket and a session, within limits.

Output. Replies are sent in order; replies that became ready together are sent in one write. File slices are sent with
``sendfile`` while the transport buffers nothing. When the socket accepts no more, one small chunk is passed to the
transport instead: the transport waits for the socket, and ``resume_writing`` is called when the rest can be sent. So at
most one chunk of a file is ever in memory. Over TLS, files pass through memory in such chunks.

Input. Bytes are received into one buffer of the server and copied; the bytes of a block are received directly into the
memory from which they are written to the log. A connection with too many unanswered requests, or too many reply bytes
that its client does not read, is not read from until half of them are gone; the same holds for one that sent more than
its quanta can handle. Nothing is dropped. A slow or silent client affects only its own connection, until the idle
timeout closes it.

The end. When the server stops, requests that were carried out are answered, and no more are read. After the last
answer, further input is read and dropped for a moment, until the client closes its side: closing a socket with unread
input would discard answers that are on their way.

Quanta. One thread serves all connections, so each works for a quantum, limited by commands, bytes and time, and then
waits until the others had theirs (see ``FairQueue``). Reads, whose answers are made in order, are carried out only a
few ahead of the answers that the client has read; further ones wait as received bytes.

Memory. A connection reports its buffered bytes (incomplete input, unread replies) to the server, which limits the sum
over all connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from typing import Final, NoReturn, cast

from metaq.model import Buffer
from metaq.net.loopback import disable_pacing, same_host
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.serve.borrowed_socket import BorrowedSocket, borrow
from metaq_broker.serve.fair_queue import QUANTUM_S
from metaq_broker.serve.foreign import Foreign, foreign_client
from metaq_broker.serve.host import Host
from metaq_broker.serve.replies import ReplyQueue
from metaq_broker.serve.session import Client

_LOG: Final = logging.getLogger(__name__)

TAKE_BYTES: Final = 1 << 18
"""Approximate size of replies that are joined into one write."""

BRIDGE_BYTES: Final = 1 << 16
"""Part of a file slice that passes through memory when the socket is full."""

BLOCK_HEAD_BYTES: Final = 80 << 10
"""Bytes received at a time if a block is expected: its line, and enough of it (a thirty-second of more than 2 MiB) that
the rest is received directly into its memory. Bytes that arrive with the line are copied.
"""

READ_AHEAD_BYTES: Final = 1 << 18
"""Bytes of commands that may wait for the connection's next quantum while more is read."""

QUANTUM_REQUESTS: Final = 4096
"""Commands that one connection may carry out in a quantum."""

QUANTUM_BYTES: Final = 1 << 22
"""Bytes that one connection may send in a quantum."""

LITTLE_BYTES: Final = 1 << 14
"""Answers up to this size do not wait for a quantum; commands up to this size wait while more is read."""

RECEIVE_BYTES: Final = 1 << 18
"""Bytes of a block that are received at once while others wait for their quantum."""

FIRST_BYTES: Final = 16
"""The first bytes of a connection, which identify clients of other protocols."""

_NOTHING: Final = memoryview(b"")

LINGER_S: Final = 0.5
"""After the last answer of a stopping server, the client has this many seconds to close its side."""


class Connection(asyncio.BufferedProtocol):
    """Its ``server`` gives it a session and the limits, and keeps the list of connections."""

    __slots__ = (
        "_blocked",
        "_decoder",
        "_eof",
        "_file",
        "_file_sent",
        "_finishing",
        "_fresh",
        "_gone",
        "_heavy",
        "_input",
        "_into_block",
        "_limits",
        "_linger",
        "_loop",
        "_paused",
        "_quantum_end",
        "_reading",
        "_received",
        "_replies",
        "_scheduled",
        "_secured",
        "_server",
        "_session",
        "_socket",
        "_transport",
        "_unsent",
        "_used_s",
        "_working",
        "buffered_bytes",
        "last_activity",
        "peer",
    )

    def __init__(self, server: Host) -> None:
        self._server = server
        self._loop = server.loop
        self._limits = server.limits
        self._replies = ReplyQueue(self)
        self._file: Slice | None = None
        self._file_sent = 0
        self._scheduled = False
        self._heavy = False  # its last quantum did not suffice, see ``FairQueue``
        self._unsent = False  # the quantum did not suffice for all answers that the socket would accept
        self._blocked = False  # the transport has bytes that the socket did not accept
        self._paused = False  # not carrying out commands
        self._working = False  # carrying out commands now
        self._reading = True
        self._into_block = False  # into the memory of a block, not into ``_received``
        self._received = _NOTHING
        self._input = False  # the session may have whole commands
        self._eof = False
        self._finishing = False  # the server stops
        self._fresh = True  # nothing was received
        self._gone = False
        self._linger: asyncio.TimerHandle | None = None
        self._quantum_end = 0.0
        self._used_s = 0.0  # of the broker's thread, since it became heavy or light
        self.last_activity = self._loop.time()
        self.buffered_bytes = 0
        """Bytes of buffered input and output, as reported to the server."""

    def __repr__(self) -> str:
        return f"<Connection {self.peer}, {self._replies.unanswered} unanswered>"

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it at once if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_text(transport.get_extra_info("peername"))
        if same_host(transport.get_extra_info("sockname"), transport.get_extra_info("peername")):
            disable_pacing(transport.get_extra_info("socket"))
        client = Client(self.peer, self._server.names_of(transport))
        self._session = self._server.sessions(self._replies, client)
        self._decoder = self._session.decoder
        self._socket: BorrowedSocket | None = None  # made for the first file
        self._secured = transport.get_extra_info("ssl_object") is not None
        # Without TLS any buffered byte counts as "blocked", and only an empty buffer ends it: sendfile must never
        # overtake.
        self._transport.set_write_buffer_limits(high=BRIDGE_BYTES if self._secured else 0, low=0)
        self._server.opened(self)

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Return where to receive the next bytes: in the current block, or in the buffer of ``buffer_updated``."""
        buffer = None if self._finishing else self._decoder.buffer
        self._into_block = buffer is not None
        if buffer is not None:
            return buffer if self._server.queue.free else buffer[:RECEIVE_BYTES]
        received = self._received = self._server.received
        return received[:BLOCK_HEAD_BYTES] if self._session.expects_block else received

    def buffer_updated(self, size: int) -> None:
        """Handle ``size`` received bytes; they are in the result of ``get_buffer``, from the same iteration of the
        loop.
        """
        if not self._into_block or self._finishing:
            self.data_received(self._received[:size])
            return
        self.last_activity = self._loop.time()
        self._decoder.buffer_filled(size)
        if self._decoder.buffer is None:
            self._carry_out()
        else:
            self._report()

    def data_received(self, data: Buffer) -> None:
        """Handle bytes that were received elsewhere; they are copied."""
        if self._finishing:
            return
        self.last_activity = self._loop.time()
        if self._fresh:
            self._fresh = False
            if (foreign := foreign_client(bytes(data[:FIRST_BYTES]), self._session.protocol)) is not None:
                self._refuse(foreign)
                return
        if not self._session.finished:
            self._decoder.receive_data(data)
            self._carry_out()

    def _refuse(self, foreign: Foreign) -> None:
        fields = {"peer": self.peer, "speaks": foreign.protocol, "port_speaks": self._session.protocol}
        _LOG.warning("connection closed: the client speaks another protocol", extra={"fields": fields})
        if foreign.answer:
            self._transport.write(foreign.answer)
        self._transport.close()

    def _carry_out(self) -> None:
        self._input = True
        if not self._scheduled:  # else already scheduled; do not run it twice
            self._run_quantum()
        elif self._reading and self._decoder.pending_bytes > READ_AHEAD_BYTES:
            self._read(False)

    def eof_received(self) -> bool:
        """The client sends no more; its requests are still answered, but for answers out of order that are not ready:
        a client of RocketMQ that has ended looks the same.
        """
        if self._linger is not None:
            return False
        self._eof = True
        self._schedule()
        return True

    def pause_writing(self) -> None:
        """The socket accepts no more."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The transport has sent all of its bytes."""
        self._blocked = False
        self.last_activity = self._loop.time()
        # Not at once: the transport is in the middle of its own work and must not be closed now.
        self._schedule()

    def connection_lost(self, _error: Exception | None) -> None:
        self._let_go()
        self._socket = None
        if self._linger is not None:
            self._linger.cancel()
        self._server.holds(self, 0)
        self._server.closed(self)

    def _let_go(self) -> None:
        # The buffered bytes; at once, because a connection is cut when there are too many.
        if not self._gone:
            self._gone = True
            self._file = None
            self._replies.abandon()
            self._session.connection_lost()

    # ---- called by the server

    def finish(self) -> None:
        """Answer received requests, read no more, then close."""
        self._work(math.inf)
        self._eof = self._finishing = True
        self._input = False
        self._paused = True
        self._read(False)
        self._schedule()

    def abort(self) -> None:
        """Close at once; unread replies are lost, and so are commands that were not carried out."""
        self._transport.abort()
        self._let_go()

    def idle_since(self, monotonic: float) -> bool:
        """Return whether the connection was idle since ``monotonic`` (loop time) and the broker owes it no answer."""
        return self.last_activity < monotonic and not self._replies.waiting

    # ---- the work

    def _schedule(self) -> None:
        # Slots that are completed by one fsync wake their connection many times; it works once for all of them. While
        # it is working, it needs no call: it sends ready replies before it ends.
        if not self._scheduled and not self._working:
            self._scheduled = True
            self._server.step.at_end(self._run_quantum)

    __call__ = _schedule
    """Send ready replies: called by the queue of replies, which needs no closure for that."""

    def _wait(self) -> None:
        # For its quantum.
        if not self._scheduled:
            self._scheduled = True
            little = not self._heavy and self._decoder.pending_bytes <= LITTLE_BYTES
            self._server.queue.wait(self._used_s, self._work, heavy=self._heavy, little=little)

    def _run_quantum(self) -> None:
        self._scheduled = False
        replies = self._replies
        if self._server.queue.free:
            self._work(QUANTUM_S)
        elif not (self._input or self._file or replies.questions) and replies.ready_bytes <= LITTLE_BYTES:
            self._work(QUANTUM_S)  # sending ready answers takes no longer than waiting
        elif not self._transport.is_closing():  # else nothing is sent any more, so nothing counts
            if self._decoder.pending_bytes > LITTLE_BYTES:
                self._read(False)
            self._report()
            self._wait()

    def _work(self, quantum_s: float) -> None:
        """Send and carry out what there is, for so many seconds: at once, or when the queue calls."""
        self._scheduled = False
        if self._transport.is_closing() or self._linger is not None:
            return
        queue, replies, began = self._server.queue, self._replies, self._loop.time()
        served_s = (queue.heavy if self._heavy else queue.light).served_s
        if self._used_s < served_s:
            self._used_s = served_s
        self._quantum_end = began + quantum_s
        try:
            if self._file is not None or not replies.idle:
                self._send()
            if self._input:
                self._carry_out_some()
        except Exception as defect:  # its client would wait for an answer that does not come
            self._loop.call_exception_handler({"message": "a connection failed", "exception": defect})
            self.abort()
            return
        ended = self._loop.time()
        self._used_s += ended - began
        queue.charge(began, ended, id(self))
        limits = self._limits
        is_over = replies.unanswered >= limits.pipelined_requests_max or replies.ready_bytes > limits.output_bytes_max
        is_left = self._unsent or self._input
        if is_left != self._heavy:
            self._heavy, self._used_s = is_left, 0.0
        if is_left or is_over or self._paused or not self._reading:
            self._regulate(is_over)
            if self._unsent or (self._input and not self._paused and not replies.full):
                self._wait()
        self._report()
        if self._eof or replies.ended:
            # A client that has closed its side gets no answers to requests that are held for long, such as pulls.
            is_done = replies.settled if self._finishing else replies.empty and not self._input
            if (replies.ended or is_done) and self._file is None:
                self._close()

    def _carry_out_some(self) -> None:
        requests, replies = QUANTUM_REQUESTS, self._replies
        while self._input and not self._session.finished and not self._quantum_over():
            allowed = min(requests, self._limits.pipelined_requests_max - replies.unanswered)
            if allowed <= 0 or self._paused or replies.ready_bytes > self._limits.output_bytes_max:
                break
            if replies.full:
                break  # the client does not read the answers, or they wait for an earlier one
            self._working = True
            try:
                self._input = self._session.handle(allowed, self._quantum_over)
            finally:
                self._working = False
            requests -= allowed
            if self._file is not None or not replies.idle:
                self._send()

    def _close(self) -> None:
        silent_s = self._loop.time() - self.last_activity
        if not self._finishing or silent_s > LINGER_S or not self._transport.can_write_eof():
            self._transport.close()
        elif not self._blocked:  # otherwise when the socket has accepted everything
            self._linger = self._loop.call_later(LINGER_S, self._transport.close)
            self._transport.write_eof()
            self._transport.resume_reading()

    def _quantum_over(self) -> bool:
        return self._loop.time() >= self._quantum_end

    def _report(self) -> None:
        buffered_bytes = self._decoder.pending_bytes + self._replies.ready_bytes
        if self._blocked or self._secured:  # otherwise the transport buffers nothing
            buffered_bytes += self._transport.get_write_buffer_size()
        if buffered_bytes != self.buffered_bytes:
            self._server.holds(self, buffered_bytes)

    def _send(self) -> None:
        """Send what there is: a part of a file, or replies."""
        self._unsent, quota, replies = False, QUANTUM_BYTES, self._replies
        while not self._blocked:
            if quota <= 0 or self._loop.time() >= self._quantum_end:
                self._unsent = True
                return
            if self._file is None:
                data, reply, slow = replies.take(TAKE_BYTES, self._quantum_over)
                if reply is not None:
                    # A reference to the slice keeps its file open, even if the segment is deleted before it is sent.
                    self._file, self._file_sent = reply.file, 0
                    data += reply.head
                if not data and not slow:
                    return
                if reply is not None and not self._secured:
                    data = self._announce(data)
                if data:
                    self._transport.write(data)
                quota -= QUANTUM_BYTES if slow else len(data)
            else:
                quota -= self._send_file(self._file)
            if self._file is None and replies.idle:
                return

    def _announce(self, data: bytes) -> bytes:
        # The system holds the line of a slice back until the first bytes of its file: sent alone it would wake the
        # client, which costs more than the line. Returns the bytes that were not accepted.
        with contextlib.suppress(OSError):  # nothing was accepted; the transport will find the error, too
            return data[self._borrowed().send(data, socket.MSG_MORE) :]
        return data

    def _send_file(self, file: Slice) -> int:
        """Send a part of the current file slice; return its length."""
        try:
            sent = self._send_part(file, file.position + self._file_sent, file.length - self._file_sent)
        except OSError as error:
            _LOG.info("reply not sent", extra={"fields": {"peer": self.peer, "reason": error}})
            self._blocked = True  # permanently: the announced bytes cannot be sent
            self._transport.abort()
            return 0
        self._file_sent += sent
        if self._file_sent == file.length:
            self._file = None
        return sent

    def _send_part(self, file: Slice, position: int, left: int) -> int:
        if self._secured:  # every byte must be encrypted here
            return self._bridge(file, position, left)
        try:
            sent = os.sendfile(self._borrowed().fileno(), file.fd, position, min(left, QUANTUM_BYTES))
        except BlockingIOError:
            return self._bridge(file, position, left)
        return sent or _cut_short(position, left)

    def _borrowed(self) -> BorrowedSocket:
        if self._socket is None:
            self._socket = borrow(self._transport.get_extra_info("socket"))
        return self._socket

    def _bridge(self, file: Slice, position: int, left: int) -> int:
        """Pass the next small part to the transport, through memory."""
        chunk = file.handle.pread(min(left, BRIDGE_BYTES), position)
        self._transport.write(chunk)
        return len(chunk) or _cut_short(position, left)

    def _regulate(self, is_over: bool) -> None:
        """Pause or resume; ``is_over``: too many requests are unanswered, or too many bytes of answers unread."""
        requests_max, bytes_max = self._limits.pipelined_requests_max, self._limits.output_bytes_max
        if is_over:
            self._paused = True
        elif self._replies.unanswered <= requests_max // 2 and self._replies.ready_bytes <= bytes_max // 2:
            self._paused = False
        behind = self._input and self._decoder.pending_bytes > READ_AHEAD_BYTES
        if (wanted := not self._paused and not behind) != self._reading:
            self._read(wanted)

    def _read(self, wanted: bool) -> None:
        if wanted == self._reading or (wanted and self._eof):
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


def _cut_short(position: int, left: int) -> NoReturn:
    raise OSError(f"the file ends at {position}, {left} more bytes of it were announced")


def peer_text(peername: object) -> str:
    """Return an address for the log."""
    return f"{peername[0]}:{peername[1]}" if isinstance(peername, tuple) else str(peername)
