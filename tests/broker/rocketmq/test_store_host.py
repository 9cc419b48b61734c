"""The name or address that routes carry, and the IP address in message ids."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from fix_broker import RunningBroker, StartBroker, write_ini
from metaq_broker.rocketmq.parts import RemotingUnavailable
from metaq_broker.rocketmq.store_host import StoreHost
from waiting import in_loop, until

from metaq.client.rocketmq.client import RocketMQ
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.model import Address
from peers.rocketmq.ask import ask

ROUTE, CLUSTERS = 105, 106


def address(family: int, ip: str) -> tuple[Any, ...]:
    return family, socket.SOCK_STREAM, 6, "", (ip, 0)


def test_an_address_is_not_looked_up() -> None:
    assert StoreHost(Address("10.1.2.3", 10911)).packed == host_bytes("10.1.2.3", 10911)


def test_a_name_without_address_keeps_the_broker_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(RemotingUnavailable, match=r"nowhere.example \(brokerIP1, or hostName .* has no IP address"):
        StoreHost(Address("nowhere.example", 10911))


@pytest.mark.parametrize("name", ["x" * 64 + ".example", "a..b"])
def test_a_name_that_cannot_be_looked_up_keeps_the_broker_from_starting(name: str) -> None:
    with pytest.raises(RemotingUnavailable, match="has no IP address"):
        StoreHost(Address(name, 10911))


def test_a_name_that_gets_another_address_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of version 4 is preferred; a look-up that fails changes nothing."""
    answers: list[Any] = [
        [address(socket.AF_INET6, "2001:db8::1"), address(socket.AF_INET, "10.0.0.1")],
        socket.gaierror(-3, "Temporary failure"),
        [address(socket.AF_INET, "10.0.0.1")],
        [address(socket.AF_INET, "10.0.0.2")],
    ]

    def look_up(*_: object, **__: object) -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    monkeypatch.setattr("metaq_broker.rocketmq.store_host.LOOK_UP_S", 0.001)
    changes: list[bytes] = []

    @in_loop
    async def scenario() -> None:
        host = StoreHost(Address("broker.example", 10911))
        assert host.packed == host_bytes("10.0.0.1", 10911)
        following = asyncio.get_running_loop().create_task(host.follow(changes.append))
        await until(lambda: bool(changes), "the change is noticed")
        following.cancel()

    scenario()
    assert changes == [host_bytes("10.0.0.2", 10911)]


def started(start: StartBroker, folder: Path, section: str, **system: object) -> RunningBroker:
    rest = f"[zookeeper]\nzk.zkEnable=false\n[topic=orders]\n[rocketmq]\nenabled=true\nport=0\n{section}"
    return start("start", "-f", write_ini(folder, rest, **system))


@pytest.mark.process
@pytest.mark.parametrize(
    ("section", "host_name"), [("brokerIP1=localhost\n", "127.0.0.1"), ("", "localhost")], ids=["brokerIP1", "hostName"]
)
def test_routes_carry_the_name_as_it_is_configured(
    start_broker: StartBroker, tmp_path: Path, section: str, host_name: str
) -> None:
    broker = started(start_broker, tmp_path, section, hostName=host_name)
    port = broker.rocketmq_address.port
    at = f"127.0.0.1:{port}"
    for code, table in ((ROUTE, "brokerDatas"), (CLUSTERS, "brokerAddrTable")):
        answer = ask(at, code, {"topic": "orders", "acceptStandardJsonOnly": "true"}).checked()
        rows = json.loads(answer.body.replace(b"{0:", b'{"0":'))[table]
        (row,) = rows.values() if isinstance(rows, dict) else rows
        assert row["brokerAddrs"] == {"0": f"localhost:{port}"}
        assert row["enableActingMaster"] is False
    with RocketMQ(at) as mq:
        assert len(mq.producer().send("orders", b"x").offset_message_id) == 32  # with an address of version 4
