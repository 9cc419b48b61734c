"""The lag listener on a real query with two sources: in the driver, and in a client of Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import RunningBroker
from fix_spark import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("lag_pipeline.py")


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_log_and_gauges_follow_a_query(kind: str, dev_broker: RunningBroker, tmp_path: Path) -> None:
    hidden = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | spark_environment()
    # SPARK_TESTING: Spark's own way to have a Connect server choose a free port, and the client find it.
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    command = [sys.executable, str(SCRIPT), str(dev_broker.address), str(tmp_path / "checkpoint"), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert f"session: pyspark.sql.{'connect.' if kind == 'connect' else ''}session" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOG metaq_spark.lag")]
    assert "query=both batch=0 lag_bytes=44 lag_messages=2 lag_seconds=" in lines[0]
    assert "behind=1 furthest=a/0-0" in lines[0]
    assert "query=both batch=2 lag_bytes=0 lag_messages=0 lag_seconds=0.0 partitions=2 behind=0" in lines[-1]
    for topic in "ab":
        for unit in ("bytes", "messages", "seconds"):
            gauge = f'WHILE metaq_spark_lag_{unit}{{partition="0-0",query="both",topic="{topic}"}} 0.0'
            assert gauge in done.stdout
    assert "AFTER []" in done.stdout
