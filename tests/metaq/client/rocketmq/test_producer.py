"""Producers of ``RocketMQ`` against a scripted cluster: futures, the window, another broker, delays, compression."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fix_broker import wait_until
from rocketmq_clients import A0, A1, B0, SENDS, Setting

from metaq.client import shells
from metaq.client.partitioners import at_random, by_key, fixed, round_robin
from metaq.client.rocketmq import sending
from metaq.client.rocketmq.records import RocketMessage, RocketSent
from metaq.discovery import refreshed
from metaq.errors import ExtensionMissing, SendFailed, TopicNotFound, WindowFull
from metaq.net.retry import RetryPolicy
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import GetMetaQBroker
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SendMessage

# ---- futures


def test_a_future_is_settled_by_the_acknowledgement_and_by_nothing_else(setting: Setting) -> None:
    producer = setting.mq.producer()
    sent = producer.submit("orders", "tea", tag="hot", keys=["k"], properties={"p": "1"}, partition=A1).result(60)
    assert isinstance(sent, RocketSent)
    assert (sent.partition, sent.offset) == (A1, 0)
    (message,) = setting.mq.browse("orders")
    assert (message.data, message.tag, message.keys, message.message_id) == (b"tea", "hot", ("k",), sent.message_id)
    assert message.properties["p"] == "1"


def test_what_is_submitted_meanwhile_shares_batches_and_keeps_its_order(setting: Setting) -> None:
    setting.slow(0.05)
    with setting.mq.producer() as producer:
        futures = [producer.submit("orders", b"%d" % number, key=b"%d" % (number % 7)) for number in range(500)]
        sent = [future.result(60) for future in futures]
    assert sum(len(setting.sends(broker.name)) for broker in setting.brokers) < 20
    for queue, stored in setting.stored().items():
        assert [int(data) for data in stored] == [n for n, one in enumerate(sent) if one.partition == queue]


def test_a_lingering_batch_goes_out_by_itself(setting: Setting) -> None:
    for linger_s in (0.2, 5.0):  # a busy machine may be too slow for the first
        before = len(setting.sends())
        with setting.mq.producer(linger_s=linger_s) as producer:
            futures = [producer.submit("orders", "x", partition=A0) for _ in range(20)]
            for future in futures:
                future.result(60)
        sends = len(setting.sends()) - before
        if sends == 1:
            break
    assert sends == 1


def test_leaving_the_cluster_sends_what_is_left(setting: Setting) -> None:
    future = setting.mq.producer(linger_s=60).submit("orders", "x", partition=A0)
    setting.mq.close()
    assert future.result(0).offset == 0


def test_a_full_window_blocks_raises_or_gives_the_message_away(setting: Setting) -> None:
    given: list[tuple[str, RocketMessage]] = []
    setting.slow(0.3)
    with setting.mq.producer(window=1000) as producer:
        first = producer.submit("orders", b"x" * 900, partition=A0)
        second = producer.submit("orders", b"y" * 900, partition=A0)  # waits for the first
        assert first.done()
        assert second.result(60).offset == 1
    with setting.mq.producer(window="1 kB", on_overflow="raise") as producer:
        producer.submit("orders", b"x" * 5000)  # alone it goes, however long it is
        with pytest.raises(WindowFull, match="the window of 1024 unacknowledged bytes is full"):
            producer.submit("orders", b"y")
    with setting.mq.producer(window=1000, on_overflow=lambda *message: given.append(message)) as producer:
        producer.submit("orders", b"x" * 900)
        future: Future[RocketSent] = producer.submit("orders", "y" * 900, tag="t")
        assert isinstance(future.exception(1), WindowFull)
    assert given == [("orders", RocketMessage(data="y" * 900, tag="t"))]


def test_one_message_that_cannot_be_sent_costs_no_other(setting: Setting) -> None:
    with setting.mq.producer(linger_s=0.1) as producer:
        good = producer.submit("orders", "good")
        with pytest.raises(ValueError, match=r"property 'DELAY': the client sets it itself"):
            producer.submit("orders", "bad", properties={"DELAY": "3"})
        with pytest.raises(TypeError, match="data: expected bytes or a text, got NoneType"):
            producer.submit("orders", None)  # type: ignore[arg-type]
        assert good.result(60)


def test_many_threads_use_one_producer(setting: Setting) -> None:
    with setting.mq.producer() as producer:
        sent: list[RocketSent] = []
        threads = [
            threading.Thread(target=lambda: sent.extend(producer.send("orders", "x") for _ in range(20)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len({one.message_id for one in sent}) == 80


# ---- another broker


@pytest.mark.parametrize("code", [2, 14, 16, 17, 215])
def test_a_refusal_that_may_pass_moves_a_message_to_another_broker(setting: Setting, code: int) -> None:
    setting.cluster.broker("broker-a").refuse(None, code, times=1000)
    sent = setting.mq.producer().send_many("orders", ["x"] * 6)
    assert {one.partition for one in sent} == {B0}
    assert len(setting.sends("broker-a")) <= 2


def test_a_lost_connection_does_so_too(setting: Setting) -> None:
    setting.cluster.stop_broker("broker-a", is_in_route=True)
    with setting.mq.producer() as producer:
        assert producer.send("orders", "a").partition == B0
        assert {future.result(60).partition for future in [producer.submit("orders", "b") for _ in range(9)]} == {B0}


def test_a_broker_that_does_not_answer_in_time_does_so_too(setting: Setting) -> None:
    setting.wait_for_answers(1.0)
    setting.cluster.broker("broker-a").latency_s = lambda command: 60.0
    assert setting.mq.producer(round_robin(), failover=True).send("orders", "x").partition == B0


@pytest.mark.parametrize(
    ("partitioner", "options"), [(None, {"key": "k1"}), (None, {"partition": A0}), (fixed(0), {}), (None, {})]
)
def test_a_chosen_queue_is_kept_until_its_broker_is_back(
    setting: Setting, partitioner: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "RetryPolicy", lambda: RetryPolicy(3, 0.01))
    producer = setting.mq.producer(partitioner, failover=False if partitioner is None and not options else None)
    wanted = producer.send("orders", "first", **options).partition
    if not options and partitioner is None:
        wanted = A1  # the next in turn
    for broker in setting.brokers:
        broker.refuse(None, ResponseCode.SYSTEM_BUSY, times=3)
    assert producer.send("orders", "second", **options).partition == wanted


def test_when_all_brokers_refuse_the_error_says_why_and_that_it_may_pass(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "RetryPolicy", lambda: RetryPolicy(2, 0.01))
    for broker in setting.brokers:
        broker.refuse(None, ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too much", times=1000)
    producer = setting.mq.producer()
    with pytest.raises(SendFailed, match=r"SYSTEM_BUSY \(2\): \[OVERLOAD\]too much") as failed:
        producer.send("orders", "x")
    assert failed.value.retryable
    for broker in setting.brokers:
        broker._rules.clear()
    assert producer.send("orders", "x").offset == 0


def test_a_refusal_for_good_is_not_tried_again(setting: Setting) -> None:
    for broker in setting.brokers:
        broker.refuse(SEND_BATCH_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, "bad", times=1)
    with pytest.raises(SendFailed, match=r"MESSAGE_ILLEGAL \(13\): bad") as failed:
        setting.mq.producer().send("orders", "x")
    assert not failed.value.retryable
    assert sum(len(setting.sends(broker.name)) for broker in setting.brokers) == 1


def test_one_brokers_failure_leaves_what_the_other_acknowledged(setting: Setting) -> None:
    setting.cluster.broker("broker-a").refuse(None, ResponseCode.MESSAGE_ILLEGAL, times=1000)
    with pytest.raises(SendFailed, match="1 of 3 messages were acknowledged") as failed:
        setting.mq.producer().send_many("orders", ["x", "y", "z"])
    assert [one.partition for one in failed.value.sent if isinstance(one, RocketSent)] == [B0]


def test_nothing_is_dropped_while_the_brokers_are_away(setting: Setting) -> None:
    for name in ("broker-a", "broker-b"):
        setting.cluster.stop_broker(name, is_in_route=True)
    with setting.mq.producer() as producer:
        futures = [producer.submit("orders", b"%d" % number) for number in range(100)]
        threading.Timer(0.5, lambda: [setting.cluster.start_broker(name) for name in ("broker-a", "broker-b")]).start()
        for future in futures:
            future.result(60)
    assert sorted(int(data) for stored in setting.stored().values() for data in stored) == list(range(100))


def test_the_name_server_may_be_away_once_the_topic_is_known(setting: Setting) -> None:
    producer = setting.mq.producer()
    producer.publish("orders")
    setting.cluster.stop_name_server()
    setting.cluster.broker("broker-a").refuse(None, ResponseCode.SYSTEM_BUSY, times=1)
    assert len(producer.send_many("orders", ["x"] * 9)) == 9
    with pytest.raises(Exception, match="no name server answers"):
        producer.send("other", "x")


def test_queues_that_are_added_while_it_runs_get_messages(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = setting.mq.producer()
    assert len({one.partition for one in producer.send_many("orders", ["x"] * 9)}) == 3
    setting.cluster.create_topic("orders", queues=2, broker="broker-b")
    assert len({one.partition for one in producer.send_many("orders", ["x"] * 9)}) == 3
    monkeypatch.setattr(refreshed, "CACHE_AGE_S_MAX", 0.0)
    producer._sender._queues["orders"] = producer._sender._queues["orders"]._replace(until_s=0.0)
    assert not producer.knows("orders")
    assert len({one.partition for one in producer.send_many("orders", ["x"] * 9)}) == 4
    setting.cluster.create_topic("orders", queues=0)  # as if no master were there
    producer._sender._queues["orders"] = producer._sender._queues["orders"]._replace(until_s=0.0)
    producer.publish("orders")
    with pytest.raises(ValueError, match="topic 'orders' has no queue that may be written to now"):
        setting.mq.producer().publish("orders")


# ---- hostile answers


@pytest.mark.parametrize("field", ["msgId", "queueOffset"])
def test_an_answer_without_a_place_is_no_acknowledgement(setting: Setting, field: str) -> None:
    def tamper(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        if command.code in SENDS:
            response.ext.pop(field)  # type: ignore[attr-defined]
        return response

    for broker in setting.brokers:
        broker.tamper = tamper
    with pytest.raises(SendFailed, match=f"an answer in which field '{field}'"):
        setting.mq.producer().send("orders", "x")
    with setting.mq.producer() as producer:
        assert isinstance(producer.submit("orders", "x").exception(10), SendFailed)


# ---- one-way sends, delays, compression


def test_a_oneway_send_waits_for_nothing(setting: Setting) -> None:
    setting.slow(60)
    message_id = setting.mq.producer(fixed(0)).send_oneway("orders", "x", tag="t", keys=["k"])
    wait_until(lambda: bool(setting.sends()), "it came")
    (command,) = setting.sends()
    assert (command.is_oneway, command.body) == (True, b"x")
    assert f"UNIQ_KEY\x01{message_id}" in command.ext["i"]
    (message,) = setting.mq.browse("orders")
    assert (message.message_id, message.tag, message.keys) == (message_id, "t", ("k",))


def test_a_oneway_send_to_nobody_fails(setting: Setting) -> None:
    producer = setting.mq.producer(fixed(0))
    producer.publish("orders")
    setting.cluster.stop_broker("broker-a", is_in_route=True)
    with pytest.raises(SendFailed, match=r"connect failed") as failed:
        producer.send_oneway("orders", "x")
    assert failed.value.retryable


def test_moments_are_for_brokers_that_know_them(setting: Setting) -> None:
    producer = setting.mq.producer(fixed(0))
    with pytest.raises(ExtensionMissing, match="does not offer 'timers', which a message with delay or deliver_at"):
        producer.send("orders", "x", delay=5)
    assert not setting.sends()

    def as_of_5(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(**{**_fields(response), "version": 479})

    setting.cluster.broker("broker-a").tamper = as_of_5
    at = datetime(2030, 1, 2, tzinfo=UTC)
    producer.send("orders", "x", delay=1.5)
    producer.send("orders", "x", delay=timedelta(minutes=2))
    producer.submit("orders", "x", deliver_at=at).result(60)
    producer.send_many("orders", [RocketMessage(data="x", deliver_at=1_900_000_000_000), "y"])
    texts = [one.ext["i"] for one in setting.sends()]
    assert "TIMER_DELAY_MS\x011500" in texts[0]
    assert "TIMER_DELAY_MS\x01120000" in texts[1]
    assert f"TIMER_DELIVER_MS\x01{round(at.timestamp() * 1000)}" in texts[2]
    assert "TIMER_DELIVER_MS\x011900000000000" in texts[3]
    assert setting.sends()[4].code == SEND_BATCH_MESSAGE
    in_seconds = RocketMessage(data="x", properties={"TIMER_DELAY_SEC": "5"})
    producer.send_many("orders", [in_seconds, "y"])
    assert "TIMER_DELAY_SEC\x015" in setting.sends()[5].ext["i"]
    asked = [one for one in setting.cluster.broker("broker-a").requests if one.code == GetMetaQBroker.CODE]
    assert len(asked) == 2


def _fields(command: RemotingCommand) -> dict[str, Any]:
    return {name: getattr(command, name) for name in command.__dataclass_fields__}


def test_long_bodies_are_compressed_on_request(setting: Setting) -> None:
    producer = setting.mq.producer(fixed(0), compression="zlib", compress_from="1 kB")
    producer.send_many("orders", ["short", "long " * 1000, b"short"])
    codes = [one.code for one in setting.sends()]
    assert codes == [SEND_BATCH_MESSAGE, SendMessage.CODE, SEND_BATCH_MESSAGE]
    assert len(setting.sends()[1].body) < 200
    assert [message.data for message in setting.mq.browse("orders")] == [b"short", b"long " * 1000, b"short"]


# ---- Ctrl-C


def test_ctrl_c_ends_a_send_at_once(setting: Setting) -> None:
    setting.slow(600)
    setting.wait_for_answers(300.0)
    producer = setting.mq.producer()
    producer.publish("orders")
    interrupt = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    interrupt.start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        producer.send("orders", "x")
    assert time.monotonic() - before < 60
    setting.slow(0)
    assert producer.send("orders", "y").offset >= 0


def test_ctrl_c_does_not_wait_long_for_what_was_submitted(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shells, "INTERRUPTED_S", 0.2)
    setting.slow(600)
    before = time.monotonic()

    def interrupted() -> None:
        with setting.mq, setting.mq.producer() as producer:
            producer.submit("orders", "x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - before < 60
    assert "a producer was closed with 65 bytes that are not acknowledged" in caplog.text


# ---- bad input


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"delay": -1}, ValueError, "delay -1: expected seconds, 0.."),
        ({"delay": 1, "delay_level": 2}, ValueError, "expected at most one of them"),
        ({"deliver_at": datetime(2030, 1, 1)}, ValueError, "expected a time with a time zone"),
        ({"deliver_at": -5}, ValueError, "expected a time after 1970"),
        ({"tag": 5}, TypeError, "tag 5: expected a text, got int"),
        ({"keys": [5]}, TypeError, "key 5: expected a text, got int"),
        ({"properties": {"a": 1}}, TypeError, "property 'a': expected a text, got int"),
        ({"properties": {"TRAN_MSG": "true"}}, ValueError, "property 'TRAN_MSG': the client sets it itself"),
        ({"properties": {"a": "\ud800"}}, ValueError, "properties: a text cannot be written as UTF-8"),
        ({"key": 5}, TypeError, "key: expected bytes or a text, got int"),
    ],
)
def test_what_cannot_be_sent_is_named(
    setting: Setting, given: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        setting.mq.producer().send("orders", "x", **given)
    assert not setting.sends("broker-a") + setting.sends("broker-b")


def test_text_that_is_no_text_is_refused(setting: Setting) -> None:
    with pytest.raises(ValueError, match="data: the text cannot be written as UTF-8"):
        setting.mq.producer().send("orders", "\ud800")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"linger_s": -1}, "linger_s -1: expected seconds"),
        ({"window": 0}, "window 0: expected bytes"),
        ({"on_overflow": "drop"}, "on_overflow 'drop': expected 'block', 'raise' or a function"),
        ({"compression": "lz4"}, "compression 'lz4': expected 'zlib' or None"),
        ({"compress_from": "big"}, "'big': expected a number of bytes"),
        ({"group": ""}, "group '': expected the name"),
    ],
)
def test_wrong_options_are_named(setting: Setting, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        setting.mq.producer(**options)


def test_unknown_topics_are_named_before_anything_is_sent(setting: Setting) -> None:
    for broker in setting.brokers:
        del broker.store.topics["TBW102"]
    with setting.mq.producer() as producer:
        for call in (producer.send, producer.submit, producer.send_oneway):
            with pytest.raises(TopicNotFound, match="nothing"):
                call("nothing", "x")
        with pytest.raises(TopicNotFound, match="nothing"):
            producer.publish("orders", "nothing")
        assert (producer.knows("orders"), producer.knows("nothing")) == (True, False)


def test_partitioners_choose_queues(setting: Setting) -> None:
    for partitioner, expected in (
        (round_robin(), {A0, A1, B0}),
        (at_random(1), {A0, A1, B0}),
        (fixed(2), {B0}),
        (lambda topic, queues, key: queues[len(topic) % 2], {A0}),
        (by_key(fixed(1)), {A1}),
    ):
        sent = setting.mq.producer(partitioner).send_many("orders", ["x"] * 30)
        assert {one.partition for one in sent} == expected


def test_repr_shows_no_payload(setting: Setting) -> None:
    assert "secret" not in repr(RocketMessage(data="secret"))
    assert repr(setting.mq.producer(group="g")) == "RocketProducer(group='g')"
