"""The RocketMQ source and sink beside RocketMQ's Java client, Spark's Kafka source, and this project's MetaQ source.

    python benchmarks/rocketmq_peer.py --rocketmq 4.9.7 [--kafka local] [--runs 3] [--scale 1] [--json FILE]

Without ``--rocketmq`` there is nothing to compare with, and nothing is measured. It starts a name server and a broker
of that release, fetched with Maven (docs/testing.md, "RocketMQ"), with a Java of 1 GiB; the broker gives 32 messages a
pull, as it does unless it is configured otherwise. Messages have a tag and a key.

* **one queue**: a batch read of all columns to ``noop``, beside a Java pull consumer that asks for the next 32 messages
  when it has the last ones, and drops them. Same broker, same messages; the second pass of the Java program counts.
* **Kafka** (with ``--kafka local``): the same messages in two queues and in two partitions, read on the same cores,
  with the columns that Kafka's source has and with all 15. CPU is of the broker, the JVM and the Python workers.
* **sink**: a batch write to two queues, beside a Java producer that sends batches of 1,000 messages and waits for each.
  Upper limits on these cores: four threads of the Java producer, and the same rows as prepared batches that are sent
  without Spark (``send_s``). A write of two rows is the overhead of a Spark job, which is part of the other writes.
* **micro-batch**: 1,000 rows each to ``noop``, beside the same query on the MetaQ source and this project's broker; the
  median of ``triggerExecution`` in Spark's progress.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from figures import Figure, Report, alternating, arguments, seconds
from kafka_peer import BESIDE_CONNECTOR, CONNECTOR, Queue, costs, scaled
from pyspark.sql import DataFrame, SparkSession
from spark_read import to_noop
from stage import PARTITIONS, Case, broker, spark

from metaq.backends.rocketmq.batch_writer import BatchWriter
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.model import Partition
from metaq_spark.columns.blocks import EncodedBlock, OpenBlock
from metaq_spark.columns.rocketmq.encode import ElementEncoder, RowColumns
from metaq_spark.columns.rocketmq.unique_keys import key_prefix
from peers.jvm import FAST
from peers.kafka import Artifact, NoJars, fetch, kafka_jars, local_kafka
from peers.rocketmq.jars import MODULES, Unavailable, release
from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

BATCH_BYTES: Final = 1 << 20
BATCHES_UNDER_WAY: Final = 4
READS: Final = (Case(100, 1_000_000), Case(1000, 200_000))
WRITES: Final = (Case(100, 1_000_000), Case(1000, 200_000))
FILL_BATCH: Final = 500
JAVA_BATCH: Final = 1000
JAVA_THREADS: Final = 4
BATCH_ROWS: Final = 1000
BATCHES: Final = 20
WARM_UP_BATCHES: Final = 6
RUNS: Final = 3
PULLS: Final = "Java pull consumer"
SENDS: Final = "Java producer, waiting"
THREADS: Final = f"Java producer, {JAVA_THREADS} threads"
CEILING: Final = "batches made before, sent without Spark"
KAFKA_COLUMNS: Final = "keys,value,topic,queue_id,queue_offset,store_timestamp"
"""The columns of Spark's Kafka source; all columns are 15."""
NOBODY: Final = "rocketmq_peer: nothing is measured without --rocketmq VERSION"


@dataclass(frozen=True)
class Stage:
    """The environment: a session, RocketMQ with its Java programs, this broker, and Kafka on request."""

    session: SparkSession
    cluster: Cluster
    programs: Programs
    metaq: str
    kafka: Queue | None

    def read(self, topic: str, **more: str) -> DataFrame:
        options = {"nameServers": self.cluster.name_servers, "subscribe": topic, **more}
        return self.session.read.format("rocketmq").options(**options).load()

    def write(self, rows: DataFrame, topic: str) -> None:
        options = {"nameServers": self.cluster.name_servers, "topic": topic}
        rows.write.format("rocketmq").mode("append").options(**options).save()

    def filled(self, topic: str, queues: int, case: Case) -> str:
        """Create a topic with the messages, a tag and a key in each; return its name."""
        self.cluster.create_topic(topic, queues)
        self.programs.write(topic, case.rows, size=case.payload_bytes, batch=FILL_BATCH, tags=8, keys=1)
        return topic


@dataclass(frozen=True)
class Bench:
    report: Report
    stage: Stage
    runs: int

    def one_queue(self, case: Case) -> None:
        """Compare this source with a Java consumer, both on one queue."""
        topic = self.stage.filled(f"one-{case.payload_bytes}", 1, case)
        rows = self.stage.read(topic)
        assert rows.count() == case.rows

        def java() -> float:
            rate = self.stage.programs.pull_rates(topic, runs=2)[-1]
            assert rate.messages == case.rows
            return rate.seconds

        ours_s, java_s = alternating([partial(seconds, partial(to_noop, rows)), java], self.runs)
        self._rate(f"read, one queue, {case.payload_bytes} B", case, ours_s, java_s, PULLS, 1.0)

    def beside_kafka(self, case: Case) -> None:
        """Compare this source with Spark's Kafka source on the same messages."""
        kafka = self.stage.kafka
        if kafka is None:
            return
        topic = self.stage.filled(f"two-{case.payload_bytes}", PARTITIONS, case)
        rows = self.stage.read(topic)
        kafka.write(rows.select("value", rows.queue_id.alias("partition")), topic)
        others = kafka.read(topic)
        assert [rows.count(), others.count()] == [case.rows] * 2
        same = self.stage.read(topic, columns=KAFKA_COLUMNS)
        *both, theirs = costs([partial(to_noop, frame) for frame in (same, rows, others)], self.runs)
        gigabytes = case.rows * case.payload_bytes / 1e9
        for columns, ours, aim in zip(("the columns of Kafka's source", "all columns"), both, (1.0, None), strict=True):
            name = f"read, {columns}, {PARTITIONS} queues, {case.payload_bytes} B, beside Spark's Kafka source"
            self._rate(name, case, ours.wall_s, theirs.wall_s, kafka.name, aim)
            cpu, their_cpu = ours.cpu_s / gigabytes, theirs.cpu_s / gigabytes
            self.report.add(Figure(f"rocketmq, {name}, CPU", "CPU s/GB", cpu, their_cpu, kafka.name, "less", aim))

    def sink(self, case: Case) -> None:
        """Compare this sink with a Java producer that waits for each batch."""
        topic = f"sink-{case.payload_bytes}"
        self.stage.cluster.create_topic(topic, PARTITIONS)
        rows = self._rows(case)
        made = batches(rows.toArrow(), PARTITIONS)
        sides: list[Callable[[], float]] = [
            partial(seconds, partial(self.stage.write, rows, topic)),
            partial(self._java_s, case, topic, 1),
            partial(self._java_s, case, topic, JAVA_THREADS),
            partial(send_s, self.stage.cluster.name_servers, topic, made),
        ]
        ours_s, java_s, threads_s, ceiling_s = alternating(sides, self.runs)
        name = f"write, {case.payload_bytes} B"
        self._rate(name, case, ours_s, java_s, SENDS, 2.0)
        self._rate(f"{name}, beside more threads", case, ours_s, threads_s, THREADS)
        self._rate(f"{name}, beside batches made before", case, ours_s, ceiling_s, CEILING)
        self._rate(f"{name}, batches made before", case, ceiling_s, java_s, SENDS)

    def small_write(self) -> None:
        """Measure the overhead of a Spark job with a write of two rows."""
        topic, case = "sink-small", Case(100, 2)
        self.stage.cluster.create_topic(topic, PARTITIONS)
        [taken_s] = alternating([partial(seconds, partial(self.stage.write, self._rows(case), topic))], self.runs)
        self.report.add(Figure("rocketmq, write of two rows", "ms", taken_s * 1e3))

    def _rows(self, case: Case) -> DataFrame:
        """Return rows to write, with a tag and a key each."""
        digits = 10  # lpad() to the whole length takes a tenth of the write in Spark
        rest = ("0123456789abcdef" * case.payload_bytes)[: case.payload_bytes - digits]
        value = f"cast(concat(lpad(string(id), {digits}, '0'), '{rest}') as binary) value"
        columns = [value, "concat('tag', id % 8) tags", "concat('key', id) keys"]
        return self.stage.session.range(case.rows, numPartitions=PARTITIONS).selectExpr(*columns)

    def _java_s(self, case: Case, topic: str, threads: int) -> float:
        """Return the seconds of a Java producer for the messages in its second pass."""
        more = {"size": case.payload_bytes, "batch": JAVA_BATCH, "threads": threads, "tags": 8, "keys": 1}
        return self.stage.programs.send_rates(topic, case.rows, runs=2, **more)[-1].seconds

    def micro_batches(self, rows_max: int) -> None:
        """Compare small micro-batches with the MetaQ source."""
        batches = BATCHES + WARM_UP_BATCHES
        case = Case(100, rows_max * batches)
        topic = self.stage.filled("micro", 1, case)
        values = self.stage.session.range(case.rows, numPartitions=1)
        values = values.selectExpr("cast(lpad(string(id), 100, '0') as binary) value", "0 partition")
        Queue.metaq(self.stage.session, self.stage.metaq).write(values, topic)
        options = {
            "rocketmq": {"nameServers": self.stage.cluster.name_servers},
            "metaq": {"brokers": self.stage.metaq},
        }
        ours, metaq = alternating(
            [partial(self._block, form, where, topic, rows_max) for form, where in options.items()], self.runs
        )
        name = f"rocketmq, micro-batch, {rows_max} rows, beside the MetaQ source"
        self.report.add(Figure(name, "ms", ours, metaq, "MetaQ source", "less", 1.2))

    def _block(self, form: str, where: dict[str, str], topic: str, rows_max: int) -> float:
        """Read the topic in micro-batches; return the median of their milliseconds without the first ones."""
        source = self.stage.session.readStream.format(form).options(**where, subscribe=topic, columns="value")
        rows = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(rows_max)).load()
        with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
            writer = rows.writeStream.format("noop").option("checkpointLocation", folder)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            times = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows]
        return statistics.median(times[WARM_UP_BATCHES:])

    def _rate(self, name: str, case: Case, ours_s: float, theirs_s: float, peer: str, aim: float | None = None) -> None:
        megarows = case.rows / 1e6
        self.report.add(Figure(f"rocketmq, {name}", "M rows/s", megarows / ours_s, megarows / theirs_s, peer, aim=aim))


@contextmanager
def staged(version: str, kafka: str | None) -> Iterator[Stage]:
    """Start all servers."""
    if kafka:
        jars = fetch(map(Artifact.parse, (CONNECTOR, *BESIDE_CONNECTOR)))
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, jars))} pyspark-shell"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-bench-")))
        cluster = stack.enter_context(Cluster(release(version), folder))
        cluster.start_name_server()
        cluster.start_broker(jvm=FAST, mappedFileSizeCommitLog=1 << 28, mappedFileSizeConsumeQueue=6_000_000)
        metaq = stack.enter_context(broker(1))
        if kafka == "local":
            kafka = stack.enter_context(local_kafka(kafka_jars(), PARTITIONS))
        session = stack.enter_context(spark())
        session.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        programs = Programs(cluster.release, cluster.name_servers, deadline_s=600)
        yield Stage(session, cluster, programs, metaq, Queue.kafka(session, kafka) if kafka else None)


def measure(bench: Bench, scale: float, only: str | None) -> None:
    kinds: dict[str, list[Callable[[], None]]] = {
        "one-queue": [partial(bench.one_queue, scaled(case, scale)) for case in READS],
        "sink": [*(partial(bench.sink, scaled(case, scale)) for case in WRITES), bench.small_write],
        "micro-batch": [partial(bench.micro_batches, max(20, int(BATCH_ROWS * min(1.0, scale * 5))))],
        "kafka": [partial(bench.beside_kafka, scaled(case, scale)) for case in READS],
    }
    for kind, figures in kinds.items():
        if only in (None, kind):
            for figure in figures:
                figure()


def options(given: Sequence[str] | None = None) -> Any:
    parser = arguments(__doc__, RUNS)
    parser.add_argument("--rocketmq", choices=MODULES, help="the release to start")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka broker, too, or 'local' to start one")
    parser.add_argument("--only", choices=["one-queue", "sink", "micro-batch", "kafka"], help="figures of one kind")
    return parser.parse_args(given)


# ---- the ceiling of a write: batches that are prepared before the clock starts


def batches(rows: pa.Table, queues: int) -> list[list[EncodedBlock]]:
    """Return rows with columns ``value``, ``tags`` and ``keys`` as batches: an equal part for each of the queues."""
    share = -(-len(rows) // queues)
    return [_made(rows.slice(first, share).combine_chunks()) for first in range(0, len(rows), share)]


def send_s(name_servers: str, topic: str, made: Sequence[Sequence[EncodedBlock]]) -> float:
    """Return the seconds until the broker has stored all batches; each queue has one connection."""
    with closing(SessionPool()) as pool:
        directory = NameServerDirectory(parse_name_servers(name_servers), pool)
        partitions = directory.writable(topic)
        failed: list[BaseException] = []

        def send(partition: Partition, blocks: Sequence[EncodedBlock]) -> None:
            writer = BatchWriter(
                pool, directory, partition.broker_name, batches_max=BATCHES_UNDER_WAY, in_order=False, receipts=False
            )
            try:
                with closing(writer):
                    for block in blocks:
                        writer.write(topic, partition.index, block.data, block.count)
                    writer.flush()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=send, args=pair) for pair in zip(partitions, made, strict=True)]

        def run() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        taken = seconds(run)
        if failed:
            raise failed[0]
        return taken


def _made(rows: pa.Table) -> list[EncodedBlock]:
    [batch] = rows.to_batches()
    columns = RowColumns(*(batch.column(name) for name in ("value", "tags", "keys")))
    encoder = ElementEncoder(columns, key_prefix(uuid.uuid4().hex, 0, 0), 0, "a benchmark")
    block = OpenBlock(BATCH_BYTES, len(batch))
    made = list(encoder.append(np.arange(len(batch)), block))
    return [*made, block.take()] if block.count else made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    given = options(arguments)
    if not given.rocketmq:
        print(NOBODY)
        return 0
    try:
        with staged(given.rocketmq, given.kafka) as stage, Report("Beside RocketMQ", given.json) as report:
            measure(Bench(report, stage, given.runs), given.scale, given.only)
    except (NoJars, Unavailable) as reason:
        print(f"rocketmq_peer: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
