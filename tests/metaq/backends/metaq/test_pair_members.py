"""An address of a member of a pair stands for the pair: sessions go to its master, whichever member that is."""

from __future__ import annotations

import pytest
from fix_client import MemoryCluster
from listeners import Listener

from metaq import MetaQ
from metaq.backends.metaq.pair_members import PairFacts, PairMembers
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import ConnectionFailed, DeadlineExceeded, DirectoryConflict, NotPairMaster
from metaq.model import Address, Partition, TopicPartition
from metaq.protocols.text.commands import Put, PutBatch, Stats
from metaq.testing.memory import MemoryBroker
from metaq.testing.memory_server import MemoryServer

ONE, TWO, THREE = (Address("127.0.0.1", 8123 + number) for number in range(3))
ALIAS = Address("localhost", TWO.port)


class Pair:
    """Two members in memory with one store, and a broker beside them. The first member is the master."""

    def __init__(self) -> None:
        brokers = [MemoryBroker({"t": 2}, broker_id=7), MemoryBroker({"t": 2}, broker_id=7)]
        brokers[1].partitions = brokers[0].partitions
        self.cluster = MemoryCluster(*brokers, MemoryBroker({"t": 1}, broker_id=2))
        self.cluster.transport.brokers[ALIAS] = brokers[1]
        self.pool, self.clock = self.cluster.pool, self.cluster.transport.clock
        self.elect(0, epoch=1)

    def elect(self, master: int | None, epoch: int) -> None:
        for number, other in ((0, TWO), (1, ONE)):
            self.cluster.brokers[number].pair = PairFacts(other, number == master, epoch)

    def kill(self, number: int) -> None:
        self.cluster.brokers[number].kill()

    def puts(self, number: int) -> int:
        return sum(isinstance(command, Put | PutBatch) for command in self.cluster.brokers[number].commands)


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.mark.parametrize("named", [[ONE, TWO, THREE], [TWO, ONE, THREE], [ONE, THREE]])
def test_a_list_with_both_members_is_one_broker(pair: Pair, named: list[Address]) -> None:
    directory = FixedDirectory(named, pair.pool)
    assert directory.brokers() == {7: ONE, 2: THREE}
    assert set(directory.writable("t").values()) == {ONE, THREE}
    pair.elect(1, epoch=2)
    assert directory.brokers() == {7: TWO, 2: THREE}
    assert set(directory.writable("t").values()) == {TWO, THREE}


@pytest.mark.parametrize("named", [[ONE, TWO], [TWO, ONE]])
def test_a_member_that_is_away_is_no_gap_while_the_other_one_is_the_master(pair: Pair, named: list[Address]) -> None:
    pair.kill(1)
    assert FixedDirectory(named, pair.pool).brokers() == {7: ONE}
    pair.elect(1, epoch=2)
    pair.kill(0)
    pair.cluster.brokers[1].start()
    assert FixedDirectory(named, pair.pool).brokers() == {7: TWO}


def test_without_a_master_a_list_says_so_and_can_be_asked_again(pair: Pair) -> None:
    directory = FixedDirectory([ONE, TWO], pair.pool)
    pair.elect(None, epoch=1)
    with pytest.raises(NotPairMaster, match=r"127.0.0.1:8123 refused stats: it is not the master of its pair, nor"):
        directory.brokers()
    assert NotPairMaster("a:1", "x", "y").retryable
    pair.elect(1, epoch=2)
    assert directory.brokers() == {7: TWO}


def test_a_member_that_still_believes_to_be_the_master_loses_to_the_later_epoch(pair: Pair) -> None:
    pair.elect(1, epoch=2)
    pair.cluster.brokers[0].pair = PairFacts(TWO, True, 1)
    _freeze(pair.cluster.brokers[0], Put, PutBatch)  # nobody acknowledges to it
    producer = Producer(FixedDirectory([ONE, TWO], pair.pool), pair.pool)
    producer.send("t", "1", partition=Partition(7, 0))
    assert pair.puts(1) == 1
    assert FixedDirectory([ONE, TWO], pair.pool).brokers() == {7: TWO}


def test_two_brokers_with_one_id_that_are_no_pair_stay_a_conflict(pair: Pair) -> None:
    pair.cluster.brokers[0].pair = pair.cluster.brokers[1].pair = None
    with pytest.raises(DirectoryConflict):
        FixedDirectory([ONE, TWO], pair.pool).brokers()


def test_a_read_finds_the_next_master(pair: Pair) -> None:
    directory = FixedDirectory([ONE, TWO], pair.pool)
    Producer(directory, pair.pool).send("t", "x", partition=Partition(7, 0))
    pair.kill(0)
    pair.elect(1, epoch=2)
    assert list(directory.available(["t"])) == [TopicPartition("t", Partition(7, 0))]
    assert directory.available_now(["t"]) == (directory.available(["t"]), {})
    assert directory.partitions("t") == {Partition(7, 0): TWO}


def test_a_producer_sends_on_to_the_next_master(pair: Pair) -> None:
    producer = Producer(FixedDirectory([ONE, TWO], pair.pool), pair.pool)
    producer.send("t", "1", partition=Partition(7, 0))
    pair.kill(0)
    pair.elect(1, epoch=2)
    producer.send("t", "2", partition=Partition(7, 0))
    assert (pair.puts(0), pair.puts(1)) == (1, 1)


def test_a_producer_waits_for_an_election(pair: Pair) -> None:
    producer = Producer(FixedDirectory([ONE, TWO], pair.pool), pair.pool)
    producer.send("t", "1", partition=Partition(7, 0))
    pair.elect(None, epoch=1)
    questions = []

    def elect_later(command: object) -> None:
        questions.append(command)
        if len(questions) == 20:
            pair.elect(1, epoch=2)

    pair.cluster.brokers[0].before_command = pair.cluster.brokers[1].before_command = elect_later
    producer.send("t", "2", partition=Partition(7, 0))
    assert pair.puts(1) >= 1


def test_a_producer_gives_up_a_frozen_master_when_the_other_one_was_elected(pair: Pair) -> None:
    """Long before the time of a request is over: a frozen broker closes no connection."""
    producer = Producer(FixedDirectory([ONE, TWO], pair.pool), pair.pool)
    producer.send("t", "1", partition=Partition(7, 0))

    _freeze(pair.cluster.brokers[0])
    pair.elect(1, epoch=2)
    began_s = pair.clock.monotonic()
    producer.send("t", "2", partition=Partition(7, 0))
    assert pair.puts(1) == 1
    assert pair.clock.monotonic() - began_s < 3


@pytest.mark.parametrize("named", [[ONE, TWO], [TWO, ONE], [ONE, THREE, TWO]])
def test_a_client_that_begins_with_a_frozen_member_does_not_wait_for_it(pair: Pair, named: list[Address]) -> None:
    """It was never told of a pair: it only has the addresses."""
    pair.elect(1, epoch=2)
    _freeze(pair.cluster.brokers[0])
    began_s = pair.clock.monotonic()
    directory = FixedDirectory(named, pair.pool)
    assert directory.brokers()[7] == TWO
    Producer(directory, pair.pool).send("t", "1", partition=Partition(7, 0))
    assert pair.puts(1) == 1
    assert pair.clock.monotonic() - began_s < 3


def test_a_silent_member_is_not_asked_what_kind_of_server_it_is() -> None:
    """Its successor has said so: the probes would take longer than finding that one."""
    with Listener(lambda connection: None) as silent, MemoryServer() as server:
        server.broker.pair = PairFacts(silent.address, True, 2)
        with MetaQ(brokers=[str(silent.address), str(server.address)]) as mq:
            mq.producer().send("t", "1")
            assert [message.data for message in mq.browse("t")] == [b"1"]
        assert len(silent.accepted) == 1


def test_a_broker_that_is_no_member_is_waited_for_and_nobody_else_is_asked(pair: Pair) -> None:
    directory = FixedDirectory([THREE, ONE, TWO], pair.pool)
    directory.brokers()
    _freeze(pair.cluster.brokers[2])
    asked = len(pair.cluster.brokers[0].commands), len(pair.cluster.brokers[1].commands)
    with pytest.raises(DeadlineExceeded), pair.pool.lease(THREE) as session:
        session.ask(Put("t", 0, b"x", 0, 0))
    assert (len(pair.cluster.brokers[0].commands), len(pair.cluster.brokers[1].commands)) == asked


def _freeze(broker: MemoryBroker, *kinds: type) -> None:
    """From now on it takes commands and answers none of these kinds; without kinds, none at all."""

    def swallow(replies: list[bytes]) -> None:
        if not kinds or isinstance(broker.commands[-1], kinds):
            replies.clear()

    broker.shuffle = swallow


def test_a_refused_session_is_followed_by_one_with_the_master(pair: Pair) -> None:
    """Whoever leases sessions, and however often: a member that refuses is not asked again while another one leads."""
    FixedDirectory([ONE, TWO], pair.pool).brokers()
    pair.elect(1, epoch=2)
    with pytest.raises(NotPairMaster), pair.pool.lease(ONE) as session:
        session.ask(Put("t", 0, b"x", 0, 0))
    with pair.pool.lease(ONE) as session:
        assert session.address == TWO
        session.ask(Put("t", 0, b"x", 0, 0))
    pair.elect(0, epoch=3)
    with pytest.raises(NotPairMaster), pair.pool.lease(ONE) as session:
        session.ask(Put("t", 0, b"x", 0, 0))
    with pair.pool.lease(TWO) as session:
        assert session.address == ONE


def test_a_session_that_was_told_of_no_pair_asks_the_member_that_refuses(pair: Pair) -> None:
    """As a task has it that ZooKeeper gave one address, and whose first request is refused."""
    pair.elect(1, epoch=2)
    with pair.pool.lease(ONE) as session:
        with pytest.raises(NotPairMaster):
            session.ask(Put("t", 0, b"x", 0, 0))
        session.reopen()
        assert session.address == TWO
        session.ask(Put("t", 0, b"x", 0, 0))


def test_other_names_of_a_member_are_the_same_server(pair: Pair) -> None:
    directory = FixedDirectory([ONE, ALIAS], pair.pool)
    assert directory.brokers() == {7: ONE}
    pair.kill(0)
    pair.elect(1, epoch=2)
    assert directory.brokers() == {7: ALIAS}  # the client's own name for it


def test_a_pool_that_knows_no_pair_asks_nobody(pair: Pair) -> None:
    with pytest.raises(ConnectionFailed), pair.pool.lease(Address("127.0.0.1", 9)):
        pass
    assert pair.cluster.transport.connections == 0


def test_a_later_epoch_is_not_forgotten() -> None:
    asked: dict[Address, PairFacts | None] = {}
    members = PairMembers(asked.get)
    members.note_facts(TWO, PairFacts(ONE, True, 5))
    members.note_facts(ONE, PairFacts(TWO, True, 4))
    assert members.current(ONE) == members.current(TWO) == TWO
    members.forget(ONE)  # it is not the known master, so nothing changes
    assert members.current(ONE) == TWO
    members.forget(TWO)
    assert members.current(ONE) == ONE
    asked[TWO] = PairFacts(ONE, True, 6)
    assert members.look(ONE) == TWO


def test_stats_are_answered_by_every_member(pair: Pair) -> None:
    with pair.pool.lease(TWO) as session:
        assert "slave true" in session.ask(Stats("", 0))
        with pytest.raises(NotPairMaster, match="NotMaster: ask the other one"):
            session.ask(Put("t", 0, b"x", 0, 0))
        assert session.closed
