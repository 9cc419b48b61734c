"""Fixture that starts brokers which register themselves in the ZooKeeper of a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, broker_command, write_ini
from fix_zookeeper import ZooKeeperRoot

from metaq.model import Address


class Brokers:
    """Starts brokers that register in one ZooKeeper. Each has a folder named after it, with its server.ini."""

    def __init__(self, zookeeper: ZooKeeperRoot, folder: Path, start_broker: StartBroker) -> None:
        self.zookeeper, self._folder, self._start = zookeeper, folder, start_broker

    def write(
        self, name: str, topics: str = "[topic=test]\n", broker_id: int = 3, port: int = 0, **zookeeper: object
    ) -> Path:
        rest = self.zookeeper.ini(**zookeeper) + topics
        return write_ini(self._folder / name, rest, brokerId=broker_id, numPartitions=2, serverPort=port)

    def start(
        self, name: str, topics: str = "[topic=test]\n", broker_id: int = 3, port: int = 0, **zookeeper: object
    ) -> RunningBroker:
        return self._start("start", "-f", self.write(name, topics, broker_id, port, **zookeeper))

    def master(self, broker_id: int = 3) -> str | None:
        return self.zookeeper.text(f"/brokers/ids/{broker_id}/master")


def waits_until_stopped(ini: Path, words: str) -> None:
    """Start a broker that does not get ready, wait until it says ``words``, and stop it, which ends it well."""
    process = subprocess.Popen(broker_command("start", "-f", ini), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(words in line for line in process.stderr)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0


def meta(address: Address) -> str:
    """What a broker's nodes say."""
    return f"meta://{address}"


@pytest.fixture
def brokers(zookeeper: ZooKeeperRoot, tmp_path: Path, start_broker: StartBroker) -> Brokers:
    """Starts brokers that register themselves."""
    return Brokers(zookeeper, tmp_path, start_broker)
