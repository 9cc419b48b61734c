"""Fixtures for programs that use MetaQ or RocketMQ; pytest finds them because this package is installed.

============== =====================================================================================================
metaq_broker   the bundled broker in a process of its own, for clients of MetaQ and of RocketMQ: a ``BrokerProcess``
metaq_memory   a broker of MetaQ in memory, in this process: a ``MemoryServer``
rocketmq_memory  a name server and a broker of RocketMQ in memory, without groups: a ``ScriptedCluster``
============== =====================================================================================================

Each test finds a broker without topics that accepts every topic. ``metaq_broker_process`` is shared by the whole
session, for tests that use their own topic names. Clients' files (offsets, parked messages) are in a folder of the
test.

Source: docs/client.md, "Testing your own code".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # keep imports minimal: pytest imports this module at every start
    from metaq.testing.broker_process import BrokerProcess
    from metaq.testing.memory_server import MemoryServer
    from metaq.testing.rocketmq_server import ScriptedCluster


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting of how many partitions topics have."""
    parser.addini("metaq_partitions", "partitions of each topic of the fixtures' brokers", type="string", default="1")


@pytest.fixture(scope="session")
def metaq_broker_process(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[BrokerProcess]:
    """The bundled broker, one for all tests of the session."""
    from metaq.testing.broker_process import BrokerProcess

    with BrokerProcess(tmp_path_factory.mktemp("metaq-broker"), _partitions(pytestconfig)) as broker:
        yield broker


@pytest.fixture
def metaq_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test for the files of clients, instead of the user's own."""
    folder = tmp_path / "metaq-state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def metaq_broker(metaq_broker_process: BrokerProcess, metaq_state: Path) -> Iterator[BrokerProcess]:
    """The bundled broker without any topic; it may be stopped and killed."""
    metaq_broker_process.clear()
    yield metaq_broker_process
    metaq_broker_process.close_clients()


@pytest.fixture
def metaq_memory(metaq_state: Path, pytestconfig: pytest.Config) -> Iterator[MemoryServer]:
    """A broker in memory; it may be stopped and killed."""
    from metaq.testing.memory_server import MemoryServer

    with MemoryServer(_partitions(pytestconfig)) as server:
        yield server


@pytest.fixture
def rocketmq_memory(metaq_state: Path) -> Iterator[ScriptedCluster]:
    """A name server and a broker of RocketMQ in memory; ``create_topic`` makes topics."""
    from metaq.testing.rocketmq_server import ScriptedCluster

    with ScriptedCluster() as cluster:
        yield cluster


def _partitions(config: pytest.Config) -> int:
    text = str(config.getini("metaq_partitions"))
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise pytest.UsageError(f"metaq_partitions = {text}: expected 1..1000")
    return int(text)
