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


def run_script(script: str, *arguments: object) -> str:
    """What the script prints."""
    hidden = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | spark_environment()
    # SPARK_TESTING: Spark's own way to have a Connect server choose a free port, and the client find it.
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def logged(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("LOG metaq_spark.lag")]


def test_the_last_batch_of_a_run_that_ends_is_reported(dev_broker: RunningBroker, tmp_path: Path) -> None:
    lines = logged(run_script("lag_available_now.py", dev_broker.address, tmp_path / "checkpoint"))
    assert "lag_bytes=0 lag_messages=0" in lines[-1]


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_log_and_gauges_follow_a_query(kind: str, dev_broker: RunningBroker, tmp_path: Path) -> None:
    printed = run_script("lag_pipeline.py", dev_broker.address, tmp_path / "checkpoint", kind)
    assert f"session: pyspark.sql.{'connect.' if kind == 'connect' else ''}session" in printed
    lines = logged(printed)
    assert "query=both batch=0 lag_bytes=44 lag_messages=2 lag_seconds=" in lines[0]
    assert "behind=1 furthest=a/0-0" in lines[0]
    assert "query=both batch=2 lag_bytes=0 lag_messages=0 lag_seconds=0.0 partitions=2 behind=0" in lines[-1]
    for topic in "ab":
        for unit in ("bytes", "messages", "seconds"):
            gauge = f'WHILE metaq_spark_lag_{unit}{{partition="0-0",query="both",topic="{topic}"}} 0.0'
            assert gauge in printed
    assert "AFTER []" in printed
