"""``metaq doctor``: what it finds of servers that are well, away, hanging, full, wrongly registered, or late."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from fix_tls import Certificates
from local_servers import broker_thread

from metaq.backends.rocketmq.pool import Credentials
from metaq.backends.rocketmq.topic_route import KnownBrokers, QueueCounts, TopicRoute
from metaq.cli.main import main
from metaq.client.checkup import rocketmq as rocketmq_checkup
from metaq.client.checkup.findings import Check, Finding, ok, run_checks
from metaq.client.checkup.machines import Asked, clock_finding, machine_findings, own_disk_finding, rocketmq_findings
from metaq.client.checkup.reach import ConnectSettings, certificate_finding
from metaq.client.checkup.registration import BrokerReport, Registered, registration_findings
from metaq.discovery.stats import data_folder, parse_offered
from metaq.discovery.unlisted import unlisted_text
from metaq.discovery.zk_map import RegisteredBroker
from metaq.errors import ZooKeeperAway
from metaq.formats.frames import encode_frame
from metaq.model import Address
from metaq.net.tls import Certificate
from metaq.protocols.remoting.headers.administration import GetBrokerRuntimeInfo
from metaq.testing.memory import MemoryBroker
from metaq.testing.memory_server import MemoryServer
from metaq.testing.ports import free_port
from metaq.testing.rocketmq_server import ScriptedCluster

AT, OTHER = Address("127.0.0.1", 8123), Address("127.0.0.1", 8124)
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with broker_thread(tmp_path_factory.mktemp("doctor")) as address:
        yield address


@pytest.fixture
def hanging() -> Iterator[Address]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address("127.0.0.1", server.getsockname()[1])


def found(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """The level and the rest of each line, columns with one blank between them."""
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [(words[0], " ".join(words[1:])) for words in lines]


class TestMetaq:
    def test_a_broker_that_is_well(self, address: Address, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["-c", str(address), "doctor"]) == 0
        lines = found(capsys)
        assert [level for level, _ in lines] == ["ok"] * 5
        assert [rest.split()[2] for _, rest in lines] == ["connect", "answer", "id", "clock", "disk"]
        assert "broker 0, master" in lines[2][1]
        assert "GiB free" in lines[4][1]

    def test_servers_that_do_not_answer_cost_their_own_line(
        self, address: Address, hanging: Address, capsys: pytest.CaptureFixture[str]
    ) -> None:
        nobody = Address("127.0.0.1", free_port())
        began_s = time.monotonic()
        cluster = f"{hanging},{nobody},{address},no-such-host.invalid:8123"
        assert main(["-c", cluster, "--timeout", "0.5", "doctor", "--json"]) == 1
        assert time.monotonic() - began_s < 25
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        failed = {row["what"]: row["detail"] for row in rows if row["level"] == "fail"}
        assert failed.pop(f"broker {hanging}") == f"broker {hanging}: no answer to version within 0.5 s"
        assert failed.pop(f"broker {nobody} connect") == "Connection refused"
        assert "cannot be looked up" in failed.pop("broker no-such-host.invalid:8123 name")
        assert failed == {}
        assert sum(row["level"] == "ok" and str(address) in row["what"] for row in rows) == 5

    @pytest.mark.parametrize("slave", [False, True])
    def test_partitions_that_a_java_broker_has_not_opened(
        self, slave: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Of topics with messages; a slave opens what it copies, and offers nothing."""
        broker = MemoryBroker({"orders": 3, "carts": 1, "empty": 2}, extensions=frozenset(), slave=slave, broker_id=4)
        broker.partition("orders", 1).append(encode_frame(1, 0, b"read"))
        broker.partition("carts", 0).append(encode_frame(2, 0, b"read"))
        with MemoryServer(broker=broker) as server:
            assert main(["-c", str(server.address), "doctor"]) == 0
            warned = [rest for level, rest in found(capsys) if level == "warn"]
            names = ["empty/4-0", "empty/4-1", "orders/4-0", "orders/4-2"]
            assert warned == ([] if slave else [f"broker {server.address} partitions {unlisted_text(names)}"])
            broker.topics = {"orders": 2, "carts": 1}
            broker.partition("orders", 0).append(encode_frame(3, 0, b"read"))
            main(["-c", str(server.address), "doctor"])
            assert not [rest for level, rest in found(capsys) if level == "warn"]

    def test_one_broker_under_two_addresses(self, address: Address, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["-c", f"{address},localhost:{address.port}", "doctor"]) == 1
        assert ("fail", f"broker id 0 is used by {address} and localhost:{address.port}; name only one of them"
                " here") in found(capsys)  # fmt: skip

    def test_zookeeper_that_is_away(self, capsys: pytest.CaptureFixture[str]) -> None:
        port = free_port()
        assert main(["-c", f"zk://127.0.0.1:{port}/meta", "--timeout", "0.5", "doctor"]) == 1
        lines = found(capsys)
        assert lines[0] == ("fail", f"ZooKeeper 127.0.0.1:{port} connect Connection refused")
        assert "cannot be reached" in lines[1][1]

    def test_certificates(self, tmp_path: Path, certificates: Certificates, capsys: pytest.CaptureFixture[str],
                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
        keys = {line.partition("=")[0]: line.partition("=")[2] for line in certificates.server_keys.split()}
        config = tmp_path / "config.ini"
        config.write_text(
            f"[trusted]\nca_file = {certificates.ca_file}\n"
            f"[untrusted]\ncert_file = {keys['tlsCertFile']}\nkey_file = {keys['tlsKeyFile']}\n"
        )
        monkeypatch.setenv("METAQ_CONFIG", str(config))
        with broker_thread(tmp_path / "data", **keys) as address:
            assert main(["--profile", "trusted", "-c", str(address), "doctor"]) == 0
            assert any("tls TLSv1" in rest and "127.0.0.1" in rest and "days left" in rest for _, rest in found(capsys))
            assert main(["--profile", "untrusted", "-c", str(address), "doctor"]) == 1
            assert any("the broker's certificate is not trusted" in rest for _, rest in found(capsys))


class TestRocketmq:
    def test_a_cluster_that_is_well(self, capsys: pytest.CaptureFixture[str]) -> None:
        with ScriptedCluster({"broker-a": [1]}, name_server_count=2) as cluster:
            cluster.create_topic("orders")
            cluster.broker().answers.figures = {"commitLogDiskRatio": "0.47"}
            assert main(["-c", "rocketmq://" + ";".join(map(str, cluster.name_servers)), "doctor"]) == 0
            lines = found(capsys)
        assert {level for level, _ in lines} == {"ok"}
        text = "\n".join(rest for _, rest in lines)
        assert f"broker broker-a slave {cluster.broker().address(1)} answer V4_9_7" in text
        assert "disk 47% full" in text
        assert lines[-1][1] == "routes 2 topics, and each broker of them answers"

    def test_a_broker_that_is_away_but_in_the_route(self, capsys: pytest.CaptureFixture[str]) -> None:
        with ScriptedCluster(["broker-a", "broker-b"], name_server_count=2) as cluster:
            cluster.create_topic("orders", broker="broker-b")
            cluster.create_topic("fine", broker="broker-a")
            cluster.broker("broker-a").answers.figures = {"commitLogDiskRatio": "0.91"}
            cluster.stop_broker("broker-b", is_in_route=True)
            cluster.stop_name_server(1)
            servers = "rocketmq://" + ";".join(map(str, cluster.name_servers))
            assert main(["-c", servers, "--timeout", "2", "doctor"]) == 1
            failed = [rest for level, rest in found(capsys) if level == "fail"]
        assert f"name server {cluster.name_servers[1]} connect Connection refused" in failed
        assert f"broker broker-b {cluster.broker('broker-b').address()} connect Connection refused" in failed
        assert "route of orders has queues at broker-b, which does not answer" in failed
        assert (
            f"broker broker-a {cluster.broker().address()} disk 91% full; by default it refuses messages at 90%"
            in failed
        )
        assert not any("route of fine" in line for line in failed)

    @pytest.mark.parametrize("is_v5", [False, True])
    def test_keys_that_the_broker_does_not_accept(
        self, is_v5: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with ScriptedCluster(["broker-a"]) as cluster:
            cluster.create_topic("orders")
            broker = cluster.broker()
            broker.is_v5, broker.credentials = is_v5, Credentials("reader", "secret-1")
            servers = f"cluster = rocketmq://{cluster.name_servers[0]}\n"
            config = tmp_path / "config.ini"
            config.write_text(
                f"[wrong]\n{servers}access_key = reader\nsecret_key = other\n[none]\n{servers}"
                f"[right]\n{servers}access_key = reader\nsecret_key = secret-1\n"
            )
            monkeypatch.setenv("METAQ_CONFIG", str(config))
            for profile in ("wrong", "none"):
                assert main(["--profile", profile, "doctor"]) == 1
                (detail,) = [rest for level, rest in found(capsys) if level == "fail"]
                assert detail.startswith(f"broker broker-a {broker.address()} account server ")
                assert detail.endswith("; check accessKey and secretKey")
            assert main(["--profile", "right", "doctor"]) == 0
            broker.denied = frozenset({GetBrokerRuntimeInfo.CODE})
            assert main(["--profile", "right", "doctor"]) == 0
            assert [level for level, _ in found(capsys)].count("warn") == 1, "an account may lack this permission"

    def test_name_servers_that_differ(self) -> None:
        both, one = KnownBrokers({"c": "ab"}, {"a": {0: AT}, "b": {0: OTHER}}), KnownBrokers({"c": "a"}, {"a": {0: AT}})
        (line,) = rocketmq_checkup.registration_findings({AT: both, OTHER: one})
        assert (line.level, line.what, line.detail) == (
            "warn", f"name server {OTHER} registration", "does not have b, which another name server has",
        )  # fmt: skip

    def test_routes_without_an_address(self) -> None:
        route = TopicRoute({"gone": QueueCounts(1, 1)}, {})
        routes = {"t": route, "unknown": None, "u": TopicRoute({"a": QueueCounts(1, 1)}, {"a": {0: AT, 1: OTHER}})}
        lines = list(rocketmq_checkup.route_findings(routes, {"v": "static"}, [OTHER]))
        assert [(line.what, line.detail) for line in lines] == [
            ("route of t", "has queues at gone, which does not answer"), ("route of v", "static"),
        ]  # fmt: skip


class TestRegistration:
    def lines(
        self, brokers: Mapping[int, RegisteredBroker], topics: set[tuple[int, str]], **said: bool
    ) -> list[Finding]:
        return list(registration_findings(Registered(brokers, frozenset(topics)), {0: BrokerReport(0, False, said)}))

    def test_what_both_say(self) -> None:
        (line,) = self.lines({0: RegisteredBroker(AT)}, {(0, "t"), (0, "p*")}, t=True, empty=False)
        assert line == ok("registration of broker 0", "2 topics and patterns, as the broker says")

    def test_what_only_one_says(self) -> None:
        lines = self.lines({0: RegisteredBroker(AT)}, {(0, "dead"), (7, "t")}, t=True)
        assert [(line.level, line.what.split()[-1], line.detail) for line in lines] == [
            ("warn", "0", "the broker has topics that are not registered: t"),
            ("warn", "0", "topics are registered that the broker does not know: dead"),
            ("warn", "7", "the broker is not registered, but its topics are: t"),
        ]

    def test_brokers_that_are_gone(self) -> None:
        lines = self.lines({1: RegisteredBroker(last=AT), 2: RegisteredBroker(None, {0: OTHER})}, set())
        assert [line.detail for line in lines] == [
            f"no master is registered; it was last at {AT}", f"no master is registered; slave {OTHER}",
        ]  # fmt: skip
        assert {line.level for line in lines} == {"warn"}

    def test_only_what_runs_is_asked(self) -> None:
        brokers = {1: RegisteredBroker(last=AT), 2: RegisteredBroker(AT, {0: OTHER})}
        assert Registered(brokers, frozenset()).addresses() == {AT: 2, OTHER: 2}


class TestMachines:
    @pytest.mark.parametrize(
        ("broker_ms", "level", "detail"),
        [
            (10_050, "ok", "differs by +0.001 s from this machine's, within 0.051 s"),
            (11_200, "warn", "differs by +1.151 s from this machine's, within 0.051 s"),
            (8_000, "warn", "differs by -2.050 s from this machine's, within 0.051 s"),
        ],
    )
    def test_clocks(self, broker_ms: int, level: str, detail: str) -> None:
        line = clock_finding("b", broker_ms, Asked(10_000, 10_100))
        assert (line.level, line.detail) == (level, detail)

    def test_the_bundled_brokers_disks(self) -> None:
        lines = [
            "now_ms 10050",
            "folder free_bytes 107374182400 free_bytes_min 268435456 takes_puts true path /data/a b",
            "folder free_bytes 368435456 free_bytes_min 268435456 takes_puts true path /scarce",
            "folder free_bytes 1 free_bytes_min 268435456 takes_puts false path /full",
            "something new",
        ]
        found = list(machine_findings("b", lines, Asked(10_000, 10_100)))
        assert [line.level for line in found] == ["ok", "ok", "warn", "fail"]
        assert found[1].detail == "/data/a b: 100.0 GiB free"

    @pytest.mark.parametrize(
        ("ratio", "level"), [("0.5", "ok"), ("0.75", "warn"), ("0.9", "fail"), ("", "ok"), ("-1.0", "ok")]
    )
    def test_rocketmqs_figures(self, ratio: str, level: str) -> None:
        figures = {
            "commitLogDiskRatio": ratio,
            "bootTimestamp": "1000",
            "runtime": "[ 0 days, 0 hours, 1 minutes, 1 seconds ]",
        }
        clock, disk = rocketmq_findings("b", figures, Asked(62_000, 62_100))
        assert (clock.level, disk.level) == ("ok", level)
        clock, _ = rocketmq_findings("b", figures, Asked(65_000, 65_100))
        assert clock.level == "warn"
        clock, _ = rocketmq_findings("b", {}, Asked(0, 0))
        assert (clock.level, clock.detail) == ("ok", "not known: the broker reports no time")

    def test_our_own_disk(self, tmp_path: Path) -> None:
        assert own_disk_finding("b", tmp_path).detail.startswith(f"{tmp_path}: ")
        with pytest.raises(FileNotFoundError):
            own_disk_finding("b", tmp_path / "none")

    @pytest.mark.parametrize(("days", "level"), [(90, "ok"), (13, "warn"), (None, "warn")])
    def test_how_long_a_certificate_is_good(self, days: int | None, level: str) -> None:
        shown = Certificate(("b",), None if days is None else days * DAY_MS + 1, "TLSv1.3")
        assert certificate_finding("b", shown, 0).level == level


class TestChecks:
    def test_findings_keep_their_order_and_errors_are_findings(self) -> None:
        def away() -> Iterator[Finding]:
            yield ok("a", "1")
            raise ZooKeeperAway("zk:1", "no connection")

        lines = list(run_checks([Check("a", away), Check("b", lambda: [ok("b", "2")])], 5.0))
        assert [(line.level, line.what) for line in lines] == [("ok", "a"), ("fail", "a"), ("ok", "b")]

    def test_a_mistake_of_ours_is_no_finding(self) -> None:
        with pytest.raises(ZeroDivisionError):
            list(run_checks([Check("a", lambda: [ok("a", str(1 / 0))])], 5.0))

    def test_a_check_without_an_end(self, hanging: Address) -> None:
        def wait() -> Iterator[Finding]:
            with closing(socket.create_connection((hanging.host, hanging.port))) as connected:
                connected.settimeout(100.0)
                yield ok("a", "begun")
                connected.recv(1)

        began_s = time.monotonic()
        lines = list(run_checks([Check("a", wait), Check("b", lambda: [ok("b", "2")])], 0.1))
        assert time.monotonic() - began_s < 60
        assert [(line.level, line.what) for line in lines] == [("ok", "a"), ("fail", "a"), ("ok", "b")]


def test_a_road_without_a_usable_certificate(tmp_path: Path) -> None:
    from metaq.net.tls import TlsSettings

    with socket.create_server(("127.0.0.1", 0)) as server:
        at = Address("127.0.0.1", server.getsockname()[1])
        lines = list(ConnectSettings(TlsSettings(str(tmp_path / "none.pem")), 1.0).reach("b", at))
    assert [line.level for line in lines] == ["ok", "fail"]
    assert "cannot be used" in lines[1].detail


def test_what_a_java_broker_says() -> None:
    text = (
        "STATS\r\norders partitions 2 message_count 3 message_bytes 60 accept_publish true accept_subscribe false\r\n"
        "closed partitions 1 message_count 0 message_bytes 0 accept_publish false accept_subscribe false\r\n"
        "new *Empty*\r\npat* *Empty*\r\nEND\r\n"
    )
    assert parse_offered(text) == {"orders": True, "closed": False, "new": False}
    assert data_folder("[system]\ndataPath = /data/meta\n") == "/data/meta"
    assert data_folder("[system]\n") is None
