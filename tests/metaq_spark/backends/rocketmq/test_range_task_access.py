"""Frames of a broker with accounts and TLS: whoever may pull gets them, also through TLS, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from fix_broker import RunningBroker, launch_in
from fix_tls import Certificates

from metaq.backends.rocketmq.pool import Credentials, SessionPool
from metaq.backends.rocketmq.reads import frame_pulls
from metaq.backends.rocketmq.reads.frame_pulls import FrameQueue
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketMessage
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError
from metaq.model import Address, OffsetRange, Partition, TopicPartition
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.net.transport import TCP, Timeouts, Transport
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.codes import ResponseCode
from metaq_spark.backends.rocketmq.options import parse_source_options
from metaq_spark.backends.rocketmq.range_task import QueuePartition, read_queue
from metaq_spark.options.table import Use

pytestmark = pytest.mark.process

NAME: Final = "broker-a"
COUNT: Final = 500
ORDERS = TopicPartition("orders", Partition(NAME, 0))
REST: Final = (
    "[zookeeper]\nzk.zkEnable=false\n[topic=orders]\n"
    f"[rocketmq]\nenabled=true\nport=0\nbrokerName={NAME}\naclEnable=true\naclFile="
)
ACCOUNTS: Final = """\
accounts:
  - accessKey: writer
    secretKey: key-of-writer
    topicPerms: [orders=PUB]
  - accessKey: reader
    secretKey: key-of-reader
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=SUB]
    groupPerms: [readers=SUB]
  - accessKey: stranger
    secretKey: key-of-stranger
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
"""
Rows = list[dict[str, Any]]


class WithoutFrames(NameServerDirectory):
    """Says of no broker that it is the bundled one."""

    def metaq_broker(self, address: Address) -> MetaQBroker | None:
        return None


class Server:
    """The broker, and readers of its queue with an account, plain or secured."""

    def __init__(self, broker: RunningBroker, address: Address, ca_file: str) -> None:
        self.broker, self.address = broker, address
        self._tls = TlsSettings(ca_file)

    def writer(self) -> RocketMQ:
        return RocketMQ(str(self.address), credentials=Credentials("writer", "key-of-writer"), tls=self._tls)

    def rows(
        self, account: Credentials | None, *, secured: bool, directory: type[NameServerDirectory] = NameServerDirectory
    ) -> Rows:
        raw = {"nameServers": str(self.address), "subscribe": "orders", "group": "readers", "retryIntervalMs": "5"}
        options = parse_source_options(raw, Use.BATCH_READ)
        transport: Transport = TlsTransport(self._tls) if secured else TCP
        with closing(SessionPool(Timeouts(5.0, 5.0), transport, credentials=account)) as pool:
            part = QueuePartition(ORDERS, OffsetRange(0, COUNT))
            batches = read_queue(part, options, pool, directory([self.address], pool))
            return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("frames-access")
    (folder / "accounts.yml").write_text(ACCOUNTS)
    keys = dict(line.split("=", 1) for line in certificates.server_keys.splitlines())
    broker = launch_in(folder, f"{REST}{folder / 'accounts.yml'}\n", hostName="127.0.0.1", **keys)
    assert broker.process.stdout is not None
    made = Server(broker, Address.parse(broker.process.stdout.readline().split()[2]), certificates.ca_file)
    with made.writer() as mq:
        messages = [RocketMessage(data=b"%d" % number, tag="red") for number in range(COUNT)]
        mq.producer().send_many("orders", messages)
    yield made
    broker.process.terminate()
    broker.process.wait(60)
    broker.end()


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Types of the answers to requests for frames."""
    found: list[str] = []
    read = frame_pulls.read_frames

    def noted(*arguments: Any) -> Any:
        answer = read(*arguments)
        found.append(type(answer).__name__)
        return answer

    monkeypatch.setattr(frame_pulls, "read_frames", noted)
    return found


READER: Final = Credentials("reader", "key-of-reader")


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_who_may_pull_gets_frames(server: Server, secured: bool, kinds: list[str]) -> None:
    rows = server.rows(READER, secured=secured)
    assert [row["value"] for row in rows] == [b"%d" % number for number in range(COUNT)]
    assert set(kinds) == {"FrameRun"}
    assert server.rows(READER, secured=secured, directory=WithoutFrames) == rows


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("account", "why"),
    [
        (None, "No accessKey"),
        (Credentials("nobody", "key-of-nobody"), "No acl config for nobody"),
        (Credentials("reader", "another-key"), "Check signature failed"),
        (Credentials("stranger", "key-of-stranger"), "No permission for topic orders"),
        (Credentials("writer", "key-of-writer"), "No permission for"),
    ],
)
def test_who_may_not_pull_gets_none(
    server: Server, secured: bool, account: Credentials | None, why: str, kinds: list[str]
) -> None:
    for directory in (NameServerDirectory, WithoutFrames):
        with pytest.raises(MetaqError, match=why):
            server.rows(account, secured=secured, directory=directory)
    assert not kinds


@pytest.mark.parametrize(
    ("account", "group", "code"),
    [
        (READER, "readers", ResponseCode.SUCCESS),
        (READER, "others", ResponseCode.SYSTEM_ERROR),
        (Credentials("stranger", "key-of-stranger"), "readers", ResponseCode.SYSTEM_ERROR),
        (None, "readers", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_the_request_for_frames_itself_is_looked_at(
    server: Server, account: Credentials | None, group: str, code: ResponseCode
) -> None:
    """Whatever a reader asks before."""
    command = FrameQueue("orders", NAME, 0, group).pull(0, 10, 1 << 16)
    with (
        closing(SessionPool(Timeouts(5.0, 5.0), credentials=account)) as pool,
        pool.lease(server.address) as session,
    ):
        response = session.call(command, "a request for frames")
    assert response.code == code
    assert bool(response.body) == (code == ResponseCode.SUCCESS)
