"""Fixtures of the tests with ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import StartBroker
from fix_zookeeper import ZooKeeperRoot
from registered import Brokers


@pytest.fixture
def brokers(zookeeper: ZooKeeperRoot, tmp_path: Path, start_broker: StartBroker) -> Brokers:
    """Starts brokers that register themselves."""
    return Brokers(zookeeper, tmp_path, start_broker)
