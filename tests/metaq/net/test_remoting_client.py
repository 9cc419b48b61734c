"""The remoting client against servers on real sockets that answer late, never, in any order, or go away."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from fix_tls import Certificates
from listeners import Answer, Listener, RemotingServer, Served, echo

from metaq.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    MetaqError,
    ProtocolError,
    TlsRefused,
    TooManyInFlight,
    WrongServer,
)
from metaq.model import Address
from metaq.net.duplex import DuplexStream, PlainConnector, RemotingTls, TlsConnector, TlsMode
from metaq.net.identification import HTTP, TLS
from metaq.net.remoting_client import ClientSettings, RemotingClient
from metaq.net.remoting_requests import ResponseFirst
from metaq.net.tls import TlsSettings
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.channel import ChannelLimits, Expired, ReceivedResponse
from metaq.protocols.remoting.command import Codec, RemotingCommand, request
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.protocols.remoting.headers.sends import SendMessage

TIMEOUTS = Timeouts(connect_s=5.0, request_s=20.0)
NOBODY = Address("127.0.0.1", 1)


def silence(_served: Served, _command: RemotingCommand) -> Iterable[Answer]:
    return []


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    with RemotingClient(timeouts=TIMEOUTS) as made:
        yield made


class TestCalls:
    def test_a_call_returns_the_response_whatever_its_code(self, client: RemotingClient) -> None:
        with RemotingServer(lambda _, command: [command.reply(17, {"a": "b"}, b"body", "no such topic")]) as server:
            response = client.call(server.address, request(105, {"topic": "T"}))
        assert (response.code, response.ext, response.body, response.remark) == (
            17,
            {"a": "b"},
            b"body",
            "no such topic",
        )

    @pytest.mark.parametrize("codec", Codec)
    def test_requests_go_out_in_their_codec(self, client: RemotingClient, codec: Codec) -> None:
        with RemotingServer() as server:
            assert client.call(server.address, request(11, {"k": "v"}, b"x", codec=codec)).body == b"x"
            assert [command.codec for command in server.received] == [codec]

    def test_one_connection_carries_many_calls_at_once(self, client: RemotingClient) -> None:
        waiting: list[RemotingCommand] = []

        def backwards(_served: Served, command: RemotingCommand) -> Iterable[Answer]:
            waiting.append(command)
            return [each.reply(0, body=each.body) for each in reversed(waiting)] if len(waiting) == 50 else []

        with RemotingServer(backwards) as server:
            futures = [client.submit(server.address, request(11, body=b"%d" % n)) for n in range(50)]
            assert [future.result(60).body for future in futures] == [b"%d" % n for n in range(50)]
            assert len(server.connections) == 1

    def test_many_threads_get_their_own_answers(self, client: RemotingClient) -> None:
        with RemotingServer() as server, ThreadPoolExecutor(8) as pool:
            bodies = [b"%d" % n * (n % 5000 + 1) for n in range(400)]
            answers = pool.map(lambda body: client.call(server.address, request(10, body=body)).body, bodies)
            assert list(answers) == bodies
            assert len(server.connections) == 1

    def test_bodies_of_many_megabytes_pass_in_both_directions(self, client: RemotingClient) -> None:
        body = bytes(range(256)) * (12 << 12)
        with RemotingServer() as server:
            futures = [client.submit(server.address, request(10, body=body)) for _ in range(3)]
            assert all(future.result(60).body == body for future in futures)

    def test_a_oneway_is_sent_and_not_waited_for(self, client: RemotingClient) -> None:
        with RemotingServer(silence) as server:
            client.oneway(server.address, request(15, {"q": "1"}))
            server.wait_for(lambda: len(server.received) == 1)
            assert server.received[0].is_oneway

    def test_a_response_after_the_deadline_is_dropped(self, client: RemotingClient) -> None:
        late: list[RemotingCommand] = []

        def first_late(_served: Served, command: RemotingCommand) -> Iterable[Answer]:
            late.append(command)
            return [each.reply(0, body=each.body) for each in late] if len(late) == 2 else []

        with RemotingServer(first_late) as server:
            with pytest.raises(DeadlineExceeded, match=r"no answer to PULL_MESSAGE \(11\) within 0.05 s"):
                client.call(server.address, request(11, body=b"one"), 0.05)
            assert client.call(server.address, request(11, body=b"two")).body == b"two"

    def test_a_future_expires_by_itself(self, client: RemotingClient) -> None:
        with RemotingServer(silence) as server:
            future = client.submit(server.address, request(11), 0.1)
            with pytest.raises(DeadlineExceeded):
                future.result(60)

    def test_too_many_in_flight_is_an_error_at_once(self) -> None:
        with RemotingServer(silence) as server, RemotingClient(timeouts=TIMEOUTS, limits=ChannelLimits(2, 1)) as client:
            futures = [client.submit(server.address, request(11)) for _ in range(3)]
            with pytest.raises(TooManyInFlight, match="2 are in flight"):
                futures[2].result(60)
            client.oneway(server.address, request(15))  # has a limit of its own
            client.close()
            for future in futures[:2]:
                with pytest.raises(ConnectionFailed):
                    future.result(60)

    def test_a_connection_that_ends_fails_its_calls_and_the_next_makes_another(self, client: RemotingClient) -> None:
        def closes(served: Served, command: RemotingCommand) -> Iterable[Answer]:
            return [None if command.code == 11 and len(server.connections) == 1 else command.reply(0, body=b"again")]

        with RemotingServer(closes) as server:
            client.call(server.address, request(10))  # one that has never answered is identified
            with pytest.raises(ConnectionFailed, match="the server closed the connection"):
                client.call(server.address, request(11))
            assert client.call(server.address, request(11)).body == b"again"
            assert len(server.connections) == 2

    def test_nobody_listens(self, client: RemotingClient) -> None:
        with pytest.raises(ConnectionFailed, match="connect failed"):
            client.call(NOBODY, request(105))
        assert isinstance(client.submit(NOBODY, request(105)).exception(20), ConnectionFailed)

    @pytest.mark.parametrize(
        "garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b"\x00\x00\x00\x06\x00\x00\x00\x02[]"]
    )
    def test_what_is_no_frame_ends_the_connection_with_its_calls(self, client: RemotingClient, garbage: bytes) -> None:
        with (
            RemotingServer(lambda _, command: [garbage]) as server,
            pytest.raises(ProtocolError, match=str(server.address)),
        ):
            client.call(server.address, request(11))

    def test_a_response_before_garbage_still_counts(self, client: RemotingClient) -> None:
        with RemotingServer(lambda _, command: [command.reply(0, body=b"good"), b"\xff" * 64]) as server:
            assert client.call(server.address, request(11)).body == b"good"

    def test_a_server_that_trickles_does_not_pass_the_deadline(self, client: RemotingClient) -> None:
        with RemotingServer(lambda _, command: [b"\x00\x00\x10\x00"]) as server, pytest.raises(DeadlineExceeded):
            client.call(server.address, request(11), 0.2)

    def test_a_closed_client_says_so(self, client: RemotingClient) -> None:
        client.close()
        with RemotingServer() as server, pytest.raises(ConnectionFailed, match="this client is closed"):
            client.call(server.address, request(11))

    @pytest.mark.slow
    def test_idle_connections_are_closed_and_busy_ones_not(self) -> None:
        def watched(served: Served, command: RemotingCommand) -> Iterable[Answer]:
            return [command.reply()] if command.code == 11 else []

        settings = ClientSettings(idle_s=0.1)
        with RemotingServer(watched) as server, RemotingClient(timeouts=TIMEOUTS, settings=settings) as client:
            client.call(server.address, request(11))
            first = client._links.get(server.address, 1e12)
            first._thread.join(60)
            assert first.connection.closed
            future = client.submit(server.address, request(12), 1.5)  # longer than idle_s and the sweep
            with pytest.raises(DeadlineExceeded):
                future.result(60)


class TestServerRequests:
    def test_processors_answer_what_the_server_asks(self, client: RemotingClient) -> None:
        asked: list[tuple[Address, str]] = []

        def processor(address: Address, command: RemotingCommand) -> RemotingCommand:
            asked.append((address, threading.current_thread().name))
            return command.reply(0, body=b"running info")

        def ask_back(served: Served, command: RemotingCommand) -> Iterable[Answer]:
            if command.is_response:
                return []
            return [request(307, opaque=command.opaque), command.reply(0)]  # the same number in the other direction

        with ThreadPoolExecutor(1, thread_name_prefix="own") as own, RemotingServer(ask_back) as server:
            client.register(307, processor, own)
            assert client.call(server.address, request(34)).code == 0
            server.wait_for(lambda: any(command.is_response for command in server.received))
            answer = next(command for command in server.received if command.is_response)
            assert (answer.code, answer.body, answer.opaque) == (0, b"running info", server.received[0].opaque)
            assert asked == [(server.address, "own_0")]

    @pytest.mark.parametrize(
        ("code", "expected"), [(309, (1, "ValueError: broken")), (9999, (3, "request type 9999 not supported"))]
    )
    def test_failing_and_unknown_requests_are_answered(
        self, client: RemotingClient, code: int, expected: tuple[int, str]
    ) -> None:
        def processor(address: Address, command: RemotingCommand) -> RemotingCommand:
            raise ValueError("broken")

        def ask_back(served: Served, command: RemotingCommand) -> Iterable[Answer]:
            return [] if command.is_response else [request(code, opaque=77), command.reply(0)]

        client.register(309, processor)
        with RemotingServer(ask_back) as server:
            client.call(server.address, request(34))
            server.wait_for(lambda: len(server.received) == 2)
            answer = server.received[1]
            assert (answer.opaque, (answer.code, answer.remark)) == (77, expected)

    def test_what_follows_a_response_may_close_the_connection(self, client: RemotingClient) -> None:
        """The program may end there; the server has the response."""

        def processor(address: Address, command: RemotingCommand) -> ResponseFirst:
            return ResponseFirst(command.reply(0, body=b"taken"), lambda: client.disconnect(address))

        def ask_back(served: Served, command: RemotingCommand) -> Iterable[Answer]:
            return [] if command.is_response else [request(326, opaque=77)]

        client.register(326, processor)
        with RemotingServer(ask_back) as server:
            with pytest.raises(ConnectionFailed):
                client.call(server.address, request(34))
            server.wait_for(lambda: len(server.received) == 2)
            assert server.received[1].body == b"taken"

    def test_a_slow_processor_delays_no_call(self, client: RemotingClient) -> None:
        go_on, seen = threading.Event(), threading.Semaphore(0)

        def slow(address: Address, command: RemotingCommand) -> None:
            seen.release()
            go_on.wait(60)

        client.register(40, slow)
        with RemotingServer(
            lambda _, command: [request(40, oneway=True), command.reply(0, body=command.body)]
        ) as server:
            for n in range(20):
                assert client.call(server.address, request(11, body=b"%d" % n)).body == b"%d" % n
            assert seen.acquire(timeout=60)
            go_on.set()


class TestGoAway:
    @staticmethod
    @contextmanager
    def leaving(client: RemotingClient, connections_max: int) -> Iterator[RemotingServer]:
        """A server that leaves its first connections; it stops when ``client`` is closed."""

        def behaviour(served: Served, command: RemotingCommand) -> Iterable[Answer]:
            leaves = server.connections.index(served) < connections_max
            return [command.reply(1500, remark="go away") if leaves else command.reply(0, body=command.body)]

        server = RemotingServer(behaviour)
        try:
            yield server
        finally:
            client.close()
            server.close()

    def test_what_may_be_repeated_is_sent_once_more_on_a_new_connection(self, client: RemotingClient) -> None:
        with self.leaving(client, 1) as server:
            assert client.call(server.address, request(PullMessage.CODE, body=b"x")).body == b"x"
            assert len(server.connections) == 2

    def test_the_second_time_it_is_the_answer(self, client: RemotingClient) -> None:
        with self.leaving(client, 9) as server:
            assert client.call(server.address, request(PullMessage.CODE)).code == 1500
            assert len(server.connections) == 2

    def test_a_send_is_not_repeated_but_the_next_goes_elsewhere(self, client: RemotingClient) -> None:
        with self.leaving(client, 1) as server:
            assert client.call(server.address, request(SendMessage.CODE)).code == 1500
            assert client.call(server.address, request(SendMessage.CODE)).code == 0
            assert [len(served.received) for served in server.connections] == [1, 1]


@dataclass
class AddedField:
    """Adds a field to each request and keeps what was answered."""

    answered: list[tuple[int, int]] = field(default_factory=list)

    def before(self, address: Address, command: RemotingCommand) -> RemotingCommand:
        return replace(command, ext={**command.ext, "Signature": "s"})

    def after(self, address: Address, command: RemotingCommand, response: RemotingCommand) -> None:
        self.answered.append((command.code, response.code))


def test_hooks_see_every_call() -> None:
    hook = AddedField()
    with RemotingServer() as server, RemotingClient(timeouts=TIMEOUTS, hooks=[hook]) as client:
        client.call(server.address, request(11))
        client.call(server.address, request(105))
        client.oneway(server.address, request(15))
        with client.open(server.address) as connection:
            connection.request(request(30), 20.0, None)
            assert connection.receive(20.0)
        server.wait_for(lambda: len(server.received) == 4)
        assert all(command.ext == {"Signature": "s"} for command in server.received)
        assert hook.answered == [(11, 0), (105, 0), (30, 0)]


def test_a_hook_that_fails_harms_no_call(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(AddedField):
        def after(self, address: Address, command: RemotingCommand, response: RemotingCommand) -> None:
            raise ValueError("hook")

    with RemotingServer() as server, RemotingClient(timeouts=TIMEOUTS, hooks=[Failing()]) as client:
        assert client.call(server.address, request(11)).code == 0
        assert client.call(server.address, request(11)).code == 0
    assert [record.message for record in caplog.records] == ["hook failed", "hook failed"]


class TestWithoutThreads:
    def test_requests_ahead_and_responses_as_they_come(self, client: RemotingClient) -> None:
        with RemotingServer() as server, client.open(server.address) as connection:
            for n in range(100):
                connection.request(request(11, body=b"%d" % n), 20.0, n)
            owners: list[object] = []
            while connection.in_flight:
                for event in connection.receive(20.0):
                    assert isinstance(event, ReceivedResponse)
                    assert event.command.body == b"%d" % event.owner
                    owners.append(event.owner)
            assert owners == list(range(100))

    def test_a_request_expires_while_others_are_waited_for(self, client: RemotingClient) -> None:
        with RemotingServer(silence) as server, client.open(server.address) as connection:
            connection.request(request(11), 0.05, "short")
            connection.request(request(11), 30.0, "long")
            (event,) = connection.receive(20.0)
            assert isinstance(event, Expired)
            assert event.owner == "short"
            assert connection.receive(0.01) == []
            assert [pending.owner for pending in connection.close()] == ["long"]
            with pytest.raises(ConnectionFailed, match="closed on this side"):
                connection.request(request(11), 1.0, "x")

    def test_what_the_server_asks_is_refused(self, client: RemotingClient) -> None:
        def ask_back(served: Served, command: RemotingCommand) -> Iterable[Answer]:
            return [] if command.is_response else [request(40, oneway=True), request(307), command.reply(0)]

        with RemotingServer(ask_back) as server, client.open(server.address) as connection:
            connection.request(request(11), 20.0, None)
            assert len(connection.receive(20.0)) == 1
            server.wait_for(lambda: len(server.received) == 2)
            assert server.received[1].code == 3

    def test_a_peer_that_reads_nothing_does_not_pass_the_deadline(self, client: RemotingClient) -> None:
        go_on = threading.Event()

        def deaf(served: Served, command: RemotingCommand) -> Iterable[Answer]:
            go_on.wait(60)
            return []

        with RemotingServer(deaf) as server, client.open(server.address) as connection:
            connection.request(request(11), 20.0, None)
            server.wait_for(lambda: len(server.received) == 1)
            with pytest.raises(DeadlineExceeded, match="send SEND_MESSAGE"):
                connection.request(request(10, body=bytes(15 << 20)), 0.3, None)
            assert connection.closed  # a part of a frame is out: what follows would be read as its rest
            go_on.set()


class TestTls:
    @pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCED])
    def test_unchecked_modes_take_any_certificate(self, server_context: ssl.SSLContext, mode: TlsMode) -> None:
        body = bytes(3 << 20)
        with (
            RemotingServer(tls=server_context) as server,
            RemotingClient(timeouts=TIMEOUTS, tls=RemotingTls(mode)) as client,
        ):
            futures = [client.submit(server.address, request(11, body=body)) for _ in range(8)]
            assert all(future.result(60).body == body for future in futures)

    def test_permissive_talks_to_a_server_without_tls(self) -> None:
        with (
            RemotingServer() as server,
            RemotingClient(timeouts=TIMEOUTS, tls=RemotingTls(TlsMode.PERMISSIVE)) as client,
        ):
            assert client.call(server.address, request(11, body=b"x")).body == b"x"

    @pytest.mark.parametrize("mode", [TlsMode.ENFORCED, TlsMode.STRICT])
    def test_the_others_do_not(self, mode: TlsMode) -> None:
        with (
            RemotingServer() as server,
            RemotingClient(timeouts=TIMEOUTS, tls=RemotingTls(mode)) as client,
            pytest.raises(WrongServer, match="is a RocketMQ server without TLS"),
        ):
            client.call(server.address, request(11))

    def test_strict_takes_what_its_authority_signed_and_nothing_else(
        self, server_context: ssl.SSLContext, certificates: Certificates
    ) -> None:
        with RemotingServer(tls=server_context) as server:
            trusting = RemotingTls(TlsMode.STRICT, TlsSettings(ca_file=certificates.ca_file))
            with RemotingClient(timeouts=TIMEOUTS, tls=trusting) as client:
                assert client.call(server.address, request(11, body=b"x")).body == b"x"
            with (
                RemotingClient(timeouts=TIMEOUTS, tls=RemotingTls()) as client,
                pytest.raises(TlsRefused, match="certificate is not trusted"),
            ):
                client.call(server.address, request(11))

    def test_a_certificate_that_is_missing_is_the_reason(
        self, server_context: ssl.SSLContext, certificates: Certificates
    ) -> None:
        server_context.load_verify_locations(certificates.ca_file)
        server_context.verify_mode = ssl.CERT_REQUIRED
        tls = RemotingTls(TlsMode.STRICT, TlsSettings(ca_file=certificates.ca_file))
        for size in (1, 8 << 20):  # the alert is there before the request, or while it is sent
            with (
                RemotingServer(tls=server_context) as server,
                RemotingClient(timeouts=TIMEOUTS, tls=tls) as client,
                pytest.raises(TlsRefused, match="the server requires a certificate of the client"),
            ):
                client.call(server.address, request(11, body=bytes(size)))

    def test_a_server_that_requires_tls_is_named_and_identified_once(
        self, client: RemotingClient, server_context: ssl.SSLContext
    ) -> None:
        text = "is a server that requires TLS, not a RocketMQ server"
        with RemotingServer(tls=server_context) as server:
            with pytest.raises(WrongServer, match=text):
                client.call(server.address, request(11))
            probed = len(server.accepted)
            with pytest.raises(WrongServer, match=text):
                client.call(server.address, request(11))
            assert len(server.accepted) == probed + 1, "the connection of the call only"

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="ca_file="):
            RemotingClient(tls=RemotingTls(TlsMode.STRICT, TlsSettings(ca_file=str(tmp_path / "none"))))


def reset(connected: socket.socket) -> None:
    """Close a connection so that its peer can send nothing more."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


def sends_until(stream: DuplexStream) -> BaseException:
    """Send until that fails; return the error."""
    while True:
        try:
            stream.send(b"request", 20.0)
        except BaseException as error:
            return error


class TestBrokenTls:
    """A server resets a connection with TLS while one thread receives and another sends."""

    @pytest.fixture
    def streams(self, server_context: ssl.SSLContext) -> Iterator[Callable[[], tuple[DuplexStream, ssl.SSLSocket]]]:
        accepted = SimpleQueue[ssl.SSLSocket]()
        ends = threading.Event()

        def serve(connected: socket.socket) -> None:
            accepted.put(server_context.wrap_socket(connected, server_side=True))
            ends.wait(60)

        with Listener(serve) as server:
            connector = TlsConnector(RemotingTls(TlsMode.ENFORCED))
            yield lambda: (connector.connect(server.address, 20.0), accepted.get(timeout=20))
            ends.set()

    def test_both_threads_get_an_error_after_which_a_retry_helps(
        self, streams: Callable[[], tuple[DuplexStream, ssl.SSLSocket]]
    ) -> None:
        outcomes: list[BaseException] = []
        with ThreadPoolExecutor(1) as threads:
            for _ in range(300):
                stream, server = streams()
                received = threads.submit(stream.recv_into, memoryview(bytearray(64)), 20.0)
                stream.send(b"request", 20.0)
                assert server.recv(7) == b"request"
                reset(server)
                outcomes.append(sends_until(stream))
                if (error := received.exception(20)) is not None:  # else it has read the end
                    outcomes.append(error)
                stream.close()
        assert len(outcomes) >= 300
        assert {type(error) for error in outcomes} == {ConnectionFailed}

    def test_what_has_arrived_is_received_whole(
        self, streams: Callable[[], tuple[DuplexStream, ssl.SSLSocket]]
    ) -> None:
        stream, server = streams()
        server.sendall(b"response")
        server.close()
        assert isinstance(sends_until(stream), ConnectionFailed)
        buffer = bytearray(64)
        assert stream.recv_into(memoryview(buffer), 20.0) == 8
        assert buffer[:8] == b"response"
        stream.close()


class TestExplanations:
    """Why a connection was lost is found out aside: nothing else waits for that."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleQueue[Address]]:
        """Which servers are identified; that takes until the end of the test."""
        asked, ends = SimpleQueue[Address](), threading.Event()

        def identify(address: Address) -> str | None:
            asked.put(address)
            ends.wait(60)
            return None

        monkeypatch.setattr("metaq.net.remoting_client.identify", identify)
        yield asked
        ends.set()

    def test_the_next_call_has_a_new_connection(self, client: RemotingClient, asked: SimpleQueue[Address]) -> None:
        with RemotingServer(lambda served, command: [None] if command.code == 11 else [command.reply(0)]) as server:
            lost = client.submit(server.address, request(11))
            assert asked.get(timeout=20) == server.address
            assert client.call(server.address, request(12)).code == 0
            assert not lost.done()

    def test_deadlines_of_other_calls_are_kept(self, asked: SimpleQueue[Address]) -> None:
        settings = ClientSettings(idle_s=0.05)
        with (
            RemotingServer(lambda *_: [None]) as ending,
            RemotingServer(silence) as silent,
            RemotingClient(timeouts=TIMEOUTS, settings=settings) as client,
        ):
            client.oneway(ending.address, request(11))
            assert asked.get(timeout=60) == ending.address
            time.sleep(1.1)  # it is idle, and swept
            began_s = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                client.submit(silent.address, request(11), 0.3).result(20)
            assert time.monotonic() - began_s < 30.0

    def test_closing_the_client_does_not_wait(self, asked: SimpleQueue[Address]) -> None:
        with RemotingServer(lambda *_: [None]) as server:
            client = RemotingClient(timeouts=TIMEOUTS)
            lost = client.submit(server.address, request(11))
            assert asked.get(timeout=20) == server.address
            began_s = time.monotonic()
            client.close()
            assert time.monotonic() - began_s < 30.0
            with pytest.raises(ConnectionFailed):
                lost.result(0)

    def test_an_address_that_was_a_server_of_rocketmq_may_be_one_again(self) -> None:
        opened: list[Address] = []

        def connect(address: Address, timeout_s: float) -> DuplexStream:
            opened.append(address)
            if len(opened) != 2:
                return PlainConnector().connect(address, timeout_s)
            raise WrongServer(address, TLS, f"{HTTP} without TLS")

        settings = ClientSettings(connector=SimpleNamespace(connect=connect))
        with RemotingServer() as server, RemotingClient(timeouts=TIMEOUTS, settings=settings) as client:
            assert client.call(server.address, request(11)).code == 0
            client.disconnect(server.address)
            with pytest.raises(ConnectionFailed, match="an HTTP server without TLS is there now"):
                client.call(server.address, request(11))
            assert client.call(server.address, request(11)).code == 0

    def test_a_server_is_identified_once_for_all_its_connections(
        self, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        times: list[Address] = []

        def identify(address: Address) -> str | None:
            times.append(address)
            time.sleep(0.5)
            return HTTP

        monkeypatch.setattr("metaq.net.remoting_client.identify", identify)
        with RemotingServer(lambda *_: [None]) as server, ThreadPoolExecutor(4) as threads:
            calls = []
            for _ in range(4):
                calls.append(threads.submit(client.call, server.address, request(11)))
                time.sleep(0.1)  # the connection is lost
            assert {type(call.exception(20)) for call in calls} == {WrongServer}
        assert times == [server.address]


def test_any_end_of_a_client_is_a_metaq_error() -> None:
    """Threads that call while the client is closed get a response or an error of this package, and none waits on."""
    with RemotingServer(echo) as server:
        client = RemotingClient(timeouts=TIMEOUTS)
        outcomes: list[object] = []

        def work() -> None:
            try:
                while True:
                    client.call(server.address, request(11))
            except MetaqError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        server.wait_for(lambda: len(server.received) > 100)
        client.close()
        for thread in threads:
            thread.join(60)
        assert len(outcomes) == 6
        assert all(isinstance(outcome, ConnectionFailed) for outcome in outcomes)
