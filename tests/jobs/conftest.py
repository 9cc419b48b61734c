"""What the jobs' tests need beside the session that all Spark tests share."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture(scope="session")
def spark(spark: SparkSession) -> SparkSession:
    """The session, with the code that runs in its Python workers; ``spark-submit`` ships a job's own file by itself."""
    spark.sparkContext.addPyFile(str(JOBS / "lines_to_topic.py"))
    return spark
