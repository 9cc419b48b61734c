"""A client of RocketMQ's remoting protocol for many servers: blocking calls, futures and oneways.

::

    with RemotingClient() as client:
        route = client.call(Address("127.0.0.1", 9876), to_request(GetRouteInfoByTopic(topic="orders")))
        futures = [client.submit(broker, pull) for pull in pulls]

There is one connection to each server, opened by the first call. All calls share it: requests are sent one after the
other, responses are matched to calls by number. One thread per connection receives; one per client expires calls and
closes connections that were idle for ``idle_s``.

A response is a result, whatever its code: the meaning of a code depends on the request. Only 1500, "going away", is
handled here: the connection is not used any more, and requests that may be repeated are sent again on a new one.

A client belongs to the process that made it.

Source: the documents of RocketMQ's remoting module; docs/adr/0030-one-channel-for-both-sides.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from metaq.errors import ConnectionFailed, DeadlineExceeded, MetaqError, WrongServer
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, Clock
from metaq.net.duplex import Connector, RemotingTls, connector
from metaq.net.identification import ROCKETMQ, identify
from metaq.net.remoting_connection import CallHook, ConnectionSettings, RemotingConnection
from metaq.net.remoting_links import ClientCall, Link, LinkTable
from metaq.net.remoting_requests import Processor, ServerRequests
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts
from metaq.protocols.remoting.channel import DEFAULT_LIMITS, ChannelLimits, ReceivedResponse
from metaq.protocols.remoting.codes import ResponseCode, name_of
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FRAME_BYTES_MAX
from metaq.protocols.remoting.headers import REPEATABLE_CODES

IDLE_S: Final = 120.0

IDENTIFIED_S: Final = 60.0
"""How long a server counts as one of another kind, before it is identified again."""

UNKNOWN_S: Final = 1.0
"""How long a server that was not identified is not asked again."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """``idle_s``: seconds without traffic after which a connection is closed.

    ``clock`` and ``connector`` are for tests.
    """

    idle_s: float = IDLE_S
    frame_bytes_max: int = FRAME_BYTES_MAX
    clock: Clock = SYSTEM_CLOCK
    connector: Connector | None = None


class RemotingClient:
    """A client of many servers. Thread-safe.

    Raises:
        ValueError: A file that ``tls`` names cannot be used.
    """

    def __init__(
        self,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        tls: RemotingTls | None = None,
        limits: ChannelLimits = DEFAULT_LIMITS,
        hooks: Sequence[CallHook] = (),
        settings: ClientSettings | None = None,
    ) -> None:
        settings = ClientSettings() if settings is None else settings
        self._timeouts, self._clock = timeouts, settings.clock
        self._connector = connector(tls) if settings.connector is None else settings.connector
        self._connections = ConnectionSettings(limits, tuple(hooks), settings.frame_bytes_max, settings.clock)
        self._server_requests = ServerRequests()
        self._on_ended: list[Callable[[Address], None]] = []
        self._answered: set[Address] = set()  # servers that have answered: RocketMQ's
        self._identified: dict[Address, tuple[str | None, float]] = {}  # other servers, and until when that counts
        self._identifying: dict[Address, threading.Lock] = {}
        self._links = LinkTable(self._new_link, settings.idle_s, settings.clock)

    def __enter__(self) -> RemotingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, code: int, processor: Processor, executor: Executor | None = None) -> None:
        """Set the processor of servers' requests with ``code``; it runs on ``executor`` or a shared one."""
        self._server_requests.register(code, processor, executor)

    def call(self, address: Address, command: RemotingCommand, timeout_s: float | None = None) -> RemotingCommand:
        """Send a request and wait for its response, whatever its code.

        Raises:
            ConnectionFailed: No connection, or it was lost.
            WrongServer, TlsRefused: Another kind of server listens there, or certificates are refused.
            DeadlineExceeded: No response in time.
            TooManyInFlight: The limit of pending requests to this server is reached.
            ProtocolError: The server sent an invalid frame.
            FieldError: The command does not fit into a frame.
        """
        timeout_s = self._timeouts.request_s if timeout_s is None else timeout_s
        call = self._new_call(address, command, timeout_s)
        self._send(call)
        with suppress(TimeoutError):
            return call.future.result(max(0.0, call.deadline - self._clock.monotonic()))
        call.give_up()
        if call.future.done() and not call.future.cancelled():  # it has just arrived or failed
            return call.future.result()
        raise DeadlineExceeded(address, name_of(command.code), timeout_s)

    def submit(
        self, address: Address, command: RemotingCommand, timeout_s: float | None = None
    ) -> Future[RemotingCommand]:
        """Send a request; return the future of its response, whose result raises as ``call``.

        Connecting and sending are done before this returns. Callbacks of the future run in the receiving thread: they
        should be short, and must not wait for another call.
        """
        timeout_s = self._timeouts.request_s if timeout_s is None else timeout_s
        call = self._new_call(address, command, timeout_s)
        try:
            self._send(call)
        except MetaqError as error:
            call.fail(error)
        return call.future

    def oneway(self, address: Address, command: RemotingCommand, timeout_s: float | None = None) -> None:
        """Send a request without a response; returns when it is passed to the network. Raises as ``call``."""
        timeout_s = self._timeouts.request_s if timeout_s is None else timeout_s
        deadline = self._clock.monotonic() + timeout_s
        link = self._links.get(address, deadline)
        with self._explained(link, deadline):
            link.connection.oneway(command, max(0.001, deadline - self._clock.monotonic()))

    def open(self, address: Address, timeout_s: float | None = None) -> RemotingConnection[Any]:
        """Open a separate connection without threads, which the caller closes; the hooks of this client apply.

        Requests of the server on it are answered with 3.

        Raises:
            ConnectionFailed: No server listens there.
            DeadlineExceeded: It took too long.
        """
        timeout_s = self._timeouts.connect_s if timeout_s is None else timeout_s
        stream = self._connector.connect(address, timeout_s)
        return RemotingConnection(stream, address, self._connections, refuse_requests=True)

    def when_ended(self, ended: Callable[[Address], None]) -> None:
        """Call ``ended`` with the address when a connection has ended, in its receiving thread."""
        self._on_ended.append(ended)

    def disconnect(self, address: Address) -> None:
        """Close the connection to a server, if there is one; pending calls fail with ``ConnectionFailed``."""
        self._links.disconnect(address)

    def close(self) -> None:
        """Close all connections; pending calls fail with ``ConnectionFailed``."""
        self._links.close()
        self._server_requests.close()

    def _new_call(self, address: Address, command: RemotingCommand, timeout_s: float) -> ClientCall:
        return ClientCall(address, command, timeout_s, self._clock.monotonic() + timeout_s)

    def _new_link(self, address: Address, timeout_s: float) -> Link:
        try:
            stream = self._connector.connect(address, min(timeout_s, self._timeouts.connect_s))
        except WrongServer as error:
            if address not in self._answered:
                raise
            raise ConnectionFailed(address, "connect", f"{error.found} is there now") from error
        connection: RemotingConnection[ClientCall] = RemotingConnection(stream, address, self._connections)
        return Link(connection, self._responded, self._server_requests.arrived, self._explain, self._link_ended)

    def _explain(self, connection: RemotingConnection[ClientCall], error: MetaqError) -> MetaqError:
        """Return why a connection was lost: a plain server that has never answered is identified.

        The address of one that has answered may be another server's until a name server knows the new one.
        """
        address = connection.address
        if connection.secured or address in self._answered:
            return error
        with self._identifying.setdefault(address, threading.Lock()):  # connections that are lost meanwhile wait for it
            found, until_s = self._identified.get(address, (None, 0.0))
            if self._clock.monotonic() >= until_s:
                found = identify(address)
                counts_s = UNKNOWN_S if found in (None, ROCKETMQ) else IDENTIFIED_S
                self._identified[address] = found, self._clock.monotonic() + counts_s
        if found is None or found == ROCKETMQ or address in self._answered:
            return error
        return WrongServer(address, ROCKETMQ, found)

    @contextmanager
    def _explained(self, link: Link, deadline: float) -> Iterator[None]:
        """Close a connection on which sending fails, and raise the reason."""
        try:
            yield
        except ConnectionFailed as error:
            raise link.lost(error, max(0.0, deadline - self._clock.monotonic())) from error

    def _link_ended(self, link: Link) -> None:
        self._links.ended(link)
        for ended in self._on_ended:
            ended(link.connection.address)

    def _send(self, call: ClientCall) -> None:
        link = self._links.get(call.address, call.deadline)
        left_s = max(0.001, call.deadline - self._clock.monotonic())
        with self._explained(link, call.deadline):
            call.sent(link, link.connection.request(call.command, left_s, call))
        self._links.expires(call.deadline)

    def _responded(self, link: Link, response: ReceivedResponse[ClientCall]) -> None:
        call = response.owner
        self._answered.add(call.address)
        if response.command.code == ResponseCode.GO_AWAY and not call.repeated and self._repeat(call):
            return
        call.succeed(response.command)

    def _repeat(self, call: ClientCall) -> bool:
        """Send a call again on another connection, not in the receiving thread; return whether it will be sent."""
        if call.command.code not in REPEATABLE_CODES:
            return False
        call.repeated = True

        def again() -> None:
            try:
                self._send(call)
            except MetaqError as error:
                call.fail(error)

        return self._server_requests.run(again)
