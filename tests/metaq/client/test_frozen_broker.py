"""A broker that is frozen: an ordered producer keeps messages here soon, and Ctrl-C ends a program with tasks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from examples import rarely
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, first_line, wait_until, write_ini
from waiting import in_loop

from metaq import AsyncMetaQ, MetaQ, RocketMQ
from metaq.model import Address, Partition, TopicPartition

pytestmark = pytest.mark.process

P0 = TopicPartition("t", Partition(0, 0))

PROGRAM = """
import asyncio, sys
from metaq import {client}

async def main():
    async with {client}(sys.argv[1]) as mq, mq.producer() as producer:
        await producer.send("known", b"one tea")
        print("works", flush=True)
        sys.stdin.readline()
        await {call}

asyncio.run(main())
"""
CALLS = {
    "send": 'producer.send("known", b"two scones")',
    "send to a new topic": 'producer.send("new", b"two scones")',
    "send_many": 'producer.send_many("known", [b"two scones"])',
    "publish": 'producer.publish("new")',
    "describe": 'mq.cluster.describe("known")',
    "transaction": 'producer.transaction().send("known", b"two scones")',
}
CALLS_OF_ROCKETMQ = {
    **{name: call for name, call in CALLS.items() if name != "transaction"},
    "request": 'producer.request("known", b"two scones", timeout=60)',
    "send_oneway": 'producer.send_oneway("new", b"two scones")',
}


def test_an_ordered_producer_keeps_the_first_message_soon(dev_broker: RunningBroker, tmp_path: Path) -> None:
    with (
        MetaQ(str(dev_broker.address)) as mq,
        mq.ordered_producer({"t": "0:1"}, tmp_path / "spool", retry_s=1000, send_timeout_s=0.3) as producer,
    ):
        assert producer.send("t", "0") is not None
        dev_broker.process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        assert [producer.send("t", "1"), producer.send("t", "2")] == [None, None]
        assert time.monotonic() - began_s < DEADLINE_S / 3, "a request of other producers may take 30 s"
        assert producer.spooled == {P0: 2}
        dev_broker.process.send_signal(signal.SIGCONT)
        assert producer.recover(DEADLINE_S)
        sent = [message.data for message in mq.browse("t")]
    assert list(dict.fromkeys(sent)) == [b"0", b"1", b"2"], "what was on its way may be there twice"


class Two:
    """Two brokers with a partition of ``t`` each; the first one may be frozen or killed."""

    partitions = (P0.partition, Partition(1, 0))

    def __init__(self, start: StartBroker, folder: Path) -> None:
        rest = "[zookeeper]\nzk.zkEnable=false\n[topic=t]\n"
        files = [write_ini(folder / name, rest, brokerId=name, hostName="127.0.0.1") for name in "01"]
        self.first, self.second = (start("start", "-f", file) for file in files)
        self.cluster = f"{self.first.address},{self.second.address}"


@pytest.fixture
def two(start_broker: StartBroker, tmp_path: Path) -> Two:
    return Two(start_broker, tmp_path)


def test_messages_of_other_brokers_do_not_wait_for_a_frozen_one(two: Two, tmp_path: Path) -> None:
    first, second = two.partitions
    with (
        MetaQ(two.cluster) as mq,
        mq.ordered_producer({"t": "0:1;1:1"}, tmp_path / "spool", send_timeout_s=DEADLINE_S) as producer,
    ):
        for partition in two.partitions:
            assert producer.send("t", "0", partition=partition) is not None
        two.first.process.send_signal(signal.SIGSTOP)
        waiting = threading.Thread(target=producer.send, args=("t", "waits"), kwargs={"partition": first})
        waiting.start()
        sent = [producer.send("t", str(number), partition=second) for number in range(100)]
        assert waiting.is_alive()
        two.first.process.send_signal(signal.SIGCONT)
        waiting.join(DEADLINE_S)
        assert None not in sent
        assert [one.data for one in mq.browse("t", partitions=[first])][:2] == [b"0", b"waits"]


@in_loop
async def test_tasks_do_not_wait_for_the_broker_of_another_partition(two: Two, tmp_path: Path) -> None:
    first, second = two.partitions
    async with (
        AsyncMetaQ(two.cluster) as mq,
        mq.ordered_producer({"t": "0:1;1:1"}, tmp_path / "spool", send_timeout_s=DEADLINE_S) as producer,
    ):
        for partition in two.partitions:
            assert await producer.send("t", "0", partition=partition) is not None
        two.first.process.send_signal(signal.SIGSTOP)
        waiting = asyncio.create_task(producer.send("t", "waits", partition=first))
        sent = [await producer.send("t", str(number), partition=second) for number in range(100)]
        assert not waiting.done()
        two.first.process.send_signal(signal.SIGCONT)
        assert await waiting is not None
        assert None not in sent


@pytest.mark.parametrize("killed", [False, True])
def test_messages_of_other_brokers_are_sent_while_one_is_away(two: Two, killed: bool, tmp_path: Path) -> None:
    first, second = two.partitions
    with (
        MetaQ(two.cluster) as mq,
        mq.ordered_producer({"t": "0:1;1:1"}, tmp_path / "spool", retry_s=0.3, send_timeout_s=5) as producer,
    ):
        for partition in two.partitions:
            assert producer.send("t", "0", partition=partition) is not None
        if killed:
            two.first.kill()
        else:
            two.first.process.send_signal(signal.SIGSTOP)
        for number in range(20):
            assert producer.send("t", str(number), partition=first) is None
            assert producer.send("t", str(number), partition=second) is not None
        assert producer.spooled == {P0: 20}
        if not killed:
            two.first.process.send_signal(signal.SIGCONT)
            assert producer.recover(DEADLINE_S)


@pytest.mark.parametrize("call", [*list(CALLS)[:2], *rarely(*list(CALLS)[2:])])
def test_ctrl_c_ends_tasks_that_wait_for_it(call: str, dev_broker: RunningBroker) -> None:
    took_s = interrupted_s(PROGRAM.format(client="AsyncMetaQ", call=CALLS[call]), dev_broker, dev_broker.address)
    assert took_s < 20, "requests take up to 30 s, and are tried again"


@pytest.mark.parametrize("call", [*list(CALLS_OF_ROCKETMQ)[:2], *rarely(*list(CALLS_OF_ROCKETMQ)[2:])])
def test_ctrl_c_ends_tasks_of_rocketmq_that_wait_for_it(call: str, start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--rocketmq-port", "0")
    program = PROGRAM.format(client="AsyncRocketMQ", call=CALLS_OF_ROCKETMQ[call])
    took_s = interrupted_s(program, broker, broker.rocketmq_address)
    assert took_s < 20, "requests take up to 30 s, and are tried again"


LONG_LIMITS = """
from metaq.backends.rocketmq.groups import group_requests  # first: others import its limit
group_requests.ANSWER_S = 60.0
from metaq.client.groups import steps
from metaq.client.groups.ownership import broker_group
steps.CLOSE_S = broker_group.ANSWER_S = 60.0
"""
CONSUMERS = {
    "asyncio": """
import asyncio, sys
LIMITS
from metaq import Async{client}

async def main():
    async with Async{client}(sys.argv[1]) as mq, mq.consumer("g", ["known"]) as consumer:
        while not await consumer.fetch():
            pass
        print("works", flush=True)
        sys.stdin.readline()
        await consumer.fetch(timeout=60)

asyncio.run(main())
""",
    "threads": """
import sys
LIMITS
from metaq import {client}

with {client}(sys.argv[1]) as mq, mq.consumer("g", ["known"]) as consumer:
    while not consumer.fetch():
        pass
    print("works", flush=True)
    sys.stdin.readline()
    consumer.fetch(timeout=60)
""",
}


@pytest.mark.parametrize("client", [MetaQ, RocketMQ])
@pytest.mark.parametrize("kind", ["asyncio", *rarely("threads")])
def test_ctrl_c_ends_a_consumer_soon(
    kind: str, client: type[MetaQ | RocketMQ], start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--rocketmq-port", "0")
    address = broker.address if client is MetaQ else broker.rocketmq_address
    with client(str(address)) as mq, mq.producer() as producer:
        producer.send("known", b"one tea")
    program = CONSUMERS[kind].format(client=client.__name__).replace("LIMITS", LONG_LIMITS)
    took_s = interrupted_s(program, broker, address)
    assert took_s < 20, "leaving a group may take half a minute, but not after Ctrl-C"


def interrupted_s(program: str, broker: RunningBroker, address: Address) -> float:
    """Run a program that prints a line; freeze its broker, have it go on, and interrupt it when it waits. Return how
    many seconds it took to end.
    """
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", program, str(address)], text=True, **pipes) as ran:
        assert first_line(ran) == "works\n"
        broker.process.send_signal(signal.SIGSTOP)
        ran.stdin.write("\n")
        ran.stdin.flush()
        state = Path(f"/proc/{ran.pid}/stat")
        wait_until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "S", "it waits")
        ran.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        _, error = ran.communicate(timeout=DEADLINE_S)
        took_s = time.monotonic() - began_s
    assert "KeyboardInterrupt" in error
    assert ran.returncode == -signal.SIGINT
    return took_s
