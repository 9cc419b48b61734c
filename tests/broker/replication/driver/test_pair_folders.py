"""Real members whose data folders are emptied, replaced by older copies, or foreign."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fix_broker import StartBroker, run_broker_command, wait_until
from fix_zookeeper import ZooKeeperRoot
from pair_processes import PairProcesses, put, segment_bytes, stored

from metaq import MetaQ

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    return PairProcesses(tmp_path, zookeeper, start_broker)


def test_a_slave_with_an_emptied_folder_is_a_new_member(pair: PairProcesses) -> None:
    """I8: it copies everything before it may lead."""
    pair.start()
    put(pair, range(50))
    master, slave = pair.master, pair.other(pair.master)
    slave.kill()
    shutil.rmtree(slave.data)
    slave.start()
    pair.wait_in_sync()
    assert pair.master is master
    assert pair.copies_are_equal()
    master.kill()
    pair.wait_master(slave)
    assert stored(pair) == list(range(50))


def test_a_master_with_an_emptied_folder_never_leads(pair: PairProcesses) -> None:
    """I8."""
    pair.start()
    put(pair, range(50))
    master = pair.wait_in_sync()
    slave = pair.other(master)
    pair.kill_both()
    shutil.rmtree(master.data)
    master.start()
    wait_until(lambda: master.stats().get("trouble", "") != "" or master.role == "learner", "it has read the record")
    slave.start()
    pair.wait_in_sync()
    assert pair.master is slave
    assert stored(pair) == list(range(50))
    assert pair.copies_are_equal()


@pytest.mark.parametrize("which", ["master", "slave"])
def test_an_older_copy_of_a_folder_never_leads(pair: PairProcesses, which: str, tmp_path: Path) -> None:
    """I8: the record has a boot that the copy does not know."""
    pair.start()
    put(pair, range(20))
    for member in pair.members:
        member.stop()
    for member in pair.members:
        shutil.copytree(member.data, tmp_path / "copies" / member.name)
    for member in pair.members:
        member.start()
    pair.wait_in_sync()
    put(pair, range(20, 60))
    master = pair.wait_in_sync()
    replaced = master if which == "master" else pair.other(master)
    other = pair.other(replaced)
    pair.kill_both()
    shutil.rmtree(replaced.data)
    shutil.copytree(tmp_path / "copies" / replaced.name, replaced.data)
    replaced.start()
    wait_until(lambda: replaced.stats().get("role") == "learner", "it has left the set")
    other.start()
    pair.wait_in_sync()
    assert pair.master is other
    assert stored(pair) == list(range(60))
    assert pair.copies_are_equal()


def test_a_folder_with_foreign_partitions_is_not_touched(pair: PairProcesses) -> None:
    """A broker that was no member is not made one over its own data."""
    ini = pair.write(pair.b)
    text = ini.read_text()
    alone = "\n".join(text.split("[pair]")[0].splitlines()) + "\n" + pair.extra
    ini.write_text(alone)
    pair.b.running = pair.start_broker("start", "-f", ini)
    with MetaQ(brokers=[str(pair.b.address)]) as mq:
        mq.producer().send("t", b"7")
    pair.b.stop()
    before = segment_bytes(pair.b.data)
    assert before
    # the other member has data too, and begins the pair
    ini = pair.write(pair.a)
    ini.write_text("\n".join(ini.read_text().split("[pair]")[0].splitlines()) + "\n" + pair.extra)
    pair.a.running = pair.start_broker("start", "-f", ini)
    with MetaQ(brokers=[str(pair.a.address)]) as mq:
        mq.producer().send("t", b"1")
    pair.a.stop()
    pair.a.start()
    pair.wait_master(pair.a)
    pair.b.start()
    wait_until(lambda: "never belonged to the pair" in pair.b.stats().get("trouble", ""), pair.states())
    put(pair, range(2, 10))
    assert segment_bytes(pair.b.data) == before
    pair.b.stop()
    pair.b.start()
    wait_until(lambda: "never belonged to the pair" in pair.b.stats().get("trouble", ""), "also after a restart")
    assert segment_bytes(pair.b.data) == before


def test_a_member_that_ran_without_its_pair_is_refused(pair: PairProcesses) -> None:
    """What it took alone has the epoch of what the other member took meanwhile."""
    pair.start()
    put(pair, range(10))
    slave = pair.other(pair.master)
    slave.stop()
    ini = pair.write(slave)
    ini.write_text(ini.read_text().split("[zookeeper]")[0] + pair.extra)  # there, its id would be taken
    slave.running = pair.start_broker("start", "-f", ini)
    with MetaQ(brokers=[str(slave.address)]) as mq:
        mq.producer().send("t", b"10")
    assert "used without [pair]" in slave.log()
    slave.stop()
    before = segment_bytes(slave.data)
    refused = run_broker_command("start", "-f", pair.write(slave))
    assert refused.returncode != 0
    assert "a broker without [pair] has used it since" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert segment_bytes(slave.data) == before
    shutil.rmtree(slave.data)
    slave.start()
    pair.wait_in_sync()
    assert stored(pair) == list(range(10))


def test_operators_go_back_to_a_backup(pair: PairProcesses, tmp_path: Path) -> None:
    """As docs/replication.md says: what was stored since is given up on purpose."""
    pair.start()
    put(pair, range(20))
    slave = pair.other(pair.master)
    slave.stop()
    shutil.copytree(slave.data, tmp_path / "backup")
    put(pair, range(20, 30))
    pair.other(slave).stop()
    for member in pair.members:
        shutil.rmtree(member.data)
    shutil.copytree(tmp_path / "backup", pair.a.data)
    for name in ("pair-member", "stream-epochs"):
        (pair.a.data / name).unlink()
    pair.zookeeper.client.delete(f"{pair.zookeeper.root}/pairs/3", recursive=True)
    pair.a.start()
    pair.wait_master(pair.a)
    pair.b.start()
    pair.wait_in_sync()
    assert stored(pair) == list(range(20))
    assert pair.copies_are_equal()
