"""The declarative pipeline of the examples, run by ``spark-pipelines``, refreshed in full, and run again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from fix_broker import RunningBroker
from fix_spark import Topic, spark_environment
from pyspark.sql import SparkSession

from metaq.cli.main import main as metaq

pytest.importorskip("pyspark.pipelines", reason="this Spark has no pipelines")
pytest.importorskip("yaml", reason="pyspark[pipelines] is not installed")

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
HOME = Path(pyspark.__path__[0])
SETTINGS = ("--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false")
"""The catalog keeps the table from run to run, in the pipeline's folder."""


class Pipeline:
    """The example with the addresses of a broker, and its table and checkpoints below ``folder``."""

    def __init__(self, folder: Path, broker: RunningBroker) -> None:
        self.folder = Path(shutil.copytree(EXAMPLE, folder / "pipeline"))
        self.checkpoints = folder / "storage" / "_checkpoints" / "to_rocketmq" / "large_orders"
        spec = self.folder / "spark-pipeline.yml"
        text = spec.read_text().replace("127.0.0.1:8123", str(broker.address))
        text = text.replace("127.0.0.1:10911", str(broker.rocketmq_address)).replace(
            "/tmp/shop-pipeline", f"{folder}/storage"
        )
        spec.write_text(text)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run it once; the exit status, and what it said."""
        mine = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            [str(HOME / "bin" / "spark-pipelines"), "run", *SETTINGS, *arguments],
            cwd=self.folder, env=os.environ | spark_environment() | mine | {"PATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def run_well(self) -> None:
        status, said = self.run()
        assert status == 0, said[-3000:]


def order(number: int, amount: int) -> str:
    return json.dumps({"id": number, "amount": amount})


def test_a_full_refresh_does_not_write_twice(spark: SparkSession, dev_broker: RunningBroker, tmp_path: Path) -> None:
    source = Topic(spark, "orders", str(dev_broker.address))
    sent = source.named("large_orders")  # one log for both protocols
    pipeline = Pipeline(tmp_path, dev_broker)
    assert metaq(["-c", f"rocketmq://{dev_broker.rocketmq_address}", "create", "large_orders"]) == 0
    source.put(order(1, 5), order(2, 500), "no order")
    pipeline.run_well()
    assert sent.stored() == ['{"id":2,"amount":500}']
    table = spark.read.parquet(str(pipeline.folder / "spark-warehouse" / "orders"))
    assert sorted((row.id, row.amount) for row in table.collect()) == [(1, 5), (2, 500)]

    status, said = pipeline.run("--full-refresh-all")
    assert status != 0
    assert "a full refresh began this flow anew" in said
    assert sent.stored() == ['{"id":2,"amount":500}']

    # The remedy that the message names: without the new folder, the flow goes on where it was.
    shutil.rmtree(max(pipeline.checkpoints.iterdir(), key=lambda folder: int(folder.name)))
    source.put(order(3, 101))
    pipeline.run_well()
    assert sent.stored() == ['{"id":2,"amount":500}', '{"id":3,"amount":101}']
