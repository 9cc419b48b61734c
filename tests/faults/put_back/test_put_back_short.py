"""A short `python -m faults.put_back`: rounds with two batches, with each harm in one of the formats at least.

Where one of two brokers is put back, both are in the end: a round with all of them shows nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.put_back.rounds import Harm, PutBackRun, schedule


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("format_name", "harms"), [("metaq", [Harm.ONE, Harm.JOURNAL]), ("rocketmq", [Harm.ALL, Harm.COMMIT_LOST])]
)
def test_a_query_whose_brokers_are_put_back(
    spark: SparkSession, tmp_path: Path, format_name: str, harms: Sequence[Harm]
) -> None:
    described: list[str] = []
    run = PutBackRun(spark, tmp_path, 20, format_name, described.append, batches=2)
    run.run(harms)
    assert run.figures.rounds.total() == len(described) == len(harms)
    assert run.figures.refused >= len(harms) - 1


def test_each_harm_has_its_turn() -> None:
    assert schedule("metaq", 5) == [*Harm, Harm.ALL]
    assert schedule("rocketmq", 4) == [Harm.ALL, Harm.COMMIT_LOST, Harm.JOURNAL, Harm.ALL]
