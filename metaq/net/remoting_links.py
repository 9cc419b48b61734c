"""The connections of a ``RemotingClient``: one for each server, with the thread that receives on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final

from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.identification import IDENTIFY_S
from metaq.net.remoting_connection import RemotingConnection
from metaq.protocols.remoting.channel import Expired, ReceivedResponse
from metaq.protocols.remoting.codes import name_of
from metaq.protocols.remoting.command import RemotingCommand

RECEIVE_S: Final = 3600.0
"""Timeout of one wait of a receiving thread; ``close`` wakes it."""

SWEEP_S: Final = 1.0
"""Longest time between two checks for idle connections."""

JOIN_S: Final = 10.0

NOTICE_S: Final = 1.0
"""How long a connection that does not send may be open, until its receiving thread has noticed."""

EXPLAIN_S: Final = NOTICE_S + IDENTIFY_S
"""Longest wait for the reason why a connection was lost."""


class ClientCall:
    """One call of a client: a future, and the link of its request."""

    def __init__(self, address: Address, command: RemotingCommand, timeout_s: float, deadline: float) -> None:
        self.address, self.command, self.timeout_s, self.deadline = address, command, timeout_s, deadline
        self.future: Future[RemotingCommand] = Future()
        self.repeated = False
        """Whether it was sent a second time."""
        self._where: tuple[Link, int] | None = None

    def sent(self, link: Link, opaque: int) -> None:
        """The request was sent on ``link`` with this number."""
        self._where = (link, opaque)

    def give_up(self) -> None:
        """Stop waiting for the response."""
        if self._where is not None:
            link, opaque = self._where
            link.connection.forget(opaque)

    def succeed(self, response: RemotingCommand) -> None:
        """Set the response, unless the call has ended."""
        with suppress(InvalidStateError):
            self.future.set_result(response)

    def fail(self, error: MetaqError) -> None:
        """Set an error, unless the call has ended."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def expire(self) -> None:
        """End the call: its deadline has passed."""
        self.fail(DeadlineExceeded(self.address, name_of(self.command.code), self.timeout_s))


class Link:
    """A connection and its receiving thread. ``explain`` returns the error of the calls of a connection that was lost
    for a reason; ``ended`` is called once, when the thread ends.
    """

    def __init__(
        self,
        connection: RemotingConnection[ClientCall],
        responded: Callable[[Link, ReceivedResponse[ClientCall]], None],
        asked: Callable[[RemotingConnection[ClientCall], RemotingCommand], None],
        explain: Callable[[RemotingConnection[ClientCall], MetaqError], MetaqError],
        ended: Callable[[Link], None],
    ) -> None:
        self.connection = connection
        self.finished = False
        """Whether the thread has ended; set by the table."""
        self._responded, self._asked, self._explain, self._ended = responded, asked, explain, ended
        self._is_lost = self._is_given_up = self._explains = False
        self._received = threading.Event()  # set when the thread receives no more, before it looks for the reason
        self._failure: MetaqError | None = None
        self._thread = threading.Thread(target=self._receive, name=f"remoting {connection.address}", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether requests may be sent here."""
        return not (self._is_lost or self.connection.closed or self.connection.going_away)

    def expire(self) -> None:
        """End the calls whose deadline has passed."""
        for expired in self.connection.expire():
            expired.owner.expire()

    def lost(self, error: ConnectionFailed, timeout_s: float) -> MetaqError:
        """Close the connection after ``error`` in sending; return the reason, which the thread may know better."""
        self._is_lost = True
        if threading.current_thread() is not self._thread:
            until_s = SYSTEM_CLOCK.monotonic() + min(timeout_s, EXPLAIN_S)
            if self._received.wait(min(timeout_s, NOTICE_S)):
                self._thread.join(max(0.0, until_s - SYSTEM_CLOCK.monotonic()))
        self._end(error)
        return error if self._failure is None or self._failure.retryable else self._failure

    def give_up(self) -> None:
        """Close the connection and end its calls; does not wait."""
        self._is_given_up = True
        self._end(ConnectionFailed(self.connection.address, "call", "the connection was closed on this side"))

    def close(self) -> None:
        """Close the connection, end its calls, and wait for the thread, unless this is the thread or it only looks for
        the reason of a loss.
        """
        self.give_up()
        if threading.current_thread() is not self._thread and self._received.wait(JOIN_S) and not self._explains:
            self._thread.join(JOIN_S)

    def _receive(self) -> None:
        error: MetaqError = ConnectionFailed(self.connection.address, "call", "the connection was closed")
        try:
            while not self.connection.closed:
                for event in self.connection.receive(RECEIVE_S):
                    if isinstance(event, ReceivedResponse):
                        self._responded(self, event)
                    elif isinstance(event, Expired):
                        event.owner.expire()
                    else:
                        self._asked(self.connection, event.command)
        except MetaqError as failure:
            error = failure
            self._explains = not self._is_given_up
            self._received.set()
            if self._explains:
                error = self._explain(self.connection, failure)
        finally:
            self._received.set()
            self._failure = error
            self._end(error)
            self._ended(self)

    def _end(self, error: MetaqError) -> None:
        for pending in self.connection.close():
            pending.owner.fail(error)


class LinkTable:
    """The link of each server, opened on demand; a thread expires calls and closes idle links."""

    def __init__(self, connect: Callable[[Address, float], Link], idle_s: float, clock: Clock) -> None:
        self._connect, self._idle_s, self._clock = connect, idle_s, clock
        self._changed = threading.Condition()
        self._links: dict[Address, Link] = {}
        self._all: set[Link] = set()  # including links that only finish their calls
        self._connecting: dict[Address, threading.Lock] = {}
        self._sweeper: threading.Thread | None = None
        self._next_sweep = 0.0
        self._closed = False

    def get(self, address: Address, deadline: float) -> Link:
        """Return the link to a server, connected before ``deadline``.

        Raises:
            ConnectionFailed: No connection, or this client is closed.
            DeadlineExceeded: It took too long.
        """
        link = self._links.get(address)
        if link is not None and link.usable:
            return link
        with self._changed:
            self._check_open(address)
            connecting = self._connecting.setdefault(address, threading.Lock())
        began = self._clock.monotonic()
        if not connecting.acquire(timeout=max(0.0, deadline - began)):
            raise DeadlineExceeded(address, "connect", deadline - began)
        try:
            link = self._links.get(address)
            if link is None or not link.usable:
                link = self._connect(address, max(0.001, deadline - self._clock.monotonic()))
                self._add(address, link)
            return link
        finally:
            connecting.release()

    def expires(self, deadline: float) -> None:
        """Record the deadline of a call."""
        if deadline < self._next_sweep:
            with self._changed:
                self._changed.notify_all()

    def ended(self, link: Link) -> None:
        """Remove a link."""
        with self._changed:
            link.finished = True
            self._all.discard(link)
            address = link.connection.address
            if self._links.get(address) is link:
                del self._links[address]

    def disconnect(self, address: Address) -> None:
        """Close the link to a server, if there is one."""
        link = self._links.get(address)
        if link is not None:
            link.close()

    def close(self) -> None:
        """Close all links, and open no more."""
        with self._changed:
            self._closed = True
            links, sweeper = list(self._all), self._sweeper
            self._changed.notify_all()
        for link in links:
            link.close()
        if sweeper is not None:
            sweeper.join(JOIN_S)

    def _add(self, address: Address, link: Link) -> None:
        try:
            with self._changed:
                self._check_open(address)
                if link.finished:  # ended already; sending on it will fail
                    return
                self._links[address] = link
                self._all.add(link)
                if self._sweeper is None:
                    self._sweeper = threading.Thread(target=self._sweep, name="remoting deadlines", daemon=True)
                    self._sweeper.start()
        except ConnectionFailed:
            link.close()
            raise

    def _check_open(self, address: Address) -> None:
        if self._closed:
            raise ConnectionFailed(address, "call", "this client is closed")

    def _sweep(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                links = list(self._all)
            for link in links:
                link.expire()
                done = link.connection.going_away and not link.connection.in_flight
                if done or link.connection.idle_s(self._clock.monotonic()) > self._idle_s:
                    link.give_up()
            self._wait(links)

    def _wait(self, links: list[Link]) -> None:
        now = self._clock.monotonic()
        deadlines = [each for link in links if (each := link.connection.next_deadline) is not None]
        with self._changed:
            self._next_sweep = min([now + SWEEP_S, *deadlines])
            if not self._closed:
                self._changed.wait(max(0.001, self._next_sweep - now))
