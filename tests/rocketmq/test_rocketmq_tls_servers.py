"""TLS to real servers: with the certificates that they make themselves, and with those of an authority."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from fix_tls import Certificates
from pyspark.sql import SparkSession
from rocketmq_spark import RocketMQTopic

from peers.jvm import SMALL
from peers.rocketmq.jars import Release
from peers.rocketmq.servers import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]


def written_and_read(topic: RocketMQTopic, folder: Path) -> list[str]:
    """Write rows, read them as a batch, copy them with a stream; the values of the copy."""
    values = [f"{number:03}" for number in range(100)]
    topic.write(topic.spark.createDataFrame([(value,) for value in values], "value string"))
    assert topic.read().count() == len(values)
    topic.copied(folder).awaitTermination()
    rows = topic.copy(folder).selectExpr("cast(value as string) v").orderBy("v").collect()
    assert [row.v for row in rows] == values
    return values


def test_certificates_that_servers_make_themselves(
    rocketmq: Cluster, rocketmq_topic: Callable[..., str], spark: SparkSession, tmp_path: Path
) -> None:
    name = rocketmq_topic(queues=2)
    assert written_and_read(RocketMQTopic(spark, name, rocketmq.name_servers, (("tlsVerify", "none"),)), tmp_path)
    checked = RocketMQTopic(spark, name, rocketmq.name_servers, (("tlsCaFile", "system"), ("retries", "0")))
    with pytest.raises(Exception, match=r"certificate is not trusted: self[- ]signed"):
        checked.read().count()


@pytest.fixture
def secured(rocketmq_release: Release, tmp_path: Path, certificates: Certificates) -> Iterator[Cluster]:
    """Servers with a certificate of the authority, which want one of each client that speaks TLS."""
    key = load_pem_private_key((certificates.folder / "server.key").read_bytes(), None)
    key_file = tmp_path / "server.p8"  # Java reads keys in this format only
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    settings = {
        "test.mode.enable": "false",
        "server.certPath": certificates.folder / "server.pem",
        "server.keyPath": key_file,
        "server.need.client.auth": "require",
        "server.authClient": "true",
        "server.trustCertPath": certificates.ca_file,
    }
    options = (*SMALL, *(f"-Dtls.{name}={value}" for name, value in settings.items()))
    with Cluster(rocketmq_release, tmp_path / "rocketmq", options) as cluster:
        cluster.start_name_server()
        cluster.start_broker()
        cluster.create_topic("orders", queues=2)
        yield cluster


def test_certificates_of_an_authority_on_both_sides(
    secured: Cluster, certificates: Certificates, spark: SparkSession, tmp_path: Path
) -> None:
    def seen_with(**options: str) -> RocketMQTopic:
        return RocketMQTopic(spark, "orders", secured.name_servers, tuple(options.items()))

    shown = str(certificates.client("reader").cert_file)
    assert written_and_read(seen_with(tlsCaFile=certificates.ca_file, tlsCertFile=shown), tmp_path)
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    refused = [
        ({"tlsCaFile": str(other), "tlsCertFile": shown}, "certificate is not trusted"),
        ({"tlsCaFile": certificates.ca_file}, "(requires a certificate of the|does not accept this) client"),
    ]
    for options, says in refused:
        with pytest.raises(Exception, match=says):
            seen_with(**options, retries="0").read().count()
