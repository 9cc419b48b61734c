"""A refusal says nothing of what else the broker was sent: each message has its own outcome, and none is doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import pytest
from rocketmq_clients import SENDS, Setting
from waiting import run_watched

from metaq import AsyncRocketMQ
from metaq.backends.rocketmq.errors import RequestRefused
from metaq.client.rocketmq import sending
from metaq.client.rocketmq.records import RocketMessage, RocketSent
from metaq.errors import DeadlineExceeded, SendFailed
from metaq.model import Partition
from metaq.net.retry import RetryPolicy
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SendMessage

SYSTEM_ERROR, ILLEGAL, AWAY, NOT_HERE = 1, 13, 14, 16
QUEUES = [Partition("broker-a", number) for number in range(4)]
B0 = Partition("broker-b", 0)
TEXTS = ["0", "1", "2", "3", "b"]
"""Messages that in turn go to each of ``QUEUES`` and ``B0``."""

Send = Callable[[Setting, Sequence[str]], list[Any]]
"""Sends texts; returns for each where it is, or its error."""


@pytest.fixture(autouse=True)
def slow_disk(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """``orders`` has four queues at one broker; all are sent to before the first answer, which is that of queue 0."""
    monkeypatch.setattr(sending, "RetryPolicy", lambda: RetryPolicy(1, 0.01))
    setting.cluster.create_topic("orders", queues=4, broker="broker-a")
    answer_late(setting, {"1", "2", "3"})


def answer_late(setting: Setting, queues: set[str], seconds: float = 0.25) -> None:
    def latency_s(command: RemotingCommand) -> float:
        if command.code not in SENDS:
            return 0.0
        return seconds if command.ext["e"] in queues else 0.1

    setting.cluster.broker("broker-a").latency_s = latency_s


def refuse(setting: Setting, code: int, *queues: int) -> None:
    for queue in queues:
        setting.cluster.broker("broker-a").refuse(None, code, f"not queue {queue}", times=1000, queue=queue)


def with_send_many(setting: Setting, texts: Sequence[str]) -> list[Any]:
    try:
        return list(setting.mq.producer().send_many("orders", texts))
    except SendFailed as error:
        return [error if one is None else one for one in error.sent]


def with_submit(setting: Setting, texts: Sequence[str], at: Sequence[Partition] = ()) -> list[Any]:
    with setting.mq.producer(linger_s=0.05) as producer:
        futures = [producer.submit("orders", text, partition=where) for text, where in zip_longest(texts, at)]
        return [future.exception(30) or future.result() for future in futures]


def with_asyncio(setting: Setting, texts: Sequence[str], at: Sequence[Partition] = ()) -> list[Any]:
    async def send() -> list[Any]:
        servers = ";".join(map(str, setting.cluster.name_servers))
        async with AsyncRocketMQ(servers, timeouts=Timeouts(2.0, 1.0)) as mq:
            producer = mq.producer(linger_s=0.05)
            futures = [await producer.submit("orders", text, partition=where) for text, where in zip_longest(texts, at)]
            return await asyncio.gather(*futures, return_exceptions=True)

    found: list[Any] = []

    async def main() -> None:
        found.extend(await send())

    run_watched(main())
    return found


def with_delays(setting: Setting, texts: Sequence[str]) -> list[Any]:
    messages = [RocketMessage(data=text, delay_level=1) for text in texts]
    found = list(setting.mq.producer().send_many("orders", messages))
    assert {command.code for command in setting.sends()} == {SendMessage.CODE}
    return found


every_way = pytest.mark.parametrize("send", [with_send_many, with_submit, with_asyncio])


def stored(setting: Setting) -> Counter[str]:
    return Counter(data.decode() for found in setting.stored().values() for data in found)


def places(outcomes: Sequence[Any]) -> list[Partition]:
    assert all(isinstance(one, RocketSent) for one in outcomes), outcomes
    return [one.partition for one in outcomes]


@pytest.mark.parametrize("send", [with_send_many, with_submit, with_asyncio, with_delays])
def test_only_what_was_refused_goes_to_another_broker(setting: Setting, send: Send) -> None:
    refuse(setting, AWAY, 0)
    assert places(send(setting, TEXTS)) == [B0, *QUEUES[1:], B0]
    assert stored(setting) == Counter(TEXTS)


def test_a_refused_batch_moves_with_all_of_its_messages(setting: Setting) -> None:
    refuse(setting, AWAY, 0, 2)
    texts = [f"{number}-{text}" for number in range(20) for text in TEXTS]
    sent = setting.mq.producer().send_many("orders", texts)
    assert [one.partition for one in sent] == [B0, QUEUES[1], B0, QUEUES[3], B0] * 20
    assert stored(setting) == Counter(texts)
    assert len({one.message_id for one in sent}) == len(texts)


def test_what_was_not_sent_goes_to_another_broker_too(setting: Setting) -> None:
    refuse(setting, AWAY, 0)
    long = "x" * (sending.BLOCK_BYTES_MAX // 2 + 1)  # a request each
    texts = [f"{text}{number}{long}" for number in range(3) for text in TEXTS]
    sent = setting.mq.producer().send_many("orders", texts)
    assert [one.partition for one in sent[:5]] == [B0, *QUEUES[1:], B0]
    assert {one.partition for one in sent[5:]} == {B0}
    assert stored(setting) == Counter(texts)


@every_way
def test_an_illegal_message_is_the_only_one_that_is_not_sent(setting: Setting, send: Send) -> None:
    refuse(setting, ILLEGAL, 0)
    refused, *others = send(setting, TEXTS)
    assert isinstance(refused, SendFailed)
    assert "not queue 0" in refused.reason
    assert (refused.retryable, refused.unanswered) == (False, False)
    assert places(others) == [*QUEUES[1:], B0]
    assert stored(setting) == Counter(TEXTS[1:])


@pytest.mark.parametrize("send", [with_submit, with_asyncio])
def test_what_was_not_sent_because_of_a_refusal_says_so(setting: Setting, send: Send) -> None:
    refuse(setting, ILLEGAL, 0)
    long = "x" * (sending.BLOCK_BYTES_MAX // 2 + 1)  # a request each
    refused, *others = send(setting, [text + long for text in (*TEXTS, "0")])
    assert "not queue 0" in refused.reason
    assert refused.reason.startswith("server ")
    assert others[-1].reason == f"not sent, because another message was refused: {refused.reason}"
    assert places(others[:-1]) == [*QUEUES[1:], B0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["refusal first", "lost first"])
@pytest.mark.parametrize("send", [with_submit, with_asyncio])
def test_each_future_has_the_error_of_its_own_broker(
    setting: Setting, send: Callable[[Setting, Sequence[str], Sequence[Partition]], list[Any]], order: Sequence[int]
) -> None:
    refuse(setting, ILLEGAL, 0)
    for code in SENDS:
        setting.cluster.broker("broker-b").disconnect(code, times=1000)
    long = "x" * (sending.BLOCK_BYTES_MAX // 2 + 1)  # a request each
    texts, at = ["0" + long, "1" + long, "b"], [QUEUES[0], QUEUES[0], B0]
    outcomes = send(setting, [texts[row] for row in order], [at[row] for row in order])
    refused, not_sent, lost = (outcomes[order.index(row)] for row in range(3))
    assert "not queue 0" in refused.reason
    assert not_sent.reason == f"not sent, because another message was refused: {refused.reason}"
    assert "broker-b" in lost.reason, "by an answer, or by a look whether one has arrived"
    assert [(one.retryable, one.unanswered) for one in (refused, not_sent, lost)] == [
        (False, False),
        (False, False),
        (True, True),
    ]


@every_way
def test_a_broker_that_is_away_does_not_have_the_refusal_of_another_one(setting: Setting, send: Send) -> None:
    refuse(setting, ILLEGAL, 0)
    for code in SENDS:
        setting.cluster.broker("broker-b").disconnect(code, times=1000)
    refused, *others, lost = send(setting, TEXTS)
    assert "not queue 0" in refused.reason
    assert places(others) == QUEUES[1:]
    if send is not with_send_many:  # which raises one error
        assert ("not queue 0" in lost.reason, lost.retryable, lost.unanswered) == (False, True, True)


@every_way
@pytest.mark.parametrize("reason", ["no answer within 2 s", "it answers " + "x" * 600], ids=["short", "long"])
def test_a_refusal_that_says_so_may_be_stored_nevertheless(setting: Setting, send: Send, reason: str) -> None:
    text = f"Slave is disconnected {reason}; it may be stored, and is readable once the slave has it"
    setting.cluster.broker("broker-a").refuse(None, SYSTEM_ERROR, text, times=1000, queue=0)
    refused, *others = send(setting, TEXTS)
    assert refused.reason.endswith(text[-60:])
    assert (refused.retryable, refused.unanswered) == (False, True)
    assert places(others) == [*QUEUES[1:], B0]


@every_way
@pytest.mark.parametrize("code", [SYSTEM_ERROR, NOT_HERE, ILLEGAL])
def test_the_cause_is_the_refusal_itself(setting: Setting, send: Send, code: int) -> None:
    setting.cluster.broker("broker-b").refuse(None, code, "not here", times=1000)
    refuse(setting, code, 0)
    refused, *_ = send(setting, TEXTS)
    cause = refused.__cause__
    assert isinstance(cause, RequestRefused)
    assert (cause.code, cause.text, cause.retryable) == (code, "not queue 0", refused.retryable)


@pytest.mark.parametrize("send", [with_submit, with_asyncio])
@pytest.mark.parametrize("late", ["1", "0"])
def test_each_future_has_its_own_refusal(setting: Setting, send: Send, late: str) -> None:
    answer_late(setting, {late})
    refuse(setting, ILLEGAL, 0, 1)
    outcomes = send(setting, TEXTS)
    assert [one.reason[-11:] for one in outcomes[:2]] == ["not queue 0", "not queue 1"]
    assert places(outcomes[2:]) == [*QUEUES[2:], B0]


@every_way
def test_what_is_refused_for_good_is_not_tried_elsewhere(setting: Setting, send: Send) -> None:
    refuse(setting, AWAY, 0)
    refuse(setting, ILLEGAL, 1)
    first, illegal, *others = send(setting, TEXTS)
    assert places([first, *others]) == [B0, *QUEUES[2:], B0]
    assert "not queue 1" in illegal.reason
    assert not illegal.retryable
    assert stored(setting) == Counter(["0", "2", "3", "b"])


@every_way
def test_an_answer_that_is_lost_moves_its_message_as_a_lost_connection_does(setting: Setting, send: Send) -> None:
    setting.wait_for_answers(1.0)
    answer_late(setting, {"1"}, 60.0)
    refuse(setting, AWAY, 0)
    assert places(send(setting, TEXTS)) == [B0, B0, *QUEUES[2:], B0]
    assert stored(setting) == Counter([*TEXTS, "1"])
    ids = Counter(message.message_id for message in setting.mq.browse("orders"))
    assert sorted(ids.values()) == [1, 1, 1, 1, 2]


def test_where_it_may_not_move_the_error_says_that_it_may_be_stored(setting: Setting) -> None:
    setting.wait_for_answers(1.0)
    answer_late(setting, {"1"}, 60.0)
    refuse(setting, ILLEGAL, 0)
    with setting.mq.producer(linger_s=0.1, failover=False) as producer:
        futures = [producer.submit("orders", text) for text in TEXTS]
        refused, lost = (future.exception(30) for future in futures[:2])
    assert isinstance(refused, SendFailed)
    assert isinstance(lost, SendFailed)
    assert "not queue 0" in refused.reason
    assert (refused.retryable, lost.retryable) == (False, True)
    assert (refused.unanswered, lost.unanswered) == (False, True)
    assert isinstance(lost.__cause__, DeadlineExceeded)
    with pytest.raises(SendFailed, match=r"not queue 0; others may be stored: .*no answer") as failed:
        setting.mq.producer(failover=False).send_many("orders", TEXTS)
    assert [one is None for one in failed.value.sent] == [True, True, False, False, False]
    assert failed.value.unanswered


@every_way
def test_a_refusal_after_a_lost_answer_says_that_the_message_may_be_stored(setting: Setting, send: Send) -> None:
    away, there = setting.brokers
    away.disconnect(SEND_BATCH_MESSAGE, carried_out=True)
    for broker in setting.brokers:
        broker.refuse(SEND_BATCH_MESSAGE, ILLEGAL, "no more", times=1000)
    there.latency_s = away.latency_s
    outcomes = send(setting, TEXTS[:4])
    assert {one.reason.rpartition(": ")[2] for one in outcomes} == {"no more"}
    assert any(one.unanswered for one in outcomes)
    assert not any(one.retryable for one in outcomes)
    assert sum(stored(setting).values()) == 1


@pytest.mark.parametrize("code", [10, 11, 12])
@every_way
def test_what_is_stored_with_less_durability_is_not_sent_again(setting: Setting, send: Send, code: int) -> None:
    def tamper(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        return request.reply(code, answer.ext) if request.code in SENDS else answer

    setting.cluster.broker("broker-a").tamper = tamper
    refuse(setting, AWAY, 0)
    outcomes = send(setting, TEXTS)
    assert places(outcomes) == [B0, *QUEUES[1:], B0]
    assert [one.is_durable for one in outcomes] == [True, False, False, False, True]
    assert stored(setting) == Counter(TEXTS)


def test_a_half_message_that_is_refused_is_at_another_broker_only(setting: Setting) -> None:
    refuse(setting, AWAY, 0)
    with setting.mq.transactional_producer("g", lambda message: "unknown") as producer:
        transaction = producer.transaction()
        sent = [transaction.send("orders", text).partition for text in "xyz"]
        transaction.leave()
    assert [queue.broker_name for queue in sent] == ["broker-b", "broker-a", "broker-a"]
    assert [len(setting.sends(broker.name)) for broker in setting.brokers] == [3, 1]
