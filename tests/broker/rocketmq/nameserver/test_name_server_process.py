"""``metaq-namesrv`` as a process: started, killed, started again; and what hostile peers may cost."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from fix_tls import Certificates
from local_servers import RunningNameServer, running_name_server

from metaq.errors import ConnectionFailed, MetaqError, TlsRefused, WrongServer
from metaq.model import Address
from metaq.net.duplex import RemotingTls, TlsMode
from metaq.net.remoting_client import RemotingClient
from metaq.net.tls import TlsSettings
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.bodies.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigBody,
    TopicConfigs,
    write_registration,
)
from metaq.protocols.remoting.bodies.routes import TopicRouteData
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand, request
from metaq.protocols.remoting.frames import encode
from metaq.protocols.remoting.headers.routes import (
    GetAllTopicListFromNameserver,
    GetKVListByNamespace,
    GetRouteInfoByTopic,
    PutKVConfig,
    RegisterBroker,
    UpdateNamesrvConfig,
)

TIMEOUTS = Timeouts(connect_s=10.0, request_s=30.0)


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """A name server in a process of its own; killed at the end."""
    (folder / "namesrv.properties").write_text(
        f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={folder / 'kvConfig.json'}\n"
    )
    module = "metaq_broker.rocketmq.nameserver"
    command = [sys.executable, "-m", module, "start", "-c", str(folder / "namesrv.properties")]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        assert started.stdout is not None
        try:
            line = started.stdout.readline()
            assert " ready on " in line
            yield started, Address.parse(line.rsplit(" ", 1)[1])
        finally:
            started.kill()


def put(key: str, value: str) -> RemotingCommand:
    return request(PutKVConfig.CODE, {"namespace": "n", "key": key, "value": value})


def pairs(client: RemotingClient, address: Address) -> dict[str, str]:
    answer = client.call(address, request(GetKVListByNamespace.CODE, {"namespace": "n"}))
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return {}
    table: dict[str, str] = json.loads(answer.body)["table"]
    return table


class Putting:
    """Four clients that put values until the server is gone; ``answered`` has what was acknowledged."""

    def __init__(self, round_number: int, client: RemotingClient, address: Address) -> None:
        self.answered: dict[str, str] = {}
        self.begun = threading.Event()
        self._round, self._client, self._address = round_number, client, address
        self._threads = [threading.Thread(target=self._put, args=(number,)) for number in range(4)]
        for thread in self._threads:
            thread.start()

    def _put(self, number: int) -> None:
        try:
            for count in range(1_000_000):
                key, value = f"{number}-{count % 20}", f"{self._round}-{count}"
                assert self._client.call(self._address, put(key, value)).code == 0
                self.answered[key] = value
                if count == 10:
                    self.begun.set()
        except MetaqError:
            return  # killed

    def end(self) -> None:
        """Wait until all have noticed."""
        for thread in self._threads:
            thread.join(60)


@pytest.mark.process
def test_a_kill_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    answered: dict[str, str] = {}
    dice = random.Random(7)
    for round_number in range(3):
        with process(tmp_path) as (server, address), RemotingClient(timeouts=TIMEOUTS) as client:
            check_kept(pairs(client, address), answered)
            putting = Putting(round_number, client, address)
            assert putting.begun.wait(60)
            threading.Event().wait(dice.random() * 0.2)
            server.send_signal(signal.SIGKILL)
            putting.end()
            answered |= putting.answered
    with process(tmp_path) as (_, address), RemotingClient(timeouts=TIMEOUTS) as client:
        check_kept(pairs(client, address), answered)


def check_kept(found: dict[str, str], answered: dict[str, str]) -> None:
    """Each key has its last acknowledged value, or that of the one put behind it, which was under way at the kill."""
    assert found.keys() >= answered.keys()
    for key, value in answered.items():
        (round_number, count), (found_round, found_count) = (map(int, each.split("-")) for each in (value, found[key]))
        next_puts = {(round_number, count + 20), *((later, int(key.split("-")[1])) for later in range(round_number, 3))}
        assert (found_round, found_count) in {(round_number, count)} | next_puts


@pytest.mark.process
def test_a_change_of_settings_survives_a_kill_and_sigterm_ends_it(tmp_path: Path) -> None:
    with process(tmp_path) as (server, address), RemotingClient(timeouts=TIMEOUTS) as client:
        change = request(UpdateNamesrvConfig.CODE, {}, b"orderMessageEnable=true\n")
        assert client.call(address, change).code == 0
        server.kill()
    text = (tmp_path / "namesrv.properties").read_text()
    assert text.endswith("orderMessageEnable=true\n")
    with process(tmp_path) as (server, _):
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


@pytest.mark.process
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "namesrv.properties"
        file.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path / 'kv.json'}\n")
        command = [sys.executable, "-m", "metaq_broker.rocketmq.nameserver", "start", "-c", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken by another program; set another listenPort" in ended.stderr


def registration(
    name: str, topics: int, *, port: int = 1, compressed: bool = False, version: int = 1
) -> RemotingCommand:
    table = {f"topic-{n}": TopicConfigBody(topic_name=f"topic-{n}", read_queue_nums=4) for n in range(topics)}
    configs = TopicConfigs(topic_config_table=table, data_version=DataVersion(timestamp=1, counter=version))
    body = write_registration(RegisterBrokerBody(topic_config_serialize_wrapper=configs), compressed, 407)
    ext = {"brokerName": name, "brokerAddr": f"h:{port}", "clusterName": "C", "haServerAddr": "", "brokerId": "0"}
    ext |= {"compressed": str(compressed).lower(), "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}
    return request(RegisterBroker.CODE, ext, body)


def route(topic: str) -> RemotingCommand:
    return request(GetRouteInfoByTopic.CODE, {"topic": topic})


class TestClocksAndConnections:
    def test_a_silent_broker_expires_and_is_disconnected(self, tmp_path: Path) -> None:
        with (
            running_name_server(tmp_path, "scanNotActiveBrokerInterval=10\n") as server,
            RemotingClient(timeouts=TIMEOUTS) as broker,
            RemotingClient(timeouts=TIMEOUTS) as client,
        ):
            assert broker.call(server.address, registration("a", 2)).code == 0
            server.clock.advance(120_000)
            assert client.call(server.address, route("topic-1")).code == 0
            server.clock.advance(1)
            server.wait_for(lambda: server.server.routes.broker_count == 0)
            server.wait_for(lambda: server.server.counts.connections == 1)
            assert client.call(server.address, route("topic-1")).code == ResponseCode.TOPIC_NOT_EXIST

    def test_an_idle_broker_is_disconnected_and_forgotten(self, tmp_path: Path) -> None:
        with (
            running_name_server(tmp_path, "serverChannelMaxIdleTimeSeconds=1\n") as server,
            RemotingClient(timeouts=TIMEOUTS) as broker,
        ):
            assert broker.call(server.address, registration("a", 2)).code == 0
            server.wait_for(lambda: server.server.counts.connections == 0)
            assert server.do(lambda: server.server.routes.broker_count) == 0

    @pytest.mark.parametrize("compressed", [False, True])
    def test_many_topics(self, tmp_path: Path, compressed: bool) -> None:
        with running_name_server(tmp_path) as server, RemotingClient(timeouts=TIMEOUTS) as client:
            assert client.call(server.address, registration("a", 5000, compressed=compressed)).code == 0
            data = TopicRouteData.from_json(client.call(server.address, route("topic-4999")).body)
            assert [each.read_queue_nums for each in data.queue_datas] == [4]

    def test_a_large_registration_of_who_left_meanwhile_is_dropped(self, tmp_path: Path) -> None:
        with running_name_server(tmp_path) as server, RemotingClient(timeouts=TIMEOUTS) as client:
            with socket.create_connection((server.address.host, server.address.port), 20) as broker:
                broker.sendall(encode(registration("a", 5000)))
            server.wait_for(lambda: not server.server._requests._tasks and server.server.counts.connections == 0)
            assert server.server.routes.broker_count == 0
            assert client.call(server.address, registration("b", 5000)).code == 0
            wrong = registration("c", 5000)
            wrong = request(wrong.code, {**wrong.ext, "bodyCrc32": "0"}, wrong.body[:-9])
            answer = client.call(server.address, wrong)
            assert (answer.code, "JSON" in str(answer.remark)) == (1, True)
            assert server.server._requests._waiting_bytes == 0

    def test_large_registrations_ahead_do_not_pile_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        limit = 1 << 20
        monkeypatch.setattr("metaq_broker.rocketmq.nameserver.requests.WAITING_BYTES_MAX", limit)
        with running_name_server(tmp_path) as server, RemotingClient(timeouts=TIMEOUTS) as client:
            command = registration("a", 2000)
            futures = [client.submit(server.address, command) for _ in range(30)]  # 9 MB
            most = 0
            while not all(future.done() for future in futures):
                most = max(most, server.do(lambda: server.server._requests._waiting_bytes))
            assert [future.result().code for future in futures] == [0] * 30
            assert most < limit + len(command.body)


class TestTls:
    @pytest.fixture
    def secured(self, certificates: Certificates) -> str:
        """The lines that give the server a certificate."""
        folder = certificates.folder
        return f"tls.server.certPath={folder / 'server.pem'}\ntls.server.keyPath={folder / 'server.key'}\n"

    @pytest.mark.parametrize(
        ("mode", "without", "with_tls"),
        [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)],
    )
    def test_modes(
        self, tmp_path: Path, certificates: Certificates, secured: str, mode: str, without: bool, with_tls: bool
    ) -> None:
        strict = RemotingTls(TlsMode.STRICT, TlsSettings(ca_file=certificates.ca_file))
        with running_name_server(tmp_path, f"{secured}tls.server.mode={mode}\n") as server:
            assert (is_served(server.address, None), is_served(server.address, strict)) == (without, with_tls)

    def test_certificates_of_clients(self, tmp_path: Path, certificates: Certificates, secured: str) -> None:
        text = f"{secured}tls.server.mode=enforcing\ntls.server.need.client.auth=require\n"
        with running_name_server(tmp_path, f"{text}tls.server.trustCertPath={certificates.ca_file}\n") as server:
            shown, none = certificates.client("broker"), TlsSettings(ca_file=certificates.ca_file)
            of_others = certificates.client("stranger", authority=trustme.CA())
            served = [is_served(server.address, RemotingTls(TlsMode.STRICT, each)) for each in (shown, none, of_others)]
            assert served == [True, False, False]


def is_served(address: Address, tls: RemotingTls | None) -> bool:
    """Whether a client with these settings gets an answer."""
    with RemotingClient(timeouts=Timeouts(connect_s=5.0, request_s=5.0), tls=tls) as client:
        try:
            return client.call(address, route("topic-0")).code == ResponseCode.TOPIC_NOT_EXIST
        except (ConnectionFailed, TlsRefused, WrongServer):
            return False


class TestHostilePeers:
    @pytest.fixture
    def small(self, tmp_path: Path) -> Iterator[RunningNameServer]:
        text = "maxBrokers=5\nmaxTopicQueues=50\nmaxConnections=20\nmaxFrameBytes=100000\nmaxBufferedBytes=1048576\n"
        with running_name_server(tmp_path, text + "maxKvConfigBytes=5000\n") as server:
            yield server

    def test_tables_do_not_grow_beyond_their_limits(self, small: RunningNameServer) -> None:
        with RemotingClient(timeouts=TIMEOUTS) as client:
            codes = [client.call(small.address, registration(f"b{n}", 1, port=n)).code for n in range(9)]
            assert codes == [0] * 5 + [1] * 4
            refused = client.call(small.address, registration("b0", 60, port=0, version=2))
            assert refused.code == 1
            assert "at most 50 of all brokers together" in str(refused.remark)
            puts = [client.call(small.address, put(f"k{n}", "x" * 1000)) for n in range(9)]
            assert [each.code for each in puts] == [0] * 4 + [1] * 5
            assert "at most 5000 are allowed" in str(puts[-1].remark)
            assert len(pairs(client, small.address)) == 4
            assert client.call(small.address, put("k0", "y")).code == 0

    def test_half_frames_of_many_peers_cost_only_themselves(self, small: RunningNameServer) -> None:
        half = encode(registration("x", 1500))[:90_000]
        with RemotingClient(timeouts=TIMEOUTS) as client:
            assert client.call(small.address, registration("good", 1)).code == 0
            peers = [socket.create_connection((small.address.host, small.address.port), 20) for _ in range(15)]
            try:
                for peer in peers:
                    peer.sendall(half)
                small.wait_for(lambda: small.server.counts.connections < 16)  # together they held too much
                for _ in range(20):
                    assert client.call(small.address, route("topic-0")).code == 0
            finally:
                for peer in peers:
                    peer.close()

    def test_who_asks_for_much_and_reads_nothing_is_not_served_ahead(self, tmp_path: Path) -> None:
        with running_name_server(tmp_path) as server, RemotingClient(timeouts=TIMEOUTS) as client:
            assert client.call(server.address, registration("a", 20_000)).code == 0
            with socket.create_connection((server.address.host, server.address.port), 20) as greedy:
                greedy.setblocking(False)
                asked = encode(request(GetAllTopicListFromNameserver.CODE)) * 1000
                assert greedy.send(asked) > 0  # each of them wants 240 KB
                for _ in range(50):
                    assert client.call(server.address, route("topic-7")).code == 0
                assert server.do(lambda: server.server._server._buffered_bytes) < 32 << 20  # type: ignore[union-attr]

    def test_an_inflated_registration_is_bounded(self, small: RunningNameServer) -> None:
        bomb = zlib.compress(bytes(200 << 20), 9)[:90_000]
        ext = {"brokerName": "x", "brokerAddr": "h:1", "clusterName": "C", "brokerId": "0", "compressed": "true"}
        with RemotingClient(timeouts=TIMEOUTS) as client:
            answer = client.call(small.address, request(RegisterBroker.CODE, ext, bomb))
        assert answer.code == 1
        assert "zlib stream" in str(answer.remark)


@pytest.mark.process
def test_the_module_is_a_command() -> None:
    command = [sys.executable, "-m", "metaq_broker.rocketmq.nameserver", "start", "-p", "-c", os.devnull]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "listenPort=9876\n" in ended.stdout
