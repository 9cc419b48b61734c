"""Messages of the bundled broker are the same from its frames as from pulls, and damage is told as pulls tell it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from local_servers import broker_thread

from metaq import MetaQ, RocketMQ
from metaq.backends.rocketmq.errors import OffsetOutOfRange
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads import messages
from metaq.backends.rocketmq.reads.messages import read_messages
from metaq.backends.rocketmq.reads.pull_reader import PullSettings, pull_range
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.client.rocketmq.records import RocketMessage
from metaq.discovery.name_server import NameServerDirectory
from metaq.formats.rocketmq.records import Record
from metaq.model import Address, Message, OffsetRange, Partition
from metaq.testing.ports import free_port

COUNT = 600
DAMAGED = 300


class Servers:
    """A broker in a thread: where its messages are, and how both kinds of client reach it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.name_server = folder, Address("127.0.0.1", port)

    def read(self, tags: str) -> Iterator[Record]:
        with closing(SessionPool()) as pool:
            directory = NameServerDirectory([self.name_server], pool)
            [queue] = directory.queues("t")
            settings = PullSettings(subscription=Subscription(tags), wait_s=2.0)
            yield from read_messages(pool, directory, "t", queue, OffsetRange(0, COUNT), settings)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    port = free_port()
    with broker_thread(tmp_path, f"[topic=t]\n[rocketmq]\nenabled=true\nport={port}\n", numPartitions=1) as address:
        made = Servers(tmp_path, port)
        chance = random.Random(20)
        with RocketMQ(str(made.name_server)) as rocketmq, MetaQ(str(address)) as metaq:
            producer, plain = rocketmq.producer(compression="zlib", compress_from=2000), metaq.producer()
            for number in range(0, COUNT, 60):
                some = [
                    RocketMessage(data=chance.randbytes(chance.randrange(200)), tag="hot", keys=("k", str(number))),
                    RocketMessage(data=b"long " * 1000, tag="hot", properties={"price": "3"}),
                    RocketMessage(data=b"", tag="hot"),
                ]
                producer.send_many("t", some * 19)
                plain.send_many("t", [Message(b"of metaq", "hot")] * 3, partition=Partition(0, 0))
        yield made


def pull_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "read_range", pull_range)


def test_frames_and_pulls_give_the_same_messages(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    framed = list(servers.read("*"))
    assert [record.queue_offset for record in framed] == list(range(COUNT))
    assert framed == list(servers.read("hot"))
    pull_instead(monkeypatch)
    assert framed == list(servers.read("*"))


def test_damage_is_reported_as_pulls_report_it(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    records = list(servers.read("*"))
    [segment] = (servers.folder / "t-0").glob("*.meta")
    data = bytearray(segment.read_bytes())
    data[records[DAMAGED].physical_offset - records[0].physical_offset + 30] ^= 1
    segment.write_bytes(data)
    for read in range(2):
        found: list[Record] = []
        with pytest.raises(OffsetOutOfRange, match="has offsets 301 to 600, not 300"):
            found.extend(servers.read("*"))
        assert found == records[: len(found)]
        assert len(found) == DAMAGED or read, "frames in front of the damage are handed out"
        pull_instead(monkeypatch)
