"""What a job says it did: counts of a batch and of a stream, and lines while it works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from job_report import JobReport, count_rows_out
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_a_batch(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def save(frame: DataFrame) -> None:
        frame.write.parquet(str(tmp_path / "out"))

    with JobReport("job") as report:
        report.write(spark.range(10), lambda frame: frame.where("id < 4"), save)
    assert re.fullmatch(r"job: done: 10 rows in, 4 rows out, \d+\.\d s\n", capsys.readouterr().err)


def test_a_stream_of_several_batches(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, count in enumerate((10, 20, 5)):
        spark.range(count).coalesce(1).write.mode("append").parquet(str(tmp_path / "in" / f"part={number}"))
    stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    writer = count_rows_out(stream.where("id < 8")).writeStream.format("noop").trigger(availableNow=True)
    with JobReport("job", every_s=0.01) as report:
        report.follow(writer.option("checkpointLocation", str(tmp_path / "progress")).start())
    *lines, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"job: done: 35 rows in, 21 rows out, \d+\.\d s", last)
    assert lines
    assert all(re.fullmatch(r"job: \d+ rows in, \d+ rows out, \d+ s", line) for line in lines)


def test_a_job_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="wrong"), JobReport("job"):
        raise ValueError("wrong")
    assert "job: ended early: 0 rows in, 0 rows out" in capsys.readouterr().err
