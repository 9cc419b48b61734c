"""A ZooKeeper that comes back with less than it had: empty, or restored from an older copy.

Its transactions are then behind those that its clients have seen, and it refuses clients that say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import rarely
from fix_broker import run_broker_command, wait_until
from fix_zookeeper import SESSION_S, Brokers, ZooKeeperRoot, ZooKeeperServer, meta

from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress

pytestmark = [pytest.mark.process, pytest.mark.slow]

PATHS = ("/brokers/ids/3/master", "/brokers/topics-pub/test/3-m", "/brokers/topics-sub/test/3-m", "/members/3")


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperRoot]:
    """A root in a ZooKeeper of this test's own, which may lose its data."""
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.start()
    yield ZooKeeperRoot(server, "/root", server.client())
    server.restore()
    server.kill()


def look_again(zookeeper: ZooKeeperRoot) -> ZooKeeperRoot:
    """Look through a client that has seen nothing yet; the one before would be refused."""
    zookeeper.client.stop()
    zookeeper.client.close()
    return ZooKeeperRoot(zookeeper.server, zookeeper.root, zookeeper.server.client())


def status(data: Path) -> str:
    lines = run_broker_command("ctl", "--data", data, "status").stdout.splitlines()
    return next(line for line in lines if line.startswith("zookeeper")).split(maxsplit=1)[1]


def write_much(zookeeper: ZooKeeperRoot) -> None:
    """Have more transactions than an empty server will have had when the broker comes back to it."""
    for number in range(200):
        zookeeper.put("/much", str(number))


@pytest.mark.parametrize("older", [*rarely(False), True])
def test_a_broker_registers_again(brokers: Brokers, tmp_path: Path, older: bool) -> None:
    zookeeper, server = brokers.zookeeper, brokers.zookeeper.server
    if older:
        server.kill()
        server.keep(tmp_path / "copy")
        server.start()
    broker = brokers.start("b")
    memory = TreeCache(ZooKeeperAddress.parse(zookeeper.option), SESSION_S)
    assert memory.brokers()[3].master == broker.address
    write_much(zookeeper)
    server.kill()
    server.take_back(tmp_path / "copy") if older else server.empty()
    server.start()
    again = look_again(zookeeper)
    try:
        wait_until(lambda: all(again.text(path) is not None for path in PATHS), "everything is registered again")
        assert again.text(PATHS[0]) == meta(broker.address)
        wait_until(lambda: status(broker.data) == f"{zookeeper.option}, registered", "the status says so")
        memory.invalidate()
        assert memory.brokers()[3].master == broker.address
    finally:
        again.client.stop()
        again.client.close()
