"""Routes as name servers tell them, and what they cannot mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaq.backends.rocketmq.topic_route import check_route
from metaq.model import Address, Partition
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData


def data(perm: int = 6, read: int = 2, write: int = 1, addresses: dict[int, str] | None = None) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=(QueueData(broker_name="b", read_queue_nums=read, write_queue_nums=write, perm=perm),),
        broker_datas=(BrokerData(broker_name="b", broker_addrs={0: "h:1"} if addresses is None else addresses),),
    )


@pytest.mark.parametrize(
    ("perm", "readable", "writable"), [(6, 2, 1), (7, 2, 1), (4, 2, 0), (2, 0, 1), (0, 0, 0), (1, 0, 0)]
)
def test_permissions_decide_which_queues_there_are(perm: int, readable: int, writable: int) -> None:
    route = check_route(data(perm))
    assert route.readable() == [Partition("b", index) for index in range(readable)]
    assert route.writable() == [Partition("b", index) for index in range(writable)]


def test_without_a_master_nothing_is_written() -> None:
    route = check_route(data(addresses={1: "h:1", 2: "[::1]:2"}))
    assert (len(route.readable()), route.writable()) == (2, [])
    assert route.brokers == {"b": {1: Address("h", 1), 2: Address("::1", 2)}}


def test_queues_of_a_broker_without_addresses_are_queues() -> None:
    rows = TopicRouteData(queue_datas=data().queue_datas)
    assert len(check_route(rows).readable()) == 2


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("metaq:7@other:8123",), MetaQBroker(7, Address("other", 8123))),
        (("10.0.0.1:1234", "metaq:0@[::1]:1", "metaq:1@h:2"), MetaQBroker(0, Address("::1", 1))),
        (("10.0.0.1:1234",), None),
        (("metaq:7@nowhere", "metaq:@h:1", "metaq:99999999999@h:1", "metaq:-1@h:1", " metaq:1@h:1", "metaq:1"), None),
        ((), None),
    ],
)
def test_a_broker_says_in_its_registration_what_it_is(texts: tuple[str, ...], expected: MetaQBroker | None) -> None:
    announced = {"h:1": texts, "elsewhere:1": ("metaq:1@h:1",), "": ("metaq:1@h:1",)}
    route = check_route(replace(data(), filter_server_table=announced))
    assert route.bundled == ({} if expected is None else {Address("h", 1): expected})
    if expected is not None:
        assert expected.announcement() in texts


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (data(read=-1), "readQueueNums of broker 'b' is -1, expected 0..65536"),
        (data(write=1 << 30), "writeQueueNums of broker 'b' is 1073741824, expected 0..65536"),
        (data(addresses={0: "nowhere"}), "broker 'b' has the address 'nowhere', expected host:port"),
        (data(addresses={0: "h:0"}), "broker 'b' has the address 'h:0'"),
        (data(addresses={0: "h:99999"}), "broker 'b' has the address 'h:99999'"),
        (data(addresses={-1: "h:1"}), "broker 'b' has an address for the id -1"),
        (TopicRouteData(topic_queue_mapping_by_broker={"b": {}}), "it is a static topic"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(lie: TopicRouteData, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_route(lie)
