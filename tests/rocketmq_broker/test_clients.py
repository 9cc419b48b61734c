"""Unmodified clients, one story for all: each test is a feature, a column of the table in docs/rocketmq-broker.md."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from servers import Server, committed, limit_retries, wait_until

from peers.rocketmq.clients import Client
from peers.rocketmq.conversation import Conversation

pytestmark = [pytest.mark.process, pytest.mark.slow]

Topic = Callable[[int], str]
Converse = Callable[..., Conversation]
REFERENCES = ("4.9.7", "5.5.0")
QUEUES = 4
NO_QUEUE = ""


def bodies(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def has_all(member: Conversation, expected: list[str]) -> Callable[[], bool]:
    return lambda: set(expected) <= set(member.bodies())


@pytest.mark.feature("send")
def test_a_message_arrives_as_it_was_sent(converse: Converse, topic: Topic, group: str) -> None:
    name = topic(QUEUES)
    producer, consumer = converse("producer", "producers"), converse("push", group, topic=name)
    texts = [*bodies("body", 20), "tea ☕ und Käse"]
    sent = [producer.send(name, text, tag="red", key=f"key-{text}", property="ä消息") for text in texts]
    consumer.wait_for(has_all(consumer, texts), texts)
    messages = {event["body"]: event for event in consumer.of("message")}
    assert sorted(consumer.bodies()) == sorted(texts)
    for text, answer in zip(texts, sent, strict=True):
        message = messages[text]
        assert (message["tag"], message["key"], message["property"]) == ("red", f"key-{text}", "ä消息")
        assert message["times"] == "0"
        assert answer["offset"] == message["offset"]
        assert answer["queue"] in (NO_QUEUE, message["queue"])
    places = [(int(event["queue"]), int(event["offset"])) for event in messages.values()]
    for queue in range(QUEUES):
        offsets = sorted(offset for each, offset in places if each == queue)
        assert offsets == list(range(len(offsets)))
    producer.close()
    consumer.close()


@pytest.mark.feature("batch")
def test_a_batch_arrives_whole_and_in_order(converse: Converse, topic: Topic, group: str) -> None:
    name = topic(QUEUES)
    producer, consumer = converse("producer", "producers"), converse("push", group, topic=name)
    texts = bodies("batch", 30)
    producer.send_batch(name, *texts, tag="red")
    consumer.wait_for(has_all(consumer, texts), texts)
    messages = sorted(consumer.of("message"), key=lambda event: int(event["offset"]))
    assert [event["body"] for event in messages] == texts
    assert len({event["queue"] for event in messages}) == 1
    assert [int(event["offset"]) for event in messages] == list(range(30))


@pytest.mark.feature("tags")
def test_a_consumer_gets_the_tags_that_it_asks_for(converse: Converse, topic: Topic, group: str) -> None:
    name = topic(QUEUES)
    producer = converse("producer", "producers")
    consumer = converse("push", group, topic=name, tags="red || blue")
    for number in range(12):
        producer.send(name, f"body-{number}", tag=("red", "green", "blue", "grey")[number % 4])
    producer.send(name, "without")
    wanted = [f"body-{number}" for number in range(12) if number % 2 == 0]
    consumer.wait_for(has_all(consumer, wanted), wanted)
    last = [f"last-{number}" for number in range(QUEUES * 2)]  # behind the others in their queues
    for text in last:
        producer.send(name, text, tag="red")
    consumer.wait_for(has_all(consumer, last), last)
    assert sorted(consumer.bodies()) == sorted(wanted + last)


@pytest.mark.feature("sql")
def test_a_consumer_gets_the_messages_for_which_its_condition_is_true(
    converse: Converse, topic: Topic, group: str
) -> None:
    name = topic(QUEUES)
    producer = converse("producer", "producers")
    consumer = converse("push", group, topic=name, sql="property > 5 AND TAGS IN ('red', 'blue')")
    for number in range(24):
        producer.send(name, f"body-{number}", tag=("red", "green", "blue", "grey")[number % 4], property=number)
    producer.send(name, "without", tag="red")
    producer.send(name, "no number", tag="red", property="many")
    wanted = [f"body-{number}" for number in range(6, 24) if number % 2 == 0]
    consumer.wait_for(has_all(consumer, wanted), wanted)
    last = [f"last-{number}" for number in range(QUEUES * 2)]  # behind the others in their queues
    for text in last:
        producer.send(name, text, tag="blue", property=6)
    consumer.wait_for(has_all(consumer, last), last)
    assert sorted(consumer.bodies()) == sorted(wanted + last)


@pytest.mark.feature("ordered")
def test_messages_of_a_key_come_in_order(converse: Converse, topic: Topic, group: str, kind: Client) -> None:
    name = topic(QUEUES)
    producer = converse("producer", "producers")
    role = "push" if kind.name == "javascript" else "ordered"
    first = converse(role, group, topic=name)
    expected: dict[str, list[str]] = {"2": [], "3": [], "5": []}
    for number in range(40):
        for key, texts in expected.items():
            texts.append(f"{key}:{number}")
            producer.send(name, texts[-1], order=key)
    everything = [text for texts in expected.values() for text in texts]
    first.wait_for(has_all(first, everything), "all messages")
    for key, texts in expected.items():
        mine = [event for event in first.of("message") if event["body"].startswith(f"{key}:")]
        assert [event["body"] for event in mine] == texts
        assert len({event["queue"] for event in mine}) == 1


@pytest.mark.feature("delay")
def test_a_delayed_message_comes_after_its_delay(converse: Converse, topic: Topic, group: str) -> None:
    name = topic(1)
    producer, consumer = converse("producer", "producers"), converse("push", group, topic=name)
    began = time.monotonic()
    producer.send(name, "later", delay=2, tag="red", key="k")
    producer.send(name, "now")
    consumer.wait_for(has_all(consumer, ["later"]), "the delayed message")
    assert time.monotonic() - began > 4.5
    assert consumer.bodies() == ["now", "later"]
    message = consumer.of("message")[1]
    assert (message["queue"], message["offset"], message["tag"], message["key"]) == ("0", "1", "red", "k")


@pytest.mark.feature("groups")
def test_a_member_joins_and_leaves(converse: Converse, topic: Topic, group: str) -> None:
    name = topic(QUEUES)
    producer, first = converse("producer", "producers"), converse("push", group, topic=name)
    sent: list[str] = []

    def send(prefix: str) -> list[str]:
        made = bodies(f"{prefix}-{len(sent)}", QUEUES * 2)
        for text in made:
            producer.send(name, text)
        sent.extend(made)
        return made

    alone = send("alone")
    first.wait_for(has_all(first, alone), "all messages while it is alone")
    second = converse("push", group, topic=name)
    wait_until(lambda: send("both") and second.bodies() and _shared(first, second, sent), "both to share the queues")
    at_leave = len(second.bodies())
    second.close()
    wait_until(lambda: has_all(first, send("again"))() or _caught_up(first, sent), "the first to have all queues")
    assert at_leave
    assert set(first.bodies()) | set(second.bodies()) == set(sent)


def _shared(first: Conversation, second: Conversation, sent: list[str]) -> bool:
    """Whether the latest messages all arrived, some with each member."""
    latest = set(sent[-QUEUES * 2 :])
    end = time.monotonic() + 2
    while not latest <= set(first.bodies()) | set(second.bodies()) and time.monotonic() < end:
        time.sleep(0.02)
    return bool(latest & set(first.bodies())) and bool(latest & set(second.bodies()))


def _caught_up(first: Conversation, sent: list[str]) -> bool:
    latest = set(sent[-QUEUES * 2 :])
    end = time.monotonic() + 2
    while not latest <= set(first.bodies()) and time.monotonic() < end:
        time.sleep(0.02)
    return latest <= set(first.bodies())


def send_and_read(producer: Conversation, consumer: Conversation, topic: str, texts: list[str]) -> None:
    for text in texts:
        producer.send(topic, text)
    consumer.wait_for(has_all(consumer, texts), texts)


@pytest.mark.feature("restart")
def test_clients_go_on_after_a_restart(server: Server, converse: Converse, topic: Topic, group: str) -> None:
    name, before = topic(QUEUES), bodies("before", 12)
    producer, consumer = converse("producer", "producers"), converse("push", group, topic=name)
    send_and_read(producer, consumer, name, before)
    wait_until(lambda: committed(server, group, name, QUEUES) == len(before), "the group's positions")
    consumer.close()
    stays = converse("push", f"{group}-stays", topic=name)
    stays.wait_for(has_all(stays, before), before)
    server.restart()
    after = bodies("after", 12)
    for text in after:
        _send_patiently(producer, name, text)
    stays.wait_for(has_all(stays, after), after)
    again = converse("push", group, topic=name)
    again.wait_for(has_all(again, after), after)
    assert sorted(set(again.bodies())) == sorted(after)  # and not those whose positions were committed


def _send_patiently(producer: Conversation, topic: str, text: str) -> None:
    """Send; a client that lost its connection may fail once or twice before it connects again."""
    end = time.monotonic() + 40
    while True:
        try:
            producer.send(topic, text)
            return
        except RuntimeError:
            if time.monotonic() > end:
                raise


@pytest.mark.feature("retry")
def test_a_refused_message_comes_again_and_ends_as_a_dead_letter(
    server: Server, converse: Converse, topic: Topic, group: str
) -> None:
    name = topic(QUEUES)
    limit_retries(server, group, 1)
    producer, consumer = converse("producer", "producers"), converse("push", group, topic=name, retries=1)
    producer.send(name, "fail-1", tag="red", key="k", property="p")
    producer.send(name, "good")
    consumer.wait_for(lambda: consumer.bodies().count("fail-1") == 2, "a second delivery")
    times = [event["times"] for event in consumer.of("message") if event["body"] == "fail-1"]
    assert times == ["0", "1"]
    second = [event for event in consumer.of("message") if event["body"] == "fail-1"][1]
    assert (second["tag"], second["key"], second["property"]) == ("red", "k", "p")
    letters = converse("push", f"{group}-letters", topic=f"%DLQ%{group}", retries=9)
    letters.wait_for(has_all(letters, ["fail-1"]), "the dead letter")
    assert consumer.bodies().count("good") == 1
    assert consumer.bodies().count("fail-1") == 2


@pytest.mark.feature("transactions")
def test_transactions_show_what_is_committed_at_once_or_when_checked(
    converse: Converse, topic: Topic, group: str
) -> None:
    name = topic(QUEUES)
    producer, consumer = converse("transactions", f"{group}-producers"), converse("push", group, topic=name)
    producer.send(name, "rolled back", state="rollback")
    producer.send(name, "committed", state="commit", tag="red", key="k", property="p")
    consumer.wait_for(has_all(consumer, ["committed"]), "the committed message")
    message = consumer.of("message")[0]
    assert (message["tag"], message["key"], message["property"]) == ("red", "k", "p")
    producer.send(name, "rolled back when checked", state="unknown", then="rollback")
    producer.send(name, "committed when checked", state="unknown", then="commit")
    consumer.wait_for(has_all(consumer, ["committed when checked"]), "the checked message")
    producer.wait_for(lambda: len({event["body"] for event in producer.of("checked")}) == 2, "two checks")
    producer.send(name, "last", state="commit")
    consumer.wait_for(has_all(consumer, ["last"]), "the last message")
    assert sorted(consumer.bodies()) == ["committed", "committed when checked", "last"]


@pytest.mark.feature("lite")
def test_a_lite_pull_consumer_reads_commits_and_goes_on(converse: Converse, topic: Topic, group: str) -> None:
    name, before = topic(QUEUES), bodies("before", 12)
    producer, consumer = converse("producer", "producers"), converse("lite", group, topic=name)
    send_and_read(producer, consumer, name, before)
    consumer.close()
    again, after = converse("lite", group, topic=name), bodies("after", 12)
    send_and_read(producer, again, name, after)
    assert sorted(again.bodies()) == sorted(after)


@pytest.mark.feature("request")
def test_a_request_gets_the_reply_of_its_consumer_or_ends_in_time(converse: Converse, topic: Topic, group: str) -> None:
    name = topic(QUEUES)
    consumer = converse("push", group, topic=name, replies="yes")
    producer = converse("producer", f"{group}-producers")
    wait_until(lambda: _is_replied_to(producer, name), "a first reply")
    for body in bodies("request", 10):
        reply = producer.request(name, body, 30_000, tag="red")
        assert (reply["body"], reply["tag"], reply["property"]) == (f"reply to {body}", "reply", "of the reply")
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        producer.request(name, "silent", 1000)
    assert time.monotonic() - began < 20
    assert len(consumer.of("answered")) >= 11


def _is_replied_to(producer: Conversation, topic: str) -> bool:
    """Whether a request is replied to: a consumer has to get its queues first."""
    try:
        return producer.request(topic, "first", 3000)["body"] == "reply to first"
    except RuntimeError:
        return False
