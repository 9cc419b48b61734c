"""Real brokers and clients on our name server; our remoting client on real name servers and brokers."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_servers import RunningNameServer, running_name_server

from metaq.model import Address
from metaq.net.duplex import RemotingTls, TlsMode
from metaq.net.remoting_client import RemotingClient
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.bodies.routes import ClusterInfo, TopicRouteData
from metaq.protocols.remoting.channel import ReceivedResponse
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import Codec, RemotingCommand, request
from metaq.protocols.remoting.headers.administration import GetBrokerRuntimeInfo
from metaq.protocols.remoting.headers.clients import HeartBeat, NotifyConsumerIdsChanged
from metaq.protocols.remoting.headers.offsets import GetMaxOffset, QueryConsumerOffset, UpdateConsumerOffset
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.protocols.remoting.headers.routes import GetBrokerClusterInfo, GetKVConfig, GetRouteInfoByTopic, PutKVConfig
from peers.jvm import OPENED, JavaServer
from peers.rocketmq.programs import QUICK, Programs
from peers.rocketmq.servers import Cluster

pytestmark = pytest.mark.slow

TIMEOUTS = Timeouts(connect_s=10.0, request_s=30.0)


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[RunningNameServer]:
    folder = tmp_path / "ours"
    folder.mkdir()
    with running_name_server(folder) as server:
        yield server


@pytest.fixture
def broker(ours: RunningNameServer, rocketmq_cluster: Cluster) -> JavaServer:
    """A real broker that knows only our name server."""
    started = rocketmq_cluster.start_broker("broker-a", namesrvAddr=str(ours.address))
    ours.wait_for(lambda: ours.server.routes.broker_count == 1, 60)
    return started


class Administration:
    """RocketMQ's own operator's tool on our name server."""

    def __init__(self, cluster: Cluster, ours: RunningNameServer) -> None:
        self._cluster, self._ours = cluster, ours

    def __call__(self, command: str, *arguments: str) -> str:
        home = next(each.folder for each in self._cluster.brokers)
        line = ["java", *QUICK, *OPENED, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        line += ["-cp", self._cluster.release.class_path, "org.apache.rocketmq.tools.command.MQAdminStartup"]
        line += [command, "-n", str(self._ours.address), *arguments]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture
def mqadmin(rocketmq_cluster: Cluster, ours: RunningNameServer) -> Administration:
    return Administration(rocketmq_cluster, ours)


def topics(server: RunningNameServer) -> set[str]:
    return set(server.do(server.server.routes.topics))


class TestRealPeersOnOurs:
    def test_java_clients_write_and_read_by_our_routes(
        self, rocketmq_cluster: Cluster, ours: RunningNameServer, broker: JavaServer, tmp_path: Path
    ) -> None:
        rocketmq_cluster.create_topic("orders", queues=4)
        ours.wait_for(lambda: "orders" in ours.server.routes.topics(), 60)
        programs = Programs(rocketmq_cluster.release, str(ours.address))
        programs.write("orders", 200, tags=2)
        assert programs.dump("orders", tmp_path / "dump.jsonl") == 200
        assert len(programs.push("orders", "readers", 100, tags="tag1")) == 100

    def test_the_operators_tool_sees_and_changes_what_we_keep(
        self, rocketmq_cluster: Cluster, ours: RunningNameServer, broker: JavaServer, mqadmin: Administration
    ) -> None:
        listed = mqadmin("clusterList")
        assert "DefaultCluster" in listed
        assert broker.address in listed
        mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "tea", "-r", "3", "-w", "3")
        ours.wait_for(lambda: "tea" in ours.server.routes.topics(), 60)
        assert "tea" in mqadmin("topicList").split()
        route = mqadmin("topicRoute", "-t", "tea")
        assert broker.address in route
        assert '"readQueueNums":3' in route.replace(" ", "")
        mqadmin("updateKvConfig", "-s", "names", "-k", "key", "-v", "value 值")
        mqadmin("updateOrderConf", "-m", "put", "-t", "tea", "-v", "broker-a:3")
        kept = json.loads(ours.server.key_values.path.read_text())
        assert kept == {"configTable": {"names": {"key": "value 值"}, "ORDER_TOPIC_CONFIG": {"tea": "broker-a:3"}}}
        assert "broker-a:3" in mqadmin("updateOrderConf", "-m", "get", "-t", "tea")
        mqadmin("deleteKvConfig", "-s", "names", "-k", "key")
        assert ours.do(lambda: ours.server.key_values.get("names", "key")) is None
        mqadmin("wipeWritePerm", "-b", "broker-a")
        assert '"perm":4' in mqadmin("topicRoute", "-t", "tea").replace(" ", "")
        mqadmin("addWritePerm", "-b", "broker-a")
        assert '"perm":6' in mqadmin("topicRoute", "-t", "tea").replace(" ", "")
        assert "orderMessageEnable" in mqadmin("getNamesrvConfig")
        mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        assert "broker-a:3" in mqadmin("topicRoute", "-t", "tea")
        mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", "tea")
        assert "tea" not in topics(ours)

    def test_a_killed_broker_is_gone_at_once_and_its_slave_stays(
        self, rocketmq_cluster: Cluster, ours: RunningNameServer, broker: JavaServer
    ) -> None:
        slave = rocketmq_cluster.start_broker("broker-a", broker_id=1, namesrvAddr=str(ours.address))
        ours.wait_for(lambda: ours.server.routes.broker_count == 2, 60)
        broker.kill()
        ours.wait_for(lambda: ours.server.routes.broker_count == 1, 20)
        info = ours.do(ours.server.routes.cluster_info)
        assert info.broker_addr_table["broker-a"].broker_addrs == {1: slave.address}
        broker.start()
        ours.wait_for(lambda: ours.server.routes.broker_count == 2, 60)

    def test_java_reads_our_file_of_key_value_pairs_and_we_read_its(
        self, rocketmq_cluster: Cluster, tmp_path: Path
    ) -> None:
        with running_name_server(tmp_path) as ours, RemotingClient(timeouts=TIMEOUTS) as client:
            pair = {"namespace": "n", "key": 'k"\\', "value": "值 \u2028\n\x01"}
            assert client.call(ours.address, request(PutKVConfig.CODE, pair)).code == 0
            content = ours.server.key_values.path.read_bytes()
            java = rocketmq_cluster.start_name_server()
            java.stop()
            file = java.folder / "kvConfig.json"
            file.write_bytes(content)
            java.start()
            there = Address.parse(java.address)
            asked = request(GetKVConfig.CODE, {"namespace": "n", "key": 'k"\\'})
            assert client.call(there, asked).ext["value"] == pair["value"]
            assert client.call(there, request(PutKVConfig.CODE, {**pair, "key": "java"})).code == 0
            java.stop()
            content = file.read_bytes()
        folder = tmp_path / "second"
        folder.mkdir()
        (folder / "kvConfig.json").write_bytes(content)
        with running_name_server(folder) as ours:
            assert ours.do(lambda: dict(ours.server.key_values.namespace("n") or {})) == {
                'k"\\': pair["value"],
                "java": pair["value"],
            }


class TestOurClientOnRealPeers:
    @pytest.fixture
    def client(self) -> Iterator[RemotingClient]:
        with RemotingClient(timeouts=TIMEOUTS) as made:
            yield made

    @pytest.fixture
    def name_server(self, rocketmq: Cluster) -> Address:
        return Address.parse(rocketmq.name_servers.split(";")[0])

    @pytest.fixture
    def address(self, rocketmq: Cluster) -> Address:
        return Address.parse(rocketmq.brokers[0].address)

    @pytest.fixture
    def topic(self, rocketmq_topic: Callable[..., str]) -> str:
        """One of a single queue."""
        return rocketmq_topic(queues=1)

    @pytest.mark.parametrize("codec", Codec)
    def test_routes_and_clusters(
        self,
        client: RemotingClient,
        rocketmq_topic: Callable[..., str],
        name_server: Address,
        address: Address,
        codec: Codec,
    ) -> None:
        topic = rocketmq_topic(queues=3)
        answer = client.call(name_server, request(GetRouteInfoByTopic.CODE, {"topic": topic}, codec=codec))
        route = TopicRouteData.from_json(answer.body)
        assert route.broker_datas[0].broker_addrs == {0: str(address)}
        assert route.queue_datas[0].read_queue_nums == 3
        info = ClusterInfo.from_json(client.call(name_server, request(GetBrokerClusterInfo.CODE)).body)
        assert info.broker_addr_table["broker-a"].broker_addrs == {0: str(address)}
        missing = client.call(name_server, request(GetRouteInfoByTopic.CODE, {"topic": "none"}))
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST

    def test_many_requests_ahead_on_one_connection(
        self, client: RemotingClient, topic: str, rocketmq_programs: Programs, address: Address
    ) -> None:
        rocketmq_programs.write(topic, 2000, batch=100)
        self.wait_for_offset(client, address, topic, 2000)
        with client.open(address) as connection:
            for start in range(0, 2000, 32):
                connection.request(pull(topic, start), 30.0, start)
            offsets: dict[int, int] = {}
            while connection.in_flight:
                for event in connection.receive(30.0):
                    assert isinstance(event, ReceivedResponse)
                    assert event.command.code == 0
                    offsets[event.owner] = int(event.command.ext["nextBeginOffset"])
        assert offsets == {start: min(start + 32, 2000) for start in range(0, 2000, 32)}

    def test_futures_of_a_held_pull_and_what_comes_meanwhile(
        self, client: RemotingClient, topic: str, rocketmq_programs: Programs, address: Address
    ) -> None:
        waiting = client.submit(address, pull(topic, 0, sys_flag=6, suspend_ms=20_000), 60.0)
        for _ in range(20):
            assert client.call(address, offset_request(topic)).ext["offset"] == "0"
        rocketmq_programs.write(topic, 1)
        assert waiting.result(60).code == 0

    def test_the_broker_notifies_and_is_heard(
        self, client: RemotingClient, rocketmq_topic: Callable[..., str], address: Address
    ) -> None:
        topic, notified = rocketmq_topic(), threading.Event()

        def processor(_address: Address, command: RemotingCommand) -> None:
            if command.ext.get("consumerGroup") == f"g-{topic}":
                notified.set()

        client.register(NotifyConsumerIdsChanged.CODE, processor)
        subscription = {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
        group = {
            "groupName": f"g-{topic}",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [{**subscription, "tagsSet": [], "codeSet": [], "classFilterMode": False}],
            "unitMode": False,
        }
        body = {"clientID": f"c@{topic}", "consumerDataSet": [group], "producerDataSet": []}
        beat = request(HeartBeat.CODE, {}, json.dumps(body).encode())
        assert client.call(address, beat).code == 0
        assert notified.wait(60)
        client.oneway(address, request(UpdateConsumerOffset.CODE, {**queue(topic, f"g-{topic}"), "commitOffset": "7"}))
        asked = request(QueryConsumerOffset.CODE, queue(topic, f"g-{topic}"))
        deadline = time.monotonic() + 30
        while client.call(address, asked).ext.get("offset") != "7":
            assert time.monotonic() < deadline

    @pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCED])
    def test_tls_as_java_servers_offer_it(self, rocketmq: Cluster, address: Address, mode: TlsMode) -> None:
        with RemotingClient(timeouts=TIMEOUTS, tls=RemotingTls(mode)) as client:
            assert client.call(address, request(GetBrokerRuntimeInfo.CODE)).code == 0
            link = client._links.get(address, 1e12)
            if mode is TlsMode.ENFORCED:
                assert type(link.connection._stream).__name__ == "SecuredDuplexStream"

    @staticmethod
    def wait_for_offset(client: RemotingClient, address: Address, topic: str, offset: int) -> None:
        deadline = time.monotonic() + 60
        while int(client.call(address, offset_request(topic)).ext["offset"]) < offset:
            assert time.monotonic() < deadline


def queue(topic: str, group: str) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": "0", "bname": "broker-a"}


def offset_request(topic: str) -> RemotingCommand:
    return request(GetMaxOffset.CODE, {"topic": topic, "queueId": "0", "bname": "broker-a"})


def pull(topic: str, start: int, sys_flag: int = 4, suspend_ms: int = 0) -> RemotingCommand:
    fields = {"queueOffset": start, "maxMsgNums": 32, "sysFlag": sys_flag, "commitOffset": 0, "subVersion": 0}
    more = {"suspendTimeoutMillis": suspend_ms, "subscription": "*", "expressionType": "TAG"}
    ext = {**queue(topic, "readers"), **{name: str(value) for name, value in {**fields, **more}.items()}}
    return request(PullMessage.CODE, ext)
