"""A short `python -m faults.put_back`: each harm once, in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.put_back.rounds import Harm, PutBackRun

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("format_name", "rounds"), [("metaq", len(Harm)), ("rocketmq", len(Harm) - 1)])
def test_a_query_whose_brokers_are_put_back(spark: SparkSession, tmp_path: Path, format_name: str, rounds: int) -> None:
    described: list[str] = []
    run = PutBackRun(spark, tmp_path, 20, format_name, described.append)
    run.run(rounds)
    assert run.figures.rounds.total() == len(described) == rounds
    assert run.figures.refused >= rounds - 1
