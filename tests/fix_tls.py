"""Certificates for tests, brokers that use them, and clients that show them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from fix_broker import RunningBroker, launch, system_section

from metaq.backends.metaq.session import Session
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.net.transport import Timeouts

TIMEOUTS = Timeouts(connect_s=10.0, request_s=20.0)


@dataclass(frozen=True)
class Certificates:
    """PEM files below ``folder``: an authority, a broker's certificate and key, and clients' on demand."""

    folder: Path
    authority: trustme.CA

    @property
    def ca_file(self) -> str:
        """The authority that everybody trusts."""
        return str(self.folder / "ca.pem")

    @property
    def server_keys(self) -> str:
        """The lines of server.ini that make a broker speak TLS."""
        return f"tlsCertFile={self.folder / 'server.pem'}\ntlsKeyFile={self.folder / 'server.key'}\n"

    def client(self, name: str, common_name: str | None = None, authority: trustme.CA | None = None) -> TlsSettings:
        """What a client shows that is called ``name``."""
        issued = (authority or self.authority).issue_cert(name, common_name=common_name)
        path = self.folder / f"client-{name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return TlsSettings(self.ca_file, str(path))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority that exists for these tests only."""
    made = Certificates(tmp_path_factory.mktemp("certificates"), trustme.CA())
    made.authority.cert_pem.write_to_path(made.ca_file)
    server = made.authority.issue_cert("127.0.0.1", "localhost")
    server.private_key_pem.write_to_path(str(made.folder / "server.key"))
    server.cert_chain_pems[0].write_to_path(str(made.folder / "server.pem"))
    return made


@pytest.fixture
def server_context(certificates: Certificates) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificates.folder / "server.pem", certificates.folder / "server.key")
    return made


def ini_text(data: Path, system: str, topics: str = "[topic=*]\n") -> str:
    """A server.ini with ``system`` added to its ``[system]`` section."""
    return f"{system_section(unflushInterval=1000, maxSegmentSize='1024*1024*64', dataPath=data)}{system}{topics}"


def launch_with(folder: Path, system: str, topics: str = "[topic=*]\n") -> RunningBroker:
    """Start a broker on a free port with ``system`` in its ``[system]`` section; ``folder`` must exist."""
    (folder / "server.ini").write_text(ini_text(folder / "data", system, topics))
    return launch(["start", "-f", folder / "server.ini", "--port", "0"], folder / "broker.log")


def tls_session(broker: RunningBroker, settings: TlsSettings) -> Session:
    return Session.connect(broker.address, TIMEOUTS, TlsTransport(settings))


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[RunningBroker]:
    """A broker that speaks TLS to everybody who trusts it; asks for no certificate."""
    broker = launch_with(
        tmp_path_factory.mktemp("tls-broker"),
        certificates.server_keys + "tlsHandshakeTimeout=120000\nmaxConnections=20\n",
    )
    yield broker
    complaints = [line for line in broker.log_text().splitlines() if " ERROR " in line or "Traceback" in line]
    broker.end()
    assert complaints == [], "whatever clients do is no fault of the broker"
