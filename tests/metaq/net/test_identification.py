"""A client at the port of another protocol, or on the wrong side of TLS, says within a second or two what it met."""

from __future__ import annotations

import itertools
import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from fix_broker import DEADLINE_S
from fix_tls import Certificates
from listeners import Listener
from metaq_broker.serve.foreign import foreign_client
from servers_of_kinds import Serve, servers_of_kinds

from metaq import MetaQ, RocketMQ
from metaq.cli.main import main
from metaq.errors import ConnectionFailed, MetaqError, TlsRefused, WrongServer
from metaq.model import Address
from metaq.net import identification
from metaq.net.identification import HTTP, METAQ, PROBE_S, ROCKETMQ, TLS, identify
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import encode
from metaq.testing.ports import free_port

SOON_S = 15.0
"""Three times as long as it takes: a second without an answer, and a probe of each protocol, of 0.8 s at most. An
answer is given up after 30 s.
"""

TRIES = 3
"""A busy machine's server may answer too late to be identified at once."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's servers answer late."""
    monkeypatch.setattr(identification, "PROBE_S", 3.0)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Serve]:
    with servers_of_kinds(tmp_path_factory, certificates) as serve:
        yield serve


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("MetaQ", METAQ), ("RocketMQ", ROCKETMQ), ("name server", ROCKETMQ), ("HTTP", HTTP), ("MetaQ with TLS", TLS),
        ("MetaQ for certificates", TLS), ("silent", None),
    ],
)  # fmt: skip
def test_what_listens(kind: str, found: str | None, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    silent_s = {"HTTP": 3.0, "silent": 0.4}  # it waits for the end of a line that does not come, and says nothing
    monkeypatch.setattr(identification, "PROBE_S", silent_s.get(kind, DEADLINE_S))
    assert identify(serve(kind)) == found


def test_nothing_is_there() -> None:
    assert identify(Address("127.0.0.1", free_port())) is None


def as_our_port(first: bytes) -> bytes | None:
    """A slow broker refuses other protocols at once; ``None``: nothing is sent."""
    foreign = foreign_client(first, "RocketMQ")
    return None if foreign is None else foreign.answer


def with_tls_too(first: bytes) -> bytes | None:
    """RocketMQ's own servers accept TLS beside plain connections; a handshake may succeed while requests wait."""
    return b"\x16\x03\x03\x00\x02\x02\x00" if first.startswith(b"\x16\x03") else None


@pytest.mark.parametrize("answers", [as_our_port, with_tls_too])
def test_a_slow_server_is_not_taken_for_another_kind(
    answers: Callable[[bytes], bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identification, "PROBE_S", 0.4)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:

        def handle(connection: socket.socket, *_: object) -> None:
            if (answer := answers(connection.recv(1024))) is not None:
                connection.sendall(answer)
            else:
                connection.recv(1024)  # until the client gives up

        server.RequestHandlerClass = handle  # type: ignore[assignment]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        assert identify(Address(*server.server_address)) is None
        server.shutdown()
        thread.join()


ROUTE = encode(RemotingCommand(code=17, flag=1, remark="No topic route info"))


@contextmanager
def answering(answer: Callable[[bytes, int], bytes | None]) -> Iterator[Address]:
    """A server that answers the first bytes of each connection, by its number; ``None``: nothing is sent."""
    count = itertools.count()

    def serve(connected: socket.socket) -> None:
        with connected:
            number = next(count)
            if (reply := answer(connected.recv(1024), number)) is not None:
                connected.sendall(reply)
            connected.settimeout(DEADLINE_S)

    with Listener(serve) as server:
        yield server.address


@pytest.mark.parametrize(
    ("status", "found"), [(200, HTTP), (404, HTTP), (501, HTTP), (500, None), (502, None), (503, None), (504, None)]
)
def test_a_proxy_without_its_server_is_not_taken_for_an_http_server(status: int, found: str | None) -> None:
    """It passes on what is not HTTP, and will answer the next client."""
    reply = b"HTTP/1.1 %d Status\r\n\r\n" % status
    with answering(lambda first, _: reply if first.startswith(b"HEAD") else b"") as address:
        assert identify(address) == found


def test_a_server_that_starts_and_accepts_both_does_not_require_tls() -> None:
    def answer(first: bytes, number: int) -> bytes:
        if number < 2:
            return b""  # the one before, which ends
        return b"\x16\x03\x03\x00\x02\x02\x00" if first.startswith(b"\x16\x03") else ROUTE

    with answering(answer) as address:
        assert identify(address) == ROCKETMQ


@pytest.mark.parametrize("ends", [True, False])
def test_a_handshake_that_fails_during_a_restart_is_repeated(ends: bool, certificates: Certificates) -> None:
    """The server, which accepts requests with and without TLS, as RocketMQ's, ends or is frozen during the first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.authority.issue_cert("127.0.0.1").configure_cert(context)
    count, thaws = itertools.count(), threading.Event()

    def serve(connected: socket.socket) -> None:
        if next(count) == 0:
            if ends:
                connected.close()
                return
            thaws.wait(DEADLINE_S)
        thaws.set()
        if connected.recv(2, socket.MSG_PEEK) == b"\x16\x03":
            with context.wrap_socket(connected, server_side=True) as secured:
                secured.recv(1)
        else:
            with connected:
                connected.recv(1024)
                connected.sendall(ROUTE)

    transport = TlsTransport(TlsSettings(certificates.ca_file))
    with Listener(serve) as server:
        if ends:
            with pytest.raises(ConnectionFailed):
                transport.connect_tcp(server.address, DEADLINE_S)
        transport.connect_tcp(server.address, DEADLINE_S).close()


def named_soon(error: type[MetaqError], use: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what an error says that a use of a wrong port raises soon, with the probes as they are."""
    monkeypatch.setattr(identification, "PROBE_S", PROBE_S)
    met: list[tuple[float, MetaqError]] = []
    while len(met) < TRIES:
        began_s = time.monotonic()
        with pytest.raises(MetaqError) as caught:
            use()
        met.append((time.monotonic() - began_s, caught.value))
        if met[-1][0] < SOON_S and isinstance(caught.value, error):
            assert not caught.value.retryable
            return str(caught.value)
    raise AssertionError(f"not named within {SOON_S:g} s: {met}")


CASES = {
    "MetaQ client, RocketMQ port": (MetaQ, "RocketMQ", "is a RocketMQ server, not a MetaQ broker"),
    "MetaQ client, name server": (MetaQ, "name server", "is a RocketMQ server, not a MetaQ broker"),
    "MetaQ client, HTTP port": (MetaQ, "HTTP", "is an HTTP server, not a MetaQ broker"),
    "MetaQ client, console": (MetaQ, "console", "is an HTTP server, not a MetaQ broker"),
    "MetaQ client, TLS port": (MetaQ, "MetaQ with TLS", "is a server that requires TLS, not a MetaQ broker"),
    "RocketMQ client, MetaQ port": (RocketMQ, "MetaQ", "is a MetaQ broker, not a RocketMQ server"),
    "RocketMQ client, HTTP port": (RocketMQ, "HTTP", "is an HTTP server, not a RocketMQ server"),
    "RocketMQ client, console": (RocketMQ, "console", "is an HTTP server, not a RocketMQ server"),
    "RocketMQ client, TLS port": (RocketMQ, "MetaQ with TLS", "is a server that requires TLS, not a RocketMQ server"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.process) if "console" in case else case for case in CASES]
)
def test_a_wrong_port_is_named_soon(case: str, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client, kind, expected = CASES[case]
    with client(str(serve(kind))) as mq:
        assert expected in named_soon(WrongServer, lambda: mq.producer().send("orders", b"one tea"), monkeypatch)


TLS_CASES = {
    "MetaQ's port": (MetaQ, "MetaQ", "is a MetaQ broker without TLS, not a server that requires TLS"),
    "RocketMQ's port": (RocketMQ, "RocketMQ", "is a RocketMQ server without TLS"),
    "HTTP": (MetaQ, "HTTP", "is an HTTP server without TLS"),
    "the other's port": (RocketMQ, "MetaQ", "is a MetaQ broker without TLS"),
}


@pytest.mark.parametrize("case", TLS_CASES)
def test_a_port_without_tls_is_named_soon(
    case: str, serve: Serve, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, kind, expected = TLS_CASES[case]
    with client(str(serve(kind)), tls=TlsSettings(certificates.ca_file)) as mq:
        assert expected in named_soon(WrongServer, lambda: mq.producer().send("orders", b"one tea"), monkeypatch)


def expired(certificates: Certificates) -> TlsSettings:
    past = datetime.now(UTC) - timedelta(days=2)
    issued = certificates.authority.issue_cert("expired", not_before=past, not_after=past + timedelta(days=1))
    path = certificates.folder / "client-expired.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(str(path))
    return TlsSettings(certificates.ca_file, str(path))


REFUSED = {
    "none": (lambda made: TlsSettings(made.ca_file), "the server requires a certificate of the client"),
    "of another CA": (lambda made: made.client("foreign", authority=trustme.CA()), "the server does not trust the CA"),
    "expired": (expired, "this client's certificate has expired"),
}


@pytest.mark.parametrize("client", [MetaQ, RocketMQ])
@pytest.mark.parametrize("certificate", REFUSED)
def test_a_certificate_that_is_refused_is_the_reason(
    certificate: str,
    client: type[MetaQ | RocketMQ],
    serve: Serve,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, expected = REFUSED[certificate]
    address = str(serve(f"{client.__name__} for certificates"))
    with client(address, tls=make(certificates)) as mq:
        assert expected in named_soon(TlsRefused, lambda: mq.producer().send("orders", b"one tea"), monkeypatch)


def test_a_broker_that_is_not_trusted_is_not_tried_again(serve: Serve, certificates: Certificates) -> None:
    other = certificates.folder / "another-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    with (
        MetaQ(str(serve("MetaQ with TLS")), tls=TlsSettings(str(other))) as mq,
        pytest.raises(TlsRefused, match="the broker's certificate is not trusted"),
    ):
        mq.producer().send("orders", b"one tea")


def test_the_command_names_it(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", f"rocketmq://{serve('MetaQ')}", "topics"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{serve('MetaQ')} is a MetaQ broker, not a RocketMQ server; check the port" in error
    assert main(["-c", str(serve("RocketMQ")), "doctor", "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any("is a RocketMQ server, not a MetaQ broker" in row["detail"] for row in rows)


@pytest.mark.long
def test_a_server_that_says_nothing_is_waited_for(serve: Serve) -> None:
    with MetaQ(str(serve("silent"))) as mq, pytest.raises(MetaqError) as caught:
        mq.cluster.topics()
    assert "no answer to" in str(caught.value)
