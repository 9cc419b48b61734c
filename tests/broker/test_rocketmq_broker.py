"""The bundled broker as a process for RocketMQ's clients: a recording of a real broker, kills, both protocols."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, system_section
from send_pull_replay import Replay, steps

from metaq.client.metaq import MetaQ
from metaq.client.partitioners import fixed
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketMessage
from metaq.model import Address, Message
from metaq.protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode

pytestmark = pytest.mark.process

DIFFERENCES: Final = {
    "32 of TT[0]": "a store time",
    "361 lite pull": "newer clients send it, and it is carried out; 4.9.7 does not know it",
    "route asked of a broker": "the port is a name server, too",
    "send to the read-only topic": "permissions are checked on sends; 4.9.7 stores the message",
}


def rocketmq_address(broker: RunningBroker) -> Address:
    """Where the broker serves RocketMQ's clients: it says so in its second line."""
    assert broker.process.stdout is not None
    line = broker.process.stdout.readline()
    assert line.startswith("RocketMQ clients: ")
    return Address.parse(line.split()[2])


class Wire:
    """One connection that says what a test says."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection((address.host, address.port), DEADLINE_S)
        self._decoder = FrameDecoder()

    def ask(self, command: RemotingCommand) -> RemotingCommand | None:
        self._socket.sendall(encode(command))
        if command.flag & ONEWAY_FLAG:
            return None
        data = b""
        while True:
            for answer in self._decoder.receive(data):
                if answer.opaque == command.opaque and answer.is_response:
                    return answer
            data = self._socket.recv(1 << 16)
            assert data, "the broker closed the connection"

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def golden(start_broker: StartBroker, tmp_path: Path) -> Iterator[Wire]:
    """A connection to a broker that is configured as the recorded one."""
    ini = tmp_path / "server.ini"
    ini.write_text(
        f"{system_section(0)}hostName=127.0.0.1\ndataPath={tmp_path / 'data'}\n[zookeeper]\nzk.zkEnable=false\n"
        "[rocketmq]\nenabled=true\nport=0\nbrokerName=golden-a\nclusterName=GoldenCluster\n"
    )
    wire = Wire(rocketmq_address(start_broker("start", "-f", ini, "--port", "0")))
    yield wire
    wire.close()


def test_a_recording_of_a_real_broker(golden: Wire) -> None:
    replay = Replay(golden.ask, time.sleep)
    differing = {}
    for step in steps():
        if found := replay.play(step):
            differing[step["step"]["label"]] = found
    assert {label: found for label, found in differing.items() if label not in DIFFERENCES} == {}
    assert set(differing) == set(DIFFERENCES)


@pytest.fixture
def dev(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    return start_broker("dev", tmp_path / "data", "--port", "0")


def test_what_one_protocol_writes_the_other_reads(dev: RunningBroker) -> None:
    with RocketMQ(str(rocketmq_address(dev))) as rocketmq, MetaQ(str(dev.address)) as metaq:
        sent = rocketmq.producer(fixed(0)).send_many(
            "orders",
            [
                RocketMessage(data="one tea", tag="hot", keys=["k1"], properties={"price": "3"}),
                RocketMessage(data="no tag"),
            ],
        )
        metaq.producer(fixed(0)).send_many("orders", [Message(b"two scones", "cold"), Message(b"plain")])
        at_metaq = list(metaq.browse("orders"))
        at_rocketmq = list(rocketmq.browse("orders"))
    assert [(one.data, one.attribute) for one in at_metaq] == [
        (b"one tea", "hot"),
        (b"no tag", None),
        (b"two scones", "cold"),
        (b"plain", None),
    ]
    assert [(one.data, one.tag, one.offset) for one in at_rocketmq] == [
        (b"one tea", "hot", 0),
        (b"no tag", None, 1),
        (b"two scones", "cold", 2),
        (b"plain", None, 3),
    ]
    assert (at_rocketmq[0].keys, at_rocketmq[0].properties["price"]) == (("k1",), "3")
    assert [one.message_id for one in at_rocketmq[:2]] == [one.message_id for one in sent]
    assert at_rocketmq[0].offset_message_id == sent[0].offset_message_id
    assert at_rocketmq[0].timestamp_ms == at_metaq[0].timestamp_ms


def test_tags_are_message_types(dev: RunningBroker) -> None:
    with RocketMQ(str(rocketmq_address(dev))) as rocketmq, MetaQ(str(dev.address)) as metaq:
        metaq.producer(fixed(0)).send("orders", "from MetaQ", attribute="hot")
        rocketmq.producer(fixed(0)).send("orders", "from RocketMQ", tag="hot")
        rocketmq.producer(fixed(0)).send("orders", "another", tag="cold")
        assert [one.data for one in rocketmq.browse("orders", tags="hot")] == [b"from MetaQ", b"from RocketMQ"]


def test_a_killed_broker_has_everything_that_was_acknowledged(
    start_broker: StartBroker, dev: RunningBroker, tmp_path: Path
) -> None:
    with RocketMQ(str(rocketmq_address(dev))) as rocketmq:
        producer = rocketmq.producer(fixed(0))
        sent = [producer.send("orders", f"{number}", tag="t") for number in range(50)]
        sent += producer.send_many("orders", [f"{number}" for number in range(50, 1000)])
        before = list(rocketmq.browse("orders"))
    dev.kill()
    again = start_broker("dev", tmp_path / "data", "--port", "0")
    with RocketMQ(str(rocketmq_address(again))) as rocketmq:
        after = list(rocketmq.browse("orders"))
        assert [one.offset for one in after] == list(range(1000))
        assert [(one.message_id, one.data, one.tag) for one in after] == [
            (one.message_id, one.data, one.tag) for one in before
        ]
        assert [one.message_id for one in after] == [one.message_id for one in sent]
        assert rocketmq.producer(fixed(0)).send("orders", "next").offset == 1000
