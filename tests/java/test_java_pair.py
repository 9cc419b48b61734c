"""A synchronous pair of a Java broker and this one is stopped and started again: messages are taken as before, and both
have the same, whichever of them is the master.

Runs only where ``METAQ_JAVA_LIB`` has a broker, and ``METAQ_JAVA_PLUGINS`` its plug-ins (docs/testing.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from fix_broker import StartBroker, WireClient, system_section, wait_until
from fix_spark import named
from text_protocol import put

from metaq.formats.frames import Frame, walk
from metaq.model import Address
from metaq.testing.ports import free_port
from peers.metaq.broker import Plugin, metaq_server

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTITIONS = 5
MESSAGES = 60
ROUNDS = 3


@dataclass
class Member:
    """A broker of a pair: how it is started and stopped, its port, and its folder."""

    start: Callable[[], object]
    stop: Callable[[], object]
    port: int
    data: Path

    def frames(self) -> list[list[Frame]]:
        """The stored messages, by partition."""
        folders = [self.data / f"test-{index}" for index in range(PARTITIONS)]
        return [
            [frame for path in sorted(folder.glob("*.meta")) for frame in walk(path.read_bytes())]
            for folder in folders
        ]

    def takes(self, partition: int, body: bytes) -> bool:
        """Whether it acknowledges a message."""
        with closing(WireClient(Address("127.0.0.1", self.port))) as client:
            return client.result(put("test", body, 7, partition=partition))[0] == 200


def java_member(folder: Path, port: int, kind: str, settings: str) -> Iterator[Member]:
    lib, classes = Path(named("METAQ_JAVA_LIB")), Path(named("METAQ_JAVA_PLUGINS"))
    if not any(lib.glob("metamorphosis-server-*.jar")):
        pytest.skip("METAQ_JAVA_LIB has no broker")
    folder.mkdir()
    server = metaq_server(folder, lib, 3, port, PARTITIONS, Plugin(kind, settings, classes))
    yield Member(server.start, server.stop, port, folder / "data")
    server.kill()


def our_member(folder: Path, port: int, role: str, start_broker: StartBroker) -> Member:
    folder.mkdir()
    system = system_section(3, PARTITIONS, serverPort=port, hostName="127.0.0.1", dataPath=folder / "data")
    (folder / "server.ini").write_text(f"{system}[zookeeper]\nzk.zkEnable=false\n[topic=test]\n{role}")
    running = []

    def start() -> None:
        running.append(start_broker("start", "-f", folder / "server.ini"))

    return Member(start, lambda: running.pop().stop(), port, folder / "data")


def slave_at(port: int) -> str:
    """Return the settings of a master; a slow disk is no failure of its slave."""
    return f"slave=127.0.0.1:{port}\nsendToSlaveTimeoutInMills=60000\n"


@pytest.fixture
def our_master(start_broker: StartBroker, tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """This broker and its Java slave, neither of which runs."""
    ports = free_port(), free_port()
    ours = our_member(tmp_path / "ours", ports[0], f"[samsa]\n{slave_at(ports[1])}", start_broker)
    for java in java_member(tmp_path / "java", ports[1], "gregor", ""):
        yield ours, java


@pytest.fixture
def our_slave(start_broker: StartBroker, tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """A Java master and this broker, neither of which runs."""
    ports = free_port(), free_port()
    ours = our_member(tmp_path / "ours", ports[1], f"[gregor]\nmaster=127.0.0.1:{ports[0]}\n", start_broker)
    for java in java_member(tmp_path / "java", ports[0], "samsa", slave_at(ports[1])):
        yield java, ours


@pytest.mark.parametrize("first", ["master", "slave"])
def test_our_master_and_its_slave_are_restarted(our_master: tuple[Member, Member], first: str) -> None:
    goes_on_after_restarts(*our_master, slave_first=first == "slave")


def test_our_slave_and_its_master_are_restarted(our_slave: tuple[Member, Member]) -> None:
    """A Java master answers nobody before its slave runs."""
    goes_on_after_restarts(*our_slave, slave_first=True)


def goes_on_after_restarts(master: Member, slave: Member, slave_first: bool) -> None:
    """Start both, put, and stop both, several times: everything is taken, and both store the same messages."""
    in_order = (slave, master) if slave_first else (master, slave)
    sent: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
    for round_ in range(ROUNDS):
        for member in in_order:
            member.start()
        body = b"round %d" % round_
        wait_until(partial(master.takes, 0, body), "the pair is in sync")
        sent[0].add(body)
        for number in range(MESSAGES):
            partition, body = number % PARTITIONS, b"round %d, message %d" % (round_, number)
            assert master.takes(partition, body), f"message {number} of round {round_} is refused"
            sent[partition].add(body)
        for member in in_order:
            member.stop()
        stored = master.frames()
        assert [{frame.body for frame in each} for each in stored] == sent
        assert [len(each) for each in stored] == [len(each) for each in sent], "each once"
        assert slave.frames() == stored
