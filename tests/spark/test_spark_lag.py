"""The lag listener in the driver, on a real query with two sources, and on one whose program ends with it.

In a client of Spark Connect: ``test_spark_connect.py``.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fix_broker import RunningBroker
from fix_spark import spark_environment
from lag_pipeline import check_figures, follow
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("lag_available_now.py")
"""Finds the installed package as any driver does."""


@pytest.mark.long
@pytest.mark.since("4.2")  # a run of one batch would leave the rest to the next run
def test_the_last_batch_of_a_run_that_ends_is_reported(dev_broker: RunningBroker, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(dev_broker.address), str(tmp_path / "checkpoint")]
    done = subprocess.run(command, env=os.environ | spark_environment(), capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOG metaq_spark.lag")]
    assert "lag_bytes=0 lag_messages=0" in lines[-1]


def test_log_and_gauges_follow_a_query(
    spark: SparkSession,
    dev_broker: RunningBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "metaq_spark.lag")
    follow(spark, str(dev_broker.address), str(tmp_path / "checkpoint"))
    check_figures(capsys.readouterr().out, [one.message for one in caplog.records if one.name == "metaq_spark.lag"])
