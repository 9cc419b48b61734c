"""Messages that are sent back: retried after growing delays, dead in the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from metaq_broker.rocketmq.groups.group_settings import GroupSettings
from metaq_broker.rocketmq.system_topics import SCHEDULE_TOPIC
from remoting_brokers import WaitingBroker, play

from metaq.formats.rocketmq.records import Record
from metaq.model import INT32_MAX
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.sends import ConsumerSendMsgBack

RETRY, DEAD = "%RETRY%group", "%DLQ%group"


async def send_back(
    broker: WaitingBroker,
    offset: int,
    level: int = 0,
    maximum: int | None = 16,
    version: int = 407,
    group: str = "group",
) -> RemotingCommand:
    header = ConsumerSendMsgBack(
        offset=offset, group=group, delay_level=level, origin_msg_id="U", origin_topic="t", max_reconsume_times=maximum
    )
    return await broker.ask(replace(to_request(header, opaque=3), version=version))


def test_the_copy_that_a_group_gets_again(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        stored = await broker.stored(b"bad", {"KEYS": "k1", "UNIQ_KEY": "U", "TAGS": "Tag1"})
        assert (await send_back(broker, stored.physical_offsets[0], level=1)).code == 0
        await broker.bodies_are(b"bad", topic=RETRY)
        (record,) = broker.records(RETRY)
        assert record.reconsume_times == 1
        assert (record.born_timestamp, record.flag) == (77, 3)
        assert record.property_map() == {
            "KEYS": "k1",
            "UNIQ_KEY": "U",
            "TAGS": "Tag1",
            "RETRY_TOPIC": "t",
            "ORIGIN_MESSAGE_ID": stored.message_ids()[0],
            "WAIT": "false",
            "DELAY": "1",
            "REAL_TOPIC": RETRY,
            "REAL_QID": "0",
        }

    play(tmp_path, scenario)


def test_delays_grow_and_then_it_is_dead(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        stored = await broker.stored(b"bad")
        offset, first = stored.physical_offsets[0], stored.message_ids()[0]
        levels = []
        for times in (1, 2, 3):
            assert (await send_back(broker, offset, maximum=3)).code == 0
            await broker.bodies_are(*[b"bad"] * times, topic=RETRY)
            record: Record = broker.records(RETRY)[-1]
            assert record.reconsume_times == times
            levels.append(record.property_map()["DELAY"])
            offset = record.physical_offset
        assert levels == ["3", "4", "5"]
        assert (await send_back(broker, offset, maximum=3)).code == 0
        (dead,) = broker.records(DEAD)
        assert dead.reconsume_times == 4
        properties = dead.property_map()
        assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("t", first)
        assert (properties["DELAY"], properties["WAIT"]) == ("0", "false")
        assert dead.properties.count(b"RETRY_TOPIC") == 1
        settings = broker.topics.settings(DEAD)
        assert settings is not None
        assert (settings.queues, settings.perm) == (1, 6)

    play(tmp_path, scenario)


def test_dead_at_once(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        stored = await broker.stored(b"bad")
        assert (await send_back(broker, stored.physical_offsets[0], level=-1)).code == 0
        assert broker.bodies(DEAD) == [b"bad"]
        assert broker.records(DEAD)[0].reconsume_times == 1

    play(tmp_path, scenario)


def test_who_says_how_often(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        broker.groups.put("group", GroupSettings(retry_max=0))
        stored = await broker.stored(b"bad")
        offset = stored.physical_offsets[0]
        await send_back(broker, offset, level=1, maximum=5, version=120)  # too old to say it
        assert broker.bodies(DEAD) == [b"bad"]
        await send_back(broker, offset, level=1, maximum=None)
        assert broker.bodies(DEAD) == [b"bad"] * 2
        await send_back(broker, offset, level=1, maximum=5)
        assert broker.bodies(DEAD) == [b"bad"] * 2
        assert broker.bodies(SCHEDULE_TOPIC) == [b"bad"]

    play(tmp_path, scenario)


def test_what_cannot_be_sent_back(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        stored = await broker.stored(b"bad")
        response = await send_back(broker, 5)
        assert (response.code, response.remark) == (1, "look message by offset failed, 5")
        broker.groups.create_unknown = False
        response = await send_back(broker, stored.physical_offsets[0], group="unknown")
        assert response.code == 26
        broker.groups.put("once", GroupSettings(retry_queues=0))
        assert (await send_back(broker, stored.physical_offsets[0], group="once")).code == 0
        assert broker.topics.settings("%RETRY%once") is None

    play(tmp_path, scenario)


def test_a_group_may_have_several_retry_queues(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        broker.groups.put("group", GroupSettings(retry_queues=3))
        stored = await broker.stored(b"bad")
        for _ in range(20):
            await send_back(broker, stored.physical_offsets[0], level=1)
        settings = broker.topics.settings(RETRY)
        assert settings is not None
        assert settings.queues == 3
        queues = {record.property_map()["REAL_QID"] for record in broker.records(SCHEDULE_TOPIC)}
        assert queues <= {"0", "1", "2"}
        assert len(queues) > 1

    play(tmp_path, scenario)


def test_a_consumer_sends_it_to_the_retry_topic_itself(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        await broker.ask(to_request(ConsumerSendMsgBack(offset=0, group="group", delay_level=0)))
        broker.parts.retries._make_topic(RETRY, 1, lambda error: None)
        await broker.stored(b"again", {"DELAY": "1"}, topic=RETRY, reconsume_times=1, max_reconsume_times=2)
        await broker.stored(b"dead", {"DELAY": "1"}, topic=RETRY, reconsume_times=2, max_reconsume_times=2)
        assert broker.bodies(DEAD) == [b"dead"]
        await broker.bodies_are(b"again", topic=RETRY)

    play(tmp_path, scenario)


def test_the_highest_number_of_attempts_stays_what_it_is(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        stored = await broker.stored(b"old", reconsume_times=INT32_MAX)
        assert (await send_back(broker, stored.physical_offsets[0])).code == 0
        (record,) = broker.records(DEAD)
        assert (record.body, record.reconsume_times) == (b"old", INT32_MAX)

    play(tmp_path, scenario)
