"""Fixtures of the broker's tests: one broker for a module, a connection to it, a topic nobody else uses; harnesses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, launch


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Like ``dev_broker``, but one for all tests of a module: use a topic of your own (``topic``)."""
    folder = tmp_path_factory.mktemp("shared-broker")
    broker = launch(["dev", folder / "data", "--port", "0", "--partitions", "2"], folder / "broker.log")
    yield broker
    broker.end()


@pytest.fixture
def client(shared_broker: RunningBroker) -> Iterator[WireClient]:
    connection = shared_broker.client()
    yield connection
    connection.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test of the module uses."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")


@pytest.fixture
def broker(start_broker: StartBroker, ini: Path) -> RunningBroker:
    """A broker that runs with the file that the folder of the test gives it."""
    return start_broker("start", "-f", ini)


@pytest.fixture
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The ``Harness`` that the module of the test imports."""
    return request.module.Harness(tmp_path)
