"""Reads, writes and micro-batches through this connector and broker, beside Spark's own Kafka connector and Kafka.

    python benchmarks/kafka_peer.py --kafka local [--runs 5] [--scale 1] [--json FILE]
    python benchmarks/kafka_peer.py --kafka HOST:PORT

Without ``--kafka`` there is nothing to compare with, and nothing is measured. ``local`` starts Kafka (KRaft, one node)
on this machine, from jars of Maven Central; another one must make topics when they are first used, with two partitions,
and keeps them. Spark's connector comes from Maven Central, too, at the newest version that was there when this was
written, not always this Spark's; ``--connector GROUP:NAME:VERSION`` says another.

Both have the same messages in two partitions; they are measured alternately in one session, on the same cores. Reads
are of all columns, to ``noop``; both check every message's or record batch's checksum. Kafka's clients are as Spark
configures them, with ``acks=all`` for writes and no compression. Micro-batches go from topic to topic, 1,000 rows each;
the figure is the median of ``triggerExecution`` in Spark's progress. The first hundred batches of a session take up to
twice as long, whatever the source, until the JVM has compiled Spark's code. So each side runs ``WARM_QUERY_BATCHES``
batches that do not count, and then they alternate. The phases of both are printed after the figures.

Durability differs, so there are two figures for writes. Kafka acknowledges when a batch is in the page cache of its
(here: only) replica and leaves the disk to the operating system; its peer is our broker in threshold mode, which
acknowledges after the write, too. Our broker in group-commit mode acknowledges after fsync; its peer is a Kafka with
``log.flush.interval.messages=1``, which syncs each batch, and which only ``local`` has. CPU seconds (of the broker, the
JVM and the Python workers, for a GB of payload) are given with ``local`` only. All of it takes some five minutes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from figures import Figure, Report, arguments, seconds
from machine import cpu_s
from pyspark.sql import DataFrame, SparkSession
from spark_read import to_noop
from stage import PARTITIONS, Case, running_broker, spark

from peers.kafka import FLUSH_EACH, Artifact, NoJars, fetch, kafka_jars, local_kafka

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
BESIDE_CONNECTOR: Final = (
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
READS: Final = (Case(100, 2_000_000), Case(1000, 400_000))
"""So large because a batch read from Kafka takes about a second before its first row."""
WRITES: Final = (Case(100, 300_000), Case(1000, 50_000))
"""So small because a Kafka that syncs each batch is slow."""
BATCH_ROWS: Final = 1000
BATCHES: Final = 20
"""Micro-batches of a query that count."""
WARM_UP_BATCHES: Final = 6
"""Those at the start of each query that do not."""
WARM_QUERY_BATCHES: Final = 200
"""Micro-batches of the first query of each side, which do not count; multiplied by ``--scale``."""
PHASES: Final = ("triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
THRESHOLD: Final = 1_000_000_000
"""``unflushThreshold`` of the broker that acknowledges before fsync; it syncs at least every ten seconds."""
NOBODY: Final = "kafka_peer: nothing is measured without --kafka HOST:PORT or --kafka local"


@dataclass(frozen=True, eq=False)
class Queue:
    """One broker as Spark sees it: a format with the options for its address."""

    session: SparkSession
    name: str
    form: str
    where: dict[str, str]
    writing: dict[str, str]

    @classmethod
    def metaq(cls, session: SparkSession, address: str, name: str = "ours") -> Queue:
        return cls(session, name, "metaq", {"brokers": address}, {})

    @classmethod
    def kafka(cls, session: SparkSession, address: str, name: str = "Kafka") -> Queue:
        return cls(session, name, "kafka", {"kafka.bootstrap.servers": address}, {"kafka.acks": "all"})

    def write(self, rows: DataFrame, topic: str) -> None:
        rows.write.format(self.form).mode("append").options(**self.where, **self.writing, topic=topic).save()

    def read(self, topic: str) -> DataFrame:
        return self.session.read.format(self.form).options(**self.where, subscribe=topic).load()

    def micro_batches(self, topic: str, target: str) -> list[dict[str, int]]:
        """Copy a topic in micro-batches; return the milliseconds of each one's phases, without the first ones."""
        source = self.session.readStream.format(self.form).options(**self.where, subscribe=topic)
        rows = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH_ROWS)).load().select("value")
        with tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder:
            sink = rows.writeStream.format(self.form).options(**self.where, **self.writing, topic=target)
            query = sink.option("checkpointLocation", folder).trigger(availableNow=True).start()
            query.awaitTermination()
            phases = [each.durationMs for each in query.recentProgress if each.numInputRows]
        return phases[WARM_UP_BATCHES:]


@dataclass(frozen=True)
class Stage:
    """This project's broker in both modes, and Kafka; if Kafka was started here, another one that syncs each batch."""

    session: SparkSession
    group_commit: Queue
    threshold: Queue
    kafka: Queue
    flushing: Queue | None

    @property
    def local(self) -> bool:
        """Whether all processes were started by this one."""
        return self.flushing is not None

    def write_pairs(self) -> list[tuple[str, Queue, Queue]]:
        """Return the meaning of an acknowledgement, and this broker and its peer with that meaning, if there is one."""
        after = "acknowledged after fsync" if self.flushing else "only ours acknowledged after fsync"
        return [
            ("acknowledged before fsync", self.threshold, self.kafka),
            (after, self.group_commit, self.flushing or self.kafka),
        ]


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float


def rows_of(session: SparkSession, case: Case, spread: bool = False) -> DataFrame:
    """Return the messages; with ``spread``, distributed evenly over the partitions."""
    value = f"cast(lpad(string(id), {case.payload_bytes}, '0123456789abcdef') as binary) value"
    place = [f"int(id % {PARTITIONS}) partition"] if spread else []
    return session.range(case.rows, numPartitions=PARTITIONS).selectExpr(value, *place)


def costs(actions: Sequence[Callable[[], object]], runs: int) -> list[Cost]:
    """Return each action's medians, alternating, after one unmeasured run of each. CPU is of all child processes."""

    def measured(action: Callable[[], object]) -> Cost:
        before = cpu_s()
        wall_s = seconds(action)
        return Cost(wall_s, cpu_s() - before)

    rounds = [[measured(action) for action in actions] for _ in range(runs + 1)][1:]
    return [
        Cost(statistics.median(each.wall_s for each in of_one), statistics.median(each.cpu_s for each in of_one))
        for of_one in zip(*rounds, strict=True)
    ]


@dataclass(frozen=True)
class Bench:
    report: Report
    stage: Stage
    runs: int

    def reads(self, case: Case) -> None:
        topic = f"metaq-bench-{os.getpid()}-read-{case.payload_bytes}"
        ours, kafka = self.stage.group_commit, self.stage.kafka
        for queue in (ours, kafka):
            queue.write(rows_of(self.stage.session, case, spread=True), topic)
        frames = [queue.read(topic) for queue in (ours, kafka)]
        assert [frame.count() for frame in frames] == [case.rows] * 2
        what = f"{case.payload_bytes} B, beside Spark's Kafka source"
        self._compare("read", what, case, [partial(to_noop, frame) for frame in frames], kafka.name)

    def writes(self, case: Case) -> None:
        topic, rows = f"metaq-bench-{os.getpid()}-write-{case.payload_bytes}", rows_of(self.stage.session, case)
        for says, ours, peer in self.stage.write_pairs():
            actions = [partial(queue.write, rows, topic) for queue in (ours, peer)]
            what = f"{case.payload_bytes} B, {says}, beside Spark's Kafka sink"
            self._compare("write", what, case, actions, peer.name)

    def micro_batches(self, scale: float) -> None:
        pairs = self.stage.write_pairs()
        queues = list(dict.fromkeys(queue for _, ours, peer in pairs for queue in (ours, peer)))
        topic = f"metaq-bench-{os.getpid()}-micro"
        for name, batches in (("warm", max(1, int(WARM_QUERY_BATCHES * scale))), ("counted", BATCHES)):
            case = Case(100, BATCH_ROWS * (batches + WARM_UP_BATCHES))
            for queue in queues:
                queue.write(rows_of(self.stage.session, case, spread=True), f"{topic}-{name}")
        for queue in queues:
            queue.micro_batches(f"{topic}-warm", f"{topic}-copy")
        found: dict[Queue, list[dict[str, int]]] = {queue: [] for queue in queues}
        for _ in range(self.runs):
            for queue in queues:
                found[queue] += queue.micro_batches(f"{topic}-counted", f"{topic}-copy")
        medians = {queue: median_phases(batches) for queue, batches in found.items()}
        for says, ours, peer in pairs:
            name = f"micro-batch, {BATCH_ROWS} rows, {says}, beside Spark's Kafka connector"
            whole, of_peer = medians[ours][PHASES[0]], medians[peer][PHASES[0]]
            self.report.add(Figure(name, "ms", whole, of_peer, peer.name, "less"))
        for queue, phases in medians.items():
            print(f"micro-batch, {queue.name}: {', '.join(f'{phase} {phases[phase]:g} ms' for phase in PHASES)}")

    def _compare(self, does: str, what: str, case: Case, actions: Sequence[Callable[[], object]], peer: str) -> None:
        """Add the figures of this broker beside the peer's, whose action is last."""
        ours, theirs = costs(actions, self.runs)
        name, megarows, gigabytes = f"{does}, {what}", case.rows / 1e6, case.rows * case.payload_bytes / 1e9
        self.report.add(Figure(name, "M rows/s", megarows / ours.wall_s, megarows / theirs.wall_s, peer))
        if self.stage.local:
            cpu, their_cpu = ours.cpu_s / gigabytes, theirs.cpu_s / gigabytes
            self.report.add(Figure(f"{name}, CPU", "CPU s/GB", cpu, their_cpu, peer, "less"))


def median_phases(batches: Sequence[dict[str, int]]) -> dict[str, float]:
    """Return phase -> the median of its milliseconds."""
    return {phase: statistics.median(each.get(phase, 0) for each in batches) for phase in PHASES}


@contextmanager
def staged(kafka: str, connector: str) -> Iterator[Stage]:
    """Start a session, this broker in both modes, and Kafka, in both modes if it is started here."""
    jars = fetch(map(Artifact.parse, (connector, *BESIDE_CONNECTOR)))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, jars))} pyspark-shell"
    local = kafka == "local"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-bench-")))
        group_commit = stack.enter_context(running_broker(folder / "group", PARTITIONS))
        threshold = stack.enter_context(running_broker(folder / "threshold", PARTITIONS, unflush_threshold=THRESHOLD))
        server = kafka_jars() if local else []
        plain = stack.enter_context(local_kafka(server, PARTITIONS)) if local else kafka
        flushing = stack.enter_context(local_kafka(server, PARTITIONS, FLUSH_EACH)) if local else None
        session = stack.enter_context(spark())
        session.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        metaq = partial(Queue.metaq, session)
        yield Stage(
            session,
            metaq(str(group_commit.address), "ours, flushing"),
            metaq(str(threshold.address), "ours"),
            Queue.kafka(session, plain),
            Queue.kafka(session, flushing, "Kafka, flushing") if flushing else None,
        )


def measure(bench: Bench, scale: float) -> None:
    for case in READS:
        bench.reads(scaled(case, scale))
    for case in WRITES:
        bench.writes(scaled(case, scale))
    bench.micro_batches(scale)


def scaled(case: Case, scale: float) -> Case:
    """The same messages, more or fewer of them."""
    return Case(case.payload_bytes, max(1000, int(case.rows * scale)))


def options(given: Sequence[str] | None = None) -> Any:
    parser = arguments(__doc__)
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka broker, or 'local' to start one")
    parser.add_argument("--connector", default=CONNECTOR, metavar="GROUP:NAME:VERSION", help=f"default: {CONNECTOR}")
    return parser.parse_args(given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    given = options(arguments)
    if not given.kafka:
        print(NOBODY)
        return 0
    try:
        with staged(given.kafka, given.connector) as stage, Report("Beside Kafka", given.json) as report:
            measure(Bench(report, stage, given.runs), given.scale)
    except NoJars as reason:
        print(f"kafka_peer: Maven Central did not give {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
