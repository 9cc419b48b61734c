"""Mirrors whose source broker was put back to an older copy of its data; brokers in memory."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fix_client import TIMEOUTS

from metaq.backends.metaq.pool import SessionPool
from metaq.client.metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import ConnectionFailed
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdRange
from metaq.model import Address, Partition
from metaq.operate.mirror.mirror import Mirror
from metaq.operate.mirror.progress import ProgressFile
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq.testing.rocketmq_server import ScriptedCluster

COPIED_MS = 1_795_156_200_000
READ_MS, SINCE_MS = COPIED_MS + 1004, COPIED_MS + 60_000


class Story:
    """A mirror has copied ``a0`` to ``a4``; only the first two are in the copy that the source is put back to."""

    partition, extensions = "0-0", None

    def __init__(self, folder: Path, transport: MemoryTransport) -> None:
        more: dict[str, Any] = {} if self.extensions is None else {"extensions": self.extensions}
        self.here, there = MemoryBroker({"t": 1}, **more), MemoryBroker({"t": 1}, broker_id=7)
        transport.brokers |= {Address("127.0.0.1", 8123): self.here, Address("127.0.0.1", 8124): there}
        self.source: Any = MetaQ("127.0.0.1:8123")
        self.target = MetaQ("127.0.0.1:8124")
        self.path = folder / "m.json"
        self.put("a0", "a1", at_ms=COPIED_MS)
        self.take_copy()
        self.put("a2", "a3", "a4", at_ms=READ_MS)

    def put(self, *payloads: str, at_ms: int = SINCE_MS) -> None:
        for payload in payloads:
            message_id = IdRange(at_ms, 0, 1, 0).first if self.extensions is None else -at_ms
            self.here.partition("t", 0).append(encode_frame(message_id, 0, payload.encode()))

    def take_copy(self) -> None:
        self.copy = copy.deepcopy(self.here.partitions)

    def put_back(self, *payloads: str) -> None:
        """Put the source back to the copy, start it again, and put new messages."""
        self.here.kill()
        self.here.partitions = self.copy
        self.here.start()
        self.put(*payloads)

    def make_again(self) -> None:
        """Delete the topic, and make it again."""
        self.here.recreate("t", 0)

    def mirror(self, progress: ProgressFile) -> Mirror:
        mirror = Mirror(self.source, self.target, ["t"], progress)
        mirror.settle()
        return mirror

    def run(self) -> int:
        with ProgressFile(self.path, "here", "there", "") as progress:
            return self.mirror(progress).copy()

    def copied(self) -> list[str]:
        return [one.data.decode() for one in self.target.browse("t")]

    def close(self) -> None:
        self.source.close()
        self.target.close()


class JavaStory(Story):
    """With a source that stores no times and does not say where messages begin."""

    extensions = frozenset[str]()


class RocketMQStory(Story):
    """With a queue."""

    partition = "broker-a:0"

    def __init__(self, folder: Path, transport: MemoryTransport, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        cluster.create_topic("t", queues=1)
        super().__init__(folder, transport)
        self.source.close()
        self.source = RocketMQ(";".join(map(str, cluster.name_servers)))

    def put(self, *payloads: str, at_ms: int = SINCE_MS) -> None:
        bodies = [payload.encode() for payload in payloads]
        self.cluster.append("t", Partition("broker-a", 0), bodies, store_ms=at_ms)

    def take_copy(self) -> None:
        """The first two messages."""

    def put_back(self, *payloads: str) -> None:
        self.cluster.stop_broker("broker-a", is_in_route=True)
        del self.cluster.broker("broker-a").store.queue("t", 0).stored[2:]
        self.cluster.start_broker("broker-a")
        self.put(*payloads)

    def make_again(self) -> None:
        del self.cluster.broker("broker-a").store.queue("t", 0).stored[:]


@pytest.fixture(params=["ours", "java", "rocketmq"])
def story(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    transport = MemoryTransport({})
    monkeypatch.setattr("metaq.client.metaq.SessionPool", lambda *_: SessionPool(TIMEOUTS, transport, transport.clock))
    match request.param:
        case "ours":
            story = Story(tmp_path, transport)
        case "java":
            story = JavaStory(tmp_path, transport)
        case _:
            story = RocketMQStory(tmp_path, transport, request.getfixturevalue("rocketmq_memory"))
    yield story
    story.close()


OLD, NEW = ["a0", "a1", "a2", "a3", "a4"], ["n0", "n1", "n2"]


@pytest.mark.parametrize("new", [NEW[:1], NEW, [*NEW, "n3"]], ids=["shorter", "to the offset", "past it"])
def test_a_partition_that_was_put_back(story: Story, new: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert story.run() == 5
    story.put_back(*new)
    story.run()
    again = ["a0", "a1"] if isinstance(story, JavaStory) else []
    assert story.copied() == [*OLD, *again, *new]
    assert f"t/{story.partition}: the message before offset" in caplog.text
    assert "put back to an older copy" in caplog.text
    story.put("later")
    assert story.run() == 1
    assert story.copied() == [*OLD, *again, *new, "later"]


@pytest.mark.parametrize("new", [NEW[:1], NEW, [*NEW, "n3"]], ids=["shorter", "to the offset", "past it"])
def test_a_mirror_that_runs_on(story: Story, new: list[str]) -> None:
    with ProgressFile(story.path, "here", "there", "") as progress:
        mirror = story.mirror(progress)
        assert mirror.copy() == 5
        assert mirror.copy() == 0
        story.put_back(*new)
        for _ in range(3):  # as with --follow
            with suppress(ConnectionFailed):
                mirror.copy()
    again = ["a0", "a1"] if isinstance(story, JavaStory) else []
    assert story.copied() == [*OLD, *again, *new]


@pytest.mark.parametrize("count", [1, 8], ids=["shorter", "past the offset"])
def test_a_topic_that_is_made_again_while_a_mirror_runs(story: Story, count: int) -> None:
    if isinstance(story, JavaStory):
        pytest.skip("it does not say that a partition is another one")
    new = [f"n{number}" for number in range(count)]
    with ProgressFile(story.path, "here", "there", "") as progress:
        mirror = story.mirror(progress)
        assert mirror.copy() == 5
        story.make_again()
        story.put(*new)
        assert mirror.copy() == count
        story.put("later")
        assert mirror.copy() == 1
    assert story.copied() == [*OLD, *new, "later"]


@pytest.mark.parametrize("story", ["rocketmq"], indirect=True)
def test_a_topic_that_is_deleted_for_a_while(story: RocketMQStory) -> None:
    new = [f"n{number}" for number in range(8)]
    with ProgressFile(story.path, "here", "there", "") as progress:
        mirror = story.mirror(progress)
        assert mirror.copy() == 5
        story.cluster.broker("broker-a").store.delete_topic("t")
        assert mirror.copy() == 0
        story.cluster.create_topic("t", queues=1)
        story.put(*new)
        assert mirror.copy() == len(new)
    assert story.copied() == [*OLD, *new]


def test_a_source_that_is_what_it_was(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    assert story.run() == 5
    story.put("a5")
    assert (story.run(), story.copied()) == (1, [*OLD, "a5"])
    assert "older copy" not in caplog.text


def test_a_file_of_an_older_version_is_read(story: Story) -> None:
    assert story.run() == 5
    tree = json.loads(story.path.read_text())
    row = tree["topics"]["t"][story.partition]
    assert set(row.pop("last")) == {"offset", "stored_ms", "digest"}
    story.path.write_text(json.dumps(tree))
    story.put("a5")
    assert (story.run(), story.copied()) == (1, [*OLD, "a5"])
    assert "last" in json.loads(story.path.read_text())["topics"]["t"][story.partition]
