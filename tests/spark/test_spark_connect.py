"""Through Spark Connect: client and server are other processes than the tests, everything works as without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import launch_in
from fix_spark import spark_environment
from lag_pipeline import check_figures

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

SCRIPT = Path(__file__).with_name("connect_pipeline.py")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the script prints."""
    # The server is started by the client, as its child; it finds the installed package as any driver does.
    hidden = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | spark_environment()
    folder = tmp_path_factory.mktemp("connect")
    broker = launch_in(folder, "[topic=*]\n", brokerId=0, numPartitions=2)
    command = [sys.executable, str(SCRIPT), str(broker.address), str(folder / "checkpoint")]
    # SPARK_TESTING: Spark's own way to have the server choose a free port, and the client find it.
    settings = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    try:
        done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, timeout=800)
    finally:
        broker.stop()
        broker.end()
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def test_batch_and_stream(printed: str) -> None:
    assert "client: pyspark.sql.connect.session" in printed
    assert "batches: True failure: None" in printed
    assert "rows: 100 in order: True" in printed


def test_log_and_gauges_follow_a_query(printed: str) -> None:
    start = "LOG metaq_spark.lag "
    check_figures(printed, [line.removeprefix(start) for line in printed.splitlines() if line.startswith(start)])
