"""Consumers of a group of RocketMQ's against the bundled broker in a process: what they read, settle and hand over."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from fix_broker import wait_until

from metaq import AsyncRocketMQ
from metaq.backends.rocketmq.pool import SessionPool
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.group_consumer import RocketGroupConsumer
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.errors import ConsumerIdInUse, PartitionLost, TopicNotFound
from metaq.model import Address, Partition, TopicPartition
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.offsets import ResetOffset
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process

QUEUES = 4
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), partitions=QUEUES) as made:
        yield made


@pytest.fixture
def mq(broker: BrokerProcess) -> Iterator[RocketMQ]:
    with RocketMQ(broker.name_servers) as made:
        yield made


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses; the group of the same name, too."""
    return f"topic-{next(_numbers)}"


def send(mq: RocketMQ, topic: str, *texts: str, tag: str | None = None) -> None:
    producer = mq.producer()
    for text in texts:
        producer.send(topic, text, tag=tag)


def read(consumer: RocketGroupConsumer, count: int) -> list[RocketDelivery]:
    """Take messages until there are so many."""
    found: list[RocketDelivery] = []

    def enough() -> bool:
        found.extend(consumer.fetch(count - len(found), timeout=0.2))
        return len(found) >= count

    wait_until(enough, f"{count} messages are read")
    return found


def texts(messages: list[RocketDelivery]) -> list[str]:
    return sorted(one.data.decode() for one in messages)


def test_a_group_goes_on_where_it_was(mq: RocketMQ, topic: str) -> None:
    send(mq, topic, "one", "two", "three")
    with mq.consumer(topic, [topic]) as consumer:
        assert texts(read(consumer, 3)) == ["one", "three", "two"]
        consumer.commit()
        assert set(consumer.lag().values()) == {0}
        assert {where.partition for where in consumer.assignment if where.topic == topic} == {
            Partition("metaq", index) for index in range(QUEUES)
        }
    send(mq, topic, "four")
    with mq.consumer(topic, [topic]) as consumer:
        (message,) = consumer.fetch(timeout=60)
        assert (message.topic, message.data, message.attempt, message.reconsume_times) == (topic, b"four", 1, 0)
    assert {one.messages_behind for one in mq.cluster.lag(topic, [topic])} == {0}


def test_what_waits_at_the_broker_comes_at_once(mq: RocketMQ, topic: str) -> None:
    send(mq, topic, "one")
    with mq.consumer(topic, [topic]) as consumer:
        read(consumer, 1)
        for number in range(5):
            send(mq, topic, f"m{number}")
            (message,) = consumer.fetch(timeout=60)
            assert message.data == f"m{number}".encode()


def test_two_members_divide_the_queues_and_hand_them_over(mq: RocketMQ, topic: str) -> None:
    send(mq, topic, *map(str, range(20)))
    changes: list[tuple[str, set[TopicPartition]]] = []
    options = {
        "on_assigned": lambda queues: changes.append(("assigned", set(queues))),
        "on_revoked": lambda queues: changes.append(("revoked", set(queues))),
    }
    with mq.consumer(topic, [topic], consumer_id="a", **options) as first:  # type: ignore[arg-type]
        assert len(read(first, 20)) == 20
        first.fetch(timeout=0.0)  # settles the last of them
        with mq.consumer(topic, [topic], consumer_id="b") as second:
            wait_until(lambda: not first.fetch(timeout=0.1) and len(_own(first, topic)) == 2, "the first gives two up")
            wait_until(lambda: not second.fetch(timeout=0.1) and len(_own(second, topic)) == 2, "the second has two")
            assert [one.partition.index for one in _own(first, topic)] == [0, 1]
            assert [one.partition.index for one in _own(second, topic)] == [2, 3]
            send(mq, topic, *map(str, range(20, 28)))
            got = read(second, 4) + read(first, 4)
            assert texts(got) == sorted(map(str, range(20, 28)))
        wait_until(lambda: not first.fetch(timeout=0.1) and len(_own(first, topic)) == 4, "the first has all again")
        kinds = [kind for kind, _ in changes]
        assert kinds == ["assigned", "revoked", "assigned"]
        assert not first.fetch(timeout=0.2)  # nothing comes twice


def _own(consumer: RocketGroupConsumer, topic: str) -> list[TopicPartition]:
    return [where for where in consumer.assignment if where.topic == topic]


def test_a_message_in_hand_keeps_its_queue_until_it_is_settled(mq: RocketMQ, topic: str) -> None:
    mq.producer().send_many(topic, ["x", "y"], partition=Partition("metaq", 3))
    with mq.consumer(topic, [topic], consumer_id="a", auto_ack=False, on_revoked=print) as first:
        (message,) = first.fetch(1, timeout=60)
        with mq.consumer(topic, [topic], consumer_id="b") as second:
            (again,) = second.fetch(1, timeout=60)  # RocketMQ has nothing that keeps the next owner from reading
            assert again.data == b"x"
            message.ack()
            wait_until(lambda: not first.fetch(timeout=0.1) and len(_own(first, topic)) == 2, "the queue is given up")
            with pytest.raises(PartitionLost):
                first.seek(message.where, 0)
            assert texts(read(second, 1)) == ["y"]
            second.commit()
            assert second.position(message.where) == 2


def test_a_locked_queue_is_read_by_one_member_only(mq: RocketMQ, topic: str) -> None:
    mq.producer().send_many(topic, ["x", "y"], partition=Partition("metaq", 3))
    with mq.consumer(topic, [topic], consumer_id="a", ordered=True, auto_ack=False, on_revoked=print) as first:
        (message,) = first.fetch(1, timeout=60)
        with mq.consumer(topic, [topic], consumer_id="b", ordered=True, auto_ack=False) as second:
            wait_until(lambda: first.paused is None and len(_own(first, topic)) == 4, "the first still has them")
            assert not second.fetch(timeout=1.0)
            assert not _own(second, topic)
            message.ack()
            wait_until(lambda: not first.fetch(timeout=0.1) and len(_own(first, topic)) == 2, "the queue is given up")
            (other,) = second.fetch(timeout=60)
            assert other.data == b"y"


def test_a_refused_message_comes_again_and_ends_in_the_dead_letters(mq: RocketMQ, topic: str) -> None:
    send(mq, topic, "bad", tag="hot")
    seen: list[tuple[int, int]] = []
    with mq.consumer(topic, [topic], max_attempts=2, retry_max_s=0.05, reconsume_max=1, delay_level=1) as consumer:

        def refuse(message: RocketDelivery) -> None:
            assert (message.topic, message.tag) == (topic, "hot")
            seen.append((message.reconsume_times, message.attempt))
            if len(seen) == 4:
                consumer.stop()
            raise ZeroDivisionError

        consumer.run(refuse)
        assert seen == [(0, 1), (0, 2), (1, 1), (1, 2)]
    (dead,) = mq.browse(f"%DLQ%{topic}")
    assert dead.data == b"bad"
    assert {one.messages_behind for one in mq.cluster.lag(topic, [topic])} == {0}


@pytest.mark.parametrize("reject", ["park", "drop", "topic:{}-dead", "function"])
def test_a_message_is_given_up_as_the_option_says(mq: RocketMQ, topic: str, reject: str) -> None:
    given: list[bytes] = []
    on_reject: str | Callable[..., object] = (
        reject.format(topic) if reject != "function" else lambda message, error: given.append(message.data)
    )
    mq.producer().send(topic, "bad", tag="hot", keys=["k"], properties={"price": "3"})
    with mq.consumer(topic, [topic], max_attempts=1, on_reject=on_reject) as consumer:

        def refuse(message: RocketDelivery) -> None:
            consumer.stop()
            raise ZeroDivisionError("why")

        consumer.run(refuse)
        parked = [(one.message.data, one.message.tag, one.message.keys, one.reason) for one in consumer.parked]
    assert {one.messages_behind for one in mq.cluster.lag(topic, [topic])} == {0}
    assert parked == ([(b"bad", "hot", ("k",), "ZeroDivisionError: why")] if reject == "park" else [])
    assert given == ([b"bad"] if reject == "function" else [])
    if reject.startswith("topic"):
        (sent,) = mq.browse(f"{topic}-dead")
        assert (sent.data, sent.tag, sent.keys, sent.properties["price"]) == (b"bad", "hot", ("k",), "3")


def test_manual_acknowledgement_rollback_and_seek(mq: RocketMQ, topic: str) -> None:
    mq.producer().send_many(topic, ["a", "b", "c"], partition=Partition("metaq", 0))
    where = TopicPartition(topic, Partition("metaq", 0))
    with mq.consumer(topic, [topic], auto_ack=False, retry_max_s=0.05) as consumer:
        one, two, three = read(consumer, 3)
        two.ack()
        assert consumer.position(where) == 0
        one.ack()
        assert consumer.position(where) == 2
        assert consumer.rollback() == 1
        with pytest.raises(PartitionLost):
            three.ack()
        (again,) = read(consumer, 1)
        assert (again.data, again.attempt) == (b"c", 2)
        consumer.commit()
        assert consumer.position(where) == 3
        consumer.seek(where, 1)
        assert texts(read(consumer, 2)) == ["b", "c"]
    with mq.consumer(topic, [topic]) as consumer:  # what was not settled comes again
        assert texts(read(consumer, 2)) == ["b", "c"]


def test_where_a_new_group_begins(mq: RocketMQ, topic: str) -> None:
    first = mq.producer().send_many(topic, ["a", "b"], partition=Partition("metaq", 1))[0]
    (early, _) = mq.browse(topic)
    assert early.offset == first.offset
    with mq.consumer(f"{topic}-latest", [topic], start="latest") as consumer:
        consumer.fetch(timeout=0)  # joins
        wait_until(lambda: len(consumer.assignment) > QUEUES, "all is assigned")
        send(mq, topic, "c")
        assert texts(read(consumer, 1)) == ["c"]
    with mq.consumer(f"{topic}-time", [topic], start=early.timestamp_ms) as consumer:
        assert texts(read(consumer, 3)) == ["a", "b", "c"]
    with mq.consumer(f"{topic}-later", [topic], start={Partition("metaq", 1): 1}) as consumer:
        assert texts(read(consumer, 2)) == ["b", "c"]


def test_tags_sql_and_the_programs_own_filter(mq: RocketMQ, topic: str) -> None:
    for number, tag in enumerate(["hot", "cold", "hot", "mild"]):
        mq.producer().send(topic, str(number), tag=tag, properties={"price": str(number)})
    with mq.consumer(f"{topic}-tags", [topic], tags="hot || mild", where=lambda m: m.data != b"0") as consumer:
        assert texts(read(consumer, 2)) == ["2", "3"]
        wait_until(lambda: not consumer.fetch(timeout=0.1) and not any(consumer.lag().values()), "all is passed")


def test_a_broadcast_consumer_reads_everything_and_keeps_its_own_offsets(mq: RocketMQ, topic: str) -> None:
    send(mq, topic, "a", "b")
    for expected in (["a", "b"], ["c"]):
        with mq.broadcast_consumer(topic, [topic]) as consumer, mq.consumer(f"{topic}-other", [topic]):
            assert texts(read(consumer, len(expected))) == expected
            assert {where.topic for where in consumer.assignment} == {topic}
        send(mq, topic, "c")


def test_workers_handle_queues_at_the_same_time(mq: RocketMQ, topic: str) -> None:
    mq.producer().send_many(topic, [str(number) for number in range(40)])
    meeting, done = threading.Barrier(2, timeout=60), list[str]()
    with mq.consumer(topic, [topic]) as consumer:

        def handle(message: RocketDelivery) -> None:
            if int(message.data) < 2:
                meeting.wait()
            done.append(message.data.decode())
            if len(done) == 40:
                consumer.stop()

        consumer.run(handle, workers=4)
    assert sorted(done, key=int) == [str(number) for number in range(40)]


def test_topics_and_groups_of_a_namespace(broker: BrokerProcess, topic: str) -> None:
    with RocketMQ(broker.name_servers, namespace="ns") as mq:
        send(mq, topic, "bad")
        with mq.consumer(topic, [topic], max_attempts=1, delay_level=1) as consumer:
            seen: list[tuple[str, int]] = []

            def refuse_once(message: RocketDelivery) -> None:
                seen.append((message.topic, message.reconsume_times))
                if not message.reconsume_times:
                    raise ZeroDivisionError
                consumer.stop()

            consumer.run(refuse_once)
        assert seen == [(topic, 0), (topic, 1)]
        assert mq.cluster.groups() == [topic]
        assert {one.topic for one in mq.cluster.lag(topic)} == {topic, f"%RETRY%{topic}"}


def test_an_administrator_sets_the_offsets_of_a_running_group(mq: RocketMQ, broker: BrokerProcess, topic: str) -> None:
    mq.producer().send_many(topic, ["a", "b", "c"], partition=Partition("metaq", 0))
    where = TopicPartition(topic, Partition("metaq", 0))
    with mq.consumer(topic, [topic]) as consumer:
        assert len(read(consumer, 3)) == 3
        wait_until(lambda: not consumer.fetch(timeout=0.1) and consumer.position(where) == 3, "all is settled")
        reset(broker, topic)
        assert texts(read(consumer, 3)) == ["a", "b", "c"]


def test_a_former_owner_goes_on_where_an_administrator_has_set_the_group_back(
    mq: RocketMQ, broker: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    mq.producer().send_many(topic, ["a", "b", "c"], partition=Partition("metaq", 0))
    where = TopicPartition(topic, Partition("metaq", 0))
    with mq.consumer(topic, [topic], consumer_id="2") as former:
        assert len(read(former, 3)) == 3
        former.commit()
        with mq.consumer(topic, [topic], consumer_id="1", auto_ack=False) as other:
            wait_until(lambda: not former.fetch(timeout=0.1) and where in other.assignment, "the other one has it")
            reset(broker, topic)
            wait_until(lambda: caplog.text.count("an administrator has set the offsets") == 2, "both know")
            (first,) = read(other, 1)
            assert first.data == b"a"
            first.ack()
        assert texts(read(former, 2)) == ["b", "c"]


def reset(broker: BrokerProcess, topic: str) -> None:
    """Set the group of the topic's name back to the first messages, as administrators do."""
    header = ResetOffset(group=topic, topic=topic, timestamp=1, is_force=True)
    with closing(SessionPool()) as pool, pool.lease(Address.parse(broker.name_servers)) as session:
        session.ask(to_request(header, broker_name="metaq"), "a reset")


def test_bad_input_is_one_sentence(mq: RocketMQ, topic: str) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"), mq.consumer(topic, ["nowhere"]) as consumer:
        consumer.fetch(timeout=10)
    for options, words in (
        ({"tags": "||"}, "tags"),
        ({"tags": "a", "sql": "b > 1"}, "tags and sql"),
        ({"on_reject": "nobody"}, "on_reject 'nobody': expected 'retry', 'park', 'drop', 'topic:NAME' or a function"),
        ({"delay_level": 19}, "delay_level 19"),
        ({"reconsume_max": -1}, "reconsume_max -1"),
    ):
        with pytest.raises(ValueError, match=words):
            mq.consumer(topic, [topic], **options)
    with pytest.raises(TypeError, match="topics"):
        mq.consumer(topic, topic)


def test_two_programs_with_one_id(mq: RocketMQ, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.client.rocketmq.groups.rocketmq_group.ID_WAIT_S", 0.5)
    send(mq, topic, "a")
    with mq.consumer(topic, [topic], consumer_id="same") as first:
        read(first, 1)
        with pytest.raises(ConsumerIdInUse, match="'same'"), mq.consumer(topic, [topic], consumer_id="same") as second:
            wait_until(lambda: bool(second.fetch(timeout=0.2)), "the second reads")


def test_asyncio_members_share_a_group_with_others(broker: BrokerProcess, mq: RocketMQ, topic: str) -> None:
    mq.producer().send_many(topic, [str(number) for number in range(40)])

    async def main() -> None:
        handled: list[str] = []
        async with (
            AsyncRocketMQ(broker.name_servers) as client,
            client.consumer(topic, [topic], max_attempts=1, delay_level=1) as one,
        ):
            found = [await anext(aiter(one)) for _ in range(3)]
            while len(found) < 40:
                found += await one.fetch()
            assert texts(found) == sorted(map(str, range(40)))
            await one.commit()
            assert not any((await one.lag()).values())
            with mq.consumer(topic, [topic]) as two:
                await asyncio.to_thread(lambda: wait_until(lambda: bool(_own_or_fetch(two, topic)), "it has some"))
                assert len(await client.cluster.members(topic)) == 2
            mq.producer().send_many(topic, ["x", "bad", "y"])

            async def handle(message: RocketDelivery) -> None:
                if message.data == b"bad" and not message.reconsume_times:
                    raise ZeroDivisionError
                handled.append(message.data.decode())
                if len(handled) == 3:
                    one.stop()

            await one.run(handle, workers=2)
        assert sorted(handled) == ["bad", "x", "y"]

    asyncio.run(asyncio.wait_for(main(), 60))


def _own_or_fetch(consumer: RocketGroupConsumer, topic: str) -> list[TopicPartition]:
    consumer.fetch(timeout=0.1)
    return _own(consumer, topic)
