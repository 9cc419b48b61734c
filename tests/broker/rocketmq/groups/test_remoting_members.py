"""Heartbeats, members, pushed changes and queue locks over the remoting protocol."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.log.engine.topics import ServedTopic
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.groups.group_settings import GroupSettings
from metaq_broker.rocketmq.pulls.filters import filter_checker
from remoting_brokers import FakeSession, Front

from metaq.errors import ConnectionFailed
from metaq.protocols.remoting.bodies.groups import (
    CheckClientRequestBody,
    ConsumerConnection,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    ProducerConnection,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import UpdateAndCreateSubscriptionGroup
from metaq.protocols.remoting.headers.clients import (
    CheckClientConfig,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    GetProducerConnectionList,
    HeartBeat,
    LockBatchMq,
    UnlockBatchMq,
    UnregisterClient,
)
from metaq.protocols.remoting.headers.offsets import UpdateConsumerOffset

V5 = 479


@pytest.fixture
def front(tmp_path: Path) -> Front:
    return Front(tmp_path)


def heartbeat(client: str, *groups: str, topic: str = "T", producers: tuple[str, ...] = ()) -> HeartbeatData:
    return HeartbeatData(
        client_id=client,
        producer_data_set=tuple(ProducerData(group_name=name) for name in producers),
        consumer_data_set=tuple(
            ConsumerData(
                group_name=name,
                subscription_data_set=(
                    SubscriptionData(topic=topic, sub_string="a || b", tags_set=("a", "b"), code_set=(97, 98)),
                    SubscriptionData(topic=f"%RETRY%{name}"),
                ),
            )
            for name in groups
        ),
    )


def joined(front: Front, client: str, *groups: str, **more: Any) -> FakeSession:
    session = FakeSession(f"127.0.0.1:5{client}")
    assert front.ask(HeartBeat(), heartbeat(client, *groups, **more), session).code == 0
    return session


def reported(session: FakeSession) -> list[str]:
    """The groups of which a client was told that they changed."""
    assert all(each.code == 40 and each.is_oneway for each in session.pushed)
    groups = [each.ext["consumerGroup"] for each in session.pushed]
    session.pushed.clear()
    return groups


def members(front: Front, group: str) -> object:
    response = front.ask(GetConsumerListByGroup(consumer_group=group))
    return response.code if response.code else list(ConsumerList.from_json(response.body).consumer_id_list)


# ---- members


def test_members_are_notified_of_each_other(front: Front) -> None:
    first = joined(front, "1", "g")
    assert reported(first) == ["g"]  # the one that joins, too
    second = joined(front, "2", "g")
    assert (reported(first), reported(second)) == (["g"], ["g"])
    assert members(front, "g") == ["1", "2"]
    front.ask(HeartBeat(), heartbeat("1", "g"), first)
    assert (reported(first), reported(second)) == ([], [])
    left = front.ask(UnregisterClient(client_id="1", consumer_group="g", producer_group=""), session=first)
    assert (left.code, left.ext) == (0, {})
    assert (reported(first), reported(second)) == ([], ["g"])
    front.lose(second)
    response = front.ask(GetConsumerListByGroup(consumer_group="g"))
    assert (response.code, response.remark) == (1, "no consumer for this group, g")


def test_changes_of_a_large_group_are_notified_together(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq_broker.rocketmq.groups.member_requests.TOGETHER_S", 0.005)

    async def run() -> set[tuple[str, ...]]:
        sessions = [joined(front, str(number), "g") for number in range(200)]
        for session in sessions:
            session.pushed.clear()
        joined(front, "last", "g")
        async with asyncio.timeout(60):
            while not all(session.pushed for session in sessions):
                await asyncio.sleep(0.005)
        found = {tuple(reported(session)) for session in sessions}
        front.lose(sessions.pop())  # of which they may hear before the loop ends
        return found

    assert asyncio.run(run()) == {("g",)}
    assert len(front.members.client_ids("g")) == 200


def test_a_member_that_is_gone_keeps_nobody_from_being_notified(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, alive = joined(front, "1", "g"), joined(front, "2", "g")
    reported(alive)

    def fail(command: RemotingCommand) -> None:
        raise ConnectionFailed("127.0.0.1:1", "NOTIFY_CONSUMER_IDS_CHANGED", "the client is gone")

    monkeypatch.setattr(dead, "oneway", fail)
    joined(front, "3", "g")
    assert reported(alive) == ["g"]


def test_a_group_that_wants_no_news_gets_none(front: Front) -> None:
    front.groups.put("g", GroupSettings(notify_changes=False))
    first = joined(front, "1", "g")
    joined(front, "2", "g")
    assert reported(first) == []


def test_a_heartbeat_makes_the_group_and_its_retry_topic(front: Front) -> None:
    front.groups.put("h", GroupSettings(retry_queues=3))
    joined(front, "1", "g", "h")
    assert front.groups.get("g") == GroupSettings()
    assert front.topics.settings("%RETRY%g") == ServedTopic(1, 1)
    assert front.topics.settings("%RETRY%h") == ServedTopic(3, 3)
    front.steps.run_all(1.0)
    again = front.restarted()
    assert again.topics.settings("%RETRY%h") == ServedTopic(3, 3)
    assert members(again, "g") == 1  # nobody has said that it is there yet


def test_a_client_of_an_unknown_group_is_a_member_without_retry_topic(tmp_path: Path) -> None:
    front = Front(tmp_path, create_groups=False)
    joined(front, "1", "g")
    assert members(front, "g") == ["1"]
    assert front.topics.settings("%RETRY%g") is None


def test_clients_of_5_learn_whether_their_subscriptions_changed(front: Front) -> None:
    session = FakeSession()
    assert front.ask(HeartBeat(), heartbeat("1", "g"), session).ext == {}
    answered = [front.ask(HeartBeat(), heartbeat("1", "g", topic=topic), session, V5).ext for topic in ("U", "U")]
    assert answered == [
        {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"},
        {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "false"},
    ]
    short = HeartbeatData(client_id="1", without_sub=True, consumer_data_set=(ConsumerData(group_name="g"),))
    assert front.ask(HeartBeat(), short, session, V5).ext["IS_SUB_CHANGE"] == "false"
    group = front.members.consumer_group("g")
    assert group is not None
    assert [each.topic for each in group.subscriptions] == ["U", "%RETRY%g"] or len(group.subscriptions) == 2


def test_what_a_cpp_client_sends(front: Front) -> None:
    body = {
        "clientID": "1",
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeFromWhere": 0,
                "consumeType": 1,
                "messageModel": 1,
                "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": "1795000000000"}],
            }
        ],
        "producerDataSet": [],
    }
    assert front.ask(HeartBeat(), json.dumps(body).encode()).code == 0
    assert members(front, "g") == ["1"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "JSON"),
        (b"{}", "clientID"),
        (b'{"clientID":"1","consumerDataSet":[{"groupName":"a/b"}]}', "slash"),
        (b'{"clientID":"\\ud800","consumerDataSet":[{"groupName":"g"}]}', "not valid Unicode"),
        (b'{"clientID":"1","consumerDataSet":[{"groupName":"g","consumeType":"X"}]}', "one of CONSUME_ACTIVELY"),
        (json.dumps({"clientID": "1", "producerDataSet": [{"groupName": "p" * 300}]}).encode(), "300 bytes"),
    ],
)
def test_a_wrong_heartbeat_is_refused_and_leaves_no_member(front: Front, body: bytes, text: str) -> None:
    response = front.ask(HeartBeat(), body)
    assert response.code == 1
    assert text in str(response.remark)
    assert front.members.count == 0


def test_a_group_with_too_long_a_retry_topic_is_refused(front: Front) -> None:
    longest, longer = "g" * 193, "g" * 194
    joined(front, "1", longest)
    assert front.topics.settings(f"%RETRY%{longest}") is not None
    sentence = (
        f"name {longer[:80]!r} is refused: it takes 194 bytes in UTF-8; "
        "a group of consumers has 193 at most, since its retry topic %RETRY%NAME has 200"
    )
    for refused in (
        front.ask(HeartBeat(), heartbeat("2", longer)),
        front.ask(
            UpdateConsumerOffset(consumer_group=longer, topic="configured", queue_id=0, commit_offset=1),
        ),
        front.ask(UpdateAndCreateSubscriptionGroup(), SubscriptionGroupConfig(group_name=longer)),
    ):
        assert (refused.code, refused.remark) == (1, sentence)
    slash = front.ask(HeartBeat(), heartbeat("2", "a/b"))
    assert "it contains a slash or a zero byte, which its retry topic cannot have" in str(slash.remark)
    assert front.members.count == 1
    assert not {longer, "a/b"} & front.groups.all().keys()
    assert front.offsets.all() == {}
    joined(front, "3", producers=("p" * 255,))  # has no retry topic


def test_too_many_members(tmp_path: Path) -> None:
    front = Front(tmp_path, limits=RocketmqConfig(members_max=2, groups_max=2))
    first = joined(front, "1", "g", producers=("p",))
    response = front.ask(HeartBeat(), heartbeat("2", "g"))
    assert (response.code, response.remark) == (1, "too many members of groups: the broker allows 2")
    assert reported(first) == ["g"]
    front.ask(UnregisterClient(client_id="1", producer_group="p"), session=first)
    assert front.ask(HeartBeat(), heartbeat("2", "g")).code == 0


def test_connections_are_shown(front: Front) -> None:
    joined(front, "1", "g", producers=("p",))
    group = front.ask(GetConsumerConnectionList(consumer_group="g"))
    shown = ConsumerConnection.from_json(group.body)
    assert [(each.client_id, each.client_addr, each.language, each.version) for each in shown.connection_set] == [
        ("1", "127.0.0.1:51", "PYTHON", 407)
    ]
    assert shown.subscription_table["T"].tags_set == ("a", "b")
    assert shown.subscription_table["T"].code_set == (97, 98)
    assert json.loads(group.body)["consumeType"] == "CONSUME_PASSIVELY"
    producers = ProducerConnection.from_json(front.ask(GetProducerConnectionList(producer_group="p")).body)
    assert [each.client_id for each in producers.connection_set] == ["1"]
    missing = front.ask(GetConsumerConnectionList(consumer_group="h"))
    assert (missing.code, missing.remark) == (206, "the consumer group[h] not online")
    assert front.ask(GetProducerConnectionList(producer_group="h")).code == 1


def test_silent_members_are_taken_out(front: Front) -> None:
    silent, lively = joined(front, "1", "g"), joined(front, "2", "g")
    front.now += 100
    front.ask(HeartBeat(), heartbeat("2", "g"), lively)
    reported(lively)
    front.now += 21
    front.requests.expire()
    assert members(front, "g") == ["2"]
    assert reported(lively) == ["g"]
    front.ask(HeartBeat(), heartbeat("1", "g"), silent)  # it was only slow
    assert members(front, "g") == ["2", "1"]


# ---- filters


def check(front: Front, kind: str, text: str, version: int = 407) -> tuple[int, str | None]:
    subscription = SubscriptionData(topic="T", sub_string=text, expression_type=kind)
    body = CheckClientRequestBody(client_id="1", group="g", subscription_data=subscription)
    response = front.ask(CheckClientConfig(), body, version=version)
    return response.code, response.remark


def test_filters_that_the_broker_does_not_know_are_refused(front: Front) -> None:
    assert check(front, "TAG", "a || b") == (0, None)
    assert check(front, "SQL92", "a > 1") == (1, "The broker does not support consumer to filter message by SQL92")
    assert check(front, "JUNK", "a")[0] == 23
    assert front.ask(CheckClientConfig()).code == 1
    assert front.ask(CheckClientConfig(), version=V5).code == 0


def test_conditions_are_compiled_where_the_broker_knows_them(tmp_path: Path) -> None:
    front = Front(tmp_path, check_filter=filter_checker(True))
    assert check(front, "SQL92", "a > 1 AND TAGS IN ('x')") == (0, None)
    code, remark = check(front, "SQL92", "a > 'x'")
    assert code == 23
    assert "character 5: only properties and numbers are greater" in str(remark)
    assert check(front, "TAG", "a || b") == (0, None)
    assert check(front, "JUNK", "a")[0] == 23


# ---- locks of queues


def queues(*ids: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic="T", broker_name="broker-a", queue_id=each) for each in ids)


def lock(front: Front, session: FakeSession, client: str, *ids: int, group: str = "g") -> list[int]:
    body = LockBatchRequestBody(consumer_group=group, client_id=client, mq_set=queues(*ids))
    response = front.ask(LockBatchMq(), body, session)
    locked = LockBatchResponseBody.from_json(response.body).locked
    assert all(each.broker_name == "broker-a" for each in locked)
    return [each.queue_id for each in locked]


def unlock(front: Front, session: FakeSession, client: str, *ids: int) -> None:
    body = LockBatchRequestBody(consumer_group="g", client_id=client, mq_set=queues(*ids))
    assert front.ask(UnlockBatchMq(), body, session).code == 0


def test_queues_are_locked_by_one_member(front: Front) -> None:
    first, second = joined(front, "1", "g"), joined(front, "2", "g")
    assert lock(front, first, "1", 0, 1) == [0, 1]
    assert lock(front, second, "2", 0, 1, 2) == [2]
    unlock(front, second, "2", 0)
    assert lock(front, second, "2", 0) == []
    unlock(front, first, "1", 0)
    assert lock(front, second, "2", 0, 1) == [0]
    front.now += 61
    assert lock(front, second, "2", 1) == [1]


def test_other_clients_get_no_locks(front: Front) -> None:
    member = joined(front, "1", "g")
    stranger, other = FakeSession(), joined(front, "2", "h")
    assert lock(front, stranger, "9", 0) == []
    assert lock(front, other, "2", 0) == []  # a member of another group
    assert lock(front, member, "2", 0) == []  # a member with another's id
    assert lock(front, member, "1", 0) == [0]
    unlock(front, stranger, "9", 0)
    assert lock(front, joined(front, "3", "g"), "3", 0) == []


def test_after_a_restart_clients_keep_the_queues_that_they_read(front: Front) -> None:
    """They ask for their locks again before they have said who they are."""
    again = front.restarted()
    early = FakeSession()
    assert lock(again, early, "1", 0) == [0]
    late = joined(again, "2", "g")
    assert lock(again, late, "2", 0, 1) == [1]
    assert lock(again, early, "1", 0, 1) == []  # not a member yet, and its lock runs on
    assert again.locks.owner("g", ("T", 0)) == "1"
    again.ask(HeartBeat(), heartbeat("1", "g"), early)
    assert lock(again, early, "1", 0) == [0]


def test_a_language_is_not_kept_as_long_as_a_client_likes(front: Front) -> None:
    session = FakeSession()
    assert front.ask(HeartBeat(), heartbeat("1", "g"), session, language="J" * 1_000_000).code == 0
    (member,) = front.members.consumers("g")
    assert member.language == "J" * 32


def test_the_topics_of_many_new_groups_are_made_together(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of the topics costs work for all of them."""
    applied = []
    monkeypatch.setattr(front.topics, "_apply", applied.append)
    joined(front, "1", *(f"g{number}" for number in range(200)))
    (config,) = applied
    assert all(config.accepts(f"%RETRY%g{number}") for number in range(200))
    assert len(front.members.groups_subscribed_to("T")) == 200
