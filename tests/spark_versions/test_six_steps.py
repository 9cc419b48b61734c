"""The six steps of a user, with the installed Spark, and with each one that ``METAQ_SPARKS`` names.

``make test-spark-versions`` sets it: ``VERSION=PYTHON``, separated by blanks; each Python has PySpark of that version.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from fix_broker import StartBroker
from fix_spark import spark_environment
from sparks import SPARKS

from metaq import RocketMQ

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

PROGRAM = Path(__file__).with_name("six_steps.py")
TITLES = ["write", "read", "filter", "stream", "limited stream", "exactly once"]


@pytest.mark.parametrize("name", ["metaq", "rocketmq"])
@pytest.mark.parametrize("version", SPARKS)
def test_each_step(version: str, name: str, start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "2")
    servers = str(broker.address) if name == "metaq" else str(broker.rocketmq_address)
    if name == "rocketmq":
        with RocketMQ(servers) as mq:
            mq.topics.create("copies", queues=2)
    python = SPARKS[version]
    environment = os.environ | spark_environment() | {"PYSPARK_PYTHON": python}
    command = [python, str(PROGRAM), name, servers, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    said = [line.rpartition(": ")[2] for line in done.stdout.splitlines() if line.startswith(f"Spark {version}")]
    assert said == TITLES
