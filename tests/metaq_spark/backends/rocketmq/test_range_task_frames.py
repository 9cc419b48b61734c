"""Reads from the bundled broker: frames and pulls give the same rows, and what frames cannot tell comes by pulls."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fix_broker import RunningBroker, launch_in, wait_until
from request_replay import SendPullReplay, steps

from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads import frame_pulls
from metaq.backends.rocketmq.session import Session
from metaq.client.metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketMessage
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import Address, OffsetRange, Partition, TopicPartition
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from metaq.protocols.remoting.headers.pulls import PullFrames, PullMessage
from metaq_spark.backends.rocketmq import range_task
from metaq_spark.backends.rocketmq.options import parse_source_options
from metaq_spark.backends.rocketmq.range_task import QueuePartition, read_queue
from metaq_spark.columns import engine
from metaq_spark.errors import DataLoss
from metaq_spark.options.table import Use

pytestmark = pytest.mark.process

NAME = "golden-a"
REST = (
    "[zookeeper]\nzk.zkEnable=false\n[topic=T]\n[topic=puts]\n[topic=damaged]\n"
    f"[rocketmq]\nenabled=true\nport=0\nbrokerName={NAME}\nclusterName=GoldenCluster\n"
    "messageDelayLevel=1s 1h\ntransactionTimeOut=100000\nenablePropertyFilter=true\n"
)
Rows = list[dict[str, Any]]


class Directory(NameServerDirectory):
    """Says of no broker that it is the bundled one."""

    def metaq_broker(self, address: Address) -> MetaQBroker | None:
        return None


class Server:
    """The broker, and readers of its queues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.broker: RunningBroker = launch_in(self.folder, REST, hostName="127.0.0.1")
        assert self.broker.process.stdout is not None
        self.address = Address.parse(self.broker.process.stdout.readline().split()[2])
        self.pool = SessionPool(Timeouts(2.0, 5.0))
        self.by_frames = NameServerDirectory([self.address], self.pool)
        self.by_pulls = Directory([self.address], self.pool)

    def stop(self) -> None:
        self.pool.close()
        self.broker.process.terminate()
        self.broker.process.wait(60)
        self.broker.end()

    @property
    def metaq(self) -> MetaQ:
        return MetaQ(str(self.broker.address))

    def client(self) -> RocketMQ:
        return RocketMQ(str(self.address))

    def queues(self, topic: str) -> dict[TopicPartition, OffsetRange]:
        """What a topic has."""
        with self.client() as mq:
            described = mq.cluster.describe(topic)
        return {TopicPartition(topic, each.partition): OffsetRange(each.start, each.end) for each in described}

    def rows(self, directory: NameServerDirectory, where: TopicPartition, offsets: OffsetRange, **options: str) -> Rows:
        raw = {"nameServers": str(self.address), "subscribe": where.topic, "retryIntervalMs": "5"} | options
        batches = read_queue(
            QueuePartition(where, offsets), parse_source_options(raw, Use.BATCH_READ), self.pool, directory
        )
        return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]

    def both(self, where: TopicPartition, offsets: OffsetRange, **options: str) -> Rows:
        """The rows of a range by frames, which are those by pulls."""
        expected = self.rows(self.by_pulls, where, offsets, **options)
        assert self.rows(self.by_frames, where, offsets, **options) == expected
        return expected


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("frames"))
    yield server
    server.stop()


@pytest.fixture(params=["compiled", "plain"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which loops decode."""
    left = 0 if request.param == "compiled" else 1 << 40
    monkeypatch.setattr(engine.shared_engine(), "_plain_bytes_left", left)
    return str(request.param)


class Counted:
    """Codes of the requests, and types of the answers to those for frames."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: list[int] = []
        self.kinds: list[str] = []
        post_all, read = Session.post_all, frame_pulls.read_frames

        def counted(session: Session, commands: Sequence[RemotingCommand], *more: Any) -> list[int]:
            self.codes += [command.code for command in commands]
            return post_all(session, commands, *more)

        def noted(*arguments: Any) -> Any:
            found = read(*arguments)
            self.kinds.append(type(found).__name__)
            return found

        monkeypatch.setattr(Session, "post_all", counted)
        monkeypatch.setattr(frame_pulls, "read_frames", noted)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture(scope="module")
def recorded(server: Server) -> list[TopicPartition]:
    """The queues that are there after everything that was sent to a real broker was sent to this one."""
    with server.pool.lease(server.address) as session:

        def ask(command: RemotingCommand) -> RemotingCommand | None:
            if command.flag & ONEWAY_FLAG:
                session.oneway(command, "a step")
                return None
            return session.call(command, "a step")

        replay = SendPullReplay(ask, time.sleep)
        for step in steps():
            replay.play(step)
    with server.client() as mq:
        topics = mq.cluster.topics()
    return [TopicPartition(topic, queue) for topic, queues in topics.items() for queue in queues]


def test_everything_that_was_recorded(
    server: Server, recorded: list[TopicPartition], loops: str, counted: Counted
) -> None:
    seen = 0
    for where in recorded:
        offsets = server.queues(where.topic)[where]
        if len(offsets):
            rows = server.both(where, offsets)
            assert [row["queue_offset"] for row in rows] == list(range(offsets.start, offsets.end))
            seen += len(rows)
    assert seen > 50
    assert set(counted.kinds) == {"FrameRun"}


def test_metaq_puts_and_sends_of_all_kinds(server: Server, loops: str, counted: Counted) -> None:
    where = TopicPartition("puts", Partition(NAME, 0))
    if not server.queues("puts").get(where):
        with server.metaq as mq:
            producer = mq.producer()
            for number in range(40):
                producer.send("puts", b"put %d" % number, attribute=[None, "red", "é"][number % 3])
        with server.client() as mq:
            mq.producer().send_many("puts", [RocketMessage(data=b"%d" % each, tag="red") for each in range(3000)])
            mq.producer().send("puts", "é" * 3000, tag="blue", keys=["k1", "k2"], properties={"名": "值", "a": "b"})
            mq.producer().send("puts", b"later", tag="red", delay_level=1)
            mq.producer().send("puts", bytes(700_000), tag="large")
            mq.producer().send_many("puts", [bytes(10_000)] * 100)
        wait_until(lambda: server.queues("puts")[where].end == 40 + 3000 + 103, "everything is stored")
    offsets = server.queues("puts")[where]
    counted.codes.clear()
    rows = server.rows(server.by_frames, where, offsets)
    assert PullMessage.CODE not in counted.codes, "frames came for all of it"
    assert rows == server.rows(server.by_pulls, where, offsets)
    assert len(rows) == len(offsets) == 3143
    assert set(counted.kinds) == {"FrameRun"}
    red = server.both(where, offsets, tags="red || é", columns="value,tags")
    assert {row["tags"] for row in red} == {"red", "é"}
    assert len(red) == 3000 + 26 + 1
    for start, end in ((0, 1), (39, 41), (40, 3040), (3042, 3143), (3142, 3143)):
        server.both(where, OffsetRange(start, end), columns="value,queue_offset,offset_message_id")
    server.both(where, offsets, dropRepeatedWithin="10", columns="value")


def test_a_condition_in_sql_is_for_the_broker(server: Server, counted: Counted) -> None:
    where, offsets = TopicPartition("puts", Partition(NAME, 0)), OffsetRange(0, 3143)
    by_tags = server.both(where, offsets, tags="red || é", columns="queue_offset,value")
    counted.codes.clear()
    by_sql = server.rows(server.by_frames, where, offsets, sql="TAGS IN ('red', 'é')", columns="queue_offset,value")
    assert by_sql == by_tags
    assert PullFrames.CODE not in counted.codes
    named = server.both(where, offsets, sql="a = 'b' AND KEYS IS NOT NULL", columns="keys")
    assert named == [{"keys": "k1 k2"}]
    with pytest.raises(Exception, match="character 6: expected the end, AND or OR, found 'LIKE'"):
        server.rows(server.by_frames, where, offsets, sql="TAGS LIKE 'r%'")


def test_messages_that_wait(server: Server, loops: str) -> None:
    """Those in RocketMQ's own topics, which can be read by name."""
    where = TopicPartition("SCHEDULE_TOPIC_XXXX", Partition(NAME, 1))
    if not server.queues("SCHEDULE_TOPIC_XXXX").get(where):
        with server.client() as mq:
            for number in range(3):
                mq.producer().send("puts", b"in an hour %d" % number, tag="red", delay_level=2)
    rows = server.both(where, server.queues("SCHEDULE_TOPIC_XXXX")[where])
    assert [row["value"] for row in rows] == [b"in an hour 0", b"in an hour 1", b"in an hour 2"]
    assert {(row["properties"]["REAL_TOPIC"], row["properties"]["REAL_QID"]) for row in rows} <= {("puts", "0")}


def test_fetch_bytes_bound_what_is_under_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """And messages larger than an answer come whole."""
    where, offsets = TopicPartition("puts", Partition(NAME, 0)), OffsetRange(0, 3143)
    monkeypatch.setattr(frame_pulls, "BODY_BYTES", 5000)
    server.both(where, offsets, columns="value", fetchBytes="64k")


def test_offsets_that_are_not_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_task, "WAIT_S", 0.1)
    where, end = TopicPartition("puts", Partition(NAME, 0)), 3143
    for directory in (server.by_frames, server.by_pulls):
        with pytest.raises(DataLoss, match=f"{end}"):
            server.rows(directory, where, OffsetRange(end - 1, end + 5))
    server.both(where, OffsetRange(end - 1, end + 5), failOnDataLoss="false")


def test_what_the_broker_refuses(server: Server) -> None:
    unknown = TopicPartition("puts", Partition(NAME, 77))
    for directory in (server.by_frames, server.by_pulls):
        with pytest.raises(Exception, match=re.escape("queueId[77] is illegal")):
            server.rows(directory, unknown, OffsetRange(0, 5))


def damaged(segment: Path, old: bytes, new: bytes) -> None:
    """Change what a broker has not looked at since: a failing disk."""
    with segment.open("r+b") as file:
        content = file.read()
        file.seek(content.index(old))
        file.write(new)


def test_damage_means_what_it_means_to_pulls(server: Server, loops: str, caplog: pytest.LogCaptureFixture) -> None:
    where = TopicPartition("damaged", Partition(NAME, 0))
    if not server.queues("damaged").get(where):
        with server.client() as mq:
            mq.producer().send_many("damaged", [b"message %03d" % each for each in range(300)])
        (segment,) = (server.folder / "data" / "damaged-0").glob("*.meta*")
        damaged(segment, b"message 100", b"massage 100")
        damaged(segment, b"message 299", b"massage 299")
    offsets = OffsetRange(0, 300)
    for directory in (server.by_frames, server.by_pulls):
        with pytest.raises(DataLoss, match="100"):
            server.rows(directory, where, offsets)
    rows = server.both(where, offsets, failOnDataLoss="false")
    assert [row["queue_offset"] for row in rows] == [*range(100), *range(101, 299)]
