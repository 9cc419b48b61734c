"""Clients with a namespace and clients that use the full names meet on the bundled broker: the broker knows nothing of
namespaces."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from fix_broker import wait_until
from rocketmq_clients import Member

from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), partitions=1) as made:
        yield made


@pytest.fixture
def plain(broker: BrokerProcess) -> Iterator[RocketMQ]:
    with RocketMQ(broker.name_servers) as made:
        yield made


@pytest.fixture
def shop(broker: BrokerProcess) -> Iterator[RocketMQ]:
    with RocketMQ(broker.name_servers, namespace="shop") as made:
        yield made


def read(mq: RocketMQ, group: str, topic: str, count: int) -> list[tuple[str, str]]:
    """Read as a member of a group, and commit; return topic and body of each message."""
    with mq.consumer(group, [topic]) as consumer:
        member, found = Member(consumer), list[tuple[str, str]]()
        wait_until(
            lambda: bool(found.extend((one.topic, one.data.decode()) for one in member.fetch())) or len(found) >= count,
            f"{count} messages are read",
        )
        member.commit()
    return sorted(found)


def test_groups_of_both_share_topics_and_offsets(plain: RocketMQ, shop: RocketMQ) -> None:
    shop.producer().send_many("orders", ["1", "2"])
    plain.producer().send("shop%orders", "3")
    plain.producer().send("orders", "of another topic")
    assert read(plain, "shop%readers", "shop%orders", 3) == [("shop%orders", text) for text in "123"]
    shop.producer().send("orders", "4")
    assert read(shop, "readers", "orders", 1) == [("orders", "4")]  # behind what the other has committed
    plain.producer().send("shop%orders", "5")
    assert read(plain, "shop%readers", "shop%orders", 1) == [("shop%orders", "5")]
    assert read(shop, "others", "orders", 5) == [("orders", text) for text in "12345"]
    assert "readers" in shop.cluster.groups()
    assert "shop%readers" in plain.cluster.groups()
    assert sorted(one.data for one in plain.browse("shop%orders")) == sorted(one.data for one in shop.browse("orders"))
    assert [one.data for one in plain.browse("orders")] == [b"of another topic"]


def test_what_is_sent_back_comes_to_members_of_either_kind(plain: RocketMQ, shop: RocketMQ) -> None:
    shop.producer().send("returns", "again")
    refused: list[str] = []

    def refuse(message: RocketDelivery) -> None:
        refused.append(message.topic)
        raise ValueError("not now")

    with shop.consumer("returners", ["returns"], max_attempts=1, delay_level=1) as consumer:
        thread = threading.Thread(target=consumer.run, args=(refuse,))
        thread.start()
        wait_until(lambda: bool(refused), "the message comes")
        wait_until(lambda: _end(plain, "SCHEDULE_TOPIC_XXXX") > 0, "it is sent back")
        consumer.stop()
        thread.join(60)
    assert set(refused) == {"returns"}
    found: list[RocketDelivery] = []
    with plain.consumer("shop%returners", ["shop%returns"]) as other:
        wait_until(lambda: bool(found.extend(other.fetch())) or bool(found), "the message comes again")
    assert [(one.data, one.topic) for one in found] == [(b"again", "shop%returns")]
    assert found[0].reconsume_times >= 1


def _end(mq: RocketMQ, topic: str) -> int:
    return sum(one.end for one in mq.cluster.describe(topic))


def test_transactions_and_delays(plain: RocketMQ, shop: RocketMQ) -> None:
    shop.producer().send("later", "delayed", delay_level=1)
    with shop.transactional_producer("payers", lambda message: "commit") as producer, producer.transaction() as open_:
        open_.send("later", "in a transaction")
    found = read(plain, "shop%later", "shop%later", 2)
    assert found == [("shop%later", "delayed"), ("shop%later", "in a transaction")]


def test_the_longest_group_is_a_member(plain: RocketMQ, shop: RocketMQ) -> None:
    plain.producer().send("long", "1")
    assert read(plain, "g" * 193, "long", 1) == [("long", "1")]
    shop.producer().send("long", "2")
    assert read(shop, "g" * 188, "long", 1) == [("long", "2")]
