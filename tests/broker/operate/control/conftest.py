"""The configuration of the operator's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import write_ini


@pytest.fixture
def ini(tmp_path: Path) -> Path:
    """A server.ini: topics ``orders`` and ``late``, four partitions each, in a folder of this test."""
    topics = "[topic=orders]\n[topic=late]\nunflushThreshold=10\n"
    return write_ini(tmp_path, topics, brokerId=1, numPartitions=4)
