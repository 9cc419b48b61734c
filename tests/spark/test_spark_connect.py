"""Through Spark Connect: client and server are other processes than the tests, everything works as without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import RunningBroker
from fix_spark import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("connect_pipeline.py")


def test_batch_and_stream_through_spark_connect(dev_broker: RunningBroker, tmp_path: Path) -> None:
    # The server is started by the client, as its child; it finds the installed package as any driver does.
    hidden = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | spark_environment()
    command = [sys.executable, str(SCRIPT), str(dev_broker.address), str(tmp_path / "checkpoint")]
    # SPARK_TESTING: Spark's own way to have the server choose a free port, and the client find it.
    settings = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "client: pyspark.sql.connect.session" in done.stdout
    assert "batches: True failure: None" in done.stdout
    assert "rows: 100 in order: True" in done.stdout
