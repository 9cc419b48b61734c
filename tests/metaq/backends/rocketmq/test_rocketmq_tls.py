"""Secured connections to name servers and brokers: checked, unchecked as Java clients do, and refused."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing

import pytest
from fix_tls import Certificates

from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError, WrongServer
from metaq.model import OffsetRange, Partition, TopicPartition
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.net.transport import TCP, Timeouts, Transport
from metaq.testing.rocketmq_server import ScriptedCluster

QUEUE = TopicPartition("orders", Partition("broker-a", 0))


@pytest.fixture
def cluster(certificates: Certificates) -> Iterator[ScriptedCluster]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.folder / "server.pem", certificates.folder / "server.key")
    with ScriptedCluster(tls=context) as cluster:
        cluster.create_topic("orders")
        cluster.append("orders", QUEUE.partition, [b"x"] * 3)
        yield cluster


def ranges(cluster: ScriptedCluster, transport: Transport) -> dict[TopicPartition, OffsetRange]:
    with closing(SessionPool(Timeouts(5.0, 5.0), transport)) as pool:
        return Offsets(pool, NameServerDirectory(cluster.name_servers, pool)).ranges([QUEUE])


@pytest.mark.slow
def test_a_certificate_is_checked(cluster: ScriptedCluster, certificates: Certificates) -> None:
    trusting = TlsTransport(TlsSettings(certificates.ca_file))
    assert ranges(cluster, trusting) == {QUEUE: OffsetRange(0, 3)}
    with pytest.raises(MetaqError, match="certificate is not trusted"):
        ranges(cluster, TlsTransport(TlsSettings()))


def test_or_not_as_java_clients_do(cluster: ScriptedCluster) -> None:
    unchecked = TlsTransport(TlsSettings(check_hostname=False, verify=False))
    assert ranges(cluster, unchecked) == {QUEUE: OffsetRange(0, 3)}


@pytest.mark.slow
def test_without_tls_the_port_is_named(cluster: ScriptedCluster) -> None:
    with pytest.raises(WrongServer, match="is a server that requires TLS"):
        ranges(cluster, TCP)
