"""Two scripted brokers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from two_brokers import Setting

from metaq.testing.rocketmq_server import ScriptedCluster


@pytest.fixture
def setting() -> Iterator[Setting]:
    with ScriptedCluster(("broker-a", "broker-b")) as cluster:
        made = Setting(cluster)
        yield made
        made.mq.close()
