"""Topics, groups, settings and figures for administrators, over the remoting protocol."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from metaq_broker.log.engine.maintenance import MaintenanceRefused
from metaq_broker.log.engine.topics import ServedTopic
from metaq_broker.rocketmq.groups.group_settings import GroupSettings
from metaq_broker.rocketmq.groups.members import ClientIdentity, ConsumerGroup, GroupSubscription
from metaq_broker.rocketmq.server import topic_source
from metaq_broker.rocketmq.system_topics import GROUPS
from metaq_broker.testing import FaultyFiles
from remoting_brokers import BROKER, FakeSession, Front

from metaq.protocols.remoting.bodies.groups import GroupList, MessageQueue, SubscriptionGroupConfig, SubscriptionGroups
from metaq.protocols.remoting.bodies.offsets import (
    ConsumeOffset,
    ConsumerOffsets,
    ConsumeStats,
    DelayOffsets,
    TopicOffset,
    TopicStats,
)
from metaq.protocols.remoting.bodies.registration import TopicConfigBody, TopicConfigs
from metaq.protocols.remoting.bodies.routes import KVTable, TopicList
from metaq.protocols.remoting.codes import VERSION_5
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import (
    DeleteSubscriptionGroup,
    DeleteTopicInBroker,
    GetAllSubscriptionGroupConfig,
    GetAllTopicConfig,
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    GetConsumeStats,
    GetSubscriptionGroupConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    QueryTopicConsumeByWho,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateTopic,
    UpdateBrokerConfig,
)
from metaq.protocols.remoting.headers.offsets import GetAllConsumerOffset, GetAllDelayOffset


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    made = Front(tmp_path)
    made.topics.create("T", ServedTopic(2, 2))
    made.store.times["T", 0] = [1000, 1300, 2000]
    made.steps.run_all()
    return made


def made(topic: str, reads: int = 3, writes: int = 2, perm: int = 6) -> UpdateAndCreateTopic:
    return UpdateAndCreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=reads,
        write_queue_nums=writes,
        perm=perm,
        topic_filter_type="SINGLE_TAG",
        order=True,
    )


def delete(front: Front, topic: str) -> RemotingCommand:
    """The response to a request to delete a topic, which is carried out in the event loop."""

    async def run() -> RemotingCommand:
        session = front.send(to_request(DeleteTopicInBroker(topic=topic)))
        while not session.responses:
            await asyncio.sleep(0)
            front.steps.run_all()
        (response,) = session.responses
        assert response is not None
        return response

    return asyncio.run(run())


# ---- topics


def test_a_topic_is_made_and_changed(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    front = Front(tmp_path, files)
    session = front.send(to_request(made("new")))
    assert session.responses == []  # not before it is on the disk
    front.steps.run_all()
    (response,) = session.responses
    assert response is not None
    assert (response.code, response.ext, response.remark) == (0, {}, "not set any response code")
    front.ask(made("new", 5, 5, 4))
    again = front.restarted(files.crash(Random(1)))
    assert again.topics.settings("new") == ServedTopic(5, 5, 4, order=True)


def test_attributes_of_a_topic_are_kept_and_shown(front: Front) -> None:
    """In the answers to questions (351, 21) and in what is registered at name servers."""
    assert front.ask(dataclasses.replace(made("timed"), attributes="+message.type=DELAY")).code == 0
    front = front.restarted()
    assert front.ask(made("timed", 5, 5)).code == 0, "other changes leave the type as it is"
    registered = topic_source(front.topics)
    asked = TopicConfigBody.from_json(front.ask(GetTopicConfig(topic="timed")).body)
    listed = TopicConfigs.from_json(front.ask(GetAllTopicConfig()).body).topic_config_table
    one, every = registered.one("timed"), registered.all().topic_config_table
    for shown in (asked, listed["timed"], one, every["timed"]):
        assert shown is not None
        assert (shown.read_queue_nums, shown.attributes) == (5, {"message.type": "DELAY"})
    assert listed["T"].attributes is None
    refused = front.ask(dataclasses.replace(made("timed"), attributes="+message.type=LITE"))
    assert (refused.code, "message.type 'LITE'" in str(refused.remark)) == (1, True)


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("", "The specified topic is blank."),
        ("a b", "illegal characters"),
        ("a/b", "illegal characters"),
        ("x" * 128, "longer than topic max length"),
        ("TBW102", "system topic"),
    ],
)
def test_topics_that_cannot_be_made_or_deleted(front: Front, topic: str, text: str) -> None:
    for response in (front.ask(made(topic)), front.ask(DeleteTopicInBroker(topic=topic))):
        assert response.code == 1
        assert text in str(response.remark)
    newer = front.ask(made(topic), version=VERSION_5)
    assert newer.code == (1 if topic == "TBW102" else 29)
    refused = front.ask(made("U", reads=99_999))
    assert (refused.code, refused.remark) == (1, "topic 'U': 99999 queues; expected 0 to 4096")


def test_a_deleted_topic_takes_its_messages_and_offsets_with_it(front: Front) -> None:
    front.stores.counts["T"] = 2
    front.offsets.commit("T", "g", 0, 3)
    front.offsets.commit("U", "g", 0, 3)
    response = delete(front, "T")
    assert (response.code, response.ext) == (0, {})
    assert front.deleted == ["T", "T"]  # and what came in between
    again = front.restarted()
    assert again.topics.settings("T") is None
    assert again.offsets.all() == {("U", "g"): {0: 3}}
    assert delete(again, "T").code == 0  # one that is not there is deleted, too
    assert delete(again, "configured").remark == "topic 'configured': it is configured in server.ini; remove it there"


def test_a_topic_that_transactions_need_stays(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(topic: str) -> None:
        raise MaintenanceRefused(f"partition {topic}-0 is needed by transactions that have not ended")

    monkeypatch.setattr(front, "delete_messages", refuse)
    front.offsets.commit("T", "g", 0, 3)
    response = delete(front, "T")
    assert (response.code, "needed by transactions" in str(response.remark)) == (1, True)
    assert front.topics.settings("T") == ServedTopic(2, 2)
    assert front.offsets.get("T", "g", 0) == 3


def test_topics_are_shown(front: Front) -> None:
    table = TopicConfigs.from_json(front.ask(GetAllTopicConfig()).body)
    assert table.topic_config_table["T"] == TopicConfigBody(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    assert table.topic_config_table["TBW102"].perm == 7
    assert table.data_version.counter == 1
    assert {"configured", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", BROKER} <= table.topic_config_table.keys()
    internal = {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer"}
    assert not internal & table.topic_config_table.keys()
    front.stores.counts["RMQ_SYS_TRANS_HALF_TOPIC"] = 1
    table = TopicConfigs.from_json(front.ask(GetAllTopicConfig()).body)
    assert internal & table.topic_config_table.keys() == {"RMQ_SYS_TRANS_HALF_TOPIC"}
    one = TopicConfigBody.from_json(front.ask(GetTopicConfig(topic="configured")).body)
    assert (one.read_queue_nums, one.perm) == (3, 6)
    assert front.ask(GetTopicConfig(topic="never")).code == 17


def queue(number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=BROKER, queue_id=number)


def test_what_a_topic_has(front: Front) -> None:
    response = front.ask(GetTopicStatsInfo(topic="T"))
    assert TopicStats.from_json(response.body).offset_table == {
        queue(0): TopicOffset(min_offset=0, max_offset=3, last_update_timestamp=2000),
        queue(1): TopicOffset(),
    }
    assert response.body.startswith(b'{"offsetTable":{{"brokerName":')  # as Java writes it
    missing = front.ask(GetTopicStatsInfo(topic="never"))
    assert (missing.code, missing.remark) == (17, "topic[never] not exist")


# ---- groups


def test_groups_are_made_shown_and_deleted(front: Front) -> None:
    config = SubscriptionGroupConfig(group_name="g", consume_enable=False, retry_max_times=3, retry_queue_nums=2)
    assert front.ask(UpdateAndCreateSubscriptionGroup(), config).code == 0
    front = front.restarted()
    assert front.groups.get("g") == GroupSettings(consume_enable=False, retry_max=3, retry_queues=2)
    shown = SubscriptionGroups.from_json(front.ask(GetAllSubscriptionGroupConfig()).body)
    assert (shown.data_version.timestamp, shown.data_version.counter) == (0, 0), "no change since the start"
    assert {name for name in shown.subscription_group_table if name not in GROUPS} == {"g"}
    assert shown.subscription_group_table.keys() > GROUPS
    assert shown.subscription_group_table["g"] == config
    assert SubscriptionGroupConfig.from_json(front.ask(GetSubscriptionGroupConfig(group="g")).body) == config
    front.offsets.commit("T", "g", 0, 1)
    assert front.ask(DeleteSubscriptionGroup(group_name="g")).code == 0
    shown = SubscriptionGroups.from_json(front.ask(GetAllSubscriptionGroupConfig()).body)
    assert (shown.data_version.timestamp, shown.data_version.counter) == (0, 1)
    front = front.restarted()
    assert front.groups.get("g") is None
    assert front.offsets.get("T", "g", 0) == 1
    assert front.ask(DeleteSubscriptionGroup(group_name="g", clean_offset=True)).code == 0
    assert front.restarted().offsets.all() == {}
    assert front.ask(GetSubscriptionGroupConfig(group="g")).code == 26


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{}", "groupName"),
        (b'{"groupName":""}', "the name of a group is empty"),
        (b'{"groupName":"g","retryQueueNums":100}', "retryQueueNums 100; expected 0 to 64"),
        (json.dumps({"groupName": "g" * 256}).encode(), "256 bytes"),
    ],
)
def test_groups_that_cannot_be_made(front: Front, body: bytes, text: str) -> None:
    response = front.ask(UpdateAndCreateSubscriptionGroup(), body)
    assert response.code == 1
    assert text in str(response.remark)
    assert front.groups.all().keys() == GROUPS


def test_the_lag_of_a_group(front: Front) -> None:
    front.offsets.commit("T", "g", 0, 2)
    front.offsets.commit("never", "g", 0, 2)
    response = front.ask(GetConsumeStats(consumer_group="g"))
    expected = {
        queue(0): ConsumeOffset(broker_offset=3, consumer_offset=2, last_timestamp=1300),
        queue(1): ConsumeOffset(),
    }
    assert ConsumeStats.from_json(response.body).offset_table == expected
    assert ConsumeStats.from_json(front.ask(GetConsumeStats(consumer_group="h")).body).offset_table == {}
    assert len(ConsumeStats.from_json(front.ask(GetConsumeStats(consumer_group="h", topic="T")).body).offset_table) == 2
    identity = ClientIdentity("c", "1")
    front.members.consumer_seen(identity, ConsumerGroup("g", (GroupSubscription("U"),)), notify=False)
    assert ConsumeStats.from_json(front.ask(GetConsumeStats(consumer_group="g")).body).offset_table == {}


def test_all_offsets_and_readers(front: Front) -> None:
    front.offsets.commit("T", "g", 1, 3)
    front.offsets.commit("T", "g", 0, 2)
    all_offsets = front.ask(GetAllConsumerOffset()).body
    assert all_offsets == b'{"offsetTable":{"T@g":{1:3,0:2}}}'
    assert ConsumerOffsets.from_json(all_offsets).offset_table == {"T@g": {0: 2, 1: 3}}
    assert DelayOffsets.from_json(front.ask(GetAllDelayOffset()).body).offset_table == {1: 3}
    front.members.consumer_seen(ClientIdentity("c", "1"), ConsumerGroup("h", (GroupSubscription("T"),)), notify=False)
    readers = GroupList.from_json(front.ask(QueryTopicConsumeByWho(topic="T")).body)
    assert readers.group_list == ("g", "h")


# ---- the broker


def test_system_topics_are_those_that_nobody_made(front: Front) -> None:
    listed = TopicList.from_json(front.ask(GetSystemTopicListFromBroker()).body).topic_list
    assert {"SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", BROKER} <= set(listed)
    assert "T" not in listed


def test_settings_and_figures(front: Front) -> None:
    shown = front.ask(GetBrokerConfig())
    assert shown.body == b"brokerName=broker-a\n"
    assert "version" in shown.ext
    changed = front.ask(UpdateBrokerConfig(), b"autoCreateTopicEnable=false\n")
    assert (changed.code, changed.remark) == (16, "this broker's settings are changed in its configuration file only")
    figures = KVTable.from_json(front.ask(GetBrokerRuntimeInfo()).body)
    assert figures.table["brokerVersionDesc"] == "V4_9_7"


def test_what_nobody_answers_is_answered_with_3(front: Front) -> None:
    session = FakeSession()
    response = front.ask_raw(RemotingCommand(9999), session)
    assert (response.code, response.remark) == (3, " request type 9999 not supported")


def test_an_older_versions_kind_of_topic_is_the_usual_one(front: Front) -> None:
    """A name server of Java's refuses all topics of a broker otherwise."""
    front.topics.create("T", ServedTopic(1, 1, filter_type="JUNK"))
    table = TopicConfigs.from_json(front.ask(GetAllTopicConfig()).body).topic_config_table
    assert table["T"].topic_filter_type == "SINGLE_TAG"
