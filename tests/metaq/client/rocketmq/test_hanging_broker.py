"""Brokers of RocketMQ that take connections and requests and do not answer: callers wait as long as they said, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import rarely
from fix_broker import StartBroker
from local_servers import BrokerPair, running_name_server
from rocketmq_clients import A0, B0, Setting
from waiting import quickest_s

from metaq import RocketMQ
from metaq.cli.main import main
from metaq.errors import DeadlineExceeded, MetaqError, SendFailed
from metaq.net.transport import Timeouts
from metaq.testing.rocketmq_server import ScriptedBroker

LIMIT_S = 1.0


@pytest.fixture
def mq(setting: Setting) -> Iterator[RocketMQ]:
    """A client of two brokers that waits for a second."""
    setting.mq.producer().send_many("orders", [b"a", b"b"], partition=A0)
    servers = ";".join(map(str, setting.cluster.name_servers))
    with RocketMQ(servers, timeouts=Timeouts(LIMIT_S, LIMIT_S)) as made:
        assert made.cluster.partitions("orders")
        yield made


def hang(*brokers: ScriptedBroker) -> None:
    for broker in brokers:
        broker.latency_s = lambda command: 3600.0


def require_one_wait(work: Callable[[], object], least_s: float = 0.0) -> None:
    """Check that ``work`` takes ``LIMIT_S``, and some of a busy machine's time, but not twice as long."""
    assert least_s <= quickest_s(work, 1.9 * LIMIT_S) < 1.9 * LIMIT_S


CALLS: dict[str, Callable[[RocketMQ], object]] = {
    "describe": lambda mq: mq.cluster.describe("orders"),
    "lag": lambda mq: mq.cluster.lag("g", ["orders"]),
    "offsets_at": lambda mq: mq.cluster.offsets_at("orders", 1),
    "browse": lambda mq: list(mq.browse("orders")),
    "send": lambda mq: mq.producer().send("orders", b"one tea", partition=A0),
    "send with a key": lambda mq: mq.producer().send_many("orders", [b"a", b"b"], keys=[b"1", b"2"]),
    "send anywhere": lambda mq: mq.producer().send("orders", b"one tea"),
}


@pytest.mark.parametrize(
    "name", ["describe", "send", "send anywhere", *rarely("lag", "offsets_at", "browse", "send with a key")]
)
def test_a_caller_waits_once(setting: Setting, mq: RocketMQ, name: str) -> None:
    hang(*setting.brokers)

    def fail() -> None:
        with pytest.raises(MetaqError) as failed:
            CALLS[name](mq)
        assert isinstance(failed.value, DeadlineExceeded | SendFailed)
        assert str(setting.cluster.broker("broker-a").address()) in str(failed.value) or "broker-b" in str(failed.value)

    require_one_wait(fail, LIMIT_S / 2)


def test_a_read_that_hangs_in_the_middle(setting: Setting, mq: RocketMQ) -> None:
    messages = iter(mq.browse("orders", partitions=[A0]))
    assert next(messages).data == b"a"
    setting.mq.producer().send_many("orders", [b"c"] * 500, partition=A0)
    browser = iter(mq.browse("orders", partitions=[A0]))
    next(browser)
    hang(*setting.brokers)

    def read() -> None:
        with pytest.raises(DeadlineExceeded):
            list(mq.browse("orders", partitions=[A0]))

    require_one_wait(read)


def test_what_may_go_to_another_broker_goes_there_in_half_of_the_time(setting: Setting, mq: RocketMQ) -> None:
    hang(setting.cluster.broker("broker-a"))
    producer = mq.producer()

    def send() -> None:
        assert {producer.send("orders", b"one tea").partition for _ in range(2)} == {B0}

    require_one_wait(send)


@pytest.mark.process
def test_a_stopped_process_behind_a_working_name_server(
    start_broker: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_name_server(tmp_path) as name_server:
        pair = BrokerPair(start_broker, tmp_path, name_server.address)
        stopped, statuses = pair.process_id("broker-b"), list[int]()
        cluster = ["--cluster", f"rocketmq://{pair.name_server}", "--timeout"]
        assert run(*cluster, "60", "topics") == 0
        os.kill(stopped, signal.SIGSTOP)
        try:
            require_one_wait(lambda: statuses.append(run(*cluster, str(LIMIT_S), "describe", "orders")), LIMIT_S / 2)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert set(statuses) == {1}
        assert str(pair.address("broker-b")) in capsys.readouterr().err
        assert run(*cluster, "60", "describe", "orders") == 0


def run(*arguments: str) -> Any:
    return main(arguments)
