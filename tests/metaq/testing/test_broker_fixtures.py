"""One contract for the brokers that users' tests are given: the process and the one in memory."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from leaks import threads_end

from metaq import AsyncMetaQ, MetaQ
from metaq.client.groups.deliveries import Delivery
from metaq.client.offsets import file
from metaq.client.records import Sent
from metaq.errors import BrokerError, ConnectionFailed, MetaqError, SendFailed, TransactionNotFound
from metaq.model import Message, Partition
from metaq.testing.broker_process import BrokerNotReady, BrokerProcess
from metaq.testing.local_broker import LocalBroker
from metaq.testing.memory_server import MemoryServer
from metaq.testing.rocketmq_server import ScriptedCluster

QUICK = {"poll_max_s": 0.05, "retry_max_s": 0.01}


@pytest.fixture(params=["metaq_memory", pytest.param("metaq_broker", marks=pytest.mark.process)])
def broker(request: pytest.FixtureRequest) -> LocalBroker:
    made: LocalBroker = request.getfixturevalue(request.param)
    return made


def test_each_test_finds_a_running_broker_without_topics(broker: LocalBroker) -> None:
    """Run first: what the tests below leave is gone, too, when they come before it."""
    assert broker.running
    assert broker.client().cluster.topics() == {}


def test_messages_are_sent_browsed_and_described(broker: LocalBroker) -> None:
    with MetaQ(broker.cluster) as mq:
        sent = mq.producer().send_many("orders", ["one", Message(b"two", attribute="created")])
        assert [one.data for one in mq.browse("orders")] == [b"one", b"two"]
        found = list(mq.browse("orders", start={sent[1].partition: sent[1].offset}))
        assert [(one.offset, one.message_id, one.attribute) for one in found] == [
            (sent[1].offset, sent[1].message_id, "created")
        ]
        (partition,) = mq.cluster.describe("orders")
        assert (partition.address, partition.partition, partition.messages) == (broker.address, Partition(0, 0), 2)
        assert list(mq.cluster.topics()) == ["orders"]
        assert mq.cluster.brokers() == {0: broker.address}


def test_a_browser_ends_where_it_is_asked_to(broker: LocalBroker) -> None:
    mq = broker.client()
    first, second, _ = mq.producer().send_many("orders", ["a", "b", "c"])
    stop = {first.partition: second.offset}
    assert [one.data for one in mq.browse("orders", end=stop)] == [b"a"]
    assert [one.data for one in mq.browse("orders", start=stop, end=stop)] == []
    assert [one.data for one in mq.browse("orders", end=0)] == [], "all came after 1970"
    future = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    assert [one.data for one in mq.browse("orders", end=future)] == [b"a", b"b", b"c"]
    assert len(list(mq.browse("orders", end={first.partition: 1 << 40}))) == 3
    with pytest.raises(ValueError, match=f"no message begins at offset {second.offset + 1}"):
        list(mq.browse("orders", end={first.partition: second.offset + 1}))
    with pytest.raises(ValueError, match="has no partition 7-7"):
        list(mq.browse("orders", end={Partition(7, 7): 0}))
    with pytest.raises(ValueError, match="end and follow"):
        mq.browse("orders", end=future, follow=True)


def test_times_of_messages_are_the_clocks(broker: LocalBroker) -> None:
    mq, before = broker.client(), datetime.now(UTC) - timedelta(seconds=5)
    (sent,) = mq.producer().send_many("orders", ["now"])
    (message,) = mq.browse("orders", start=int(before.timestamp() * 1000))
    assert message.timestamp_ms is not None
    assert abs(message.timestamp_ms / 1000 - datetime.now(UTC).timestamp()) < 60
    later = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    assert mq.cluster.offsets_at("orders", later) == {sent.partition: message.end}


def test_futures_are_settled_by_the_acknowledgement(broker: LocalBroker) -> None:
    with broker.client().producer(linger_s=0.001) as producer:
        futures = [producer.submit("orders", b"%d" % number) for number in range(500)]
        offsets = [future.result(60).offset for future in futures]
    assert offsets == sorted(set(offsets))
    assert [one.data for one in broker.client().browse("orders")] == [b"%d" % number for number in range(500)]


def test_a_group_goes_on_from_offsets_in_a_file(broker: LocalBroker, tmp_path: Path) -> None:
    mq, offsets = broker.client(), file(tmp_path / "offsets.json")
    mq.producer().send_many("orders", list("abc"))
    with mq.consumer("billing", ["orders"], offsets=offsets, **QUICK) as consumer:
        assert [one.data for one in consumer.fetch(1, timeout=10)] == [b"a"]
        consumer.commit()
    mq.producer().send("orders", "d")
    with mq.consumer("billing", ["orders"], offsets=offsets, **QUICK) as consumer:
        found: list[bytes] = []
        while b"d" not in found:
            found += [one.data for one in consumer.fetch(timeout=10)]
    assert found[-1] == b"d"
    assert b"a" not in found


def test_without_a_storage_offsets_are_at_a_broker_that_keeps_groups_else_in_a_folder_of_the_test(
    broker: LocalBroker, metaq_state: Path
) -> None:
    mq = broker.client()
    mq.producer().send("orders", "a")
    with mq.consumer("billing", ["orders"], **QUICK) as consumer:
        assert [one.data for one in consumer.fetch(timeout=10)] == [b"a"]
    with mq.consumer("billing", ["orders"], **QUICK) as consumer:
        assert consumer.fetch(timeout=0.1) == []
    assert bool(list(metaq_state.rglob("offsets.sqlite"))) == isinstance(broker, MemoryServer)


def test_a_handler_that_raises_is_called_again_and_the_message_parked(broker: LocalBroker) -> None:
    mq = broker.client()
    mq.producer().send_many("orders", ["bad", "good"])
    seen: list[tuple[bytes, int]] = []

    def handle(message: Delivery) -> None:
        seen.append((message.data, message.attempt))
        if message.data == b"bad":
            raise ValueError("no")
        consumer.stop()

    with mq.consumer("g", ["orders"], max_attempts=2, **QUICK) as consumer:
        consumer.run(handle)
        assert [one.message.data for one in consumer.parked] == [b"bad"]
    assert seen == [(b"bad", 1), (b"bad", 2), (b"good", 1)]


def test_types_are_filtered(broker: LocalBroker) -> None:
    mq = broker.client()
    for number in range(4):
        mq.producer().send("orders", str(number), attribute="even" if number % 2 == 0 else "odd")
    with mq.consumer("g", ["orders"], types=["even"], **QUICK) as consumer:
        found: list[bytes] = []
        while len(found) < 2:
            found += [one.data for one in consumer.fetch(timeout=10)]
    assert found == [b"0", b"2"]


def test_transactions_are_all_or_nothing(broker: LocalBroker) -> None:
    mq = broker.client()
    with mq.producer().transaction() as transaction:
        transaction.send("orders", "both")
        transaction.send("orders", "or none")
        assert list(mq.browse("orders")) == []
    with pytest.raises(ZeroDivisionError), mq.producer().transaction() as transaction:
        _fail(transaction.send("orders", "never"))
    assert [one.data for one in mq.browse("orders")] == [b"both", b"or none"]


def _fail(sent: Sent) -> None:
    assert sent.offset == -1, "it has none before the commit"
    raise ZeroDivisionError


def test_a_prepared_branch_survives_a_kill_and_another_one_does_not(broker: LocalBroker) -> None:
    with broker.client() as mq:
        with mq.xa(b"transfer", b"orders", unique="test") as branch:
            branch.send("orders", "in two phases")
            branch.prepare()
        broker.kill()
        broker.start()
    with broker.client() as mq:
        (prepared,) = mq.prepared("test")
        assert mq.prepared("another") == []
        mq.commit(prepared.xid)
        assert [one.data for one in mq.browse("orders")] == [b"in two phases"]
        with pytest.raises(TransactionNotFound):
            mq.commit(prepared.xid)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_while_it_is_away_clients_are_refused_and_nothing_is_lost(broker: LocalBroker, end: str) -> None:
    mq, address = broker.client(), broker.address
    mq.producer().send("orders", "before")
    getattr(broker, end)()
    assert not broker.running
    with pytest.raises(MetaqError, match=str(address)) as failed:
        mq.producer().send("orders", "lost")
    assert failed.value.retryable
    with pytest.raises(ConnectionFailed):
        mq.cluster.brokers()
    broker.start()
    assert broker.address == address
    mq.producer().send("orders", "after")
    assert [one.data for one in mq.browse("orders")] == [b"before", b"after"]


def test_a_consumer_reads_on_over_a_restart_without_repeats(broker: LocalBroker) -> None:
    mq = broker.client()
    mq.producer().send("orders", "a")
    with mq.consumer("g", ["orders"], **QUICK) as consumer:
        assert [one.data for one in consumer.fetch(timeout=10)] == [b"a"]
        broker.restart()
        mq.producer().send("orders", "b")
        assert [one.data for one in consumer.fetch(timeout=20)] == [b"b"]


def test_what_cannot_be_sent_is_an_error_and_nothing_is_stored(broker: LocalBroker) -> None:
    mq = broker.client()
    with pytest.raises((BrokerError, SendFailed, ValueError), match="17"):
        mq.producer().send("orders", "x", partition=Partition(0, 17))
    with pytest.raises(TypeError):
        mq.producer().send("orders", 5)  # type: ignore[arg-type]
    assert list(mq.browse("orders")) == []


def test_a_body_that_is_too_long_is_refused_and_the_next_one_is_not(broker: LocalBroker) -> None:
    """Alone, among others, in a transaction, and in the background: one sentence with the limit."""
    mq, long, limit = broker.client(), b"x" * (5 << 20), str(4 << 20)
    producer = mq.producer()
    with pytest.raises(SendFailed, match=limit) as failed:
        producer.send("orders", long)
    assert not failed.value.retryable
    with pytest.raises(SendFailed, match=limit):
        producer.send_many("orders", ["before", long, "behind"])
    assert limit in str(producer.submit("orders", long).exception(20))
    assert long not in [one.data for one in mq.browse("orders")]
    assert producer.send("orders", b"y" * (4 << 20)).offset >= 0


def test_asyncio_has_the_same(broker: LocalBroker) -> None:
    async def main() -> list[bytes]:
        async with AsyncMetaQ(broker.cluster) as mq, mq.producer() as producer:
            await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(20)))
            async with mq.consumer("g", ["orders"], **QUICK) as consumer:
                found: list[bytes] = []
                while len(found) < 20:
                    found += [one.data for one in await consumer.fetch(timeout=10)]
                return found

    assert sorted(asyncio.run(main()), key=int) == [b"%d" % number for number in range(20)]


def test_several_threads_use_one_client(broker: LocalBroker) -> None:
    mq = broker.client()
    threads = [
        threading.Thread(target=lambda name=name: mq.producer().send_many("orders", [f"{name}{n}" for n in range(50)]))
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = [one.data.decode() for one in mq.browse("orders")]
    assert {name: [text for text in found if text[0] == name] for name in "abcd"} == {
        name: [f"{name}{n}" for n in range(50)] for name in "abcd"
    }


class TestMemory:
    def test_commands_are_noted_and_the_broker_dies_at_a_chosen_one(self, metaq_memory: MemoryServer) -> None:
        mq = metaq_memory.client()
        mq.producer().send("orders", "a")
        state = metaq_memory.broker
        assert "PutBatch" in {type(command).__name__ for command in state.commands}
        state.before_command = lambda command: state.kill()
        with pytest.raises(MetaqError):
            mq.producer().send("orders", "its acknowledgement is lost")
        state.before_command = lambda command: None
        metaq_memory.restart()
        assert mq.producer().send("orders", "c").partition == Partition(0, 0)

    def test_clear_forgets_everything(self, metaq_memory: MemoryServer) -> None:
        mq = metaq_memory.client()
        mq.producer().send("orders", "a")
        metaq_memory.clear()
        assert mq.cluster.topics() == {}

    def test_nothing_is_left_when_it_is_closed(self) -> None:
        with threads_end(), MemoryServer() as server:
            server.client().producer().send("orders", "a")
        assert not server.running


@pytest.mark.process
class TestProcess:
    def test_one_log_for_both_systems(self, metaq_broker: BrokerProcess) -> None:
        metaq_broker.client().producer().send("orders", "from MetaQ")
        assert [one.data for one in metaq_broker.rocketmq().browse("orders")] == [b"from MetaQ"]

    def test_clear_takes_everything_away_and_does_not_start_another_process(self, metaq_broker: BrokerProcess) -> None:
        mq, rocketmq = metaq_broker.client(), metaq_broker.rocketmq()
        mq.producer().send("orders", "a")
        rocketmq.producer().send("others", "b", tag="hot")
        with mq.xa(b"transfer", b"orders", unique="test") as branch:
            branch.send("orders", "prepared")
            branch.prepare()
        process = metaq_broker.pid
        metaq_broker.clear()
        assert (mq.cluster.topics(), rocketmq.cluster.topics(), mq.prepared()) == ({}, {}, [])
        assert mq.producer().send("orders", "anew").offset == 0
        assert metaq_broker.pid == process

    def test_a_start_that_fails_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("a file in the way")
        broker = BrokerProcess(tmp_path)
        with pytest.raises(BrokerNotReady, match=r"(?s)did not get ready.*data"):
            broker.start()
        assert not broker.running

    def test_it_ends_with_the_program_that_started_it(self, metaq_broker: BrokerProcess) -> None:
        process = metaq_broker._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.process
def test_rocketmq_in_memory_and_in_the_process_are_the_same_to_a_client(
    rocketmq_memory: ScriptedCluster, metaq_broker: BrokerProcess
) -> None:
    rocketmq_memory.create_topic("orders", queues=2)
    for client in (metaq_broker.rocketmq(), rocketmq_memory.client()):
        with client as mq:
            sent = mq.producer().send("orders", "one tea", tag="hot")
            (message,) = mq.browse("orders")
            assert (message.data, message.tag, message.offset) == (b"one tea", "hot", sent.offset)
