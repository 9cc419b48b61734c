"""Real broker processes and a real ZooKeeper: a pair whose members are killed, frozen, cut off and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import StartBroker, run_broker_command, wait_until
from fix_zookeeper import ZooKeeperRoot
from pair_processes import Load, PairProcess, PairProcesses, segment_bytes

from metaq import MetaQ
from metaq.model import Message, Xid
from metaq.protocols.text.commands import TransactionCommand
from metaq.protocols.text.encode import encode

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    return PairProcesses(tmp_path, zookeeper, start_broker)


def ctl(member: PairProcess, *arguments: str) -> tuple[int, str]:
    """Run ``metaq-broker ctl``; return its status, and what it prints."""
    done = run_broker_command("ctl", "--data", member.data, *arguments)
    return done.returncode, (done.stdout or done.stderr.removeprefix("metaq-broker: ")).strip()


def stored(brokers: list[str]) -> list[int]:
    with MetaQ(brokers=brokers) as mq:
        return [int(message.data) for message in mq.browse("t")]


def test_two_members_become_a_pair(pair: PairProcesses) -> None:
    pair.start()
    master, slave = pair.master, pair.other(pair.master)
    assert slave.role == "in_sync_slave"
    assert slave.stats()["master"] == str(master.address)
    client = slave.running.client()  # type: ignore[union-attr]
    code, text = client.result(b"put t 0 1 0 1\r\nx")
    assert (code, text) == (403, f"NotMaster: the master of the pair is {master.address}")
    assert client.result(b"offset t g 0 0 1\r\n")[0] == 403
    with MetaQ(brokers=pair.brokers) as mq:
        mq.producer().send_many("t", [Message(b"%d" % number) for number in range(100)])
    wait_until(pair.copies_are_equal, "equal copies")
    assert sorted(stored(pair.brokers)) == list(range(100))


def test_a_killed_master_loses_nothing_and_comes_back_as_the_slave(pair: PairProcesses) -> None:
    pair.start()
    with Load(pair.brokers) as load:
        for _ in range(3):
            load.wait_for_more()
            master = pair.wait_in_sync()  # else the slave may not lead
            slave = pair.other(master)
            master.kill()
            pair.wait_master(slave)
            load.wait_for_more()
            master.start()
            pair.wait_in_sync()
    assert load.errors == []
    found = stored(pair.brokers)
    assert set(load.acknowledged) <= set(found)
    wait_until(pair.copies_are_equal, "equal copies")


def test_a_frozen_master_is_replaced_and_follows_when_it_is_thawed(pair: PairProcesses) -> None:
    pair.start()
    with Load(pair.brokers) as load:
        load.wait_for_more()
        master = pair.wait_in_sync()
        slave = pair.other(master)
        master.freeze()
        pair.wait_master(slave)
        load.wait_for_more()
        master.thaw()
        pair.wait_in_sync()
        load.wait_for_more()
    assert pair.master is slave
    assert set(load.acknowledged) <= set(stored(pair.brokers))
    assert load.errors == []
    wait_until(pair.copies_are_equal, "equal copies")


def test_a_killed_slave_leaves_the_set(pair: PairProcesses) -> None:
    pair.start()
    master = pair.master
    with Load(pair.brokers) as load:
        load.wait_for_more()
        pair.other(master).kill()
        load.wait_for_more()
        assert master.stats()["in_sync"] == str(master.address)
        pair.other(master).start()
        pair.wait_in_sync()
        load.wait_for_more()
    assert load.errors == []
    assert pair.master is master
    wait_until(pair.copies_are_equal, "equal copies")


def test_a_pair_in_sync_goes_on_without_zookeeper(pair: PairProcesses) -> None:
    pair.start()
    with Load(pair.brokers) as load:
        load.wait_for_more()
        pair.zookeeper.server.freeze()
        wait_until(lambda: "trouble" in pair.master.stats(), "trouble")
        load.wait_for_more(200)
        pair.zookeeper.server.thaw()
        pair.wait_in_sync()
        load.wait_for_more()
    assert set(load.acknowledged) <= set(stored(pair.brokers))


def test_both_are_killed_and_the_one_in_sync_leads(pair: PairProcesses) -> None:
    pair.start()
    with Load(pair.brokers) as load:
        load.wait_for_more()
        alone = pair.master
        pair.other(alone).kill()
        load.wait_for_more()
        alone.kill()
        pair.other(alone).start()
        wait_until(lambda: pair.other(alone).role == "learner", "a learner")
        alone.start()
        pair.wait_in_sync()
        assert pair.master is alone
        load.wait_for_more()
    assert set(load.acknowledged) <= set(stored(pair.brokers))
    wait_until(pair.copies_are_equal, "equal copies")


def test_a_stopped_master_hands_over(pair: PairProcesses) -> None:
    pair.start()
    with Load(pair.brokers) as load:
        load.wait_for_more()
        master = pair.wait_in_sync()
        master.stop()
        pair.wait_master(pair.other(master))
        load.wait_for_more()
    assert load.errors == []
    assert set(load.acknowledged) <= set(stored(pair.brokers))


def test_a_master_whose_slave_hangs_can_be_stopped(
    tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker
) -> None:
    """Nobody confirms what it has stored, so nothing may wait for that."""
    pair = PairProcesses(tmp_path, zookeeper, start_broker, answerTimeoutMs=60_000)  # longer than a hand-over takes
    pair.start()
    master = pair.master
    slave = pair.other(master)
    assert master.running is not None
    client = master.running.client()
    assert client.result(b"put t 0 1 0 1\r\nx")[0] == 200
    slave.freeze()
    try:
        client.socket.sendall(b"put t 0 3 0 2\r\nyes")
        wait_until(lambda: b"yes" in b"".join(segment_bytes(master.data).values()), "the message is stored")
        master.stop()
        assert client.socket.recv(1) == b""
    finally:
        slave.thaw()
    pair.wait_master(slave)


@pytest.fixture
def strict(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    return PairProcesses(tmp_path, zookeeper, start_broker, minInSync=2)


def test_with_two_required_nothing_is_taken_alone(strict: PairProcesses) -> None:
    strict.start()
    master = strict.master
    strict.other(master).kill()
    wait_until(lambda: master.stats()["in_sync"] == str(master.address), "alone")
    client = master.running.client()  # type: ignore[union-attr]
    code, text = client.result(b"put t 0 1 0 1\r\nx")
    assert code == 500
    assert text.endswith("Slave is disconnected 1 of 2 required members are in sync (minInSync)")
    strict.other(master).start()
    strict.wait_in_sync()
    wait_until(lambda: client.result(b"put t 0 1 0 1\r\nx")[0] == 200, "puts are taken again")


def test_prepared_branches_survive_an_election(pair: PairProcesses) -> None:
    """The journal is replicated as a partition is: the new master commits what the old one has prepared."""
    pair.start()
    with MetaQ(brokers=pair.brokers) as mq:
        branches = [mq.xa(b"tx-%d" % number, b"b", unique="test") for number in range(3)]
        for number, branch in enumerate(branches):
            branch.send("t", b"%d" % number)
            assert branch.prepare()
        mq.commit(branches[0].xid)
        master = pair.wait_in_sync()
        master.kill()
        pair.wait_master(pair.other(master))
        wait_until(lambda: stored(pair.brokers) == [0], "what was committed is there")
        assert {prepared.xid for prepared in mq.prepared("test")} == {branch.xid for branch in branches[1:]}
        mq.commit(branches[1].xid)
        mq.rollback(branches[2].xid)
        assert sorted(stored(pair.brokers)) == [0, 1]
        master.start()
        pair.wait_in_sync()
        pair.master.kill()
        pair.wait_master(master)
        assert sorted(stored(pair.brokers)) == [0, 1]
        assert mq.prepared("test") == []


BRANCH = Xid(1, b"transaction", b"branch", "job")
QUESTIONS = {
    "prepared branches": TransactionCommand(None, "s", "RECOVER", 1, None, "job"),
    "newest decision": TransactionCommand(None, "s", "DECIDED", 1, None, "job"),
    "commit of an unknown branch": TransactionCommand(BRANCH, "s", "COMMIT_TWO_PHASE", 1),
    "rollback of an unknown branch": TransactionCommand(BRANCH, "s", "ROLLBACK", 1),
}


def test_a_thawed_master_says_nothing_of_transactions(pair: PairProcesses) -> None:
    """It does not know the branch that was prepared at its successor: who believes that takes the branch for ended."""
    pair.start()
    master = pair.wait_in_sync()
    clients = {question: master.running.client() for question in QUESTIONS}  # type: ignore[union-attr]
    assert clients["prepared branches"].result(encode(QUESTIONS["prepared branches"])) == (200, "")
    master.freeze()
    for question, client in clients.items():
        client.send(encode(QUESTIONS[question]))
    pair.wait_master(pair.other(master))
    with MetaQ(brokers=[str(pair.other(master).address)]) as mq:
        branch = mq.producer().xa(BRANCH)
        branch.send("t", b"m")
        assert branch.prepare()
    master.thaw()
    assert {question: client.rest() for question, client in clients.items()} == dict.fromkeys(QUESTIONS, b"")
    pair.wait_in_sync()
    with MetaQ(brokers=pair.brokers) as mq:
        assert [prepared.xid for prepared in mq.prepared("job")] == [branch.xid]
        mq.commit(branch.xid)
        assert [message.data for message in mq.browse("t")] == [b"m"]


@pytest.fixture
def lasting(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    """A pair whose sessions do not end because a busy machine pauses."""
    return PairProcesses(tmp_path, zookeeper, start_broker, sessionMs=30_000)


def is_switched(master: PairProcess, slave: PairProcess) -> bool:
    """Switch; return whether the slave was elected. A busy machine may not do that within a second."""
    status, text = ctl(master, "switch")
    if status == 0:
        assert text == f"handed over; the master is {slave.address}"
        return True
    assert slave.role == "master" or "was not elected within a second" in text, text
    return slave.role == "master"


def test_a_switch_by_an_operator(lasting: PairProcesses) -> None:
    pair = lasting
    pair.start()
    with Load(pair.brokers) as load:
        load.wait_for_more()
        master = pair.wait_in_sync()
        slave = pair.other(master)
        assert ctl(slave, "switch") == (1, f"this member is not the master; the master of the pair is {master.address}")
        status, text = ctl(slave, "delete", "t", "0", "--force")
        assert (status, f"the master of the pair is {master.address}; what is deleted there" in text) == (1, True), text
        wait_until(lambda: is_switched(master, slave), "the slave is elected")
        pair.wait_in_sync()
        load.wait_for_more()
    assert pair.master is slave
    assert load.errors == []
    assert max(load.pauses_s) < 15, "half a session: nobody has waited for its end"
    assert set(load.acknowledged) <= set(stored(pair.brokers))


def test_a_member_leaves_and_joins(pair: PairProcesses) -> None:
    pair.start()
    master = pair.master
    slave = pair.other(master)
    assert ctl(slave, "leave") == (0, "this member leaves the set in sync; `join` brings it back")
    wait_until(lambda: master.stats()["in_sync"] == str(master.address), "alone")
    assert ctl(master, "switch")[0] == 1
    assert ctl(slave, "join") == (0, "this member joins the set in sync when it has everything")
    pair.wait_in_sync()


def test_what_an_operator_sees(lasting: PairProcesses) -> None:
    pair = lasting
    pair.start()
    status = ctl(pair.master, "status")[1]
    assert f"epoch 1, master {pair.master.address}, other member {pair.other(pair.master).address}" in status
    assert f"in sync        {', '.join(sorted(pair.brokers))}; minInSync 1" in status
    assert "NOT REPLICATED" not in status
    pair.other(pair.master).kill()
    wait_until(lambda: "NOT REPLICATED" in ctl(pair.master, "status")[1], "alone")
