"""The figures of a broker that has just started, as RocketMQ answers then."""

from __future__ import annotations

from typing import cast

import pytest

from metaq.backends.rocketmq.administration import NOT_COUNTED_YET, broker_figures
from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.session import Session
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.testing.manual_clock import ManualClock


class StartingBroker:
    """Refuses so many requests with ``text``, and then answers."""

    def __init__(self, refusals: int, text: str) -> None:
        self.left, self.text, self.clock = refusals, text, ManualClock()

    def ask(self, command: RemotingCommand, action: str) -> RemotingCommand:
        if self.left:
            self.left -= 1
            raise RequestRefused("broker", action, ResponseCode.SYSTEM_ERROR, self.text)
        return command.reply(body=b'{"table": {"putTps": "0.0"}}')


def asked(broker: StartingBroker) -> dict[str, str]:
    return broker_figures(cast(Session, broker))


def test_it_is_waited_for_until_it_has_counted() -> None:
    text = f"{NOT_COUNTED_YET}, java.base/java.util.LinkedList.getLast(LinkedList.java:261)"
    broker = StartingBroker(3, text)
    assert asked(broker) == {"putTps": "0.0"}
    assert broker.clock.slept_s == [0.3, 0.6, 1.2]
    with pytest.raises(RequestRefused, match="NoSuchElement"):
        asked(StartingBroker(9, text))


def test_other_refusals_are_not_tried_again() -> None:
    broker = StartingBroker(1, "not supported")
    with pytest.raises(RequestRefused, match="not supported"):
        asked(broker)
    assert broker.clock.slept_s == []
