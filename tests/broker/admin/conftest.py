"""Fixtures of the operator's tests: a broker with a configuration file and two topics."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker
from operated import SYSTEM


@pytest.fixture
def ini(tmp_path: Path) -> Path:
    """A server.ini: topics ``orders`` and ``late``, four partitions each, in a folder of this test."""
    file = tmp_path / "server.ini"
    file.write_text(f"{SYSTEM}dataPath={tmp_path / 'data'}\n[topic=orders]\n[topic=late]\nunflushThreshold=10\n")
    return file


@pytest.fixture
def broker(start_broker: StartBroker, ini: Path) -> RunningBroker:
    return start_broker("start", "-f", ini)
