"""A bundled broker for RocketMQ's clients that asks about half messages soon; one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fix_broker import RunningBroker, launch_in

from metaq.model import Address

EAGER = "[topic=*]\n[rocketmq]\nenabled=true\nport=0\ntransactionTimeOut=1\ntransactionCheckInterval=100\n"


@dataclass
class EagerBroker:
    """The process, and its address for RocketMQ's clients, which is a name server, too."""

    process: RunningBroker
    address: Address

    @property
    def name_servers(self) -> str:
        return str(self.address)


@pytest.fixture(scope="module")
def eager_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EagerBroker]:
    broker = launch_in(tmp_path_factory.mktemp("eager"), EAGER)
    try:
        yield EagerBroker(broker, broker.rocketmq_address)
    finally:
        broker.end()
