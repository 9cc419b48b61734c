"""Each typed request that is used, sent to real servers: the answer has the fields and the body that it must have."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from remoting_headers import pull_header

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.session import Session
from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.formats.rocketmq.properties import write_properties
from metaq.formats.rocketmq.records import read_records
from metaq.model import Address
from metaq.protocols.remoting.bodies.groups import (
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.bodies.offsets import ConsumerOffsets, ConsumeStats, TopicStats
from metaq.protocols.remoting.bodies.registration import TopicConfigs
from metaq.protocols.remoting.bodies.routes import ClusterInfo, KVTable, TopicList, TopicRouteData
from metaq.protocols.remoting.command import Codec
from metaq.protocols.remoting.headers import RESPONSES, clients, offsets, pulls, routes, sends, to_request
from metaq.protocols.remoting.headers import administration as admin
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE, SendMessage
from peers.jvm import JavaServer
from peers.rocketmq.servers import Cluster

pytestmark = pytest.mark.slow

CODECS = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
TOPIC: Final = "{topic}"
"""Stands for the test's topic in the table below."""
GROUP, CLIENT = "wire-group", "wire-client"
BROKER: Final = "broker-a"
HEARTBEAT: Final = HeartbeatData(
    client_id=CLIENT,
    producer_data_set=(ProducerData(group_name=GROUP),),
    consumer_data_set=(ConsumerData(group_name=GROUP, subscription_data_set=(SubscriptionData(topic="wire-other"),)),),
)


@dataclass(frozen=True)
class Exchange:
    """A request, and what of the answer is looked at: fields by name, and the class of the body."""

    header: Request
    body: bytes = b""
    fields: Mapping[str, object] = field(default_factory=dict)
    answer: type[JsonBody] | None = None
    code: int | None = None


def queue(cls: Any, **more: Any) -> Request:
    """A request about the first queue of the topic."""
    made: Request = cls(topic=TOPIC, queue_id=0, **more)
    return made


def send(batch: bool = False) -> sends.SendMessage:
    """A message to the first queue."""
    return sends.SendMessage(
        producer_group=GROUP,
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=int(1000 * time.time()),
        flag=3,
        properties=write_properties({"TAGS": "tea", "KEYS": "one"}),
        batch=batch or None,
        broker_name=BROKER,
    )


def pull(at: int) -> pulls.PullMessage:
    """Messages of the first queue from an offset on."""
    return pull_header(at, consumer_group=GROUP, topic=TOPIC)


TWO: Final = encode_batch([BatchElement(b"two", b"TAGS\x01tea", 3), BatchElement(b"three", b"", 4)])
LOCK: Final = LockBatchRequestBody(
    consumer_group=GROUP,
    client_id=CLIENT,
    mq_set=(MessageQueue(topic="wire-other", broker_name=BROKER, queue_id=0),),
)

BROKER_EXCHANGES: Final = [
    Exchange(send(), b"one", {"queue_id": 0, "queue_offset": 0}, code=SEND_MESSAGE),
    Exchange(send(), b"one", {"queue_id": 0, "queue_offset": 1}, code=SendMessage.CODE),
    Exchange(send(batch=True), TWO, {"queue_id": 0, "queue_offset": 2}, code=SEND_BATCH_MESSAGE),
    Exchange(queue(offsets.GetMinOffset), fields={"offset": 0}),
    Exchange(queue(offsets.SearchOffsetByTimestamp, timestamp=1, boundary_type="lower"), fields={"offset": 0}),
    Exchange(clients.HeartBeat(), HEARTBEAT.to_json()),
    Exchange(clients.GetConsumerListByGroup(consumer_group=GROUP), answer=ConsumerList),
    Exchange(clients.LockBatchMq(), LOCK.to_json(), answer=LockBatchResponseBody),
    Exchange(clients.UnlockBatchMq(), LOCK.to_json()),
    Exchange(queue(offsets.UpdateConsumerOffset, consumer_group=GROUP, commit_offset=2)),
    Exchange(queue(offsets.QueryConsumerOffset, consumer_group=GROUP), fields={"offset": 2}),
    Exchange(offsets.GetAllConsumerOffset(), answer=ConsumerOffsets),
    Exchange(admin.GetTopicStatsInfo(topic=TOPIC), answer=TopicStats),
    Exchange(admin.GetConsumeStats(consumer_group=GROUP, topic=TOPIC), answer=ConsumeStats),
    Exchange(admin.GetAllTopicConfig(), answer=TopicConfigs),
    Exchange(admin.GetBrokerConfig()),
    Exchange(admin.GetBrokerRuntimeInfo()),
    Exchange(clients.UnregisterClient(client_id=CLIENT, producer_group=GROUP, consumer_group=GROUP)),
]
"""In this order."""

NAME_SERVER_EXCHANGES: Final = [
    Exchange(routes.GetRouteInfoByTopic(topic=TOPIC, accept_standard_json_only=True), answer=TopicRouteData),
    Exchange(routes.GetRouteInfoByTopic(topic=TOPIC), answer=TopicRouteData),
    Exchange(routes.GetBrokerClusterInfo(), answer=ClusterInfo),
    Exchange(routes.GetAllTopicListFromNameserver(), answer=TopicList),
    Exchange(routes.GetSystemTopicListFromNs(), answer=TopicList),
    Exchange(routes.GetTopicsByCluster(cluster="DefaultCluster"), answer=TopicList),
    Exchange(routes.PutKVConfig(namespace="wire", key="k", value="v")),
    Exchange(routes.GetKVConfig(namespace="wire", key="k"), fields={"value": "v"}),
    Exchange(routes.GetKVListByNamespace(namespace="wire"), answer=KVTable),
    Exchange(routes.DeleteKVConfig(namespace="wire", key="k")),
    Exchange(routes.GetUnitTopicList(), answer=TopicList),
    Exchange(routes.GetHasUnitSubTopicList(), answer=TopicList),
    Exchange(routes.GetHasUnitSubUnunitTopicList(), answer=TopicList),
    Exchange(routes.GetNamesrvConfig()),
]


@pytest.fixture
def connect(rocketmq: Cluster) -> Iterator[Callable[[JavaServer], Session]]:
    """Opens sessions that end with the test."""
    opened: list[Session] = []

    def one(server: JavaServer) -> Session:
        opened.append(Session.connect(Address.parse(server.address)))
        return opened[-1]

    yield one
    for session in opened:
        session.close()


def exchanged(session: Session, each: Exchange, topic: str, codec: Codec) -> bytes:
    """Send it, check the answer, return its body."""
    given = {name.name: getattr(each.header, name.name) for name in dataclasses.fields(each.header)}
    header = dataclasses.replace(each.header, **{name: topic for name, value in given.items() if value == TOPIC})
    command = to_request(header, each.body, code=each.code, broker_name=BROKER, codec=codec)
    answer = session.ask(command, f"{type(header).__name__}")
    kind = RESPONSES.get(header.CODE)
    if kind is not None and not isinstance(header, clients.HeartBeat):
        fields = session.read(answer, kind)
        assert {name: getattr(fields, name) for name in each.fields} == each.fields
    else:
        assert not each.fields
    if each.answer is not None:
        each.answer.from_json(answer.body)
    return answer.body


def wait_for_figures(session: Session) -> None:
    """A Java broker has none in its first seconds, and answers with an exception of its own."""
    end = time.monotonic() + 30
    while True:
        try:
            session.ask(to_request(admin.GetBrokerRuntimeInfo()), "GetBrokerRuntimeInfo")
            return
        except RequestRefused:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@CODECS
def test_a_broker_answers_every_request_as_it_is_typed(
    rocketmq: Cluster, rocketmq_topic: Callable[..., str], connect: Callable[[JavaServer], Session], codec: Codec
) -> None:
    topic = rocketmq_topic(queues=2)
    session = connect(rocketmq.brokers[0])
    wait_for_figures(session)
    for each in BROKER_EXCHANGES:
        exchanged(session, each, topic, codec)
    everything = read_until(session, topic, codec, 4)
    assert [(bytes(record.body), record.queue_offset, record.flag) for record in everything] == [
        (b"one", 0, 3),
        (b"one", 1, 3),
        (b"two", 2, 3),
        (b"three", 3, 4),
    ]
    wanted = Exchange(queue(offsets.GetMaxOffset), fields={"offset": 4})
    exchanged(session, wanted, topic, codec)


def read_until(session: Session, topic: str, codec: Codec, count: int) -> list[Any]:
    """Pull the queue's messages until there are so many: a broker shows them a moment after it acknowledged them."""
    end = time.monotonic() + 20
    for _ in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
        command = to_request(pull_of(topic), broker_name=BROKER, codec=codec)
        answer = session.call(command, "pull")
        if answer.code == 0:
            fields = session.read(answer, pulls.PullMessageResponse)
            records = list(read_records(answer.body))
            if fields.next_begin_offset == count:
                return records
    raise AssertionError(f"not {count} messages within 20 s")


def pull_of(topic: str) -> pulls.PullMessage:
    """A pull from the beginning of the topic's first queue."""
    return dataclasses.replace(pull(0), topic=topic)


@CODECS
def test_a_name_server_answers_every_request_as_it_is_typed(
    rocketmq: Cluster, rocketmq_topic: Callable[..., str], connect: Callable[[JavaServer], Session], codec: Codec
) -> None:
    topic = rocketmq_topic(queues=2)
    session = connect(rocketmq.names[0])
    for each in NAME_SERVER_EXCHANGES:
        exchanged(session, each, topic, codec)
    body = exchanged(session, NAME_SERVER_EXCHANGES[0], topic, codec)
    route = TopicRouteData.from_json(body)
    assert [(each.broker_name, each.read_queue_nums, each.perm) for each in route.queue_datas] == [(BROKER, 2, 6)]
    assert [each.broker_addrs for each in route.broker_datas] == [{0: rocketmq.brokers[0].address}]


@pytest.mark.rocketmq_only("5.5.0")
def test_the_proxy_answers_what_a_source_and_a_sink_ask(
    rocketmq_cluster: Cluster, connect: Callable[[JavaServer], Session]
) -> None:
    rocketmq_cluster.start_name_server()
    rocketmq_cluster.start_broker()
    rocketmq_cluster.create_topic("orders", queues=1)
    session = connect(rocketmq_cluster.start_proxy())
    exchanged(session, NAME_SERVER_EXCHANGES[0], "orders", Codec.JSON)
    for each in BROKER_EXCHANGES[1:5]:
        exchanged(session, Exchange(each.header, each.body, {}, each.answer, each.code), "orders", Codec.JSON)
    assert [bytes(record.body) for record in read_until(session, "orders", Codec.JSON, 3)] == [b"one", b"two", b"three"]
