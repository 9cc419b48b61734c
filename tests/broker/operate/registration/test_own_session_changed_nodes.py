"""Nodes of a broker that somebody else deletes or changes, and nodes that are somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import RunningBroker, run_broker_command, wait_until
from fix_zookeeper import Brokers, ZooKeeperRoot, meta, waits_until_stopped
from metaq_broker.operate.registration.own_session import FILE_NAME

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOPIC_NODES = ("/brokers/topics/test/3-m", "/brokers/topics-pub/test/3-m", "/brokers/topics-sub/test/3-m")


def remove(zookeeper: ZooKeeperRoot, path: str) -> None:
    zookeeper.client.delete(zookeeper.root + path)


def owner(zookeeper: ZooKeeperRoot, path: str) -> int:
    return int(zookeeper.client.get(zookeeper.root + path)[1].ephemeralOwner)


def status(broker: RunningBroker) -> str:
    lines = run_broker_command("ctl", "--data", broker.data, "status").stdout.splitlines()
    return next(line for line in lines if line.startswith("zookeeper")).split(maxsplit=1)[1]


def test_nodes_that_somebody_deletes_are_restored(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    broker = brokers.start("b")
    before = zookeeper.dump("/brokers")
    for path in ("/brokers/ids/3/master_config_checksum", "/brokers/ids/3/master", *TOPIC_NODES):
        remove(zookeeper, path)
    wait_until(lambda: zookeeper.dump("/brokers") == before, "everything is there again")
    for path in TOPIC_NODES:  # twice: what was restored is watched as well
        remove(zookeeper, path)
    wait_until(lambda: zookeeper.dump("/brokers") == before, "everything is there again")
    assert "nodes were deleted or changed by others, they are created again" in broker.log_text()
    assert status(broker) == f"{zookeeper.option}, registered"


def test_texts_that_somebody_changes_are_restored(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    broker = brokers.start("b")
    before = zookeeper.dump()
    for path in ("/brokers/ids/3/master", "/brokers/ids/3", "/members/3", "/members/3/topics", *TOPIC_NODES):
        zookeeper.put(path, "wrong")
    wait_until(lambda: zookeeper.dump() == before, "everything is as it was")
    assert brokers.master() == meta(broker.address)


def test_the_broker_id_of_another_session_stays_the_others(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    broker = brokers.start("b")
    path, other = "/brokers/ids/3/master", "meta://10.0.0.9:8123"
    transaction = zookeeper.client.transaction()
    transaction.delete(zookeeper.root + path)
    transaction.create(zookeeper.root + path, other.encode(), ephemeral=True)
    transaction.commit()
    wait_until(lambda: "refused: the broker id is registered by another broker, " in status(broker), "it has noticed")
    assert broker.stop() == 0
    assert (zookeeper.text(path), zookeeper.text("/brokers/ids/3")) == (other, meta(broker.address))


def test_the_status_is_read_from_zookeeper(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    broker = brokers.start("b")
    child = f"{zookeeper.root}/brokers/topics-pub/test"
    theirs = f"{child}/3-m"
    transaction = zookeeper.client.transaction()
    transaction.delete(theirs)
    transaction.create(theirs, b"somebody's", ephemeral=True)
    transaction.commit()
    assert ", registered" not in status(broker)
    zookeeper.client.delete(theirs)
    wait_until(lambda: status(broker).endswith(", registered"), "it is registered again")


def test_clients_are_served_while_the_own_earlier_session_lasts(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    killed = brokers.start("b", zkSessionTimeoutMs=20_000)
    killed.kill()
    before = owner(zookeeper, "/brokers/ids/3/master")
    again = brokers.start("b", port=killed.address.port, zkSessionTimeoutMs=20_000)
    client = again.client()
    assert client.result(b"put test 0 1 0 7\r\nx")[0] == 200
    client.close()
    log = again.log_text()
    assert "waiting for the broker id, clients are served" in log
    assert "registered in ZooKeeper" not in log
    zookeeper.end_session_at("/brokers/ids/3/master")
    wait_until(lambda: status(again).endswith(", registered"), "it is registered")
    assert owner(zookeeper, "/brokers/ids/3/master") != before
    log = again.log_text()
    assert log.index("ready") < log.index("registered in ZooKeeper"), "it was ready before"


@pytest.mark.parametrize("known", [True, False], ids=["other address", "other session"])
def test_only_the_own_earlier_session_is_not_waited_for(brokers: Brokers, tmp_path: Path, known: bool) -> None:
    """A copy of a living broker's data folder, and a broker elsewhere that has the same address by its own words."""
    first = brokers.start("first")
    ini = brokers.write("second", port=0 if known else first.address.port, zkSessionTimeoutMs=60_000)
    if known:
        (tmp_path / "second" / "data").mkdir()
        (tmp_path / "second" / "data" / FILE_NAME).write_bytes((first.data / FILE_NAME).read_bytes())
    else:
        brokers.zookeeper.put("/brokers/ids/4/master", meta(first.address), ephemeral=True)
        ini.write_text(ini.read_text().replace("brokerId=3", "brokerId=4"))
        assert first.stop() == 0
    waits_until_stopped(ini, "waiting for the broker id, it is still registered")
