"""Transactions, moments and one-way sends of ``RocketMQ`` on real servers: commit, rollback, who answers for whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from fix_broker import wait_until
from transaction_steps import STEPS, run_and_die

from metaq.backends.rocketmq.half_messages import Outcome
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketReceived
from metaq.errors import ExtensionMissing
from metaq.model import Partition
from peers.rocketmq.clients import client
from peers.rocketmq.conversation import Conversation
from peers.rocketmq.jars import Release
from peers.rocketmq.servers import Cluster

pytestmark = pytest.mark.slow

EAGER: Final = {
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
    "recallMessageEnable": "true",
}
SECONDS: Final = 60.0


@pytest.fixture(scope="module")
def eager(rocketmq_release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master that asks about half messages soon."""
    with Cluster(rocketmq_release, tmp_path_factory.mktemp(f"eager-{rocketmq_release.version}")) as cluster:
        cluster.start_name_server()
        cluster.start_broker("broker-a", **EAGER)
        yield cluster


@pytest.fixture
def mq(eager: Cluster) -> Iterator[RocketMQ]:
    with RocketMQ(eager.name_servers) as made:
        yield made


@pytest.fixture
def topic(eager: Cluster) -> str:
    name = f"t-{uuid4().hex[:8]}"
    eager.create_topic(name, 2)
    return name


def never(message: RocketReceived) -> Outcome:
    raise AssertionError(f"asked about {message.data!r}")


def texts(mq: RocketMQ, topic: str) -> list[str]:
    return sorted(message.data.decode() for message in mq.browse(topic))


def test_committed_and_rolled_back(mq: RocketMQ, topic: str) -> None:
    with mq.transactional_producer("g-" + topic, never) as producer:
        with producer.transaction(ask_after=100) as transaction:
            sent = transaction.send(topic, "paid", tag="hot", keys=["k1"], properties={"p": "1"})
            transaction.send(topic, "packed")
        assert transaction.state == "committed"
        with producer.transaction(ask_after=100) as dropped:
            dropped.send(topic, "dropped")
            dropped.rollback()
        assert dropped.state == "rolled back"
        wait_until(lambda: texts(mq, topic) == ["packed", "paid"], "both are there", SECONDS)
    (message,) = (one for one in mq.browse(topic) if one.data == b"paid")
    assert (message.message_id, message.tag, message.keys) == (sent.message_id, "hot", ("k1",))
    assert message.properties["p"] == "1"


def test_a_check_decides_what_was_left_open(mq: RocketMQ, topic: str) -> None:
    asked: list[RocketReceived] = []

    def check(message: RocketReceived) -> Outcome:
        asked.append(message)
        return "commit" if message.data == b"done" else "rollback"

    with mq.transactional_producer("g-" + topic, check) as producer:
        for text in ("done", "undone"):
            transaction = producer.transaction()
            transaction.send(topic, text, keys=["k-" + text], partition=Partition("broker-a", 1))
            transaction.leave()
        wait_until(lambda: texts(mq, topic) == ["done"], "it is committed", SECONDS)
        wait_until(lambda: {one.data for one in asked} == {b"done", b"undone"}, "both were asked about", SECONDS)
    first = next(one for one in asked if one.data == b"done")
    assert (first.topic, first.partition, first.keys) == (topic, Partition("broker-a", 1), ("k-done",))
    assert texts(mq, topic) == ["done"]


@pytest.mark.parametrize("step", STEPS)
def test_another_member_answers_for_one_that_died(
    eager: Cluster, mq: RocketMQ, topic: str, step: str, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    run_and_die(eager.name_servers, topic, step, done)
    asked = threading.Event()

    def check(message: RocketReceived) -> Outcome:
        asked.set()
        return "commit" if done.exists() and done.read_text() == message.message_id else "rollback"

    with mq.transactional_producer(f"group-{topic}", check) as producer:
        if step == "sent":
            assert asked.wait(SECONDS)
            with producer.transaction() as later:
                later.send(topic, "later")
            wait_until(lambda: texts(mq, topic) == ["later"], "only the later one came", SECONDS)
        else:
            wait_until(lambda: texts(mq, topic) == [step], "it is delivered", SECONDS)


def test_a_member_answers_for_a_java_producer(
    eager: Cluster, mq: RocketMQ, topic: str, tmp_path: Path, rocketmq_version: str
) -> None:
    java = Conversation(
        client(f"java-{rocketmq_version}"), eager.name_servers, tmp_path, role="transactions", group="g-" + topic
    )
    with java:
        java.ready().send(topic, "from Java", state="unknown", then="unknown")
        with mq.transactional_producer("g-" + topic, lambda message: "commit"):
            wait_until(lambda: texts(mq, topic) == ["from Java"], "it is committed", SECONDS)


def test_moments_and_oneway_sends(eager: Cluster, mq: RocketMQ, topic: str, rocketmq_version: str) -> None:
    producer = mq.producer()
    producer.send_oneway(topic, "oneway", tag="t")
    wait_until(lambda: texts(mq, topic) == ["oneway"], "it came", SECONDS)
    if rocketmq_version < "5":
        with pytest.raises(ExtensionMissing):
            producer.send(topic, "later", delay=1)
        return
    recalled = producer.send(topic, "recalled", delay=5)
    assert recalled.recall_handle
    assert producer.recall(topic, recalled.recall_handle) == recalled.message_id
    begin = datetime.now(UTC)
    producer.send(topic, "delay", delay=2)
    producer.submit(topic, "deliver_at", deliver_at=begin + timedelta(seconds=3)).result(60)
    wait_until(lambda: texts(mq, topic) == ["delay", "deliver_at", "oneway"], "they came", SECONDS)
    times = {one.data: one.timestamp_ms / 1000 - begin.timestamp() for one in mq.browse(topic)}
    assert (times[b"delay"] > 1, times[b"deliver_at"] > 2) == (True, True)
