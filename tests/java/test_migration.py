"""A broker's folder goes from a Java broker to this one, back, and to this one again, with transactions of every kind.

Runs only where ``METAQ_JAVA_ZOOKEEPER`` and ``METAQ_JAVA_LIB`` are named (docs/testing.md): it starts a Java broker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fix_broker import StartBroker, WireClient, run_broker_command, system_section, wait_until
from fix_spark import named

from metaq.formats.checksum import checksum
from metaq.formats.frames import walk
from metaq.model import Address
from metaq.protocols.text.commands import Result
from metaq.testing.ports import free_port
from peers.jvm import JavaServer
from peers.metaq.broker import STARTED, metaq_server

pytestmark = [pytest.mark.process, pytest.mark.slow]

BROKER_ID = 9
TOPIC = b"test"
WORDS = re.compile(f"{STARTED}|NodeExists")
RECOVERED = re.compile("XID:7:aa01:([0-9a-f]*):app")


def xid(name: str) -> bytes:
    return b"XID:7:aa01:%s:app" % name.encode().hex().encode()


@dataclass
class Client:
    """What a program does at either broker; each step must work, and is answered before the next."""

    wire: WireClient
    opaque: int = 0

    def ask(self, line: bytes, body: bytes = b"") -> Result:
        """Return the reply to this request: a Java broker may answer an earlier one twice."""
        self.opaque += 1
        self.wire.send(b"%s %d\r\n%s" % (line, self.opaque, body))
        while not isinstance(reply := self.wire.reply(), Result) or reply.opaque != self.opaque:
            pass
        return reply

    def put(self, partition: int, body: bytes, key: bytes = b"") -> None:
        head = b"put %s %d %d 0 %d" % (TOPIC, partition, len(body), checksum(body))
        assert self.ask(head + (b" " + key if key else b""), body).code == 200

    def step(self, key: bytes, kind: bytes) -> str:
        reply = self.ask(b"transaction %s s %s" % (key, kind))
        assert reply.code == 200, reply
        return reply.text

    def branch(self, name: str, *ends: bytes) -> None:
        """Put two messages in two partitions in a branch, and end it."""
        self.step(xid(name), b"BEGIN")
        for partition in range(2):
            self.put(partition, name.encode(), xid(name))
        for end in ends:
            assert self.step(xid(name), end) == ("0" if end == b"PREPARE" else "")

    def recovered(self) -> list[str]:
        return [bytes.fromhex(each).decode() for each in RECOVERED.findall(self.step(b"null", b"RECOVER"))]

    def local(self, number: int, body: bytes, *ends: bytes) -> None:
        key = b"TX:s:%d" % number
        self.step(key, b"BEGIN")
        self.put(0, body, key)
        for end in ends:
            self.step(key, end)


@pytest.fixture
def java(tmp_path: Path) -> Iterator[JavaServer]:
    named("METAQ_JAVA_ZOOKEEPER")
    lib = Path(named("METAQ_JAVA_LIB"))
    if not any(lib.glob("metamorphosis-server-*.jar")):
        pytest.skip("METAQ_JAVA_LIB has no broker")
    server = metaq_server(tmp_path, lib, BROKER_ID, free_port())
    try:
        yield server
    finally:
        server.kill()


def stored(folder: Path, partition: int) -> list[bytes]:
    """The bodies of a partition on the disk."""
    files = sorted((folder / f"test-{partition}").glob("*.meta"))
    return [frame.body for path in files for frame in walk(path.read_bytes())]


def started(java: JavaServer) -> Client:
    """Start the Java broker, and connect to it when transactions may begin."""
    for _ in range(30):  # after a kill, ZooKeeper has its node for the time of a session, and a start fails
        before = len(WORDS.findall(java.log)) if (java.folder / "log").exists() else 0
        java.start()
        wait_until(lambda before=before: len(WORDS.findall(java.log)) > before, "a start")  # type: ignore[misc]
        if STARTED in WORDS.findall(java.log)[before:]:
            return Client(WireClient(Address("127.0.0.1", java.port)))
        java.kill()
        time.sleep(1)
    raise AssertionError("the Java broker does not start")


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_there_and_back_and_there_again(java: JavaServer, start_broker: StartBroker, tmp_path: Path, end: str) -> None:
    data, ini = tmp_path / "data", tmp_path / "ours.ini"
    system = system_section(BROKER_ID, 2, serverPort=java.port, hostName="127.0.0.1", dataPath=data)
    ini.write_text(f"{system}[zookeeper]\nzk.zkEnable=false\n[topic=test]\n")

    client = started(java)
    client.local(1, b"local", b"COMMIT_ONE_PHASE")
    client.local(2, b"no", b"ROLLBACK")
    client.branch("committed", b"PREPARE", b"COMMIT_TWO_PHASE")
    client.branch("dropped", b"PREPARE", b"ROLLBACK")
    client.branch("one", b"PREPARE")
    client.branch("two", b"PREPARE")
    client.branch("open")
    client.local(3, b"open")
    for partition in range(2):
        client.put(partition, b"last")  # behind which a restarted Java broker would store the branches wrongly
    java.stop() if end == "stopped" else java.kill()

    for round_ in range(2):
        ours = start_broker("start", "-f", ini)
        said = ours.log_text()
        assert ("were taken over prepared=2 unfinished=" in said) == (round_ == 0)  # a stop may roll back what is open
        assert said.count("a prepared branch of a Java broker waits") == (2 if round_ == 0 else 0)
        client = Client(ours.client())
        assert client.recovered() == ["one", "two"]
        assert ours.stop() == 0
    ours = start_broker("start", "-f", ini)
    client = Client(ours.client())
    client.step(xid("one"), b"COMMIT_TWO_PHASE")
    client.step(xid("two"), b"ROLLBACK")
    client.put(0, b"ours")
    assert ours.stop() == 0
    expected = [[b"local", b"committed", b"last", b"one", b"ours"], [b"committed", b"last", b"one"]]
    assert [stored(data, partition) for partition in range(2)] == expected

    client = started(java)
    assert client.recovered() == []
    for partition in range(2):
        client.put(partition, b"java")
    client.branch("three", b"PREPARE")
    java.stop() if end == "stopped" else java.kill()

    ours = start_broker("start", "-f", ini)
    client = Client(ours.client())
    assert client.recovered() == ["three"]
    client.step(xid("three"), b"COMMIT_TWO_PHASE")
    assert ours.stop() == 0
    expected = [[*bodies, b"java", b"three"] for bodies in expected]
    assert [stored(data, partition) for partition in range(2)] == expected
    assert {"java-journal", "java-journal-2"} <= {path.name for path in (data / "transactions").iterdir()}
    checked = run_broker_command("fsck", "--data", data)
    assert (checked.returncode, "no problems" in checked.stdout) == (0, True), checked.stdout
