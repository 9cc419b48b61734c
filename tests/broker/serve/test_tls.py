"""TLS over a real broker: the same protocol, certificates of both sides, clients that misbehave in the handshake."""

from __future__ import annotations

import pickle
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from fix_broker import RunningBroker, WireClient, wait_until
from fix_tls import TIMEOUTS, Certificates, launch_with, tls_session

from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.range_reader import read_range
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.errors import TlsRefused
from metaq.formats.frames import walk
from metaq.model import Message, OffsetRange
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.protocols.text.commands import Stats

pytestmark = pytest.mark.process


@pytest.fixture
def trusting(certificates: Certificates) -> TlsSettings:
    return TlsSettings(ca_file=certificates.ca_file)


@pytest.fixture
def session(tls_broker: RunningBroker, trusting: TlsSettings) -> Iterator[Session]:
    session = tls_session(tls_broker, trusting)
    yield session
    session.close()


def raw_tls(broker: RunningBroker, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection((broker.address.host, broker.address.port), 20)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def connections(session: Session) -> int:
    """How many connections the broker counts."""
    text = session.ask(Stats("", 0))
    (line,) = [line for line in text.splitlines() if line.startswith("curr_connections")]
    return int(line.split()[1])


class TestTheProtocolOverTls:
    def test_messages_go_in_and_come_out(self, session: Session) -> None:
        messages = [Message(bytes([n]) * n * 50) for n in range(100)]
        end = 0
        for message in messages:
            end = put(session, "small", 0, message).offset + 20 + len(message.payload)
        runs = read_range(session, "small", 0, OffsetRange(0, end))
        assert [frame.message for run in runs for frame in walk(run.data)] == messages

    def test_a_committed_transaction_is_readable_a_rolled_back_one_is_not(self, session: Session) -> None:
        transactions = TransactionSteps(session)
        for number, end in enumerate((transactions.commit, transactions.rollback)):
            key = transactions.local_id()
            transactions.begin(key)
            put(session, "paid", 0, Message(b"%d" % number), key)
            end(key)
        run = fetch(session, "paid", 0, 0, 1 << 20)
        assert isinstance(run, Run)
        assert [frame.message for frame in walk(run.data)] == [Message(b"0")]

    def test_a_message_of_megabytes(self, session: Session) -> None:
        large = Message(bytes(range(256)) * (3 << 12))
        put(session, "large", 0, large)
        frames = [
            frame
            for run in read_range(session, "large", 0, OffsetRange(0, 20 + len(large.payload)))
            for frame in walk(run.data)
        ]
        assert [frame.message for frame in frames] == [large]

    def test_a_client_that_takes_nothing_for_a_while_gets_all_of_it(
        self, tls_broker: RunningBroker, session: Session, trusting: TlsSettings
    ) -> None:
        payload = bytes(range(256)) * 2048
        put(session, "slow", 0, Message(payload))
        client = raw_tls(tls_broker, trusting.context())
        asked = 20
        client.sendall(
            b"".join(b"get slow g 0 0 600000 %d\r\n" % number for number in range(asked)) + b"version 99\r\n"
        )
        assert put(session, "slow2", 0, Message(b"others go on")).offset == 0
        run = self.stored(session, len(payload))
        expected = b"".join(b"value %d %d\r\n" % (len(run), number) + run for number in range(asked))
        received = bytearray()
        while len(received) < len(expected):
            chunk = client.recv(1 << 16)
            assert chunk
            received += chunk
        assert received == expected
        client.close()

    @staticmethod
    def stored(session: Session, payload_bytes: int) -> bytes:
        run = fetch(session, "slow", 0, 0, 1 << 20)
        assert isinstance(run, Run)
        assert len(run.data) == 20 + payload_bytes
        return run.data

    def test_pipelined_commands_and_quit(self, tls_broker: RunningBroker, trusting: TlsSettings) -> None:
        client = raw_tls(tls_broker, trusting.context())
        client.sendall(b"".join(b"version %d\r\n" % number for number in range(1000)) + b"quit\r\n")
        received = b""
        while chunk := client.recv(1 << 16):
            received += chunk
        assert received.count(b"result 200") == 1000
        client.close()

    def test_the_pool_keeps_secured_sessions(self, tls_broker: RunningBroker, trusting: TlsSettings) -> None:
        pool = SessionPool(TIMEOUTS, pickle.loads(pickle.dumps(TlsTransport(trusting))))
        with pool.lease(tls_broker.address) as first:
            put(first, "pooled", 0, Message(b"x"))
        for _ in range(3):
            with pool.lease(tls_broker.address) as again:
                assert again is first, "session tickets are no reason to drop a session"
                put(again, "pooled", 0, Message(b"x"))
        pool.close()

    def test_stop_says_goodbye(self, tmp_path: Path, certificates: Certificates, trusting: TlsSettings) -> None:
        broker = launch_with(tmp_path, certificates.server_keys)
        client = raw_tls(broker, trusting.context())
        client.sendall(b"version 1\r\n")
        assert client.recv(1000).startswith(b"result 200")
        assert broker.process.poll() is None
        broker.process.terminate()
        assert client.recv(1000) == b""
        client.close()
        assert broker.process.wait(60) == 0
        broker.end()


class TestTrust:
    def test_a_broker_of_another_authority_is_refused(self, tls_broker: RunningBroker, tmp_path: Path) -> None:
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
        with pytest.raises(TlsRefused, match="certificate is not trusted"):
            tls_session(tls_broker, TlsSettings(str(tmp_path / "other.pem")))

    def test_a_broker_of_another_name_is_refused_unless_configured_otherwise(
        self, tmp_path: Path, certificates: Certificates
    ) -> None:
        other = certificates.authority.issue_cert("somewhere.else")
        other.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "other.pem"))
        broker = launch_with(tmp_path, f"tlsCertFile={tmp_path / 'other.pem'}\n")
        with pytest.raises(TlsRefused, match="not trusted"):
            tls_session(broker, TlsSettings(certificates.ca_file))
        tls_session(broker, TlsSettings(certificates.ca_file, check_hostname=False)).close()
        broker.end()

    def test_old_versions_are_not_spoken(self, tls_broker: RunningBroker) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            raw_tls(tls_broker, context)

    def test_required_certificates(self, tmp_path: Path, certificates: Certificates) -> None:
        broker = launch_with(tmp_path, f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n")
        session = tls_session(broker, certificates.client("app"))
        put(session, "t", 0, Message(b"x"))
        for stranger, reason in (
            (TlsSettings(certificates.ca_file), "the server requires a certificate of the client"),
            (certificates.client("forged", authority=trustme.CA()), "the server does not trust the CA"),
        ):
            with pytest.raises(TlsRefused, match=reason):
                put(tls_session(broker, stranger), "t", 0, Message(b"x"))
        put(session, "t", 0, Message(b"x"))
        wait_until(lambda: broker.log_text().count("TLS handshake failed") == 2, "both failures are in the log")
        assert "the client shows no certificate" in broker.log_text()
        session.close()
        broker.end()

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            (TlsSettings("/nowhere/ca.pem"), "ca_file=/nowhere/ca.pem cannot be used: No such file"),
            (TlsSettings(cert_file="/nowhere/me.pem"), "cert_file=/nowhere/me.pem, key_file=/nowhere/me.pem cannot be"),
        ],
    )
    def test_client_files_that_cannot_be_used_are_named(self, settings: TlsSettings, reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            TlsTransport(settings)
        with pytest.raises(ValueError, match="cert_file"):
            TlsSettings(key_file="/nowhere/me.key")


class TestHandshakesThatFail:
    def test_plain_text_is_no_handshake(self, tls_broker: RunningBroker, session: Session) -> None:
        client = WireClient(tls_broker.address)
        client.send(b"version 1\r\n")
        assert b"result" not in client.rest()
        client.close()
        put(session, "after-plain", 0, Message(b"x"))

    def test_silence_ends_after_the_timeout(self, tmp_path: Path, certificates: Certificates) -> None:
        broker = launch_with(tmp_path, certificates.server_keys + "tlsHandshakeTimeout=500\n")
        silent = [WireClient(broker.address) for _ in range(5)]
        assert [client.rest() for client in silent] == [b""] * 5
        wait_until(lambda: broker.log_text().count("TLS handshake failed") == 5, "each is in the log")
        assert broker.stop() == 0
        assert "connection closed at shutdown" not in broker.log_text(), "they were forgotten"
        broker.end()
        for client in silent:
            client.close()

    def test_too_many_are_turned_away_before_the_handshake(self, tls_broker: RunningBroker, session: Session) -> None:
        silent = [WireClient(tls_broker.address) for _ in range(19)]
        wait_until(lambda: connections(session) == 20, "silence counts until the timeout: as many as are allowed")
        surplus = WireClient(tls_broker.address)
        assert surplus.rest() == b""
        put(session, "crowded", 0, Message(b"x"))
        for client in (*silent, surplus):
            client.close()
        wait_until(lambda: connections(session) == 1, "they are forgotten")

    @pytest.mark.parametrize("sent", [0, 1, 100])
    def test_a_client_that_goes_away_in_the_middle(
        self, sent: int, tls_broker: RunningBroker, session: Session
    ) -> None:
        outgoing = ssl.MemoryBIO()
        context = ssl.create_default_context()
        hello = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            hello.do_handshake()
        client = WireClient(tls_broker.address)
        client.send(outgoing.read()[:sent])
        client.close()
        put(session, f"gone-{sent}", 0, Message(b"x"))
        wait_until(lambda: connections(session) == 1, "it is forgotten")

    def test_the_first_command_may_come_with_the_end_of_the_handshake(
        self, tls_broker: RunningBroker, trusting: TlsSettings
    ) -> None:
        context = trusting.context()
        plain = socket.create_connection((tls_broker.address.host, tls_broker.address.port), 20)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(1 << 16))
        tls.write(b"version 7\r\n")
        plain.sendall(outgoing.read())  # the end of the handshake and the command in one packet
        received = b""
        while b"result 200" not in received:
            incoming.write(plain.recv(1 << 16))
            try:
                received += tls.read(1 << 16)
            except ssl.SSLWantReadError:
                continue
        assert received.startswith(b"result 200")
        plain.close()
