"""Records ``tests/golden/checkpoints``: what a real Spark writes about queries whose sources have names, and others.

Run it with the Python of an environment that has the Spark to record, and Java::

    scripts/with-java .venv ENVIRONMENT/bin/python tests/support/record_checkpoints.py

A folder for each version of Spark, and in it one for each query. Kafka is fetched from Maven Central.

============== =====================================================================================================
by-order       form 1: topic ``orders`` of MetaQ, and files
numbered       form 2 without names: the same
named          form 2 with names. Batch 0: ``orders``, ``files``; 1: ``bills`` added; 2: ``orders`` removed; 3:
               ``bills`` has the name ``invoices``; 4: the sources of batch 1 again
mixed          ``orders`` of MetaQ, ``returns`` of RocketMQ, ``clicks`` of Kafka, and ``files``
planned        ``orders`` and ``files``; batch 1 failed, with ``bills`` added for the first time
sinks          the sink has the name ``first`` in batch 0, ``second`` in batch 1: form 3 of commits
state          an aggregation with form 2 of its state: form 2 of commits. The state itself is left out
============== =====================================================================================================
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from peers.kafka import Artifact, fetch, kafka_jars, local_kafka  # noqa: E402 - a program, not a module of the tests

GOLDEN: Final = ROOT / "tests" / "golden" / "checkpoints"
EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
TRIES: Final = 20


@dataclass(frozen=True)
class Servers:
    """Addresses of the brokers of three systems."""

    metaq: str
    rocketmq: str
    kafka: str


@contextmanager
def dev_broker() -> Iterator[tuple[str, str]]:
    """The bundled broker on free ports: its addresses for MetaQ and for RocketMQ."""
    command = [sys.executable, "-m", "metaq_broker.cli", "dev", "--port", "0", "--rocketmq-port", "0"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([*command, folder], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            metaq = process.stdout.readline().split(" ready on ")[1].split(",")[0]
            yield metaq, process.stdout.readline().split()[2]
        finally:
            process.terminate()
            process.wait()


def spark_session(jars: list[Path]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )


class Recorder:
    """Runs the queries of one Spark, and keeps their checkpoints below ``folder``."""

    def __init__(self, spark: SparkSession, servers: Servers, folder: Path) -> None:
        self.spark, self.servers, self.folder = spark, servers, folder
        self.files = Path(tempfile.mkdtemp())
        (self.files / "a.txt").write_text("a line\n")

    def write(self, format_name: str, topic: str, *values: str) -> None:
        where = {"metaq": ("brokers", self.servers.metaq), "rocketmq": ("nameServers", self.servers.rocketmq)}
        option, address = where.get(format_name, ("kafka.bootstrap.servers", self.servers.kafka))
        rows = self.spark.createDataFrame([(value,) for value in values], "value string").coalesce(1)
        rows.write.format(format_name).mode("append").option(option, address).option("topic", topic).save()

    def topic(self, topic: str, name: str | None = None, format_name: str = "metaq") -> DataFrame:
        where = {"metaq": ("brokers", self.servers.metaq), "rocketmq": ("nameServers", self.servers.rocketmq)}
        option, address = where.get(format_name, ("kafka.bootstrap.servers", self.servers.kafka))
        reader = self.spark.readStream.format(format_name).option(option, address)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        return named(reader, name).load().selectExpr("cast(value as string) value")

    def text(self, name: str | None = None) -> DataFrame:
        return named(self.spark.readStream.format("text").schema("value string"), name).load(str(self.files))

    def run(self, query: str, *sources: DataFrame, sink: str | None = None, fail: bool = False, **how: Any) -> None:
        """Run to the end of what is there. On a slow machine Spark may not reach its Python worker: then once more."""
        for attempt in range(TRIES):
            error = self._run(query, sources, sink, fail, **how)
            if (error is None) != fail and "connect back" not in error_text(error):
                print(f"{query}: {'failed, as it should' if fail else 'done'}", flush=True)
                return
            print(f"{query}, try {attempt}: {error_text(error)[:300]}", flush=True)
        raise SystemExit(f"{query} cannot be recorded")

    def _run(
        self,
        query: str,
        sources: tuple[DataFrame, ...],
        sink: str | None,
        fail: bool,
        grow: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        mode: str = "append",
    ) -> Exception | None:
        rows = sources[0]
        for other in sources[1:]:
            rows = rows.union(other)

        def take(batch: DataFrame, number: int) -> None:
            batch.count()
            if fail:
                raise RuntimeError(f"batch {number} fails as it should")

        writer = grow(rows).writeStream.outputMode(mode).foreachBatch(take)
        if sink is not None:
            writer._jwrite.name(sink)  # Spark's own method is not open to Python yet
        try:
            started = writer.option("checkpointLocation", str(self.folder / query)).trigger(availableNow=True).start()
            started.awaitTermination()
        except Exception as error:
            return error
        return None

    @contextmanager
    def set(self, name: str, value: str) -> Iterator[None]:
        self.spark.conf.set(name, value)
        try:
            yield
        finally:
            self.spark.conf.unset(name)


def named(reader: DataStreamReader, name: str | None) -> DataStreamReader:
    return reader if name is None else reader.name(name)


def error_text(error: Exception | None) -> str:
    return "" if error is None else str(error)


def record(recorder: Recorder) -> None:
    """Every query, in turn."""
    recorder.write("metaq", "orders", "o1", "o2")
    recorder.write("metaq", "bills", "b1")
    recorder.write("rocketmq", "returns", "r1")
    recorder.write("kafka", "clicks", "c1")
    recorder.run("by-order", recorder.topic("orders"), recorder.text())
    with recorder.set("spark.sql.streaming.offsetLog.formatVersion", "2"):
        recorder.run("numbered", recorder.topic("orders"), recorder.text())
        with recorder.set(EVOLUTION, "true"):  # Spark 4.2 does not choose the form by itself
            record_named(recorder)
    with recorder.set("spark.sql.streaming.queryEvolution.enableSinkEvolution", "true"):
        recorder.run("sinks", recorder.topic("orders"), sink="first")
        recorder.write("metaq", "orders", "o5")
        recorder.run("sinks", recorder.topic("orders"), sink="second")
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with (
        recorder.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2"),
        recorder.set("spark.sql.streaming.stateStore.providerClass", provider),
    ):
        recorder.run("state", recorder.topic("orders"), grow=lambda rows: rows.groupBy("value").count(), mode="update")


def record_named(recorder: Recorder) -> None:
    orders, files = recorder.topic("orders", "orders"), recorder.text("files")
    bills, invoices = recorder.topic("bills", "bills"), recorder.topic("bills", "invoices")
    returns = recorder.topic("returns", "returns", "rocketmq")
    clicks = recorder.topic("clicks", "clicks", "kafka")
    recorder.run("mixed", orders, returns, clicks, files)
    recorder.run("planned", orders, files)
    recorder.run("named", orders, files)
    recorder.write("metaq", "orders", "o3")
    recorder.run("planned", bills, orders, files, fail=True)
    recorder.run("named", files, bills, orders)
    recorder.write("metaq", "orders", "o4")
    recorder.write("metaq", "bills", "b2")
    recorder.run("named", files, bills)
    recorder.run("named", files, invoices)
    recorder.run("named", files, bills, orders)


def clean(folder: Path) -> None:
    """Leave out what Spark keeps beside the batches, except that there is state."""
    for query in folder.iterdir():
        if (query / "state").exists():
            shutil.rmtree(query / "state")
            (query / "state" / "0").mkdir(parents=True)
            (query / "state" / "0" / "README").write_text("The state was left out.\n")
        shutil.rmtree(query / "sources", ignore_errors=True)


def main() -> None:
    version = pyspark.__version__
    folder = GOLDEN / f"spark-{'.'.join(version.split('.')[:2])}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    connector = Artifact.parse("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", whole=True)
    jars = [jar for jar in fetch([connector]) if not jar.name.startswith(("spark-sql_", "spark-core_", "spark-cata"))]
    with dev_broker() as (metaq, rocketmq), local_kafka(kafka_jars(), 1) as kafka:
        recorder = Recorder(spark_session(jars), Servers(metaq, rocketmq, kafka), folder)
        record(recorder)
        recorder.spark.stop()
    clean(folder)


if __name__ == "__main__":
    main()
