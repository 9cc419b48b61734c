"""Offsets over the remoting protocol: committed, of queues, by time; as 4.9.7 answers, and 5.x to its clients."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from metaq_broker.log.engine.outcomes import PartitionClosed, PartitionUnavailable, StorageFailed
from metaq_broker.log.engine.topics import ServedTopic
from metaq_broker.log.state.state_table import OnDurable
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.offset_requests import OffsetRequests
from metaq_broker.testing import FaultyFiles
from remoting_brokers import Front, ext_of

from metaq.protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.offsets import (
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)

V5 = 479


@pytest.fixture
def front(tmp_path: Path) -> Front:
    made = Front(tmp_path)
    made.store.times["T", 0] = [1000, 1300, 1301, 1301, 2000]
    made.store.first["old", 0] = 7
    made.store.times["old", 0] = [500, 600]
    return made


def query(front: Front, topic: str = "T", queue: int = 0, group: str = "g", version: int = 407, **more: bool) -> object:
    asked = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue, **more)
    response = front.ask(asked, version=version)
    return int(response.ext["offset"]) if response.code == 0 else response.code


def commit(offset: int, topic: str = "T", group: str = "g") -> UpdateConsumerOffset:
    return UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=offset)


def test_a_committed_offset_comes_back(front: Front) -> None:
    response = front.ask(commit(3))
    assert (response.code, response.ext, response.body) == (0, {}, b"")
    assert query(front) == 3
    assert query(front, queue=1) == 0
    assert query(front, group="h") == 0
    front.ask(commit(-1))
    assert query(front) == 0  # as if nothing were committed


def test_where_a_new_group_begins(front: Front) -> None:
    assert query(front) == 0
    assert query(front, topic="nope", queue=9) == 0
    assert query(front, topic="old") == 22  # it has lost messages: the client decides
    assert query(front, version=V5) == 0
    assert query(front, version=V5, set_zero_if_not_found=False) == 22
    assert query(front, topic="nope", version=V5) == 22
    assert query(front, topic="T", queue=1, version=V5) == 22


def test_a_replaced_master_of_a_pair_does_not_say_that_there_is_no_offset(front: Front) -> None:
    waiting: list[OnDurable] = []
    front.dispatcher = Dispatcher()
    OffsetRequests(front.store, front.offsets, front.groups, front.topics, waiting.append).mount(front.dispatcher)
    assert query(front) == 0  # at worst something is consumed again
    asked = to_request(QueryConsumerOffset(consumer_group="g", topic="old", queue_id=0))
    sessions = [front.send(asked) for _ in range(2)]
    assert [session.responses for session in sessions] == [[], []]
    waiting[0](None)
    waiting[1](OSError("b leads in epoch 2"))
    answers = [each for session in sessions for each in session.responses if each is not None]
    assert [(each.code, each.remark) for each in answers] == [(22, answers[0].remark), (14, "b leads in epoch 2")]


def test_an_answered_commit_is_on_the_disk(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    front = Front(tmp_path, files)
    session = front.send(to_request(commit(3)))
    assert session.responses == []  # not before
    front.steps.run_all()
    assert [each and each.code for each in session.responses] == [0]
    assert query(front.restarted(files.crash(Random(1)))) == 3


def test_a_oneway_commit_is_on_the_disk_within_a_second(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    front = Front(tmp_path, files)
    front.topics.create("T", ServedTopic(1, 1))
    session = front.send(to_request(commit(3), oneway=True))
    assert query(front) == 3
    front.steps.run_all(1.0)
    assert session.responses == []
    assert query(front.restarted(files.crash(Random(1)))) == 3


def test_readers_of_a_deleted_topic_leave_no_offset_behind(front: Front) -> None:
    """They commit until they hear of it; a new topic of the name would be read from there, and not from its start."""
    for oneway, found in ((True, 0), (False, 3)):
        front.send(to_request(commit(3, "gone"), oneway=oneway))
        front.steps.run_all(1.0)
        assert query(front, topic="gone") == found


def test_clients_of_5_are_notified_of_unknown_groups_and_topics(tmp_path: Path) -> None:
    front = Front(tmp_path)
    assert front.ask(commit(3), version=V5).code == 26  # a commit makes no group
    assert front.groups.find("g") is not None
    assert front.ask(commit(3, "nope"), version=V5).code == 17
    assert front.ask(commit(3, "configured"), version=V5).code == 0
    assert front.ask(commit(3, "nope")).code == 0  # 4.9.7 stores whatever it is told
    assert query(front, "nope") == 3


def test_an_offset_that_cannot_be_stored_is_answered(front: Front) -> None:
    assert "no slash" in str(front.ask(commit(1, "a/b")).remark)
    assert front.ask(commit(1, group="g" * 300)).code == 1
    oneway = RemotingCommand(15, {**commit(1, "a/b").ext()}, flag=ONEWAY_FLAG)
    assert front.send(oneway).responses == []
    missing = front.ask_raw(RemotingCommand(15, {"topic": "T", "queueId": "0", "commitOffset": "1"}))
    assert (missing.code, missing.remark) == (
        1,
        "field 'consumerGroup' of UPDATE_CONSUMER_OFFSET (15) is missing; it must be a text",
    )


def test_ends_of_queues(front: Front) -> None:
    def ends(topic: str, queue: int) -> tuple[str, str, str]:
        low = ext_of(front.ask(GetMinOffset(topic=topic, queue_id=queue)))["offset"]
        high = ext_of(front.ask(GetMaxOffset(topic=topic, queue_id=queue)))["offset"]
        return low, high, ext_of(front.ask(GetEarliestMsgStoretime(topic=topic, queue_id=queue)))["timestamp"]

    assert ends("T", 0) == ("0", "5", "1000")
    assert ends("old", 0) == ("7", "9", "500")
    assert ends("T", 9) == ("0", "0", "-1")
    assert ends("nope", 0) == ("0", "0", "-1")


def test_a_queue_that_cannot_be_read_is_not_an_empty_one(front: Front) -> None:
    front.store.faults = {("T", 0): PartitionUnavailable("its segments do not fit"), ("T", 1): PartitionClosed(1)}
    for header in (
        GetMaxOffset(topic="T", queue_id=0),
        GetMinOffset(topic="T", queue_id=0),
        GetEarliestMsgStoretime(topic="T", queue_id=0),
        SearchOffsetByTimestamp(topic="T", queue_id=0, timestamp=5),
        QueryConsumerOffset(consumer_group="g", topic="T", queue_id=0),
    ):
        response = front.ask(header)
        assert (response.code, response.remark) == (
            1,
            "queue 0 of topic T cannot be read: its segments do not fit",
        )
    assert "closed by an operator" in str(front.ask(GetMaxOffset(topic="T", queue_id=1)).remark)
    front.ask(commit(4))
    assert query(front) == 4  # this is known all the same


def test_a_disk_that_fails_is_reported(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front.store, "offset_at", lambda topic, queue, time_ms: StorageFailed("the disk is broken"))
    response = front.ask(SearchOffsetByTimestamp(topic="T", queue_id=0, timestamp=5))
    assert (response.code, response.remark) == (1, "queue 0 of topic T cannot be read: the disk is broken")


@pytest.mark.parametrize(
    ("time_ms", "nearest", "lower", "upper"),
    [
        (-1, 0, 0, 0),
        (0, 0, 0, 0),
        (1000, 0, 0, 0),
        (1001, 0, 1, 0),
        (1150, 0, 1, 0),  # as near to the next: the earlier one
        (1151, 1, 1, 0),
        (1301, 2, 2, 3),
        (1700, 4, 4, 3),
        (2000, 4, 4, 4),
        (2001, 4, 5, 4),
        ((1 << 63) - 1, 4, 5, 4),
    ],
)
def test_offsets_by_time(front: Front, time_ms: int, nearest: int, lower: int, upper: int) -> None:
    def search(version: int, boundary: str | None = None) -> int:
        asked = SearchOffsetByTimestamp(topic="T", queue_id=0, timestamp=time_ms, boundary_type=boundary)
        return int(ext_of(front.ask(asked, version=version))["offset"])

    assert [search(407), search(433), search(407, "upper")] == [nearest] * 3
    assert [search(435), search(V5, "lower"), search(V5, "LOWER"), search(V5, "junk")] == [lower] * 4
    assert [search(V5, "upper"), search(V5, "UPPER")] == [upper] * 2


def test_offsets_by_time_in_other_queues(front: Front) -> None:
    def search(topic: str, time_ms: int, version: int) -> int:
        asked = SearchOffsetByTimestamp(topic=topic, queue_id=0, timestamp=time_ms)
        return int(ext_of(front.ask(asked, version=version))["offset"])

    assert [search("nope", 5, version) for version in (407, V5)] == [0, 0]
    assert [search("old", 0, version) for version in (407, V5)] == [7, 7]
    assert [search("old", 9999, version) for version in (407, V5)] == [8, 9]
    front.store.times["old", 0] = []  # everything was removed
    assert search("old", 5, V5) == 7
