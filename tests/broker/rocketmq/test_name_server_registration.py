"""A broker and the name servers that it registers with: those that come later, that come back, and that lie."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from fix_broker import wait_until
from listeners import Answer, RemotingServer, Served
from local_servers import RunningNameServer, broker_thread, running_name_server
from metaq_broker.rocketmq.nameserver.routes import RouteTable
from metaq_broker.rocketmq.registration import BrokerIdentity, NameServerRegistration, TopicSource
from waiting import in_loop, until

from metaq.model import Address
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.bodies.registration import DataVersion, TopicConfigBody, TopicConfigs
from metaq.protocols.remoting.command import RemotingCommand
from metaq.testing.ports import free_port

HERE: Final = Address("127.0.0.1", 10911)
THERE: Final = Address("127.0.0.1", 20911)
USUAL_PERIOD_S: Final = 30.0
LIES: Final[dict[str, Any]] = {
    "closes": [None],
    "no frame": [b"\xff" * 100],
    "a frame without end": [(1 << 30).to_bytes(4, "big") + bytes(100)],
    "silence": [],
    "refusal": "refusal",
    "another's answer": "another",
}


def test_a_late_or_returning_name_server_soon_knows_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some pauses, and not after the usual half a minute."""
    monkeypatch.setattr("metaq_broker.rocketmq.name_server_link.AGAIN_S", 0.1)
    port, of_broker = free_port(), free_port()
    section = (
        f"[topic=orders]\n[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport={of_broker}\n"
        f"brokerName=a\nbrokerIP1=127.0.0.1\nnamesrvAddr=127.0.0.1:{port}\n"
    )

    def knows(server: RunningNameServer) -> bool:
        return server.do(lambda: server.server.routes.route("orders") is not None)

    with broker_thread(tmp_path / "broker", section):
        for moment in ("later", "again"):
            with running_name_server(tmp_path, f"listenPort={port}\n") as server:
                wait_until(lambda server=server: knows(server), f"it is known {moment}")  # type: ignore[misc]


def lying(kind: str) -> RemotingServer:
    def answer(_served: Served, command: RemotingCommand) -> Iterable[Answer]:
        if kind == "refusal":
            return [command.reply(1, remark="no")]
        if kind == "another's answer":
            return [command.numbered(command.opaque + 7).reply(0, {"masterAddr": "x" * 100_000}, b"{")]
        return list(LIES[kind])

    return RemotingServer(answer)


def test_lying_name_servers_hinder_neither_others_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("metaq_broker.rocketmq.registration.TIMEOUT_S", 0.5)
    caplog.set_level(logging.INFO)
    table = {"t": TopicConfigBody(topic_name="t", read_queue_nums=4)}
    topics = TopicConfigs(topic_config_table=table, data_version=DataVersion(timestamp=1, counter=1))
    source = TopicSource(lambda: topics, lambda _topic: None, lambda: topics.data_version)

    @in_loop
    async def scenario(lies: list[RemotingServer], closing: ExitStack) -> None:
        late = free_port()
        addresses = (*(each.address for each in lies), Address("127.0.0.1", late))
        who = BrokerIdentity("C", "broker-a", HERE, MetaQBroker(0, HERE))
        registered = NameServerRegistration(who, source, RouteTable(lambda: 0), addresses, 0.05)
        registered.start()
        try:
            await until(lambda: caplog.text.count("not registered with a name server") >= len(addresses), "all failed")
            server = await asyncio.to_thread(
                lambda: closing.enter_context(running_name_server(tmp_path, f"listenPort={late}\n"))
            )
            await until(lambda: server.server.routes.route("t") is not None, "the one that does not lie knows")
            await until(lambda: "registered with a name server again" in caplog.text, "the log says so")
        finally:
            async with asyncio.timeout(60):
                await registered.stop()
        assert server.server.routes.route("t") is None

    with ExitStack() as closing:
        scenario([closing.enter_context(lying(kind)) for kind in LIES], closing)


def test_a_frozen_master_that_registers_once_more_is_replaced_again(tmp_path: Path) -> None:
    """Two members of a pair have one name, and the one that thaws may not know yet that the other one was elected."""
    table = {"t": TopicConfigBody(topic_name="t", read_queue_nums=4)}
    topics = TopicConfigs(topic_config_table=table, data_version=DataVersion(timestamp=1, counter=1))
    source = TopicSource(lambda: topics, lambda _topic: None, lambda: topics.data_version)

    def registration(at: Address, name_server: int) -> NameServerRegistration:
        who = BrokerIdentity("C", "broker-a", at, MetaQBroker(0, at))
        return NameServerRegistration(
            who, source, RouteTable(lambda: 0), (Address("127.0.0.1", name_server),), USUAL_PERIOD_S
        )

    @in_loop
    async def scenario(server: RunningNameServer, port: int) -> None:
        def route() -> list[str]:
            found = server.do(lambda: server.server.routes.route("t"))
            return [] if found is None else [*found.broker_datas[0].broker_addrs.values()]

        async def leads_to(at: Address | None) -> None:
            expected = [] if at is None else [str(at)]
            await until(lambda: route() == expected, f"the route leads to {at}")

        elected, thawed = registration(HERE, port), registration(THERE, port)
        elected.start()
        await leads_to(HERE)
        thawed.start()
        await leads_to(THERE)
        thawed.give_way()
        thawed.topic_changed(None)
        elected.register_again()
        await leads_to(HERE)
        await thawed.stop()
        await asyncio.sleep(0.3)
        assert route() == [str(HERE)]
        await elected.stop()
        await leads_to(None)

    port = free_port()
    with running_name_server(tmp_path, f"listenPort={port}\n") as server:
        scenario(server, port)


def test_the_log_says_who_is_at_the_address_of_a_name_server(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody, or a broker, which does not support registrations."""
    topics = TopicConfigs(data_version=DataVersion(timestamp=1, counter=1))
    source = TopicSource(lambda: topics, lambda _topic: None, lambda: topics.data_version)

    @in_loop
    async def scenario(broker: RemotingServer) -> None:
        addresses = (Address("127.0.0.1", free_port()), broker.address)
        who = BrokerIdentity("C", "broker-a", HERE, MetaQBroker(0, HERE))
        registered = NameServerRegistration(who, source, RouteTable(lambda: 0), addresses, 0.05)
        registered.start()
        try:
            await until(lambda: caplog.text.count("not registered with a name server") >= 2, "both failed")
        finally:
            await registered.stop()

    with RemotingServer(lambda _, command: [command.reply(3, remark="not supported")]) as broker:
        scenario(broker)
    reasons = {record.__dict__["fields"]["reason"] for record in caplog.records}
    assert reasons == {
        "connect failed: Connection refused; check the address, and that a name server runs there",
        "a broker is there, not a name server, whose port is 9876 unless it is configured otherwise",
    }
