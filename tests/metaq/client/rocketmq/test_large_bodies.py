"""Bodies up to what the broker takes: 4 MiB without asking, its own ``maxMessageSize`` where that is more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_commands import run_command
from fix_broker import RunningBroker, launch_in
from rocketmq_clients import Setting
from waiting import in_loop

from metaq import AsyncRocketMQ
from metaq.backends.rocketmq.body_limits import UNTOLD_BYTES_MAX
from metaq.cli.main import main
from metaq.client.partitioners import fixed
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.producer import RocketProducer
from metaq.errors import SendFailed
from metaq.protocols.remoting.codes import name_of
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import GetBrokerConfig

MIB = 1 << 20
LARGE = "[topic=*]\n[rocketmq]\nenabled=true\nport=0\nmaxMessageSize=8388608\n"

Send = Callable[[RocketProducer, bytes], object]
WAYS: dict[str, Send] = {
    "send": lambda producer, body: producer.send("orders", body),
    "submit": lambda producer, body: producer.submit("orders", body).result(60),
    "send_many": lambda producer, body: producer.send_many("orders", ["before", body, "behind"]),
    "delayed": lambda producer, body: producer.send("orders", body, delay_level=1),
}


def large(broker: RunningBroker) -> RocketMQ:
    return RocketMQ(str(broker.rocketmq_address))


@pytest.fixture(scope="module")
def large_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """It takes bodies of 8 MiB."""
    broker = launch_in(tmp_path_factory.mktemp("large"), LARGE)
    yield broker
    broker.end()


@pytest.mark.parametrize("way", WAYS)
def test_four_mib_need_no_question(setting: Setting, way: str) -> None:
    WAYS[way](setting.mq.producer(), bytes(4 * MIB))
    assert 4 * MIB in [len(one.body) for broker in setting.brokers for one in setting.sends(broker.name)]
    asked = [one.code for broker in setting.brokers for one in broker.requests]
    assert GetBrokerConfig.CODE not in asked


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
def test_a_brokers_larger_limit_is_used(large_broker: RunningBroker, way: str) -> None:
    with large(large_broker) as mq, mq.producer() as producer:
        WAYS[way](producer, bytes(8 * MIB))
        with pytest.raises(ValueError, match="the body has 8388609 bytes, and broker 'metaq' takes at most 8388608"):
            WAYS[way](producer, bytes(8 * MIB + 1))


@pytest.mark.process
def test_it_arrives_as_it_was_sent(large_broker: RunningBroker) -> None:
    body = bytes(range(256)) * (6 * MIB // 256)
    with large(large_broker) as mq:
        mq.producer().send("whole", body, tag="hot")
        (found,) = mq.browse("whole")
        with mq.consumer("readers", ["whole"], start="earliest") as consumer:
            (read,) = consumer.fetch(timeout=60)
    assert (found.data, found.tag) == (read.data, read.tag) == (body, "hot")


@pytest.mark.process
@in_loop
async def test_asyncio(tmp_path: Path) -> None:
    broker = launch_in(tmp_path, LARGE)
    try:
        async with AsyncRocketMQ(str(broker.rocketmq_address)) as mq, mq.producer() as producer:
            await producer.send("orders", "ä" * 4 * MIB)
            with pytest.raises(ValueError, match="takes at most 8388608"):
                await producer.send("orders", "ä" * 4 * MIB + "x")
    finally:
        broker.end()


@pytest.mark.process
def test_a_transaction(large_broker: RunningBroker) -> None:
    with (
        large(large_broker) as mq,
        mq.transactional_producer("large", lambda message: "unknown") as producer,
        producer.transaction() as transaction,
    ):
        transaction.send("halves", bytes(8 * MIB))


@pytest.mark.process
def test_the_command(large_broker: RunningBroker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x" * (5 * MIB) + b"\n")
    where = f"rocketmq://{large_broker.rocketmq_address}"
    status, out, error = run_command(main, "-c", where, "produce", "by-command", file)
    assert (status, out + error) == (0, "1 message sent to by-command\n")


Answer = Callable[[RemotingCommand], RemotingCommand]
STORED = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}


def answering(setting: Setting, **answers: Answer) -> None:
    """Have the brokers answer requests with these names so; their own limit is 4 MiB."""

    def tamper(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        answer = answers.get(name_of(command.code).partition(" ")[0])
        return response if answer is None else answer(command)

    for broker in setting.brokers:
        broker.tamper = tamper


def test_a_broker_that_does_not_say_its_limit_decides(setting: Setting) -> None:
    def untold(command: RemotingCommand) -> RemotingCommand:
        return command.reply(3, remark="not supported")

    producer = setting.mq.producer()
    answering(setting, GET_BROKER_CONFIG=untold, SEND_MESSAGE_V2=lambda command: command.reply(0, STORED))
    producer.send("orders", bytes(UNTOLD_BYTES_MAX))
    with pytest.raises(ValueError, match=f"takes at most {UNTOLD_BYTES_MAX}"):
        producer.send("orders", bytes(UNTOLD_BYTES_MAX + 1))
    answering(
        setting, GET_BROKER_CONFIG=untold, SEND_MESSAGE_V2=lambda command: command.reply(13, remark="limit 4 MiB")
    )
    with pytest.raises(SendFailed, match="limit 4 MiB"):
        producer.send("orders", bytes(5 * MIB))


def test_a_broker_is_asked_again_for_more_than_it_said(setting: Setting) -> None:
    said = [5 * MIB, 6 * MIB]
    answering(
        setting,
        GET_BROKER_CONFIG=lambda command: command.reply(body=b"a=b\nmaxMessageSize=%d\n" % said.pop(0)),
        SEND_MESSAGE_V2=lambda command: command.reply(0, STORED),
    )
    producer = setting.mq.producer(fixed(0))
    for size in (5 * MIB, 5 * MIB, 6 * MIB, 6 * MIB):
        producer.send("orders", bytes(size))
    assert said == []
