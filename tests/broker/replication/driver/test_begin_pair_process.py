"""``metaq-broker begin-pair``: when it is refused, and what a pair has that was begun anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fix_broker import StartBroker, run_broker_command, wait_until, write_ini
from fix_zookeeper import ZooKeeperRoot
from pair_processes import PairProcess, PairProcesses, put, running_pair, segment_bytes, stored

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    return running_pair(tmp_path, zookeeper, start_broker, messages=20)


def begin(file: Path, *arguments: str) -> tuple[int, str]:
    """Run the command; return its status, and what it prints."""
    done = run_broker_command("begin-pair", "-f", file, *arguments)
    return done.returncode, (done.stdout or done.stderr.removeprefix("metaq-broker: ")).strip()


def is_alive(pair: PairProcesses) -> bool:
    root = pair.zookeeper
    return bool(root.client.get_children(f"{root.root}/pairs/3/live"))


def member_files(member: PairProcess) -> set[str]:
    return {path.name for path in member.data.glob("*") if path.name in ("pair-member", "stream-epochs")}


def stop_both(pair: PairProcesses) -> None:
    for member in pair.members:
        member.stop()
    wait_until(lambda: not is_alive(pair), "both sessions have ended")


def test_a_lost_record_and_the_data_of_one_member(pair: PairProcesses) -> None:
    stop_both(pair)
    root = pair.zookeeper
    root.client.delete(f"{root.root}/pairs", recursive=True)
    kept, emptied = pair.members
    kept.start()
    wait_until(lambda: kept.stats().get("trouble", "") != "", "it does not lead without the record")
    kept.stop()
    file = pair.write(kept)
    status, said = begin(file)
    assert (status, said) == (
        0,
        f"broker 3 begins its pair with {kept.data}: start it, and then the other member, with an empty data folder",
    )
    assert begin(file)[0] == 0, "it may be repeated"
    shutil.rmtree(emptied.data)
    kept.start()
    pair.wait_master(kept)
    emptied.start()
    pair.wait_in_sync()
    assert stored(pair) == list(range(20))
    put(pair, range(20, 40))
    wait_until(pair.copies_are_equal, "equal copies")
    assert stored(pair) == list(range(40))


def test_going_back_to_a_backup(pair: PairProcesses, tmp_path: Path) -> None:
    stop_both(pair)
    shutil.copytree(pair.a.data, tmp_path / "backup")
    for member in pair.members:
        member.start()
    pair.wait_in_sync()
    put(pair, range(20, 40))
    stop_both(pair)
    for member in pair.members:
        shutil.rmtree(member.data)
    shutil.copytree(tmp_path / "backup", pair.a.data)
    assert begin(pair.write(pair.a))[0] == 0
    pair.a.start()
    pair.wait_master(pair.a)
    pair.b.start()
    pair.wait_in_sync()
    assert stored(pair) == list(range(20))


def test_it_is_refused_while_a_member_may_lead(pair: PairProcesses) -> None:
    root, lead = pair.zookeeper, pair.master
    other = pair.other(lead)
    file = pair.write(other)
    assert begin(file) == (1, f"a broker is using {other.data}; stop it first")
    other.stop()
    wait_until(lambda: lead.stats()["in_sync"] == str(lead.address), "the record has the one that is left")
    before = root.text("/pairs/3"), member_files(other), segment_bytes(other.data)
    alive = "a member of the pair is alive in ZooKeeper; stop both, and wait for the end of its session"
    assert begin(file) == begin(file, "--other-is-gone") == (1, alive)
    lead.freeze()
    wait_until(lambda: begin(file) != (1, alive), "the session of the frozen one has ended")
    assert begin(file) == (1, f"a process listens at {lead.address}, the address of a member; stop it first")
    assert (root.text("/pairs/3"), member_files(other), segment_bytes(other.data)) == before, "nothing was changed"
    lead.kill()
    assert begin(file)[0] == 0
    assert member_files(other) == set()
    assert root.text("/pairs/3") is None
    assert segment_bytes(other.data) == before[2]


def test_a_host_that_does_not_answer_is_named(pair: PairProcesses, tmp_path: Path) -> None:
    stop_both(pair)
    file = pair.write(pair.a)
    file.write_text(file.read_text().replace(f"other={pair.b.address}", "other=nowhere.invalid:8123"))
    status, said = begin(file)
    assert status == 1
    assert said.startswith("it is not known whether the member at nowhere.invalid:8123 is stopped (")
    assert begin(file, "--other-is-gone")[0] == 0


def test_a_broker_that_is_no_member(tmp_path: Path, zookeeper: ZooKeeperRoot) -> None:
    topic = "[topic=t]\n"
    file = write_ini(tmp_path, zookeeper.ini() + topic, brokerId=3)
    assert begin(file) == (1, "its server.ini has no section [pair]")
    file = write_ini(tmp_path, f"{zookeeper.ini()}[pair]\nother=127.0.0.1:1\n{topic}", brokerId=3)
    folder = next(line.removeprefix("dataPath=") for line in file.read_text().splitlines() if "dataPath" in line)
    assert begin(file) == (1, f"{folder} does not exist: there is nothing to begin a pair with")
