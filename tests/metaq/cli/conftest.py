"""The command in the test's process, on brokers in memory and on a scripted RocketMQ cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli_commands import CapturedCommand
from fix_client import TIMEOUTS

from metaq.backends.metaq.pool import SessionPool
from metaq.model import Address
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq.testing.rocketmq_server import ScriptedCluster

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[Address, MemoryBroker]:
    """Brokers that ``MetaQ`` reaches, to be added by the test."""
    transport = MemoryTransport({})
    monkeypatch.setattr(
        "metaq.client.metaq.SessionPool", lambda timeouts, given: SessionPool(TIMEOUTS, transport, transport.clock)
    )
    return transport.brokers


@pytest.fixture
def cluster(rocketmq_memory: ScriptedCluster) -> ScriptedCluster:
    rocketmq_memory.create_topic("orders", queues=2)
    return rocketmq_memory


@pytest.fixture
def command(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return CapturedCommand(capfdbinary)


@pytest.fixture
def rocketmq(cluster: ScriptedCluster) -> str:
    return "rocketmq://" + ",".join(map(str, cluster.name_servers))
