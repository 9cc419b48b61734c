"""Groups of RocketMQ on clusters of all kinds, with threads and with asyncio; the brokers are in the test's process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from fix_tls import Certificates
from local_servers import broker_thread, running_name_server
from rocketmq_clients import Make

from metaq import RocketMQ
from metaq.backends.rocketmq.pool import Credentials
from metaq.errors import MetaqError, TlsRefused, TopicNotFound, WrongServer
from metaq.model import Address
from metaq.net.tls import TlsSettings
from metaq.testing.ports import free_port

ACCOUNTS = """\
accounts:
  - accessKey: writer
    secretKey: writer-secret
    defaultTopicPerm: PUB
  - accessKey: reader
    secretKey: reader-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=SUB]
    groupPerms: [g=SUB]
  - accessKey: administrator
    secretKey: administrator-secret
    admin: true
"""


@contextmanager
def rocketmq_broker(
    folder: Path, port: int, name: str = "a", more: str = "", topics: str = "", **keys: Any
) -> Iterator[None]:
    """A broker for RocketMQ's clients, which is a name server, too, at ``port``."""
    section = f"[rocketmq]\nenabled=true\nport={port}\nbrokerName={name}\nbrokerIP1=127.0.0.1\n{more}"
    with broker_thread(folder, f"[topic=*]\n{topics}[zookeeper]\nzk.zkEnable=false\n{section}", **keys):
        yield


@pytest.fixture
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ExitStack]:
    """Ends the brokers that are entered into it, after the clients."""
    with ExitStack() as stack:
        yield stack


def test_a_condition_picks_messages(brokers: ExitStack, clients: Make, tmp_path: Path) -> None:
    port = free_port()
    brokers.enter_context(rocketmq_broker(tmp_path / "a", port))
    with RocketMQ(f"127.0.0.1:{port}") as mq:
        producer = mq.producer()
        for number in range(6):
            producer.send("orders", str(number), tag="hot", properties={"price": str(number)})
        member = clients(f"127.0.0.1:{port}")(sql="price > 2 AND TAGS = 'hot'")
        assert member.read(3) == ["3", "4", "5"]
        producer.send("orders", "cheap", tag="hot", properties={"price": "1"})
        producer.send("orders", "dear", tag="hot", properties={"price": "9"})
        assert member.read(1) == ["dear"]


def test_tls_with_certificates_on_both_sides(
    brokers: ExitStack, clients: Make, tmp_path: Path, certificates: Certificates
) -> None:
    port = free_port()
    files = {
        "tlsCertFile": certificates.folder / "server.pem",
        "tlsKeyFile": certificates.folder / "server.key",
        "tlsClientCaFile": certificates.ca_file,
    }
    brokers.enter_context(rocketmq_broker(tmp_path / "a", port, more="tls.server.mode=enforcing\n", **files))
    tls = certificates.client("member")
    with RocketMQ(f"127.0.0.1:{port}", tls=tls) as mq:
        mq.producer().send("orders", "secret")
    member = clients(f"127.0.0.1:{port}", tls=tls)()
    assert member.read(1) == ["secret"]
    for refusal, settings in ((WrongServer, None), (TlsRefused, TlsSettings(certificates.ca_file))):
        with pytest.raises(refusal):
            clients(f"127.0.0.1:{port}", tls=settings)().fetch(timeout=60)
    assert member.consumer.paused is None


def test_accounts(brokers: ExitStack, clients: Make, tmp_path: Path) -> None:
    port, accounts = free_port(), tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    brokers.enter_context(rocketmq_broker(tmp_path / "a", port, more=f"aclEnable=true\naclFile={accounts}\n"))
    servers = f"127.0.0.1:{port}"
    with RocketMQ(servers, credentials=Credentials("administrator", "administrator-secret")) as admin:
        admin.topics.create("orders", queues=2)
    with RocketMQ(servers, credentials=Credentials("writer", "writer-secret")) as mq:
        mq.producer().send("orders", "for readers")
    with RocketMQ(servers, credentials=Credentials("writer", "writer-secret", "a token")) as mq:
        mq.producer().send("orders", "with a token")
    member = clients(servers, credentials=Credentials("reader", "reader-secret", "another token"))()
    assert member.read(2) == ["for readers", "with a token"]
    member.commit()
    for account in (None, Credentials("writer", "writer-secret"), Credentials("reader", "wrong-secret")):
        with pytest.raises(MetaqError) as refused:
            clients(servers, credentials=account)(consumer_id="wrong").fetch(timeout=10)
        assert "-secret" not in str(refused.value)


def test_a_topic_that_gets_more_queues(
    brokers: ExitStack, clients: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaq.client.rocketmq.groups.membership.REFRESH_S", 0.3)
    port = free_port()
    brokers.enter_context(rocketmq_broker(tmp_path / "a", port))
    with RocketMQ(f"127.0.0.1:{port}") as mq:
        mq.topics.create("orders", queues=1)
        member = clients(f"127.0.0.1:{port}")()
        wait_until(lambda: not member.fetch() and len(member.queues()) == 1, "it reads the first one")
        mq.topics.alter("orders", read_queues=3, write_queues=3)
    with RocketMQ(f"127.0.0.1:{port}") as mq:
        for queue in mq.cluster.partitions("orders"):
            mq.producer().send("orders", str(queue), partition=queue)
        assert len(member.read(3)) == 3, "in some milliseconds or after the next look at the route"
        assert len(member.queues()) == 3


def test_a_namespace(brokers: ExitStack, clients: Make, tmp_path: Path) -> None:
    port = free_port()
    brokers.enter_context(rocketmq_broker(tmp_path / "a", port))
    for namespace in ("one", "two", None):
        with RocketMQ(f"127.0.0.1:{port}", namespace=namespace) as mq:
            mq.producer().send("orders", str(namespace))
    for namespace in ("one", "two", None):
        member = clients(f"127.0.0.1:{port}", namespace=namespace)()
        assert member.read(1) == [str(namespace)]
        assert member.fetch() == []
        assert {where.topic for where in member.consumer.assignment} == {"orders", "%RETRY%g"}


def brokers_at(name_server: Address) -> set[str]:
    """The brokers that have the topic."""
    with RocketMQ(str(name_server)) as mq, suppress(TopicNotFound):
        return {queue.broker_name for queue in mq.cluster.partitions("orders")}
    return set()


WRONG_DOORS = {
    "a broker that requires TLS": (False, WrongServer, "is a server that requires TLS, not a RocketMQ server"),
    "a broker that requires certificates": (True, TlsRefused, "the server requires a certificate of the client"),
}


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("door", WRONG_DOORS)
def test_a_broker_that_accepts_less_than_its_name_server(
    door: str, ordered: bool, others: int, brokers: ExitStack, clients: Make, tmp_path: Path, certificates: Certificates
) -> None:
    with_tls, refusal, text = WRONG_DOORS[door]
    files = {"tlsCertFile": certificates.folder / "server.pem", "tlsKeyFile": certificates.folder / "server.key"}
    secured = f"tls.server.certPath={files['tlsCertFile']}\ntls.server.keyPath={files['tlsKeyFile']}\n"
    server = brokers.enter_context(running_name_server(tmp_path / "name-server", secured if with_tls else ""))
    more, topics = f"namesrvAddr={server.address}\n", "[topic=orders]\n"
    for _ in range(others):
        brokers.enter_context(rocketmq_broker(tmp_path / "b", free_port(), "b", more, topics, **files))
    if with_tls:
        files["tlsClientCaFile"] = certificates.ca_file
    more += "tls.server.mode=enforcing\n"
    brokers.enter_context(rocketmq_broker(tmp_path / "a", free_port(), "a", more, topics, **files))
    wait_until(lambda: len(brokers_at(server.address)) == 1 + others, "all are registered")
    make = clients(str(server.address), tls=TlsSettings(certificates.ca_file) if with_tls else None)
    took_s: list[float] = []
    while not took_s or (took_s[-1] > 15 and len(took_s) < 3):  # a busy machine's server may answer too late
        member = make(ordered=ordered, consumer_id=f"member-{len(took_s)}")
        began_s = time.monotonic()
        with pytest.raises(refusal, match=text):
            member.fetch(timeout=60)
        took_s.append(time.monotonic() - began_s)
    assert took_s[-1] <= 15, "an answer is given up after 30 s"
