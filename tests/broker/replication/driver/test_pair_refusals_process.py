"""What is no pair, or no record of one: a sentence in the log and in ``status``, and no data is touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until
from fix_zookeeper import ZooKeeperRoot
from kazoo.security import make_acl
from pair_processes import PairProcess, PairProcesses, put, segment_bytes, stored

from metaq import MetaQ

pytestmark = [pytest.mark.process, pytest.mark.slow]

SEEN_S = 60.0
PAIR = "/pairs/3"
FOREIGN = b"of somebody else"


def made(folder: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker, **keys: object) -> PairProcesses:
    folder.mkdir()
    return PairProcesses(folder, zookeeper, start_broker, **keys)


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    return made(tmp_path / "pair", zookeeper, start_broker)


@pytest.fixture
def lasting(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    """A pair without elections but those that a test wants: its sessions last longer than a busy machine pauses."""
    return made(tmp_path / "pair", zookeeper, start_broker, sessionMs=20_000)


@pytest.fixture
def second(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    """Another pair, with the same broker id."""
    return made(tmp_path / "second", zookeeper, start_broker)


def says(member: PairProcess, words: str) -> None:
    """Return when ``status`` and the log of a member have these words."""
    wait_until(lambda: words in member.stats().get("trouble", ""), f"status: {words}", SEEN_S)
    wait_until(lambda: words in member.log(), f"the log: {words}", SEEN_S)


def record_path(pair: PairProcesses) -> str:
    return f"{pair.zookeeper.root}{PAIR}"


def test_a_second_pair_of_the_same_id_is_refused(pair: PairProcesses, second: PairProcesses) -> None:
    pair.start()
    put(pair, range(10))
    for member in second.members:
        member.start()
    for member in second.members:
        says(member, f"the pair has its members already: {', '.join(sorted(pair.brokers))}")
    assert second.masters == []
    assert [segment_bytes(member.data) for member in second.members] == [{}, {}]
    put(pair, range(10, 20))
    assert stored(pair) == list(range(20))
    assert pair.copies_are_equal()


def test_a_third_member_is_refused(pair: PairProcesses, second: PairProcesses) -> None:
    """It names a member of the pair as its other one."""
    pair.start()
    put(pair, range(10))
    third = second.a
    ini = second.write(third)
    ini.write_text(ini.read_text().replace(f"other={second.b.address}", f"other={pair.master.address}"))
    third.running = second.start_broker("start", "-f", ini)
    says(third, "the pair has its members already")
    assert segment_bytes(third.data) == {}
    put(pair, range(10, 20))
    assert pair.copies_are_equal()


@pytest.fixture
def with_data(pair: PairProcesses) -> PairProcesses:
    """``a`` has messages from before the pair, and leads it alone."""
    ini = pair.write(pair.a)
    ini.write_text(ini.read_text().split("[pair]")[0] + pair.extra)
    pair.a.running = pair.start_broker("start", "-f", ini)
    with MetaQ(brokers=[str(pair.a.address)]) as mq:
        mq.producer().send("t", b"0")
    pair.a.stop()
    pair.a.start()
    pair.wait_master(pair.a)
    return pair


def test_a_member_of_another_broker_id_is_refused(with_data: PairProcesses) -> None:
    pair = with_data
    ini = pair.write(pair.b)
    ini.write_text(ini.read_text().replace("brokerId=3", "brokerId=4"))
    pair.b.running = pair.start_broker("start", "-f", ini)
    says(pair.a, f"broker {pair.b.address}: it has brokerId=4, and this member of the pair brokerId=3")
    says(pair.b, "waiting for the other member")
    with MetaQ(brokers=[str(pair.a.address)]) as mq:
        mq.producer().send("t", b"1")
    assert segment_bytes(pair.b.data) == {}
    assert not pair.zookeeper.text("/pairs/4")


def test_a_member_is_not_its_own_other_member_by_another_name(with_data: PairProcesses) -> None:
    pair = with_data
    pair.a.stop()
    ini = pair.write(pair.a)
    ini.write_text(ini.read_text().replace(f"other={pair.b.address}", f"other=localhost:{pair.a.address.port}"))
    pair.a.running = pair.start_broker("start", "-f", ini)
    pair.wait_master(pair.a)
    says(pair.a, "the other member ([pair] other) is this broker itself")
    with MetaQ(brokers=[str(pair.a.address)]) as mq:
        mq.producer().send("t", b"1")


def test_a_zookeeper_that_was_emptied(lasting: PairProcesses) -> None:
    pair = lasting
    pair.start()
    put(pair, range(10))
    pair.zookeeper.remove(PAIR)  # at once: a slave that sees only its master's node vanish is elected
    for member in pair.members:
        says(member, "ZooKeeper has no record of the pair, and this member knows a master of epoch 1")
    put(pair, range(10, 20))
    assert stored(pair) == list(range(20))
    assert pair.copies_are_equal()
    assert not pair.zookeeper.text(PAIR)


def test_a_zookeeper_that_was_put_back(lasting: PairProcesses) -> None:
    pair = lasting
    pair.start()
    put(pair, range(10))
    killed = pair.wait_in_sync()
    before, _ = pair.zookeeper.client.get(record_path(pair))
    killed.kill()
    pair.wait_master(pair.other(killed))
    killed.start()
    pair.wait_in_sync()
    pair.zookeeper.client.set(record_path(pair), before)
    for member in pair.members:
        says(member, "the record in ZooKeeper is of epoch 1, and this member knows a master of epoch 2")
    put(pair, range(10, 20))
    assert stored(pair) == list(range(20))
    assert pair.copies_are_equal()
    assert pair.zookeeper.client.get(record_path(pair))[0] == before


def test_foreign_content_at_the_path_of_the_record(pair: PairProcesses) -> None:
    pair.zookeeper.client.create(record_path(pair), FOREIGN, makepath=True)
    for member in pair.members:
        member.start()
    for member in pair.members:
        says(member, "the record of the pair in ZooKeeper cannot be used")
    assert pair.masters == []
    assert pair.zookeeper.client.get(record_path(pair))[0] == FOREIGN


@pytest.fixture
def read_only(pair: PairProcesses) -> Iterator[PairProcesses]:
    """The record may be read, and not be changed, from now on until the end of the test."""
    pair.start()
    put(pair, range(10))
    reads = make_acl("world", "anyone", read=True, admin=True)
    pair.zookeeper.client.set_acls(record_path(pair), [reads])
    yield pair
    pair.zookeeper.client.set_acls(record_path(pair), [make_acl("world", "anyone", all=True)])


def test_a_zookeeper_that_forbids_changes(read_only: PairProcesses) -> None:
    pair = read_only
    put(pair, range(10, 20))
    slave = pair.other(pair.master)
    slave.kill()
    slave.start()
    says(slave, "NoAuth")
    assert pair.master is pair.other(slave)
    assert set(range(20)) <= set(stored(pair))
