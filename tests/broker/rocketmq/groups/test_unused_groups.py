"""Clients that use a new group name each time: what the broker keeps stays within its limits, and others go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.log.engine.topics import ServedTopic
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.groups.group_settings import GroupSettings
from metaq_broker.rocketmq.groups.unused_groups import LOOK_S, UnusedGroups
from remoting_brokers import FakeSession, Front

from metaq.protocols.remoting.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from metaq.protocols.remoting.headers.administration import DeleteSubscriptionGroup
from metaq.protocols.remoting.headers.clients import HeartBeat
from metaq.protocols.remoting.headers.offsets import UpdateConsumerOffset

LIMITS = RocketmqConfig(groups_max=100)


@pytest.fixture
def front(tmp_path: Path) -> Front:
    return bounded(Front(tmp_path, limits=LIMITS))


def bounded(front: Front) -> Front:
    UnusedGroups(front.groups, front.members, front.offsets, front.topics, lambda: front.now)
    return front


def join(front: Front, *groups: str, session: FakeSession | None = None) -> int:
    consumers = tuple(
        ConsumerData(group_name=group, subscription_data_set=(SubscriptionData(topic="configured"),))
        for group in groups
    )
    return front.ask(HeartBeat(), HeartbeatData(client_id="1", consumer_data_set=consumers), session).code


def commit(group: str) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(consumer_group=group, topic="configured", queue_id=0, commit_offset=3)


@pytest.mark.long
@pytest.mark.slow
def test_a_hundred_thousand_groups_of_one_hostile_client_stop_nobody(front: Front) -> None:
    assert join(front, "with offsets") == front.ask(commit("with offsets")).code == 0
    member = FakeSession()
    assert join(front, "with a member", session=member) == 0
    front.groups.put("with settings", GroupSettings(retry_max=3))
    front.stores.counts["%RETRY%with retries"] = 1
    front.groups.put("with retries", GroupSettings())
    front.stores.counts["%DLQ%with dead letters"] = 1
    front.groups.put("with dead letters", GroupSettings())
    kept = {"with offsets", "with a member", "with settings", "with retries", "with dead letters"}
    size = 0
    for number in range(0, 100_000, 50):
        hostile = FakeSession()
        assert join(front, *(f"hostile-{each}" for each in range(number, number + 50)), session=hostile) == 0
        front.lose(hostile)
        front.now += LOOK_S
        size = max(size, front.table.size_bytes)
    assert size < 100 * 2 * 512
    assert (front.root / "rocketmq-state").stat().st_size < 2 << 20
    assert join(front, "somebody else") == 0
    front.topics.create("of somebody else", ServedTopic(1, 1))
    known = front.groups.all().keys()
    assert kept | {"somebody else"} <= known
    assert front.offsets.get("configured", "with offsets", 0) == 3
    retries = {topic for topic in front.topics.all() if topic.startswith("%RETRY%hostile")}
    assert retries == {f"%RETRY%{group}" for group in known if group.startswith("hostile")}
    front.table.close()
    again = front.restarted(limits=LIMITS)
    assert again.groups.all().keys() == known


def test_groups_with_members_are_kept_and_others_refused(front: Front) -> None:
    hostile = FakeSession()
    assert join(front, *(f"hostile-{number}" for number in range(100)), session=hostile) == 0
    assert join(front, "somebody else") == 1
    front.lose(hostile)
    assert join(front, "somebody else") == 1  # it has just been looked at
    front.now += LOOK_S
    assert join(front, "somebody else") == 0
    assert [group for group in front.groups.all() if group.startswith("hostile")] == []


def test_an_operator_makes_space_by_deleting_groups_with_their_offsets(front: Front) -> None:
    for number in range(100):
        assert join(front, session := f"hostile-{number}") == front.ask(commit(session)).code == 0
    front.now += 200
    front.requests.expire()
    assert join(front, "somebody else") == 1
    size = front.table.size_bytes
    for number in range(100):
        front.ask(DeleteSubscriptionGroup(group_name=f"hostile-{number}", clean_offset=True))
    assert front.table.size_bytes < size
    assert join(front, "somebody else") == 0


def test_groups_that_must_be_made_by_operators_are_kept(tmp_path: Path) -> None:
    front = bounded(Front(tmp_path, limits=RocketmqConfig(groups_max=2), create_groups=False))
    for name in "ab":
        front.groups.put(name, GroupSettings())
    with pytest.raises(Exception, match="too many groups: the broker allows 2"):
        front.groups.put("c", GroupSettings())
    assert {"a", "b"} <= front.groups.all().keys()


def test_groups_topics_leave_the_others_their_number(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq_broker.log.engine.topics.TOPICS_MAX", 2)
    for group in "ab":
        assert join(front, group) == 0
    for topic in ("orders", "bills"):
        front.topics.create(topic, ServedTopic(1, 1))
    for topic in ("more", "%DLQ%a"):
        with pytest.raises(Exception, match="clients have made 2 topics"):
            front.topics.create(topic, ServedTopic(1, 1))
    front.topics.delete("%RETRY%b")
    front.topics.create("%DLQ%a", ServedTopic(1, 1))
    front.topics.create("%DLQ%a", ServedTopic(2, 2))
