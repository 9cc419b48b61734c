"""RocketMQ's clients at a pair of real processes: what they were told is there after the master is killed."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from fix_broker import StartBroker, run_broker_command, wait_until, write_ini
from fix_zookeeper import ZooKeeperRoot
from listeners import RemotingServer
from metaq_broker.log.state.state_records import decode_state
from pair_processes import PairProcess, PairProcesses
from request_replay import Asker

from metaq.backends.rocketmq.half_messages import Outcome
from metaq.client.partitioners import fixed
from metaq.client.rocketmq.async_client import AsyncRocketMQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketReceived
from metaq.errors import MetaqError
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.model import Address
from metaq.protocols.remoting.headers.pulls import ViewMessageById
from metaq.protocols.remoting.headers.routes import GetKVConfig, PutKVConfig, RegisterBroker, UnregisterBroker
from metaq.testing.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]

LEVELS = "1s 6s"
ASK = "transactionTimeOut=1000\ntransactionCheckInterval=1000\n"
STATE = "rocketmq-state"


class RocketmqPair(PairProcesses):
    """Both members have the same broker name; each has a port of its own for RocketMQ's clients."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker, **keys: object) -> None:
        super().__init__(folder, zookeeper, start_broker, **keys)
        self._ports = {"a": free_port(), "b": free_port()}
        self.more = ""

    def write(self, member: PairProcess) -> Path:
        keys = f"brokerName=broker-a\nbrokerIP1=127.0.0.1\nmessageDelayLevel={LEVELS}\nvipPort=false\n{ASK}{self.more}"
        self.extra = f"[rocketmq]\nenabled=true\nport={self._ports[member.name]}\n{keys}"
        return super().write(member)

    def at(self, member: PairProcess) -> Address:
        return Address("127.0.0.1", self._ports[member.name])


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> RocketmqPair:
    return RocketmqPair(tmp_path, zookeeper, start_broker)


async def send(address: Address, topic: str, bodies: list[str], delay_level: int = 0) -> None:
    async with AsyncRocketMQ(str(address)) as mq:
        producer = mq.producer(fixed(0), failover=False)
        for body in bodies:
            await producer.send(topic, body, delay_level=delay_level)


async def browsed(address: Address, topic: str) -> list[str]:
    async with AsyncRocketMQ(str(address)) as mq:
        return [bytes(message.data).decode() async for message in mq.browse(topic)]


def committed(address: Address, topic: str, group: str) -> int:
    with Asker(address) as asker:
        return asker.committed(topic, group, 0)


def lose_master(pair: RocketmqPair) -> PairProcess:
    """Kill the master; return the member that was elected in its place, and serves."""
    master = pair.wait_in_sync()  # else the other one may not lead
    other = pair.other(master)
    master.kill()
    pair.wait_master(other)
    wait_until(lambda: is_listening(pair.at(other)), "the RocketMQ port of the new master")
    return other


def is_listening(address: Address) -> bool:
    with socket.socket() as one:
        return one.connect_ex((address.host, address.port)) == 0


def test_offsets_settings_and_delayed_messages_survive_elections(pair: RocketmqPair) -> None:
    pair.start()
    first = pair.at(pair.master)
    with Asker(first) as asker:
        asker.create_topic("orders", 1)
        asker.create_topic("late", 1)
    asyncio.run(send(first, "orders", [f"order {number}" for number in range(5)]))
    with Asker(first) as asker:
        asker.commit("orders", "billing", 0, 3)
        asker.ask(PutKVConfig(namespace="names", key="key", value="value"))
    asyncio.run(send(first, "late", ["delayed"], delay_level=2))
    killed = pair.master
    second = lose_master(pair)
    at = pair.at(second)
    assert asyncio.run(browsed(at, "orders")) == [f"order {number}" for number in range(5)]
    assert committed(at, "orders", "billing") == 3
    with Asker(at) as asker:
        assert asker.ask(GetKVConfig(namespace="names", key="key")).ext == {"value": "value"}
        asker.commit("orders", "billing", 0, 4)
    wait_until(lambda: asyncio.run(browsed(at, "late")) == ["delayed"], "the delayed message to be delivered once")
    asyncio.run(send(at, "orders", ["order 5"]))
    killed.start()
    pair.wait_in_sync()
    wait_until(lambda: states(pair)[0] == states(pair)[1] != b"", "the state to be the same on both")
    third = lose_master(pair)
    at = pair.at(third)
    assert third is killed
    assert committed(at, "orders", "billing") == 4
    assert asyncio.run(browsed(at, "orders")) == [f"order {number}" for number in range(6)]
    assert asyncio.run(browsed(at, "late")) == ["delayed"]


def test_a_master_that_stops_does_not_unregister_its_successor(
    tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker
) -> None:
    """RocketMQ's name servers remove whoever has the name, not the broker that asks for it."""
    pair = RocketmqPair(tmp_path, zookeeper, start_broker, answerTimeoutMs=60_000)
    with RemotingServer() as name_server:
        pair.more = f"namesrvAddr={name_server.address}\n"
        pair.start()
        name_server.wait_for(lambda: RegisterBroker.CODE in codes(name_server))
        master = pair.wait_in_sync()
        pair.other(master).freeze()  # it is elected later than this one waits for
        master.stop()
        pair.other(master).thaw()
        pair.wait_master(pair.other(master))
        name_server.wait_for(lambda: addresses(name_server) == {str(pair.at(member)) for member in pair.members})
        assert UnregisterBroker.CODE not in codes(name_server)


def codes(name_server: RemotingServer) -> list[int]:
    return [command.code for command in name_server.received]


def addresses(name_server: RemotingServer) -> set[str]:
    """The brokers that have registered."""
    return {each.ext["brokerAddr"] for each in name_server.received if each.code == RegisterBroker.CODE}


def test_half_messages_ids_and_delivered_messages_survive_an_election(pair: RocketmqPair) -> None:
    pair.start()
    with RocketMQ(";".join(str(pair.at(member)) for member in pair.members)) as mq:
        mq.cluster.create_topic("paid", 1)
        producer = mq.producer(fixed(0))
        sent = [producer.send("t", f"{number}") for number in range(20)]
        producer.send("soon", "early", delay_level=1)
        wait_until(lambda: bodies(mq, "soon") == ["early"], "the first delayed message")
        with mq.transactional_producer("accounts", lambda message: "unknown", fixed(0)) as transactions:
            with transactions.transaction() as transaction:
                transaction.send("paid", "whole")
            transactions.transaction().send("paid", "half")
        producer.send("later", "moment", delay=5)
        other = lose_master(pair)
        wait_until(lambda: is_taken(producer, 20), "a message that is taken")
        assert sent[3].offset_message_id is not None
        with Asker(pair.at(other)) as asker:
            place = OffsetMessageId.parse(sent[3].offset_message_id).physical_offset
            assert sent[3].message_id.encode() in asker.ask(ViewMessageById(offset=place)).body
        asked: list[str] = []

        def check(message: RocketReceived) -> Outcome:
            asked.append(message.data.decode())
            return "commit"

        with mq.transactional_producer("accounts", check, heartbeat_s=0.5) as transactions:
            transactions.start()
            wait_until(lambda: bodies(mq, "paid") == ["half", "whole"], "the half message to be committed")
        assert set(asked) == {"half"}, "it may be asked again before it is committed"
        wait_until(lambda: bodies(mq, "later") == ["moment"], "the message for a moment")
        assert bodies(mq, "soon") == ["early"]
        found = bodies(mq, "t")
        assert [body for body in found if body != "next"] == sorted(map(str, range(20)))
        assert "next" in found


def is_taken(producer: Any, offset: int) -> bool:
    """Return whether a message is taken, at ``offset`` or later: one that was sent before may be stored as well."""
    try:
        return bool(producer.send("t", "next").offset >= offset)
    except MetaqError:
        return False


def bodies(mq: RocketMQ, topic: str) -> list[str]:
    return sorted(message.data.decode() for message in mq.browse(topic))


def states(pair: RocketmqPair) -> list[bytes]:
    return [(member.data / STATE).read_bytes() for member in pair.members]


def test_a_member_that_could_not_serve_does_not_start(pair: RocketmqPair, tmp_path: Path) -> None:
    """It would find that out when it is elected, and nobody else could lead then."""
    ini = pair.write(pair.a)
    with socket.create_server(("127.0.0.1", pair.at(pair.a).port)):
        assert f"port {pair.at(pair.a).port}" in refused(ini)
    ini.write_text(f"{ini.read_text()}aclEnable=true\naclFile={tmp_path / 'accounts.yml'}\n")
    assert "file of accounts" in refused(ini)


def refused(ini: Path) -> str:
    """Return why a broker does not start."""
    done = run_broker_command("start", "-f", ini)
    assert done.returncode == 1
    return done.stderr


def test_an_asynchronous_slave_copies_the_state_of_a_pair(
    pair: RocketmqPair, tmp_path: Path, start_broker: StartBroker
) -> None:
    pair.start()
    master = pair.master
    role = f"[slave]\nslaveId=0\n{pair.zookeeper.ini()}"
    front = "[rocketmq]\nenabled=true\nbrokerName=broker-a\nport=0\nvipPort=false\n"
    start_broker("start", "-f", write_ini(tmp_path / "s", f"{role}{front}[topic=t]\n", brokerId=3, numPartitions=2))
    at = pair.at(master)
    with Asker(at) as asker:
        asker.create_topic("orders", 1)
    asyncio.run(send(at, "orders", [f"order {number}" for number in range(5)]))
    with Asker(at) as asker:
        asker.commit("orders", "billing", 0, 3)
    wait_until(lambda: is_copied(master, tmp_path / "s"), "the state to be copied")
    other = lose_master(pair)
    with Asker(pair.at(other)) as asker:
        asker.commit("orders", "billing", 0, 4)
    wait_until(lambda: is_copied(other, tmp_path / "s"), "the state of the next master to be copied")


def is_copied(master: PairProcess, slave: Path) -> bool:
    copied = entries(slave / "data")
    return any("billing" in key for key in copied) and copied == entries(master.data)


def entries(data: Path) -> dict[str, bytes]:
    """Return the state in a data folder, but for what each broker has for itself."""
    path = data / STATE
    values = decode_state(path, path.read_bytes()).values if path.exists() else {}
    return {key: value for key, value in values.items() if key not in ("copied-from", "state/count")}
