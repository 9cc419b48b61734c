"""The plain client against real servers: what Java wrote is read, what is written Java reads, and servers that end."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from fix_broker import wait_until

from metaq.backends.rocketmq.batch_writer import BatchWriter, SendReceipt
from metaq.backends.rocketmq.errors import (
    AccessDenied,
    BatchNotStored,
    OffsetOutOfRange,
    RequestRefused,
    TopicListMissing,
)
from metaq.backends.rocketmq.groups.offsets import Offsets
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.messages import read_messages
from metaq.backends.rocketmq.reads.pull_reader import PullSettings, pull_range
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.backends.rocketmq.reads.times import TimeBoundary
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.errors import TopicNotFound
from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.formats.rocketmq.records import Record
from metaq.model import OffsetRange, Partition, TopicPartition
from metaq.net.retry import RetryPolicy
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.acl import Credentials
from peers.jvm import JavaServer
from peers.rocketmq.ask import Account, ask
from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

pytestmark = pytest.mark.slow

Topic = Callable[..., str]
Dumped = Callable[..., list[Mapping[str, Any]]]
QUEUE = Partition("broker-a", 0)


@dataclass
class Client:
    """The parts that a task has."""

    pool: SessionPool
    directory: NameServerDirectory
    offsets: Offsets

    def queues(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, queue) for queue in self.directory.queues(topic)]

    def ranges(self, topic: str, total: int) -> dict[TopicPartition, OffsetRange]:
        """What the queues hold, once that are ``total`` messages: their index is made a little later."""
        queues = self.queues(topic)
        wait_until(lambda: sum(map(len, self.offsets.ranges(queues).values())) == total, f"{total} messages of {topic}")
        return self.offsets.ranges(queues)

    def messages(self, topic: str, total: int, settings: PullSettings | None = None) -> list[Record]:
        return [
            record
            for queue, held in self.ranges(topic, total).items()
            for record in read_messages(self.pool, self.directory, topic, queue.partition, held, settings)
        ]


@contextmanager
def connected(name_servers: str, credentials: Credentials | None = None) -> Iterator[Client]:
    with closing(SessionPool(Timeouts(5.0, 20.0), credentials=credentials)) as pool:
        directory = NameServerDirectory(parse_name_servers(name_servers), pool)
        yield Client(pool, directory, Offsets(pool, directory, RetryPolicy(8, 0.2)))


@pytest.fixture
def client(rocketmq: Cluster) -> Iterator[Client]:
    with connected(rocketmq.name_servers) as client:
        yield client


def _batch(numbers: range, tag: str = "t") -> bytes:
    return encode_batch(BatchElement(b"%d" % number, f"TAGS\x01{tag}\x02n\x01{number}".encode()) for number in numbers)


@pytest.mark.parametrize("batch", [1, 50], ids=["singles", "batches"])
def test_every_field_of_what_java_wrote(
    client: Client, rocketmq_programs: Programs, rocketmq_topic: Topic, dumped: Dumped, batch: int
) -> None:
    topic = rocketmq_topic(queues=3)
    rocketmq_programs.write(topic, 3000, size=120, batch=batch, tags=3, keys=2, properties=2, flag=5)
    java = dumped(topic)
    ours = client.messages(topic, 3000)
    assert len(ours) == len(java) == 3000
    for row, record in zip(java, ours, strict=True):
        assert record.value() == base64.b64decode(row["value"])
        assert (record.topic, record.queue_id, record.queue_offset) == (topic, row["queue_id"], row["queue_offset"])
        assert (record.flag, record.born_timestamp, record.store_timestamp) == (
            row["flag"], row["born_timestamp"], row["store_timestamp"],
        )  # fmt: skip
        properties = record.property_map()
        assert (properties["TAGS"], properties["UNIQ_KEY"]) == (row["tags"], row["message_id"])
        assert record.offset_message_id == row["offset_message_id"]
        assert record.physical_offset == row["commit_log_offset"]


def test_a_tag_with_one_bar_can_be_asked_for_and_one_with_two_cannot(client: Client, rocketmq_topic: Topic) -> None:
    topic = rocketmq_topic(queues=1)
    tags = ["a|b", "a||b", "a", "b"]
    with closing(BatchWriter(client.pool, client.directory, "broker-a")) as writer:
        for tag in tags:
            writer.send(topic, 0, tag.encode(), f"TAGS\x01{tag}")
        writer.flush()
    for asked, found in (("a|b", ["a|b"]), ("a||b", ["a", "b"])):
        messages = client.messages(topic, 4, PullSettings(subscription=Subscription(asked)))
        assert [record.body.decode() for record in messages] == found


def test_compressed_bodies(client: Client, rocketmq_programs: Programs, rocketmq_topic: Topic, dumped: Dumped) -> None:
    topic = rocketmq_topic(queues=1)
    rocketmq_programs.write(topic, 40, size=20_000, compressAbove=1000, underWay=1)
    java = dumped(topic)
    ours = client.messages(topic, 40)
    assert [record.value() for record in ours] == [base64.b64decode(row["value"]) for row in java]
    assert all(len(record.body) < 20_000 for record in ours)


def test_java_reads_what_is_written(client: Client, rocketmq_topic: Topic, dumped: Dumped) -> None:
    topic = rocketmq_topic(queues=4)
    with closing(BatchWriter(client.pool, client.directory, "broker-a")) as writer:
        for start in range(0, 2000, 100):
            writer.write(topic, start // 100 % 4, _batch(range(start, start + 100)), 100)
        writer.send(topic, 3, b"single", "TAGS\x01s\x02KEYS\x01k1 k2", flag=9)
        receipts = writer.flush()
    assert [receipt.code for receipt in receipts] == [0] * 21
    rows = dumped(topic)
    by_queue: dict[int, list[bytes]] = {}
    for row in rows:
        by_queue.setdefault(row["queue_id"], []).append(base64.b64decode(row["value"]))
    for queue_id in range(4):
        wanted = [b"%d" % n for start in range(100 * queue_id, 2000, 400) for n in range(start, start + 100)]
        assert by_queue[queue_id] == wanted + ([b"single"] if queue_id == 3 else [])
    assert (rows[-1]["tags"], rows[-1]["keys"], rows[-1]["flag"]) == ("s", "k1 k2", 9)
    ids = [id_ for receipt in receipts for id_ in receipt.message_ids]
    assert sorted(ids) == sorted(row["offset_message_id"] for row in rows)


def test_the_largest_batch_that_is_allowed(client: Client, rocketmq_topic: Topic) -> None:
    topic = rocketmq_topic(queues=1)
    body = b"x" * ((4 << 20) // 4 - 22)
    with closing(BatchWriter(client.pool, client.directory, "broker-a")) as writer:
        writer.write(topic, 0, encode_batch([BatchElement(body)] * 4), 4)
        assert len(writer.flush()) == 1
    assert [record.body for record in client.messages(topic, 4)] == [body] * 4


def test_filters(client: Client, rocketmq_programs: Programs, rocketmq_topic: Topic) -> None:
    topic = rocketmq_topic(queues=1)
    rocketmq_programs.write(topic, 5000, size=30, batch=50, tags=4)
    for expression, tags in (("tag1", {"tag1"}), ("tag1 || tag3", {"tag1", "tag3"}), ("nope", set())):
        found = client.messages(topic, 5000, PullSettings(subscription=Subscription(expression)))
        assert {record.property_map()["TAGS"] for record in found} == tags
        assert len(found) == 1250 * len(tags)
    sql = client.messages(topic, 5000, PullSettings(subscription=Subscription("TAGS = 'tag1'", "SQL92")))
    assert [record.property_map()["TAGS"] for record in sql] == ["tag1"] * 1250
    with pytest.raises(RequestRefused, match="the SQL92 expression 'TAGS ='"):
        client.messages(topic, 5000, PullSettings(subscription=Subscription("TAGS =", "SQL92")))


def test_times(client: Client, rocketmq_topic: Topic) -> None:
    topic = rocketmq_topic(queues=1)
    with closing(BatchWriter(client.pool, client.directory, "broker-a")) as writer:
        for start in range(0, 400, 40):
            writer.write(topic, 0, _batch(range(start, start + 40)), 40)
            writer.flush()
    stored = {record.queue_offset: record.store_timestamp for record in client.messages(topic, 400)}
    where = TopicPartition(topic, QUEUE)
    for time_ms in {
        0,
        *(each + change for each in stored.values() for change in (-1, 0, 1)),
        max(stored.values()) + 9999,
    }:
        lower = min([offset for offset, at in stored.items() if at >= time_ms], default=400)
        upper = max([offset + 1 for offset, at in stored.items() if at <= time_ms], default=0)
        assert client.offsets.at({where: time_ms}) == {where: lower}
        assert client.offsets.at({where: time_ms}, TimeBoundary.UPPER) == {where: upper}


def test_positions_of_groups(
    client: Client, rocketmq_programs: Programs, rocketmq_topic: Topic, rocketmq_version: str
) -> None:
    topic = rocketmq_topic(queues=2)
    rocketmq_programs.write(topic, 20, size=30)
    queues = list(client.ranges(topic, 20))
    rocketmq_programs.push(topic, f"group-{topic}", count=20)  # makes the group, which 5.x wants, and commits
    client.offsets.commit(f"group-{topic}", dict.fromkeys(queues, 5))
    assert client.offsets.committed(f"group-{topic}", queues) == dict.fromkeys(queues, 5)
    assert client.offsets.committed("nobody", queues) == dict.fromkeys(queues, None if rocketmq_version > "5" else 0)


def test_unknown_topics_and_queues(client: Client, rocketmq_topic: Topic) -> None:
    with pytest.raises(TopicNotFound, match="topic 'nope' does not exist"):
        client.directory.queues("nope")
    topic = rocketmq_topic(queues=1)
    beyond = TopicPartition(topic, Partition("broker-a", 7))
    assert client.offsets.ranges([beyond]) == {beyond: OffsetRange(0, 0)}
    with pytest.raises(RequestRefused, match="queueId"):
        list(pull_range(client.pool, client.directory, topic, beyond.partition, OffsetRange(0, 1)))
    with closing(BatchWriter(client.pool, client.directory, "broker-a")) as writer:
        writer.write(topic, 7, _batch(range(1)), 1)
        with pytest.raises(BatchNotStored, match="queueId"):
            writer.flush()


def test_ranges_that_are_not_there(client: Client, rocketmq_programs: Programs, rocketmq_topic: Topic) -> None:
    topic = rocketmq_topic(queues=1)
    rocketmq_programs.write(topic, 10, size=30)
    client.ranges(topic, 10)
    with pytest.raises(OffsetOutOfRange) as caught:
        list(pull_range(client.pool, client.directory, topic, QUEUE, OffsetRange(50, 60)))
    assert (caught.value.asked, caught.value.first, caught.value.end, caught.value.lost) == (50, 0, 10, False)


def test_topics_and_new_queues(client: Client, rocketmq: Cluster, rocketmq_topic: Topic) -> None:
    topic = rocketmq_topic(queues=2)
    wait_until(lambda: topic in client.directory.topics(), "the topic in the list")
    assert not [name for name in client.directory.topics() if name.startswith(("%", "TBW", "RMQ_SYS", "broker-"))]
    assert len(client.directory.queues(topic)) == 2
    rocketmq.create_topic(topic, queues=5)
    wait_until(lambda: len(client.directory.queues(topic)) == 5, "the new queues", 40)


def test_a_master_that_ends_is_replaced_by_its_slave_and_comes_back(rocketmq_cluster: Cluster) -> None:
    rocketmq_cluster.start_name_server()
    rocketmq_cluster.start_name_server()
    master = rocketmq_cluster.start_broker("broker-a", brokerRole="SYNC_MASTER")
    slave = rocketmq_cluster.start_broker("broker-a", broker_id=1, slaveReadEnable="true")
    rocketmq_cluster.create_topic("orders", queues=1)
    with connected(rocketmq_cluster.name_servers) as client:
        wait_until(lambda: 1 in client.directory.brokers().get("broker-a", {}) or _refreshed(client), "the slave", 60)
        with closing(BatchWriter(client.pool, client.directory, "broker-a")) as writer:
            for start in range(0, 10_000, 1000):
                writer.write("orders", 0, _batch(range(start, start + 1000)), 1000)
            writer.flush()
        held = client.ranges("orders", 10_000)
        wait_until(lambda: _pulls(rocketmq_cluster, slave), "the slave's copy", 60)
        runs = pull_range(
            client.pool,
            client.directory,
            "orders",
            QUEUE,
            OffsetRange(0, 10_000),
            PullSettings(policy=RetryPolicy(20, 0.5)),
        )
        count = next(runs).records
        rocketmq_cluster.names[0].kill()
        master.kill()
        count += sum(run.records for run in runs)
        assert count == 10_000
        assert client.offsets.ranges(held) == held  # asked of the slave
        with ThreadPoolExecutor(1) as executor:  # the broker ends with the thread that starts it, so that is this one
            sent = executor.submit(_send, client, RetryPolicy(30, 0.5))
            master.start()
            assert len(sent.result(120)) == 1
        assert sum(map(len, client.ranges("orders", 10_010).values())) == 10_010


def _send(client: Client, policy: RetryPolicy) -> list[SendReceipt]:
    with closing(BatchWriter(client.pool, client.directory, "broker-a", policy=policy)) as writer:
        writer.write("orders", 0, _batch(range(10)), 10)
        return writer.flush()


def _pulls(cluster: Cluster, server: JavaServer) -> bool:
    asked = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 9990, "maxMsgNums": 1, "sysFlag": 4}
    asked |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    return cluster.ask(server, 11, asked).code == 0


def _refreshed(client: Client) -> bool:
    client.directory.invalidate()
    client.directory.queues("orders")
    return False


@pytest.mark.rocketmq_only("5.5.0")
def test_the_proxy_is_enough(rocketmq_cluster: Cluster) -> None:
    """It is name server and broker in one port, lists neither topics nor clusters, and wants the broker's name."""
    rocketmq_cluster.start_name_server()
    rocketmq_cluster.start_broker()
    rocketmq_cluster.create_topic("orders", queues=2)
    proxy = rocketmq_cluster.start_proxy()
    with connected(proxy.address) as client:
        (broker_name,) = {queue.broker_name for queue in client.directory.queues("orders")}
        with closing(BatchWriter(client.pool, client.directory, broker_name)) as writer:
            for queue_id in (0, 1):
                writer.write("orders", queue_id, _batch(range(200)), 200)
            assert len(writer.flush()) == 2
        messages = client.messages("orders", 400)
        assert [record.body for record in messages] == [b"%d" % number for number in range(200)] * 2
        first = client.queues("orders")[0]
        middle = messages[100].store_timestamp
        assert client.offsets.at({first: middle}) == {first: 0}  # one batch has one store time
        assert client.offsets.at({first: middle + 1}) == {first: 200}
        with pytest.raises(TopicListMissing):
            client.directory.topics()


ACCOUNTS = """\
- accessKey: reader-key
  secretKey: reader-secret
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""


@pytest.mark.rocketmq_only("4.9.7")
def test_accounts(rocketmq_cluster: Cluster) -> None:
    rocketmq_cluster.start_name_server()
    rocketmq_cluster.start_broker("broker-a", accounts=ACCOUNTS)
    rocketmq_cluster.create_topic("orders", queues=1)
    administrator = rocketmq_cluster.administrator
    assert administrator is not None
    with (
        connected(
            rocketmq_cluster.name_servers, Credentials(administrator.access_key, administrator.secret_key)
        ) as client,
        closing(BatchWriter(client.pool, client.directory, "broker-a")) as writer,
    ):
        writer.write("orders", 0, _batch(range(100)), 100)
        writer.flush()
        client.ranges("orders", 100)
    with connected(rocketmq_cluster.name_servers, Credentials("reader-key", "reader-secret")) as client:
        assert len(client.messages("orders", 100)) == 100
        with closing(BatchWriter(client.pool, client.directory, "broker-a")) as writer:
            writer.send("orders", 0, b"x")  # a batch is not checked by this release
            with pytest.raises(BatchNotStored, match="the account has PUB on the topic"):
                writer.flush()
    with connected(rocketmq_cluster.name_servers, Credentials("reader-key", "reader-secret", "a token")) as client:
        assert len(client.messages("orders", 100)) == 100  # signed, and not looked at
    for keys in (None, Credentials("reader-key", "wrong"), Credentials("nobody", "x")):
        with (
            connected(rocketmq_cluster.name_servers, keys) as client,
            pytest.raises(AccessDenied, match="check accessKey"),
        ):
            list(read_messages(client.pool, client.directory, "orders", QUEUE, OffsetRange(0, 1)))


AUTH: Final = "org.apache.rocketmq.auth"
ADMINISTRATOR: Final = Account("admin", "admin-secret")
CREATE_USER, CREATE_ACL = 3001, 3006


def _allow(cluster: Cluster, server: JavaServer, user: str, entries: list[tuple[str, list[str]]]) -> None:
    """Make a user of 5.x who may do this: resources such as ``Topic:orders`` with actions such as ``Sub``."""
    made = {"username": user, "password": f"{user}-secret", "userType": "Normal"}
    ask(server.address, CREATE_USER, {"username": user}, json.dumps(made).encode(), ADMINISTRATOR).checked()
    rules = [{"resource": name, "actions": actions, "decision": "Allow"} for name, actions in entries]
    policy = {"subject": f"User:{user}", "policies": [{"policyType": "Custom", "entries": rules}]}
    ask(server.address, CREATE_ACL, {"subject": f"User:{user}"}, json.dumps(policy).encode(), ADMINISTRATOR).checked()


@pytest.mark.rocketmq_only("5.5.0")
def test_accounts_of_5x_need_get_to_ask_for_offsets(rocketmq_cluster: Cluster) -> None:
    rocketmq_cluster.start_name_server()
    broker = rocketmq_cluster.start_broker(
        "broker-a",
        authenticationEnabled="true",
        authenticationProvider=f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
        authenticationMetadataProvider=f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
        initAuthenticationUser=json.dumps({"username": "admin", "password": "admin-secret"}),
        innerClientAuthenticationCredentials=json.dumps({"accessKey": "admin", "secretKey": "admin-secret"}),
        authorizationEnabled="true",
        authorizationProvider=f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
        authorizationMetadataProvider=f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    )
    made = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    made |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    ask(broker.address, 17, made, account=ADMINISTRATOR).checked()
    group = ("Group:metaq-spark", ["Sub"])
    _allow(rocketmq_cluster, broker, "reader", [("Topic:orders", ["Sub", "Get"]), group])
    _allow(rocketmq_cluster, broker, "puller", [("Topic:orders", ["Sub"]), group])
    _allow(rocketmq_cluster, broker, "writer", [("Topic:orders", ["Pub"])])
    where = TopicPartition("orders", QUEUE)
    with connected(rocketmq_cluster.name_servers, Credentials("writer", "writer-secret")) as client:
        with closing(BatchWriter(client.pool, client.directory, "broker-a", policy=RetryPolicy(1, 0.1))) as writer:
            writer.write("orders", 0, _batch(range(50)), 50)
            assert len(writer.flush()) == 1
        with pytest.raises(AccessDenied, match=r"NO_PERMISSION \(16\).*SUB and GET on the topic and SUB on the group"):
            client.offsets.ranges([where])
    with connected(rocketmq_cluster.name_servers, Credentials("reader", "reader-secret")) as client:
        assert len(client.messages("orders", 50)) == 50
        with closing(BatchWriter(client.pool, client.directory, "broker-a", policy=RetryPolicy(1, 0.1))) as writer:
            writer.send("orders", 0, b"x")
            with pytest.raises(BatchNotStored, match="the account has PUB on the topic"):
                writer.flush()
    with connected(rocketmq_cluster.name_servers, Credentials("puller", "puller-secret")) as client:
        runs = pull_range(client.pool, client.directory, "orders", QUEUE, OffsetRange(0, 50))
        assert sum(run.records for run in runs)
        with pytest.raises(AccessDenied, match="GET on the topic"):
            client.offsets.ranges([where])
    with (
        connected(rocketmq_cluster.name_servers, Credentials("reader", "wrong")) as client,
        pytest.raises(AccessDenied, match="check accessKey and secretKey"),
    ):
        client.offsets.ranges([where])
