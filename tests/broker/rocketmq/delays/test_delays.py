"""Delayed messages: where they wait, what they look like when they are delivered, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import remoting_brokers
from metaq_broker.log.engine.outcomes import BlockInvalid, PartitionClosed, PartitionLimit, Refusal, TooLarge
from metaq_broker.log.engine.topics import READ, ServedTopic, TopicRefused
from metaq_broker.log.files.errors import StateFull
from metaq_broker.rocketmq.delays.delays import TIMER_MAX_MS, DelayInvalid
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.system_topics import HALF_TOPIC, NOTE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from remoting_brokers import BORN, WIDE, WaitingBroker, play
from waiting import until


def test_a_level_waits_in_its_queue_and_comes_with_its_properties(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        waiting = await broker.stored(b"late", {"KEYS": "k", "DELAY": "2", "TAGS": "red"}, queue=3)
        assert broker.bodies(SCHEDULE_TOPIC, 1) == [b"late"]
        await broker.bodies_are(b"late", queue=3)
        (record,) = broker.records(queue=3)
        assert record.property_map() == {
            "KEYS": "k", "DELAY": "2", "TAGS": "red", "REAL_TOPIC": "t", "REAL_QID": "3",
        }  # fmt: skip
        assert (record.flag, record.born_timestamp, record.born_host) == (3, 77, BORN)
        assert record.prepared_transaction_offset == waiting.physical_offsets[0]
        assert record.store_timestamp - waiting.store_time >= 80
        assert broker.parts.delays.positions[2] == 1

    play(tmp_path, scenario)


@pytest.mark.parametrize(("delay", "queue"), [("5", 4), ("6", 4), ("99999999999", 4)])
def test_levels_above_the_highest(tmp_path: Path, delay: str, queue: int) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"late", {"DELAY": delay})
        (record,) = broker.records(SCHEDULE_TOPIC, queue)
        assert record.property_map()["DELAY"] == "5"

    play(tmp_path, scenario)


@pytest.mark.parametrize("delay", ["0", "-1"])
def test_no_delay(tmp_path: Path, delay: str) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"now", {"DELAY": delay})
        assert broker.bodies() == [b"now"]

    play(tmp_path, scenario)


def test_moments(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        now = broker.clock.now_ms()
        await broker.stored(b"third", {"TIMER_DELIVER_MS": str(now + 1000)})
        await broker.stored(b"second", {"TIMER_DELIVER_MS": str(now + 700)})
        await broker.stored(b"soon", {"TIMER_DELAY_MS": "10"}, queue=2)
        await broker.stored(b"first", {"TIMER_DELIVER_MS": str(now - 1000)})
        await broker.stored(b"level", {"TIMER_DELAY_SEC": "3600", "DELAY": "1"}, queue=1)
        assert broker.bodies(TIMER_TOPIC) == [b"third", b"second", b"soon"]
        await broker.bodies_are(b"first", b"second", b"third")
        await broker.bodies_are(b"level", queue=1)
        await broker.bodies_are(b"soon", queue=2)
        assert broker.records()[2].store_timestamp >= now + 1000
        assert broker.records()[2].property_map()["TIMER_OUT_MS"] == str(now + 1000)

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("properties", "refusal"),
    [
        ({"DELAY": "abc"}, DelayInvalid),
        ({"TIMER_DELAY_SEC": "soon"}, DelayInvalid),
        ({"TIMER_DELAY_MS": str(TIMER_MAX_MS + 60_000)}, BlockInvalid),
        ({"DELAY": "1", "long": "x" * 32_740}, TooLarge),
    ],
)
def test_refused(tmp_path: Path, properties: dict[str, str], refusal: type[Refusal]) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        outcome = await broker.send(b"never", properties)
        assert isinstance(outcome, refusal)
        for topic, queue in (("t", 0), (SCHEDULE_TOPIC, 0), (TIMER_TOPIC, 0)):
            assert broker.bodies(topic, queue) == []

    play(tmp_path, scenario)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_what_waits_over_a_restart_is_delivered_once(tmp_path: Path, clean: bool) -> None:
    async def first(broker: WaitingBroker) -> None:
        for number in range(50):
            await broker.stored(b"%d" % number, {"DELAY": str(1 + number % 2)}, queue=number % 4)
            await broker.stored(b"%d" % number, {"TIMER_DELAY_MS": str(50 + number)}, topic="u", queue=0)
        await until(lambda: len(broker.bodies()) > 3)

    async def second(broker: WaitingBroker) -> None:
        await until(lambda: sum(len(broker.bodies(queue=queue)) for queue in range(4)) >= 50)
        await until(lambda: len(broker.bodies("u")) >= 50)

    async def third(broker: WaitingBroker) -> None:
        assert sorted(int(body) for queue in range(4) for body in broker.bodies(queue=queue)) == list(range(50))
        assert sorted(int(body) for body in broker.bodies("u")) == list(range(50))

    async def with_topic(broker: WaitingBroker) -> None:
        broker.topics.create("u", WIDE)
        await first(broker)

    play(tmp_path, with_topic, clean=clean)
    play(tmp_path, second, clean=clean)
    play(tmp_path, third, levels=DelayLevels((40, 80)))


@pytest.mark.parametrize("properties", [{"DELAY": "2"}, {"TIMER_DELAY_MS": "50"}])
def test_for_a_closed_queue_nothing_waits(tmp_path: Path, properties: dict[str, str]) -> None:
    """A producer sends it elsewhere then; here it would hold up all messages of its level."""

    async def scenario(broker: WaitingBroker) -> None:
        broker.engine.close_partition("t", 1)
        assert isinstance(await broker.send(b"closed", properties, queue=1), PartitionClosed)
        await broker.stored(b"open", properties)
        await broker.bodies_are(b"open")

    play(tmp_path, scenario)


def test_nor_for_one_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = remoting_brokers.SYSTEM.replace("maxMessageSize=", "maxPartitions=2\nmaxMessageSize=")
    monkeypatch.setattr(remoting_brokers, "SYSTEM", few)

    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"now")
        await broker.stored(b"late", {"DELAY": "2"})
        assert isinstance(await broker.send(b"limit", {"DELAY": "2"}, queue=1), PartitionLimit)
        await broker.stored(b"behind it", {"DELAY": "2"})
        await broker.bodies_are(b"now", b"late", b"behind it")

    play(tmp_path, scenario)


def test_a_topic_that_the_configuration_names_no_more_gets_what_waits_for_it(tmp_path: Path) -> None:
    async def before(broker: WaitingBroker) -> None:
        await broker.stored(b"now", topic="orders", queue=1)
        await broker.stored(b"late", {"DELAY": "5"}, topic="orders", queue=1)
        await broker.stored(b"behind it", {"DELAY": "5"})

    async def after(broker: WaitingBroker) -> None:
        await broker.bodies_are(b"now", b"late", topic="orders", queue=1)
        await broker.bodies_are(b"behind it")
        settings = broker.topics.settings("orders")
        assert settings is not None
        assert (settings.read_queues, settings.perm) == (2, READ)

    play(tmp_path, before, more="[topic=orders]\n")
    play(tmp_path, after)


def test_what_waits_is_delivered_where_messages_of_its_length_are_not_allowed_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = bytes(100_000)

    async def before(broker: WaitingBroker) -> None:
        await broker.stored(large, {"DELAY": "5"})
        await broker.stored(b"behind it", {"DELAY": "5"})
        await broker.stored(large, {"TIMER_DELAY_MS": "300"}, queue=1)

    async def after(broker: WaitingBroker) -> None:
        await broker.bodies_are(large, b"behind it")
        await broker.bodies_are(large, queue=1)

    play(tmp_path, before)
    smaller = remoting_brokers.SYSTEM.replace("maxMessageSize=1000000", "maxMessageSize=1000")
    monkeypatch.setattr(remoting_brokers, "SYSTEM", smaller)
    play(tmp_path, after)


@pytest.mark.parametrize("limit", ["topics", "bytes"])
def test_also_where_clients_may_make_no_more_topics(
    tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing of that level would be delivered any more, to nobody."""

    async def scenario(broker: WaitingBroker) -> None:
        broker.topics.create("orders", WIDE)
        await broker.stored(b"gone", {"DELAY": "2"}, topic="orders")
        broker.topics.delete("orders")
        if limit == "topics":
            monkeypatch.setattr("metaq_broker.log.engine.topics.TOPICS_MAX", 0)
        else:
            broker.state.put("filler", bytes(60_000))  # a sixteenth of all is the broker's own
            broker.state.bytes_max = broker.state.size_bytes * 16 // 15
        with pytest.raises(TopicRefused if limit == "topics" else StateFull):
            broker.topics.create("another", WIDE)
        await broker.stored(b"behind it", {"DELAY": "2"})
        await broker.bodies_are(b"gone", topic="orders")
        await broker.bodies_are(b"behind it")

    play(tmp_path, scenario)


def test_a_topic_that_was_deleted_meanwhile_is_made_anew(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        broker.topics.create("orders", WIDE)
        await broker.stored(b"late", {"DELAY": "3"}, topic="orders", queue=6)
        broker.topics.delete("orders")
        await broker.bodies_are(b"late", topic="orders", queue=6)
        settings = broker.topics.settings("orders")
        assert settings is not None
        assert settings.read_queues == 7

    play(tmp_path, scenario)


def test_a_topic_that_shrank_keeps_its_other_settings(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        broker.topics.create("orders", replace(WIDE, message_type="DELAY"))
        await broker.stored(b"late", {"DELAY": "2"}, topic="orders", queue=6)
        broker.topics.create("orders", ServedTopic(2, 2, message_type="DELAY"))
        await broker.bodies_are(b"late", topic="orders", queue=6)
        assert broker.topics.settings("orders") == ServedTopic(7, 2, message_type="DELAY")

    play(tmp_path, scenario)


def test_levels_that_are_gone_deliver_what_waits(tmp_path: Path) -> None:
    async def first(broker: WaitingBroker) -> None:
        for number in range(3):
            await broker.stored(b"%d" % number, {"DELAY": "5"})

    async def second(broker: WaitingBroker) -> None:
        assert broker.parts.needed_from(SCHEDULE_TOPIC, 4) == 0
        await broker.bodies_are(b"0", b"1", b"2")
        await broker.stored(b"new", {"DELAY": "5"})
        assert broker.bodies(SCHEDULE_TOPIC, 1) == [b"new"]

    async def third(broker: WaitingBroker) -> None:
        assert list(broker.parts.delays.positions) == [1, 2]

    play(tmp_path, first, levels=DelayLevels((40, 80, 120, 160, 3_600_000)))
    play(tmp_path, second, levels=DelayLevels((40, 80)))
    play(tmp_path, third, levels=DelayLevels((40, 80)))


def test_retention_knows_what_still_waits(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        needed = broker.parts.needed_from
        assert (needed("t", 0), needed(TIMER_TOPIC, 0), needed(SCHEDULE_TOPIC, 0)) == (None, 0, 0)
        await broker.stored(b"one", {"DELAY": "1"})
        await broker.stored(b"two", {"TIMER_DELAY_MS": "20"}, queue=1)
        await broker.stored(b"three", {"TIMER_DELAY_MS": "60000"}, queue=1)
        await broker.bodies_are(b"one")
        await broker.bodies_are(b"two", queue=1)
        await until(lambda: needed(TIMER_TOPIC, 0) == 1)
        assert needed(SCHEDULE_TOPIC, 0) == 1
        assert (needed(HALF_TOPIC, 0), needed(NOTE_TOPIC, 0)) == (0, 0)

    play(tmp_path, scenario)


def test_numbers_of_thousands_of_digits_stop_nobody(tmp_path: Path) -> None:
    """Python refuses to read them; a waiting message that cannot be read would stop all behind it, for ever."""
    digits = "9" * 5000

    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"odd", {"DELAY": "1", "TIMER_OUT_MS": digits})
        await broker.stored(b"next", {"DELAY": "1"})
        await broker.bodies_are(b"odd", b"next")
        for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"):
            assert isinstance(await broker.send(b"refused", {name: digits}), DelayInvalid)

    play(tmp_path, scenario)
